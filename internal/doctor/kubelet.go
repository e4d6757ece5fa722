// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func kubeletChecks() []Check {
	return []Check{
		{
			Code: "KUB-001", Title: "kubelet does not run",
			Reads:   "systemd's state of kubelet's unit, and whether the machine has joined a cluster",
			Meaning: "the cluster calls the node not ready, and moves its pods away",
			Fix:     "start kubelet", Command: trouble.Command("repair KUB-001"), Interrupts: "nothing",
			Sources: []string{"https://github.com/kubernetes/kubeadm/issues/1008", "https://kubernetes.io/docs/tasks/debug/debug-cluster/"},
			Find:    idleKubelet(false),
		},
		{
			Code: "KUB-002", Title: "kubelet talks to an engine that is not here",
			Reads:   "kubelet's containerRuntimeEndpoint, and the sockets of the engines that are installed",
			Meaning: "kubelet does not start, or starts pods on an engine that has no handler for GPUs",
			Fix:     "point containerRuntimeEndpoint at the engine that is installed, and restart kubelet", Interrupts: "restarts kubelet; pods keep running",
			Sources: []string{"https://github.com/kubernetes/kubeadm/issues/915", "https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/"},
			Find:    otherEngine,
		},
		{
			Code: "KUB-003", Title: "two device plugins run",
			Reads:   "the names of the running processes, and their ids in the namespaces below the machine's",
			Meaning: "each offers all GPUs, so that one GPU is given to two pods, or none to any",
			Fix:     "keep one: remove the DaemonSet of the other, or keep it off this node", Interrupts: "pods wait until the plugin that stays has registered",
			Sources: []string{"https://docs.nvidia.com/aicr/integrator-guide/gke-gpu-setup", "https://github.com/Project-HAMi/HAMi/issues/2076"},
			Find:    twoPlugins,
		},
		{
			Code: "KUB-004", Title: "the device plugin has ended",
			Reads:   "the sockets in /var/lib/kubelet/device-plugins, and the running processes",
			Meaning: "kubelet offers no GPU of this node to new pods",
			Fix:     "see why its pod does not run: kubectl get pods -A -o wide --field-selector spec.nodeName=NODE", Interrupts: "nothing",
			Sources: []string{"https://github.com/kubernetes/kubernetes/issues/92396", "https://github.com/kubernetes/kubernetes/issues/52510"},
			Find:    deadPlugin,
		},
		{
			Code: "KUB-005", Title: "kubelet's client certificate has expired",
			Reads:   "the certificate that kubelet's kubeconfig names",
			Meaning: "the API server refuses kubelet, and the cluster calls the node not ready",
			Fix:     "get kubelet new credentials; where kubeadm has joined the machine: on the control plane, kubeadm kubeconfig user --org system:nodes --client-name system:node:NODE, then as in https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/troubleshooting-kubeadm/#kubelet-client-cert", Interrupts: "restarts kubelet; pods keep running",
			Sources: []string{"https://github.com/kubernetes/kubernetes/issues/98150", "https://github.com/kubernetes/kubeadm/issues/2054"},
			Find:    refused("KUB-005"),
		},
		{
			Code: "KUB-006", Title: "swap keeps kubelet from starting",
			Reads:   "/proc/swaps, and kubelet's configuration",
			Meaning: "kubelet refuses to start while swap is on, unless its configuration says failSwapOn: false",
			Fix:     "switch swap off, and take it out of /etc/fstab", Interrupts: "nothing; what is in swap needs room in memory",
			Sources: []string{"https://github.com/Azure/AKSFlexNode/pull/67", "https://github.com/kubernetes/kubernetes/issues/50373"},
			Find:    refused("KUB-006"),
		},
		{
			Code: "KUB-007", Title: "kubelet runs with an older configuration than its files",
			Reads:   "the times of kubelet's start and of its files",
			Meaning: "what the files say has no effect until kubelet restarts",
			Fix:     "restart kubelet", Command: trouble.Command("repair KUB-007"), Interrupts: "restarts kubelet; pods keep running",
			Sources: []string{"https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-reconfigure/", "https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/"},
			Find:    oldKubelet,
		},
		{
			Code: "KUB-014", Title: "kubelet ends again and again",
			Reads:   "systemd's state of kubelet's unit, and whether the machine has joined a cluster",
			Meaning: "systemd starts kubelet again each time it ends; until its cause is gone, the cluster calls the node not ready",
			Fix:     "read in its log why it ends", Interrupts: "nothing",
			Sources: []string{"https://github.com/kubernetes/kubernetes/issues/83936", "https://kubernetes.io/docs/tasks/debug/debug-cluster/"},
			Find:    idleKubelet(true),
		},
		{
			Code: "KUB-015", Title: "kubelet cannot read its configuration",
			Reads:   "kubelet's configuration, and what --config-dir adds to it",
			Meaning: "kubelet's next start fails",
			Fix:     "fix the file; if gpuadm wrote it last, " + trouble.Command("undo") + " restores it", Interrupts: "nothing until kubelet restarts",
			Sources: []string{"https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/", "https://github.com/kubernetes/kubernetes (cmd/kubelet/app/server.go, loadConfigFile)"},
			Find:    refused("KUB-015"),
		},
	}
}

// stopped says whether the kubelet of a machine that has joined does not run.
func (m *Machine) stopped(k facts.Kubelet) bool {
	return k.Joined && !m.Facts().Booting && m.isStopped(k.Unit)
}

// isStopped says whether a unit that is there has no process.
func (m *Machine) isStopped(unit string) bool {
	if unit == "" {
		return false
	}
	u, ok := m.Unit(unit)
	return ok && u.Load == "loaded" && u.PID == 0 && u.Active != "active" && u.Active != "reloading"
}

// ends says whether systemd waits to restart a unit that has ended: a start by hand would end too.
// Sources: org.freedesktop.systemd1(5); service_state_table in systemd's src/basic/unit-def.c (auto-restart, auto-restart-queued).
func ends(u host.Unit) bool {
	return u.Active == "activating" && strings.HasPrefix(u.Sub, "auto-restart")
}

// idle says what is wrong with a unit that does not run: it crashes in a loop, or it is stopped.
func (m *Machine) idle(unit string, ending bool) []Finding {
	u, _ := m.Unit(unit)
	switch {
	case ends(u) != ending:
		return nil
	case ending:
		return []Finding{{
			Object: unit, What: fmt.Sprintf("%s has ended, and systemd waits to start it again", unit),
			Command: "sudo journalctl -u " + strings.TrimSuffix(unit, ".service") + " -n 50",
		}}
	}
	return []Finding{{Object: unit, What: fmt.Sprintf("%s is %s", unit, u.Active)}}
}

// idleKubelet finds a kubelet that crashes in a loop, or is stopped.
func idleKubelet(ending bool) func(*Machine) []Finding {
	return func(m *Machine) []Finding {
		if k := m.Facts().Kubelet; m.stopped(k) {
			return m.idle(k.Unit, ending)
		}
		return nil
	}
}

// outdated says whether a daemon started before a file that it reads was changed. Where a file is not there, only the folder's time could
// tell that it was removed, and each other file of that folder changes it too.
func (m *Machine) outdated(unit string, files []string) bool {
	there := slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !m.has(name) })
	state, err := things.NewRestart(unit, there, nil).Look(m.ctx, m.View)
	if err != nil || things.DaemonState(state) != things.Outdated {
		return false
	}
	rewritten, err := things.Rewritten(m.ctx, m.View, unit, there)
	return err == nil && rewritten
}

func oldKubelet(m *Machine) []Finding {
	k := m.Facts().Kubelet
	if k.Unit == "" || m.stopped(k) || m.generates() || !m.outdated(k.Unit, k.Reads()) {
		return nil
	}
	return []Finding{{Object: k.Unit, What: fmt.Sprintf("%s started before its configuration was changed last", k.Unit)}}
}

func otherEngine(m *Machine) []Finding {
	f := m.Facts()
	if f.Kubelet.Endpoint == "" || len(f.Engines) == 0 {
		return nil
	}
	var at []string
	for _, e := range f.Engines {
		if f.Kubelet.Uses(e) {
			return nil
		}
		at = append(at, e.Name+" at "+e.Socket)
	}
	return []Finding{{Object: f.Kubelet.Endpoint, What: fmt.Sprintf("kubelet talks to %s; installed: %s", f.Kubelet.Endpoint, strings.Join(at, ", "))}}
}

// pluginNames begin the names of the device plugins' processes, which the kernel cuts after 15 letters: NVIDIA's and Google's.
// Sources: deployments/container/Dockerfile of https://github.com/NVIDIA/k8s-device-plugin (nvidia-device-plugin);
// cmd/nvidia_gpu/device-plugin.yaml of https://github.com/GoogleCloudPlatform/container-engine-accelerators (nvidia-gpu-device-plugin);
// proc_pid_comm(5).
func pluginNames() []string { return []string{"nvidia-device-p", "nvidia-gpu-devi"} }

// nested says whether a process belongs to another kubelet than the machine's, in a container of kind or k3d or in a container that boots:
// a pod's process is in the machine's namespace of process ids or in one below it, and a pod's in a container one deeper.
// Sources: proc_pid_status(5), NSpid; https://docs.kernel.org/filesystems/proc.html (NSpid).
func (m *Machine) nested(pid string) bool {
	status, err := m.View.ReadFile(path.Join("/proc", pid, "status"))
	if err != nil {
		return false // it has ended
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return len(strings.Fields(ids)) > 2
		}
	}
	return false
}

// plugins are the processes of device plugins of the machine's kubelet.
func (m *Machine) plugins() (list []string) {
	names, err := m.View.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, pid := range names {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		comm, err := m.View.ReadFile(path.Join("/proc", pid, "comm"))
		if err != nil {
			continue // it has ended
		}
		if name := strings.TrimSpace(string(comm)); slices.Contains(pluginNames(), name) && !m.nested(pid) {
			list = append(list, fmt.Sprintf("process %s (%s)", pid, name))
		}
	}
	return list
}

func twoPlugins(m *Machine) []Finding {
	list := m.plugins()
	if len(list) < 2 {
		return nil
	}
	return []Finding{{What: strings.Join(list, " and ") + " run side by side"}}
}

// deadPlugin finds the socket of a plugin that was killed: kubelet removes sockets only when it starts itself.
// Source: pluginapi.DevicePluginPath and its manager in kubernetes, pkg/kubelet/cm/devicemanager.
func deadPlugin(m *Machine) []Finding {
	const folder = "/var/lib/kubelet/device-plugins"
	names, err := m.View.ReadDir(folder)
	if err != nil || len(m.plugins()) > 0 {
		return nil
	}
	for _, name := range names {
		if socket := path.Join(folder, name); strings.HasPrefix(name, "nvidia") && strings.HasSuffix(name, ".sock") {
			if _, err := m.View.Call(m.ctx, socket, "/v1beta1.DevicePlugin/GetDevicePluginOptions", nil); err != nil {
				return []Finding{{Object: socket, What: fmt.Sprintf("%s is there, and no device plugin answers or runs", socket)}}
			}
		}
	}
	return nil
}

// refused finds what kubelet refuses at its start. Swap and the state of a policy are no fault while it runs.
func refused(code string) func(*Machine) []Finding {
	return func(m *Machine) (list []Finding) {
		k := m.Facts().Kubelet
		for _, r := range kubelet.Refusals(m.View, k) {
			if r.Code == code && (m.stopped(k) || code == "KUB-005" || code == "KUB-015") {
				list = append(list, Finding{Object: r.Object, What: r.What, Command: r.Fix})
			}
		}
		return list
	}
}
