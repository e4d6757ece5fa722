// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// K0sFile is gpuadm's file on k0s.
const K0sFile = "/etc/k0s/containerd.d/" + dropIn

// wantsK0s wants the handler in a file of the folder whose files k0s merges into the configuration
// that it makes. k0s watches the folder, and starts containerd again when a file in it changes.
// gpuadm's file names the CRI plugin as the daemon does, since k0s refuses the older name with
// containerd 2. It has no version: then k0s assumes the daemon's. Sources: configurer.go and
// component.go in pkg/component/worker/containerd of https://github.com/k0sproject/k0s;
// https://docs.k0sproject.io/stable/runtime.
func wantsK0s(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	c, err := readEngine(e)
	if err != nil {
		return nil, err
	}
	if f.Files[K0sFile] == nil && c.missing(h) == "" {
		want := engine.Verify(e, h, "")
		want.Why = "another file in " + e.Folder + " has the handler"
		return []converge.Want{want}, nil
	}

	major, _, known := engine.ParseVersion(e.Version)
	if !known {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot add the handler %s: gpuadm does not know the version of k0s's containerd, which k0s unpacks at its first start", h.Name),
			Try:  []string{"systemctl start " + e.Unit, "then run the same command again"},
		}
	}

	plugin := criV2
	if major >= 2 {
		plugin = criV3
	}

	h, wants := asDefault(s, f, c, h)
	edit := func([]byte) ([]byte, error) { return k0sText(h, plugin, c.inherit(h, plugin)) }
	validate := func(ctx context.Context, v host.View, _, after []byte) error {
		if after == nil {
			return nil
		}
		return validateMerged(ctx, v, e, h)
	}

	target := path.Join(e.Folder, dropIn)
	file := things.NewFile(target, nil).Validated(validate)
	wants = append(wants, things.Folders(e.Folder, "k0s adds the files in it to containerd's configuration")...)
	wants = append(wants, things.Edited(file, edit, h.Why()))

	daemon := NewSupervised(e.Socket, k0sReads(e), h.Name)
	return append(wants, converge.Want{
		Thing:  daemon,
		Why:    "k0s starts containerd again when a file in " + e.Folder + " changes",
		Breaks: []string{"restart-runtime"},
		To:     func(found converge.State) (converge.State, error) { return daemon.Current(found), nil },
	}), nil
}

// k0sReads are gpuadm's file and the folder in which k0s looks for it.
func k0sReads(e facts.Engine) []string {
	return []string{path.Join(e.Folder, dropIn), e.Folder}
}

// Reread wants containerd to have started after the last change of the files that stage runtime
// compares with it.
func Reread(f facts.Facts, e facts.Engine, ready things.ReadyFunc, why string) converge.Want {
	reads := Reads(e)
	if engine.HowOf(spec.Runtime{}, e) == platform.Folder {
		reads = k0sReads(e)
		ready = answersAt(e.Socket)
	}
	return engine.Restart(f, e, reads, ready, why)
}

// validateMerged has the daemon judge what k0s makes of an addition: k0s merges its tables into the
// CRI plugin's table of the file that it generates, which is what an edit of that file does.
func validateMerged(ctx context.Context, v host.View, e facts.Engine, h engine.Handler) error {
	t := treeOf(e)
	daemon := Daemon{Version: e.Version}
	target, err := Target(t, daemon, h)
	if err != nil {
		return err
	}

	found := t.data(target)
	merged, err := Edit(t, daemon, h, target, found)
	if err != nil {
		return err
	}
	return Validate(ctx, v, e, t, h, target, found, merged)
}

// k0sText is the text of gpuadm's file: the handler, and nothing else of the plugin.
func k0sText(h engine.Handler, plugin string, entry toml.Table) ([]byte, error) {
	containerd := []string{"plugins", plugin, "containerd"}
	var ops []toml.Op
	if h.Default {
		ops = append(ops, toml.Set(append(slices.Clone(containerd), "default_runtime_name"), h.Name))
	}
	ops = append(ops, toml.Set(append(containerd, "runtimes", h.Name), entry))
	return toml.Edit(nil, ops)
}

// NewChild is the restart of a containerd by the unit whose program starts it.
func NewChild(unit, socket string, files []string, verdict things.PrecheckFunc) converge.Follower {
	return things.NewChild(unit, socket, files, answersAt(socket), verdict)
}

// answersAt waits until a containerd answers at a socket.
func answersAt(socket string) things.ReadyFunc {
	return func(ctx context.Context, v host.View, _ string, _ []string) error {
		return Answers(ctx, v, facts.Engine{Socket: socket}, engine.Handler{})
	}
}

// NewSupervised is a containerd that its supervisor restarts when its files change. containerd
// creates its socket at each start, so the age of the socket is the daemon's: sys.GetLocalListener
// in pkg/sys/socket_unix.go of https://github.com/containerd/containerd.
//
// The daemon has to serve the handler as long as the first of the files exists.
func NewSupervised(socket string, files []string, handler string) converge.Follower {
	return things.NewSupervised(socket, files, serves(socket, files, handler))
}

// serves waits until a containerd answers at a socket, with the handler if the first file exists.
func serves(socket string, files []string, handler string) things.ReadyFunc {
	return func(ctx context.Context, v host.View, _ string, _ []string) error {
		h := engine.Handler{Name: handler}
		if len(files) > 0 {
			_, err := v.Stat(files[0])
			switch {
			case host.NotExist(err):
				h.Name = ""
			case err != nil:
				return err
			}
		}

		return Answers(ctx, v, facts.Engine{Socket: socket}, h)
	}
}
