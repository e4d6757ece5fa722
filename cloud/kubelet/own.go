// SPDX-License-Identifier: Apache-2.0

// Package kubelet writes the files that kubelet reads: flags and drop-ins for a kubelet that
// another program set up, and the configuration and the unit of a kubelet that gpuadm sets up.
package kubelet

import (
	"fmt"
	"path"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Where kubelet's files are: kubeadm's places (kubernetes, cmd/kubeadm/app/constants/constants.go),
// which administrators and cluster tools expect.
const (
	Kubeconfig = "/etc/kubernetes/kubelet.conf"
	ClusterCA  = "/etc/kubernetes/pki/ca.crt"
	ConfigFile = "/var/lib/kubelet/config.yaml"
	Unit       = "kubelet.service"
	UnitFile   = "/etc/systemd/system/" + Unit
	DropIn     = UnitFile + ".d/60-gpuadm-join.conf" // after kubeadm's, whose name begins with 10
)

// Written is the first line of the files that gpuadm alone writes.
const Written = "# Written by gpuadm, which joined this machine to its cluster. gpuadm undo takes it away.\n"

// Own is a kubelet that gpuadm sets up, with its credentials in Kubeconfig.
type Own struct {
	Name   string // of the node
	Labels map[string]string
	Taints []spec.Taint
	Config map[string]any    // keys of its KubeletConfiguration, in addition to those that config sets
	Flags  []string          // "--cloud-provider=external", …
	Env    map[string]string // its environment: the proxy of its exec plugin, …
}

// Wants returns the files, the unit, and a kubelet that has read its files since they changed.
func (k Own) Wants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if f.Kubelet.Binary == "" {
		return nil, &trouble.Error{
			What: "cannot join: no kubelet is installed",
			Try:  []string{"install the package kubelet, in the cluster's version or up to three minor versions older: https://kubernetes.io/releases/version-skew-policy/#kubelet"},
		}
	}

	engine, err := EngineOf(f)
	if err != nil {
		return nil, err
	}
	if err := k.checkExtraArgs(f); err != nil {
		return nil, err
	}

	config, err := k.config(s, f, engine)
	if err != nil {
		return nil, err
	}
	if err := CheckStart(config, s, f); err != nil {
		return nil, err
	}
	configText, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	configText = append([]byte(Written), configText...)

	unit, unitText, err := k.unit(f, engine)
	if err != nil {
		return nil, err
	}

	return slices.Concat(
		things.Folders(path.Dir(ConfigFile), "holds kubelet's configuration"),
		[]converge.Want{things.Exact(ConfigFile, configText, 0o644, "kubelet's configuration")},
		things.Folders(path.Dir(unit), "holds kubelet's unit"),
		[]converge.Want{
			things.Exact(unit, []byte(unitText), 0o644, "runs kubelet as a node of this cluster"),
		},
		running(f),
	), nil
}

// running wants kubelet enabled and running, and its files read since they changed. At boot systemd
// starts kubelet after gpuadm.service.
func running(f facts.Facts) []converge.Want {
	up := things.Running(Unit, "kubelet is the node")
	if f.Booting {
		up = things.Enabled(Unit, "kubelet is the node")
	}
	desired := up.To
	up.To = func(found converge.State) (converge.State, error) {
		if found == "" { // the same stage makes its file earlier
			found = things.UnitState("disabled", "inactive")
		}
		return desired(found)
	}

	now := f.Kubelet.Active
	if now == "" || now == "inactive" {
		return []converge.Want{up} // kubelet reads its files when it starts
	}

	fresh := Fresh(facts.Kubelet{Unit: Unit}, []string{ConfigFile}, "kubelet reads its configuration when it starts")
	fresh.Thing = NewRestart(Unit, []string{ConfigFile}) // without validation: gpuadm writes the whole file
	return []converge.Want{up, fresh}
}
