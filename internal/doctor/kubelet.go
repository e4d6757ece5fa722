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
)

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
// Sources: org.freedesktop.systemd1(5); service_state_table in systemd's src/basic/unit-def.c
// (auto-restart, auto-restart-queued).
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
		what := fmt.Sprintf("%s has ended, and systemd waits to start it again", unit)
		if line := lastLineWith(m.Log(), "oom-kill:"); strings.Contains(line, "/"+unit) { // dump_oom_summary in mm/oom_kill.c names the cgroup
			what += "; the kernel killed it, for its memory is used up"
		}
		if words := things.LastLines(m.ctx, m.View, unit); len(words) > 0 {
			what += "; its last words: " + strings.Join(words, " / ")
		}
		return []Finding{{
			Object: unit, What: what,
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

// outdated says whether a daemon started before a file that it reads was changed. Where a file is
// not there, only the folder's time could tell that it was removed, and each other file of that
// folder changes it too.
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

// pluginNames begin the names of the device plugins' processes, which the kernel cuts after 15
// letters: NVIDIA's and Google's.
// Sources: deployments/container/Dockerfile of https://github.com/NVIDIA/k8s-device-plugin
// (nvidia-device-plugin); cmd/nvidia_gpu/device-plugin.yaml of
// https://github.com/GoogleCloudPlatform/container-engine-accelerators (nvidia-gpu-device-plugin);
// proc_pid_comm(5).
func pluginNames() []string { return []string{"nvidia-device-p", "nvidia-gpu-devi"} }

// nested says whether a process belongs to another kubelet than the machine's, in a container of
// kind or k3d or in a container that boots: a pod's process is in the machine's namespace of
// process ids or in one below it, and a pod's in a container one deeper.
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

// deadPlugin finds the socket of a plugin that was killed: kubelet removes sockets only when it
// starts itself.
// Source: pluginapi.DevicePluginPath and its manager in kubernetes, pkg/kubelet/cm/devicemanager.
func deadPlugin(m *Machine) []Finding {
	names, _ := m.View.ReadDir(facts.PluginSockets)
	if len(m.plugins()) > 0 {
		return nil
	}
	for _, name := range names {
		if socket := path.Join(facts.PluginSockets, name); strings.HasPrefix(name, "nvidia") && strings.HasSuffix(name, ".sock") {
			if _, err := m.View.Call(m.ctx, socket, "/v1beta1.DevicePlugin/GetDevicePluginOptions", nil); err != nil {
				return []Finding{{Object: socket, What: fmt.Sprintf("%s is there, and no device plugin answers or runs", socket), Command: "kubectl get pods -A -o wide --field-selector spec.nodeName=" + m.Facts().Kubelet.NodeName}}
			}
		}
	}
	if r, ok := m.Registration(); ok && r.node != nil && r.pluginPod() != "" && r.node.Status.Capacity["nvidia.com/gpu"].Count() == 0 && m.whole() > 0 && len(r.node.Status.Allocatable) > 0 {
		if _, had := r.node.Status.Capacity["nvidia.com/gpu"]; had {
			return []Finding{{Object: r.pluginPod(), What: fmt.Sprintf("the Node %s offers no GPU, and the device plugin of pod %s does not run", r.name, r.pluginPod()), Command: r.logs()}}
		}
	}
	return nil
}

// refused finds what kubelet refuses at its start. Swap and the state of a policy are no fault
// while it runs.
func refused(code string) func(*Machine) []Finding {
	return func(m *Machine) (list []Finding) {
		k := m.Facts().Kubelet
		for _, r := range kubelet.Refusals(m.View, k) {
			if t, ok := m.clock(); r.Code == "KUB-005" && ok && !t.least && k.Begins.Before(t.server) && k.Expired.After(t.server) {
				continue // the clock is wrong, and the certificate is not
			}
			if r.Code == code && (m.stopped(k) || code == "KUB-005" || code == "KUB-015") {
				list = append(list, Finding{Object: r.Object, What: r.What, Command: r.Fix})
			}
		}
		return list
	}
}

// oldCgroups finds a kubelet that this machine's cgroups keep from starting, from 1.35 on.
func oldCgroups(m *Machine) []Finding {
	k := m.Facts().Kubelet
	if !m.stopped(k) || !kubelet.Cgroup1(m.Facts()) {
		return nil
	}
	return []Finding{{Object: k.Unit, What: fmt.Sprintf("kubelet %s does not start with cgroups of version 1, and its configuration does not say failCgroupV1: false", k.Version)}}
}
