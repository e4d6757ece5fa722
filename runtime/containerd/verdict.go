// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

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
	return engine.Rejected(e, inOwnWords(e, err))
}

// inOwnWords is why the daemon's program rejects its files, in gpuadm's words and with their line,
// where gpuadm's reader refuses them, too.
func inOwnWords(e facts.Engine, rejected error) error {
	var command *host.CommandError
	if !errors.As(rejected, &command) || errors.As(rejected, new(engine.NotJudged)) {
		return rejected
	}
	_, err := readEngine(e)
	if err != nil {
		return err
	}
	return rejected
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
	_, err := v.Stat(e.Config)
	isThere := !host.NotExist(err)
	isNamed := len(facts.Options(e.Args, "config", "c")) > 0

	args := []string{"config", "dump"}
	switch {
	case isNamed && !isThere:
		return nil, missingRoot(e)
	case isNamed || e.Config != usualConfig:
		args = slices.Concat([]string{"--config", e.Config}, args)
	case !isThere:
		// The daemon starts without the file that no option names. "config dump" of 1.x does not.
		args = []string{"config", "default"}
	}

	out, err := engine.AskOwn(ctx, v, e, args...)
	if err != nil {
		return nil, err
	}
	return toml.Values(out)
}

// missingRoot says that the file is not there which an option of the daemon names: then no
// containerd starts. From 2.0 on "config dump" prints all the same, and exits with 0. Measured by
// starting 1.7.24 and 2.4.2. Source: the action of App in cmd/containerd/command/main.go of
// https://github.com/containerd/containerd, which passes over a missing file where no
// option names it.
func missingRoot(e facts.Engine) error {
	what := fmt.Sprintf("%s starts it with --config, %s does not start without the file, and it is not there",
		engine.UnitOf(e), strings.TrimSpace("containerd "+e.Version))
	try := fmt.Sprintf("write it: sudo sh -c 'mkdir -p %s && %s config default >%s'",
		path.Dir(e.Config), cmp.Or(e.Binary, "containerd"), e.Config)
	return refuse(RefusedStart, e.Config, 0, what, try)
}

// usualConfig is what the daemon reads where its options name no file.
const usualConfig = "/etc/containerd/config.toml"
