// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelet holds what kubelet reads: the flags and files that gpuadm adds to a kubelet that another program set up, and the
// configuration and the unit of a kubelet that gpuadm sets up.
package kubelet

import (
	"bytes"
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Where kubelet's files are: kubeadm's places (kubernetes, cmd/kubeadm/app/constants/constants.go), which every administrator and
// every tool of a cluster knows.
const (
	Kubeconfig         = "/etc/kubernetes/kubelet.conf"
	ClusterCA          = "/etc/kubernetes/pki/ca.crt"
	ConfigFile         = "/var/lib/kubelet/config.yaml"
	PKI                = "/var/lib/kubelet/pki"
	CurrentCertificate = PKI + "/kubelet-client-current.pem" // a link that kubelet replaces when it renews
	Unit               = "kubelet.service"
	UnitFile           = "/etc/systemd/system/" + Unit
	DropIn             = UnitFile + ".d/60-gpuadm-join.conf" // after kubeadm's, whose name begins with 10
)

// Written is the first line of the files that gpuadm alone writes.
const Written = "# Written by gpuadm, which joined this machine to its cluster. gpuadm undo takes it away.\n"

// Own is a kubelet that gpuadm sets up.
type Own struct {
	Config     map[string]any    // keys of its KubeletConfiguration, beside those of ownConfig
	Flags      []string          // "--cloud-provider=external", …
	Env        map[string]string // its environment: the proxy of its exec plugin, …
	Kubeconfig string            // the file that names its credentials
	After      []string          // units that it starts after, beside the container engine's
	Login      []converge.Want   // its credentials, which exist before it starts and until it is stopped

	// Learn asks the cluster for the addresses of its DNS; nil where they are known. The cluster is not asked where the config
	// file on the machine has them.
	Learn func(ctx context.Context, v host.View) (map[string]any, error)

	// Held says, as a Later, why kubelet may not start yet; nil where it may.
	Held func(ctx context.Context, v host.View) error
}

// A Node is what kubelet registers.
type Node struct {
	Name   string
	Labels map[string]string
	Taints []spec.Taint
}

// heldUnit is kubelet's unit, which gpuadm does not start while held returns an error.
type heldUnit struct {
	converge.Merger // the unit
	held            func(ctx context.Context, v host.View) error
}

func (u heldUnit) Look(ctx context.Context, v host.View) (converge.State, error) {
	if err := u.held(ctx, v); err != nil {
		return "", err
	}
	return u.Merger.Look(ctx, v)
}

// Wants are the files, the unit, and a kubelet that has read its files since they changed.
func (k Own) Wants(s spec.Spec, f facts.Facts, node Node) ([]converge.Want, error) {
	if f.Kubelet.Binary == "" {
		return nil, &trouble.Error{
			What: "cannot join: no kubelet is installed",
			Try:  []string{"install the package kubelet, in the cluster's version or up to three minor versions older: https://kubernetes.io/releases/version-skew-policy/#kubelet"},
		}
	}
	e, err := EngineOf(f)
	if err != nil {
		return nil, err
	}
	if err := extraFits(f, node.Name, node.Taints); err != nil {
		return nil, err
	}
	config, err := k.config(s, f, e, node.Taints)
	if err != nil {
		return nil, err
	}
	if err := Starts(config.merged(nil), s, f); err != nil {
		return nil, err
	}
	wants := things.Folders(path.Dir(ConfigFile), "holds kubelet's configuration")
	wants = append(wants, config.want())
	unit, text, err := k.unit(s, f, e, node.Labels)
	if err != nil {
		return nil, err
	}
	wants = append(wants, things.Folders(path.Dir(unit), "holds kubelet's unit")...)
	wants = append(wants, things.Exact(unit, []byte(text), 0o644, "runs kubelet as a node of this cluster"))
	return append(append(wants, k.Login...), k.runs(f)...), nil
}

// runs wants kubelet enabled and running, and its files read since they changed. At boot systemd starts kubelet after gpuadm.service.
func (k Own) runs(f facts.Facts) []converge.Want {
	thing := things.NewUnit(Unit)
	if merger, ok := thing.(converge.Merger); ok && k.Held != nil {
		thing = heldUnit{merger, k.Held}
	}
	active := "active"
	switch {
	case !f.Live:
		active = "-"
	case f.Booting:
		active = ""
	}
	running := converge.Want{Thing: thing, Why: "kubelet is the node", To: func(found converge.State) (converge.State, error) {
		file, now, _ := strings.Cut(string(found), " ")
		switch {
		case file == "masked":
			return "", &trouble.Error{What: "cannot start kubelet.service: an administrator has masked it", Try: []string{"systemctl unmask kubelet.service"}}
		case found == "" && active == "": // its file is made earlier in the same stage
			now = "inactive"
		case active != "":
			now = active
		}
		if file == "disabled" || found == "" {
			file = "enabled"
		}
		return converge.State(file + " " + now), nil
	}}
	if now := f.Kubelet.Active; now == "" || now == "inactive" {
		return []converge.Want{running} // it reads its files when it starts
	}
	return []converge.Want{running, Fresh(Unit, []string{ConfigFile}, "kubelet reads its configuration when it starts")}
}

// EngineOf is the container engine that kubelet will use: containerd, which [runtime] configures, where both are installed.
func EngineOf(f facts.Facts) (facts.Engine, error) {
	for _, name := range []string{"containerd", "crio"} {
		for _, e := range f.Engines {
			if e.Name == name {
				return e, nil
			}
		}
	}
	return facts.Engine{}, &trouble.Error{
		What: "cannot join: no container engine that kubelet can use is installed",
		Try:  []string{"install containerd (or CRI-O); kubelet has not been able to use Docker since 1.24"},
	}
}

// endpoint is the engine's socket, as a kubelet's configuration names it.
func endpoint(e facts.Engine) string {
	socket := e.Socket
	switch {
	case socket == "" && e.Name == "crio":
		socket = "/run/crio/crio.sock"
	case socket == "":
		socket = "/run/containerd/containerd.sock"
	}
	return "unix://" + strings.TrimPrefix(socket, "unix://")
}

// Learned is a file with values that only the cluster knows. Values in the file are kept, so that a converged node does not ask
// the cluster.
type Learned struct {
	*things.FileThing
	Write func(ctx context.Context, v host.View, found []byte) ([]byte, error)

	mu   sync.Mutex
	data []byte // as of the last look
}

// Want wants the file as Write makes it.
func (l *Learned) Want(why string) converge.Want {
	w := things.Edited(l.FileThing, func([]byte) ([]byte, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return bytes.Clone(l.data), nil
	}, why)
	w.Thing = l
	w.AsFound = true // what gpuadm wrote earlier has the cluster's answer
	return w
}

// Look reads the file, and determines its desired bytes.
func (l *Learned) Look(ctx context.Context, v host.View) (converge.State, error) {
	found, err := l.FileThing.Look(ctx, v)
	if err != nil {
		return "", err
	}
	data, err := l.Bytes(v, found)
	if err != nil {
		return "", err
	}
	if data, err = l.Write(ctx, v, data); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = data
	return found, nil
}

// sorted are the keys of a table, in order.
func sorted[T any](table map[string]T) []string { return slices.Sorted(maps.Keys(table)) }
