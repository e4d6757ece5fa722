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
//
// The daemon first reads the machine's own files: the copy has what gpuadm was able to read alone.
func Validate(
	ctx context.Context, v host.View, e facts.Engine, t Tree, h engine.Handler,
	target string, before, after []byte,
) error {
	judge := engine.Judge[map[string]any]{
		Own: ownOf(ctx, v, e, t),
		Ask: func(data []byte) (map[string]any, error) {
			tree := t.with(target, data)
			if data != nil && tree.data(target) == nil {
				tree.Imports = append(slices.Clone(t.Imports), File{Path: target, Data: data})
			}
			return dump(ctx, v, e.Binary, tree)
		},
		Compare: func(was, is map[string]any) error { return compareDumps(was, is, h) },
	}
	return judge.Edit(e, target, before, after)
}

// Loads judges the present files as the daemon's next start would read them: by gpuadm's reader,
// and then by the daemon's own program.
func Loads(e facts.Engine) things.PrecheckFunc {
	return engine.Loads(e, Configured, func(ctx context.Context, v host.View) error {
		if err := Verdict(ctx, v, e); err != nil {
			return err
		}
		if err := copyLoads(ctx, v, e); err != nil {
			return err
		}

		configured := Configured(e)
		program := configured.Programs[configured.Default]
		if path.IsAbs(program) && !facts.Runs(v, program) {
			return &trouble.Error{
				What: fmt.Sprintf("cannot start containerd with its present files: its default runtime %s runs %s, which cannot be run", configured.Default, program),
				Try:  []string{"install it: write [toolkit] into node.toml"},
				Err:  engine.NoProgram,
			}
		}

		return nil
	})
}

// copyLoads has the daemon judge a copy of the files, where its next start reads none of them as it
// is.
func copyLoads(ctx context.Context, v host.View, e facts.Engine) error {
	t := treeOf(e)
	if readsOwn(e, t) {
		return nil
	}
	is, err := dump(ctx, v, e.Binary, t)
	if err != nil {
		return err
	}
	return checkPlugin(is, t)
}

// dump asks the daemon for the configuration that it would have with the files of a tree: once for
// the same program and files.
func dump(ctx context.Context, v host.View, binary string, t Tree) (map[string]any, error) {
	info, err := v.Stat(binary)
	question := fmt.Append(nil, binary, info.Size, info.Ctime.UTC(), err)
	files := map[string][]byte{}
	for _, f := range t.files() {
		relocated, err := relocate(f, t)
		if err != nil {
			return nil, err
		}
		files[f.Path] = relocated
		question = fmt.Appendf(question, "%q%q", f.Path, relocated)
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

	relocated := make([]any, len(imports))
	for i, name := range imports {
		relocated[i] = host.Scratch + name
	}
	return t.Texts.Edit(f.Data, []toml.Op{toml.Set([]string{c.key("imports")}, relocated)})
}

// compareDumps compares two dumps: the handler must be right in the second, and nothing else may
// differ from the first.
func compareDumps(was, is map[string]any, h engine.Handler) error {
	plugin, cri := criOf(is)
	if cri == nil {
		return errors.New("the CRI plugin is gone")
	}

	_, criWas := criOf(was)
	loaded := loadsCRI(criWas)
	for _, change := range toml.Diff(was, is, nil) {
		if isIntended(change, plugin, h, loaded) {
			continue
		}
		key := mask.Message(toml.ShowPath(change.Path))
		before := maskedValue(key, change.Old)
		after := maskedValue(key, change.New)
		return fmt.Errorf("it would change %s from %s to %s", key, before, after)
	}

	if !loadsCRI(cri) {
		return fmt.Errorf("the default runtime %q would not be configured", defaultOf(cri))
	}
	if err := checkRules(is, Tree{}); err != nil {
		return err
	}
	if h.Default && defaultOf(cri) != h.Name {
		return fmt.Errorf("the default runtime would be %q", defaultOf(cri))
	}
	return checkEntry(toml.Sub(criWas, "containerd"), toml.Sub(cri, "containerd"), h)
}

// maskedValue is a key's value in a message. The key's name says whether the value is a secret.
func maskedValue(key string, value any) string {
	assigned := key + " = "
	return strings.TrimPrefix(mask.Message(assigned+toml.Show(value)), assigned)
}

// checkEntry verifies the handler's own table: it runs the program and, if it is new, has the
// options of the default runtime.
func checkEntry(was, is map[string]any, h engine.Handler) error {
	entry := toml.Sub(is, "runtimes", h.Name)
	if entry == nil {
		return &trouble.Error{
			What: fmt.Sprintf("the handler %s would not be there: the daemon does not read its part of the file", h.Name),
			Try:  []string{"write the names of settings as containerd config default does: the daemon passes over those that it does not know"},
		}
	}

	options := toml.Sub(entry, "options")
	for key, value := range options {
		program, _ := value.(string)
		if strings.EqualFold(key, "BinaryName") && !h.Runs(program) {
			return fmt.Errorf("the handler %s would run %v", h.Name, value)
		}
	}

	if !h.Runs(toml.String(options, "BinaryName")) {
		return fmt.Errorf("the handler %s would not run %s", h.Name, h.Binary)
	}

	isNew := toml.Sub(was, "runtimes", h.Name) == nil
	base := toml.Sub(was, "runtimes", toml.String(was, "default_runtime_name"))
	if !isNew || toml.String(base, "runtime_type") != runcV2 {
		return nil
	}
	return checkInherited(options, toml.Sub(base, "options"), h)
}

// checkInherited verifies that a new handler has the options of the default runtime but for the
// program.
func checkInherited(options, base map[string]any, h engine.Handler) error {
	for key, value := range base {
		if strings.EqualFold(key, "BinaryName") || isZero(value) {
			continue
		}
		if _, got := toml.Field(options, key); !toml.Equal(got, value) {
			return fmt.Errorf("the handler %s would lack %s = %s", h.Name, key, toml.Show(value))
		}
	}
	return nil
}

// criOf finds the table of the CRI plugin that has the runtimes, under whichever name the daemon
// prints.
func criOf(dump map[string]any) (plugin string, cri map[string]any) {
	plugins, _ := dump["plugins"].(map[string]any)
	for _, name := range []string{criV3, criV2} {
		cri, _ := plugins[name].(map[string]any)
		if toml.Sub(cri, "containerd") != nil {
			return name, cri
		}
	}

	return "", nil
}

// defaultOf is the name of the default runtime, as the daemon prints it.
func defaultOf(cri map[string]any) string {
	return toml.String(toml.Sub(cri, "containerd"), "default_runtime_name")
}

// loadsCRI says whether the CRI plugin would load: its default runtime is configured.
func loadsCRI(cri map[string]any) bool {
	return toml.Sub(cri, "containerd", "runtimes", defaultOf(cri)) != nil
}

// isIntended says whether the edit is to cause this difference between the dumps. loaded says
// whether the CRI plugin loaded before the edit.
func isIntended(c toml.Change, plugin string, h engine.Handler, loaded bool) bool {
	if c.Path[0] == "imports" {
		return true // they name the copy's own files
	}
	if len(c.Path) < 3 || c.Path[1] != plugin {
		return false
	}

	const runtimes = "containerd/runtimes/"
	setting := strings.Join(c.Path[2:], "/")
	switch {
	case setting == runtimes+h.Name || strings.HasPrefix(setting, runtimes+h.Name+"/"):
		return true
	case strings.HasPrefix(setting, runtimes):
		// The edit may fix a node that was down; and config dump prints runc's zero values
		// differently once a file has an entry for it.
		return !loaded || isNone(c.Old) && isNone(c.New)
	case setting == "containerd/default_runtime_name":
		return h.Default && c.New == h.Name
	case setting == "enable_cdi":
		return h.CDI && c.New == true
	}

	return false
}
