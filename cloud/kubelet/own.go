// SPDX-License-Identifier: Apache-2.0

// Package kubelet writes the files that kubelet reads: flags and drop-ins for a kubelet that
// another program set up, and the configuration and the unit of a kubelet that gpuadm sets up.
package kubelet

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
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
	Config map[string]any    // keys of its KubeletConfiguration, beside those of ownConfig
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
	e, err := EngineOf(f)
	if err != nil {
		return nil, err
	}
	if err := k.extraFits(f); err != nil {
		return nil, err
	}
	config, err := k.config(s, f, e)
	if err != nil {
		return nil, err
	}
	if err := Starts(config, s, f); err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	wants := things.Folders(path.Dir(ConfigFile), "holds kubelet's configuration")
	wants = append(wants, things.Exact(ConfigFile, append([]byte(Written), text...), 0o644, "kubelet's configuration"))
	unit, runs, err := k.unit(f, e)
	if err != nil {
		return nil, err
	}
	wants = append(wants, things.Folders(path.Dir(unit), "holds kubelet's unit")...)
	wants = append(wants, things.Exact(unit, []byte(runs), 0o644, "runs kubelet as a node of this cluster"))
	return append(wants, running(f)...), nil
}

// running wants kubelet enabled and running, and its files read since they changed. At boot systemd
// starts kubelet after gpuadm.service.
func running(f facts.Facts) []converge.Want {
	up := things.Running(Unit, "kubelet is the node")
	if f.Booting {
		up = things.Enabled(Unit, "kubelet is the node")
	}
	to := up.To
	up.To = func(found converge.State) (converge.State, error) {
		if found == "" { // the same stage makes its file earlier
			found = things.UnitState("disabled", "inactive")
		}
		return to(found)
	}
	if now := f.Kubelet.Active; now == "" || now == "inactive" {
		return []converge.Want{up} // it reads its files when it starts
	}
	fresh := Fresh(facts.Kubelet{Unit: Unit}, []string{ConfigFile}, "kubelet reads its configuration when it starts")
	fresh.Thing = NewRestart(Unit, []string{ConfigFile}) // without validation: gpuadm writes the whole file
	return []converge.Want{up, fresh}
}

// EngineOf returns the container engine that kubelet will use: containerd, which [runtime]
// configures, if both are installed.
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

// sorted returns the keys of a table in order.
func sorted[T any](table map[string]T) []string { return slices.Sorted(maps.Keys(table)) }

// Starts refuses a configuration with which kubelet would not start: it would exit repeatedly, with
// the reason only in its log.
func Starts(config table, s spec.Spec, f facts.Facts) error {
	file := s.Join.KubeletConfig
	if file == "" {
		file = "a file that kubelet_config in [join] names"
	}
	if f.Cgroup == 1 && refusesCgroup1(f.Kubelet.Version) && config["failCgroupV1"] != false {
		return &trouble.Error{
			What: fmt.Sprintf("cannot join: kubelet %s does not start on a machine with cgroup v1", f.Kubelet.Version),
			Try: []string{
				faults.Of("KUB-020").Fix,
				"or write failCgroupV1: false into " + file,
			},
		}
	}
	if swaps := swapsOn(f.Files["/proc/swaps"]); len(swaps) > 0 && config["failSwapOn"] != false {
		return &trouble.Error{
			What: fmt.Sprintf("cannot join: kubelet does not start while swap is on (%s)", strings.Join(swaps, ", ")),
			Try: []string{
				faults.Of("KUB-006").Fix,
				"or write failSwapOn: false into " + file + ", and read https://kubernetes.io/docs/concepts/cluster-administration/swap-memory-management/",
			},
		}
	}
	return nil
}

// refusesCgroup1 says whether a kubelet refuses cgroup v1 unless its configuration says otherwise:
// failCgroupV1 is true by default from 1.35 on (kubernetes,
// pkg/kubelet/apis/config/v1beta1/defaults.go).
func refusesCgroup1(kubelet string) bool {
	v, err := version.NewVersion(kubelet)
	return err == nil && v.Core().GreaterThanOrEqual(version.Must(version.NewVersion("1.35.0")))
}

// swapsOn returns the swaps in use from /proc/swaps, whose first line is a heading.
func swapsOn(data []byte) (names []string) {
	for i, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		if words := strings.Fields(string(line)); i > 0 && len(words) > 0 {
			names = append(names, words[0])
		}
	}
	return names
}
