// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Validate asks the machine's own daemon for the configuration that it would have with the edited
// file, and judges the answer. Its exit code is not enough: `config dump` exits with 0 even if the
// default runtime is not configured, and then the CRI plugin does not load and the node is down.
func Validate(ctx context.Context, v host.View, binary string, t Tree, h engine.Handler, target string, before, after []byte) error {
	ask := func(data []byte) (map[string]any, error) {
		tree := t.with(target, data)
		if data != nil && tree.data(target) == nil {
			tree.Imports = append(slices.Clone(t.Imports), File{Path: target, Data: data})
		}
		return dump(ctx, v, binary, tree)
	}
	e := facts.Engine{Name: "containerd", Binary: binary, Config: t.Root.Path}
	return engine.JudgeEdit(e, target, before, after, ask, func(was, is map[string]any) error { return judge(was, is, h) })
}

// Loads judges the present files as the daemon's next start would read them: by gpuadm's reader,
// and then by the daemon's own program.
func Loads(e facts.Engine) things.PrecheckFunc {
	return engine.Loads(e, Configured, func(ctx context.Context, v host.View) error {
		c := Configured(e)
		is, err := dump(ctx, v, e.Binary, treeOf(e))
		_, cri := criOf(is)
		switch program := c.Programs[c.Default]; {
		case err != nil:
			return err
		case !serves(cri):
			return fmt.Errorf("its default runtime %q is not configured", toml.String(toml.Sub(cri, "containerd"), "default_runtime_name"))
		case path.IsAbs(program) && !facts.Runs(v, program):
			return &trouble.Error{
				What: fmt.Sprintf("cannot start containerd with its present files: its default runtime %s runs %s, which cannot be run", c.Default, program),
				Try:  []string{"install it: write [toolkit] into node.toml"}, Err: engine.NoProgram,
			}
		}
		return nil
	})
}

// dump asks the daemon for the configuration that it would have with the files of a tree: once for
// the same program and files.
func dump(ctx context.Context, v host.View, binary string, t Tree) (map[string]any, error) {
	files := map[string][]byte{}
	i, err := v.Stat(binary)
	question := fmt.Append(nil, binary, i.Size, i.Ctime.UTC(), err)
	for _, f := range append([]File{t.Root}, t.Imports...) {
		moved, err := relocate(f, t)
		if err != nil {
			return nil, err
		}
		files[f.Path] = moved
		question = fmt.Appendf(question, "%q%q", f.Path, moved)
	}
	return t.Texts.Once(question, func() (map[string]any, error) {
		out, err := v.AskAbout(ctx, files, binary, "--config", host.Scratch+t.Root.Path, "config", "dump")
		if err != nil {
			return nil, err
		}
		return toml.Values(out)
	})
}

// relocate makes a file's imports lead into the copy of the tree. The copy has an empty file for a
// missing root: with --config containerd 1.x needs a file, and reads an empty one like none.
func relocate(f File, t Tree) ([]byte, error) {
	if f.Data == nil {
		return []byte{}, nil
	}
	c, err := readFile(f, t)
	if err != nil {
		return nil, err
	}
	imports := c.imports()
	if len(imports) == 0 {
		return t.expand(f.Data), nil
	}
	moved := make([]any, len(imports))
	for i, name := range imports {
		moved[i] = host.Scratch + name
	}
	key, _ := toml.Field(c.tree, "imports")
	return t.Texts.Edit(f.Data, []toml.Op{toml.Set([]string{key}, moved)})
}

// judge compares two dumps: the handler must be right in the second, and nothing else may differ
// from the first.
func judge(was, is map[string]any, h engine.Handler) error {
	plugin, cri := criOf(is)
	if cri == nil {
		return errors.New("the CRI plugin is gone")
	}
	_, criWas := criOf(was)
	for _, c := range toml.Diff(was, is, nil) {
		if !meant(c, plugin, h, serves(criWas)) {
			what := fmt.Sprintf("it would change %s = from %s to %s", toml.ShowPath(c.Path), toml.Show(c.Old), toml.Show(c.New))
			return errors.New(mask.Message(what))
		}
	}
	if !serves(cri) {
		return fmt.Errorf("the default runtime %q would not be configured", toml.String(toml.Sub(cri, "containerd"), "default_runtime_name"))
	}
	if h.Default && toml.String(toml.Sub(cri, "containerd"), "default_runtime_name") != h.Name {
		return fmt.Errorf("the default runtime would be %q", toml.String(toml.Sub(cri, "containerd"), "default_runtime_name"))
	}
	return judgeEntry(toml.Sub(criWas, "containerd"), toml.Sub(cri, "containerd"), h)
}

// judgeEntry verifies the handler's own table: it runs the program and, if it is new, has the
// options of the default runtime.
func judgeEntry(was, is map[string]any, h engine.Handler) error {
	entry := toml.Sub(is, "runtimes", h.Name)
	if entry == nil {
		return &trouble.Error{
			What: fmt.Sprintf("the handler %s would not be there: the daemon does not read its part of the file", h.Name),
			Try:  []string{"write the names of settings as containerd config default does: the daemon passes over those that it does not know"},
		}
	}
	options := toml.Sub(entry, "options")
	for key, value := range options {
		if program, _ := value.(string); strings.EqualFold(key, "BinaryName") && !h.Runs(program) {
			return fmt.Errorf("the handler %s would run %v", h.Name, value)
		}
	}
	if !h.Runs(toml.String(options, "BinaryName")) {
		return fmt.Errorf("the handler %s would not run %s", h.Name, h.Binary)
	}
	base := toml.Sub(was, "runtimes", toml.String(was, "default_runtime_name"))
	if toml.Sub(was, "runtimes", h.Name) != nil || toml.String(base, "runtime_type") != runcV2 {
		return nil
	}
	for key, value := range toml.Sub(base, "options") {
		if _, got := toml.Field(options, key); !strings.EqualFold(key, "BinaryName") && !toml.Equal(got, value) && !isZero(value) {
			return fmt.Errorf("the handler %s would lack %s = %s", h.Name, key, toml.Show(value))
		}
	}
	return nil
}

// criOf finds the table of the CRI plugin that has the runtimes, under whichever name the daemon
// prints.
func criOf(dump map[string]any) (string, map[string]any) {
	plugins, _ := dump["plugins"].(map[string]any)
	for _, name := range []string{criV3, criV2} {
		if cri, _ := plugins[name].(map[string]any); toml.Sub(cri, "containerd") != nil {
			return name, cri
		}
	}
	return "", nil
}

// serves says whether the CRI plugin would load: its default runtime is configured.
func serves(cri map[string]any) bool {
	containerd := toml.Sub(cri, "containerd")
	return toml.Sub(containerd, "runtimes", toml.String(containerd, "default_runtime_name")) != nil
}

// meant says whether the edit is meant to cause this difference between the dumps.
func meant(c toml.Change, plugin string, h engine.Handler, served bool) bool {
	if c.Path[0] == "imports" {
		return true // they name the copy's own files
	}
	if len(c.Path) < 3 || c.Path[1] != plugin {
		return false
	}
	in := strings.Join(c.Path[2:], "/")
	runtimes := "containerd/runtimes/"
	switch {
	case strings.HasPrefix(in, runtimes+h.Name+"/") || in == runtimes+h.Name:
		return true
	case strings.HasPrefix(in, runtimes) && (!served || nothing(c.Old) && nothing(c.New)):
		return true // config dump prints runc's zero values differently once a file has an entry for it; or the edit fixes a node that was down
	case in == "containerd/default_runtime_name":
		return h.Default && c.New == h.Name
	case in == "enable_cdi":
		return h.CDI && c.New == true
	}
	return false
}

// nothing says that a value means the same as none.
func nothing(v any) bool { return v == nil || isZero(v) || v == "podsandbox" }
