// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// freshKubelet is a kubelet that does not run with files older than those there are now. It is things.Restart for a daemon that
// may fail for good reasons: before the machine has joined, kubelet dies for want of credentials and systemd starts it
// again and again. Between two tries it stands, since the next one reads the files as they are; and a restart of it is no
// failure because it dies once more.
type freshKubelet struct {
	converge.Thing // of kind restart
	unit           string
}

// kubeletFresh wants kubelet to run with these files as they are, if it runs.
func kubeletFresh(unit string, files []string, why string) converge.Want {
	w := things.Restart(unit, files, nil, why)
	w.Breaks = []string{"restart-kubelet"}
	w.Thing = freshKubelet{w.Thing, unit}
	return w
}

// IsKubelet says whether the name of a thing of kind restart is kubelet's: then NewFresh builds it again.
func IsKubelet(name string) bool {
	for _, start := range []string{"kubelet", "k3s", "rke2"} {
		if strings.HasPrefix(name, start) {
			return true
		}
	}
	return false
}

// NewFresh builds kubelet's thing of kind restart again.
func NewFresh(unit string, files []string) converge.Thing {
	return freshKubelet{things.NewRestart(unit, files, nil), unit}
}

// Reads is converge.Reader's.
func (f freshKubelet) Reads() []string { return f.Thing.(converge.Reader).Reads() }

func (f freshKubelet) Look(ctx context.Context, v host.View) (converge.State, error) {
	state, err := f.Thing.Look(ctx, v)
	if err != nil || state != "failed" && state != "inactive" && state != "" {
		return state, err
	}
	u, err := v.Unit(ctx, f.unit)
	if err != nil {
		return "", err
	}
	if state != "failed" {
		if u.Enabled != "enabled" { // undo of a join has stopped it for good, and must not start it again
			return "", host.Later{Until: "its start"}
		}
		return state, nil
	}
	if u.Active == "activating" { // between two tries
		return things.UpToDate, nil
	}
	return "inactive", nil // it gave up: whoever starts it has it read its files
}

// Unsettled and Settled are those of any daemon.
func (f freshKubelet) Unsettled(found converge.State, by converge.Change) converge.State {
	return f.Thing.(converge.Settler).Unsettled(found, by)
}

// Settled is converge.Settler's.
func (f freshKubelet) Settled(found converge.State) converge.State {
	return f.Thing.(converge.Settler).Settled(found)
}
