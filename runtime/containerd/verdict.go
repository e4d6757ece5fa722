// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Verdict says why containerd would not serve pods after a start with the machine's own files. It
// asks the program that would start, and reads itself what the program does not tell: see
// checkImports and plugin.go. gpuadm asks before each restart.
func Verdict(ctx context.Context, v host.View, e facts.Engine) error {
	t := treeOf(e)
	if err := checkOpens(t); err != nil {
		return err
	}
	_, err := readEngine(e)
	if errors.Is(err, RefusedStart) || errors.Is(err, RefusedDisabled) {
		return err
	}
	if !readsOwn(e, t) {
		return nil
	}
	is, err := ownDump(ctx, v, e)
	if err == nil {
		err = checkPlugin(is, t)
	}
	return engine.Rejected(e, err)
}

// checkOpens refuses a tree with a file that cannot be opened, whatever else is wrong in it: see
// checkImports.
func checkOpens(t Tree) error {
	for _, f := range t.Imports {
		if f.Data == nil {
			what, try := unopened(f, "containerd")
			return refuse(RefusedStart, t.Root.Path, 0, what, try)
		}
	}
	return nil
}

// readsOwn says whether the daemon's next start reads the file that gpuadm knows as its
// configuration. MicroK8s makes the daemon's file of a template, and K3s and RKE2 generate it anew.
func readsOwn(e facts.Engine, t Tree) bool {
	generated := engine.HowOf(spec.Runtime{}, e) == platform.Render
	return e.Binary != "" && len(t.Expands) == 0 && !generated
}

// ownOf has the daemon read the machine's own files before an edit of them. A default runtime that
// is not configured is no reason against the edit, which may configure it.
func ownOf(ctx context.Context, v host.View, e facts.Engine, t Tree) func() error {
	if !readsOwn(e, t) {
		return nil
	}
	return func() error {
		is, err := ownDump(ctx, v, e)
		if err == nil {
			err = checkRules(is, t)
		}
		return err
	}
}

// ownDump has the daemon print the configuration of the machine's own files. Without --config it
// starts without a root file, too.
func ownDump(ctx context.Context, v host.View, e facts.Engine) (map[string]any, error) {
	args := []string{"config", "dump"}
	named := len(facts.Options(e.Args, "config", "c")) > 0
	if named || e.Config != usualConfig {
		args = slices.Concat([]string{"--config", e.Config}, args)
	} else if _, err := v.Stat(e.Config); host.NotExist(err) {
		// The daemon starts without the file that no option names. "config dump" of 1.x does not.
		args = []string{"config", "default"}
	}

	out, err := engine.AskOwn(ctx, v, e, args...)
	if err != nil {
		return nil, err
	}
	return toml.Values(out)
}

// usualConfig is what the daemon reads where its options name no file.
const usualConfig = "/etc/containerd/config.toml"
