// SPDX-FileCopyrightText: The gpuadm authors
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
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// addition wants the handler in a file of the folder whose content k0s merges into the configuration that it makes. k0s watches the
// folder, and starts containerd again when a file in it changes. The file names the CRI plugin as the daemon does, since k0s refuses the
// older name with containerd 2, and states no version, which k0s takes for the daemon's. Sources: configurer.go and component.go in
// pkg/component/worker/containerd of https://github.com/k0sproject/k0s; https://docs.k0sproject.io/stable/runtime.
func addition(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	c, err := asRead(e)
	if err != nil {
		return nil, err
	}
	own := path.Join(e.Folder, dropIn)
	there := slices.ContainsFunc(e.Templates, func(f facts.File) bool { return f.Path == own })
	major, _, known := engine.ParseVersion(e.Version)
	switch {
	case !there && c.lacks(h) == "":
		w := engine.Verify(e, h, "")
		w.Why = "another file in " + e.Folder + " has the handler"
		return []converge.Want{w}, nil
	case !known:
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot add the handler %s: gpuadm does not know the version of k0s's containerd, which k0s unpacks at its first start", h.Name),
			Try:  []string{"systemctl start " + e.Unit, "then run the same command again"},
		}
	}
	h, wants := asDefault(s, f, c, h)
	plugin := criV2
	if major >= 2 {
		plugin = criV3
	}
	edit := func([]byte) ([]byte, error) { return additionOf(h, plugin, c.inherit(h, plugin)) }
	wants = append(wants, things.Folders(e.Folder, "k0s adds the files in it to containerd's configuration")...)
	wants = append(wants, things.Edited(things.NewFile(own, nil), edit, h.Why()))
	return append(wants, converge.Want{
		Thing: NewSupervised(e.Socket, []string{own}), Why: "k0s starts containerd again when a file in " + e.Folder + " changes", Breaks: []string{"restart-runtime"},
		To: func(found converge.State) (converge.State, error) {
			return NewSupervised(e.Socket, nil).Current(found), nil
		},
	}), nil
}

// additionOf is the text of gpuadm's file: the handler, and nothing else of the plugin.
func additionOf(h engine.Handler, plugin string, entry toml.Table) ([]byte, error) {
	at := []string{"plugins", plugin, "containerd"}
	var ops []toml.Op
	if h.Default {
		ops = append(ops, toml.Set(append(slices.Clone(at), "default_runtime_name"), h.Name))
	}
	return toml.Edit(nil, append(ops, toml.Set(append(at, "runtimes", h.Name), entry)))
}

// NewSupervised is a containerd that its supervisor restarts when its files change. containerd creates its socket at each start,
// so the age of the socket is the daemon's: sys.GetLocalListener in pkg/sys/socket_unix.go of https://github.com/containerd/containerd.
func NewSupervised(socket string, files []string) converge.Follower {
	return things.NewSupervised(socket, files, func(ctx context.Context, v host.View, _ string, _ []string) error {
		return Answers(ctx, v, socket, "")
	})
}
