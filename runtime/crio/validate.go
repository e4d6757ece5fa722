// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// validate has CRI-O itself validate its files with the edited one among them: `crio config` reads
// them, validates them, and prints the result. It runs nothing. Sources: internal/criocli/config.go
// of https://github.com/cri-o/cri-o at v1.23.0 and v1.36.3; docs/crio.8.md there, "config".
func validate(
	ctx context.Context, v host.View, e facts.Engine, h engine.Handler,
	target string, before, after []byte,
) error {
	if e.Binary == "" {
		return nil // not installed yet; the image's package brings it
	}

	judge := engine.Judge[[]byte]{
		Own: func() error { return askOwn(ctx, v, e) },
		Ask: func(data []byte) ([]byte, error) {
			return dump(ctx, v, e, withFile(e.Files, target, data))
		},
		Compare: func(was, is []byte) error { return compareDumps(was, is, h) },
	}
	return judge.Edit(e, target, before, after)
}

// Loads has CRI-O validate its present files as its next start would read them.
func Loads(e facts.Engine) things.PrecheckFunc {
	return engine.Loads(e, Configured, func(ctx context.Context, v host.View) error {
		return askOwn(ctx, v, e)
	})
}

// Verdict says why CRI-O would not start with the machine's own files. gpuadm asks before each
// restart.
func Verdict(ctx context.Context, v host.View, e facts.Engine) error {
	if e.Binary == "" {
		return nil
	}
	return engine.Rejected(e, askOwn(ctx, v, e))
}

// askOwn has CRI-O validate the machine's own files, with the options and variables of its unit:
// CRI-O reads each of its options from a variable, too (CONTAINER_CONFIG_DIR, …). A missing file
// that an option does not name is none. Source: internal/criocli/criocli.go of
// https://github.com/cri-o/cri-o at v1.23.0 and v1.36.3.
func askOwn(ctx context.Context, v host.View, e facts.Engine) error {
	options := e.Args[min(1, len(e.Args)):]
	if len(facts.Options(e.Args, "config", "c", "config-dir", "d")) == 0 && !usualFiles(e) {
		options = []string{"--config", e.Config, "--config-dir", e.Folder}
	}
	if err := checkStart(v, e); err != nil {
		return err
	}
	_, err := engine.AskOwn(ctx, v, e, append(slices.Clone(options), "config")...)
	return words(err)
}

// usualFiles says whether CRI-O reads what it reads where its options name nothing.
func usualFiles(e facts.Engine) bool {
	return e.Config == "/etc/crio/crio.conf" && e.Folder == "/etc/crio/crio.conf.d"
}

// dump asks CRI-O for the configuration that it would have with these files.
func dump(ctx context.Context, v host.View, e facts.Engine, all []facts.File) ([]byte, error) {
	files := map[string][]byte{ // both must exist to be read
		e.Config: {},
		path.Join(e.Folder, "00-gpuadm-asks.conf"): {},
	}
	for _, f := range all {
		if f.Data != nil {
			files[f.Path] = f.Data
		}
	}

	out, err := v.AskAbout(ctx, files, e.Binary,
		"--config", host.Scratch+e.Config,
		"--config-dir", host.Scratch+e.Folder,
		"config")
	return out, words(err)
}

// compareDumps compares what `crio config` prints before and after the edit: the handler must be in
// it, and nothing else may differ.
func compareDumps(before, after []byte, h engine.Handler) error {
	was, err := toml.Values(before)
	if err != nil {
		return nil // its exit code says that the files are valid; its output is meant for people
	}
	is, err := toml.Values(after)
	if err != nil {
		return nil
	}

	for _, change := range toml.Diff(was, is, nil) {
		if !isIntended(change, was, h) {
			key := toml.ShowPath(change.Path)
			return fmt.Errorf("it would change %s from %s to %s", key, toml.Show(change.Old), toml.Show(change.New))
		}
	}

	entry := toml.Sub(is, "crio", "runtime", "runtimes", h.Name)
	if entry == nil {
		return fmt.Errorf("the handler %s would not be there", h.Name)
	}
	if toml.String(entry, "runtime_path") == "" || entry[inherits] == true {
		return fmt.Errorf("the handler %s would not run %s", h.Name, h.Binary)
	}
	return nil
}

// isIntended says whether the edit is to cause this difference between the dumps. `crio config`
// prints the table of runtimes only once a file has one, so runtimes that it did not print before
// may appear.
func isIntended(c toml.Change, was map[string]any, h engine.Handler) bool {
	runtimes := []string{"crio", "runtime", "runtimes"}
	if len(c.Path) > len(runtimes) && toml.HasPrefix(c.Path, runtimes) {
		name := c.Path[len(runtimes)]
		isNew := toml.Sub(toml.Sub(was, runtimes...), name) == nil
		return name == h.Name || isNew && c.Old == nil
	}

	byDefault := []string{"crio", "runtime", "default_runtime"}
	return h.Default && c.New == h.Name && slices.Equal(c.Path, byDefault)
}
