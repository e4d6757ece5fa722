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
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// isDown reports whether a kubelet that has joined does not run.
func (m *Machine) isDown(k facts.Kubelet) bool {
	return k.Joined && !m.Basics().Booting && m.hasNoProcess(k.Unit)
}

func kubeletStopped(m *Machine) []Finding {
	k := m.Basics().Kubelet
	if m.maskedKubelet() {
		return []Finding{maskedUnit(kubeletService)}
	}
	if !m.isDown(k) {
		return nil
	}
	return m.stoppedUnit(k.Unit)
}

// kubeletService is the unit of kubelet's packages.
const kubeletService = "kubelet.service"

// maskedKubelet reports whether the unit of a kubelet that has joined is masked, and no other
// kubelet is here. The facts have no command line of such a kubelet: the places of kubeadm's
// kubeconfig, and of EKS, show that it has joined.
func (m *Machine) maskedKubelet() bool {
	k := m.Basics().Kubelet
	if k.Unit != "" || k.Active == "active" || k.Binary == "" {
		return false
	}
	u, ok := m.Unit(kubeletService)
	hasJoined := m.has("/etc/kubernetes/kubelet.conf") || m.has("/var/lib/kubelet/kubeconfig")
	return ok && u.Load == "masked" && hasJoined
}

func kubeletCrashes(m *Machine) []Finding {
	k := m.Basics().Kubelet
	if !m.isDown(k) {
		return nil
	}
	found := m.crashLoop(k.Unit)
	if len(found) == 0 {
		return nil
	}
	rejected, _ := kubelet.Rejected(m.ctx, m.View, k) // noting notes a kubelet that gives no answer
	if rejected == nil {
		return found
	}
	return []Finding{rejectedFlag(k, *rejected)}
}

// rejectedFlag describes a kubelet that ends at each start, since it does not accept its command
// line. The command takes the flag out of a file that an operator may write.
func rejectedFlag(k facts.Kubelet, rejected kubelet.Rejection) Finding {
	finding := Finding{
		Object:  k.Unit,
		What:    "kubelet ends at each start, for it rejects its command line: " + lastLine(rejected.Said.Stderr),
		Fix:     "take out of the command line what kubelet rejects",
		Command: "systemctl cat " + k.Unit,
	}
	if rejected.Flag == "" || len(rejected.Files) == 0 {
		return finding
	}

	file := rejected.Files[len(rejected.Files)-1]
	finding.What = fmt.Sprintf("kubelet ends at each start, for it rejects %s on its command line; the flag stands in %s",
		rejected.Flag, strings.Join(rejected.Files, " and "))
	finding.Fix = fmt.Sprintf("take the flag out of %s, and restart kubelet; what it did may have a key in kubelet's configuration", file)
	finding.Command = "sudo grep -n -e " + host.ShellWord(rejected.Flag) + " " + file
	isOwn := strings.HasPrefix(file, "/etc/") || strings.HasPrefix(file, "/var/")
	if owner := k.ConfigOwner; owner != "" && owner != "kubeadm" {
		finding.Fix += fmt.Sprintf("; %s writes the file, so change what it is made of", owner)
		isOwn = false
	}
	if isOwn && isPlain().MatchString(rejected.Flag) {
		finding.Command = fmt.Sprintf("sudo sed -i 's| *%s||' %s && sudo systemctl daemon-reload && sudo systemctl restart %s",
			strings.ReplaceAll(rejected.Flag, ".", `\.`), file, strings.TrimSuffix(k.Unit, ".service"))
	}
	return finding
}

// isPlain matches a flag with its value that stands for itself in sed's expressions.
var isPlain = pattern.Of(`^--[\w-]+=[\w.,:/@%+-]*$`)

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func oldKubelet(m *Machine) []Finding {
	k := m.Basics().Kubelet
	if k.Unit == "" || m.isDown(k) || m.generates() || !m.outdated(k.Unit, k.Reads()) {
		return nil
	}
	return []Finding{{
		Object:  k.Unit,
		What:    fmt.Sprintf("%s started before its configuration was changed last", k.Unit),
		Command: "systemctl status " + k.Unit,
	}}
}

func otherEngine(m *Machine) []Finding {
	f := m.Basics()
	endpoint := f.Kubelet.Endpoint
	if endpoint == "" || len(f.Engines) == 0 {
		return nil
	}

	var installed, sockets []string
	for _, engine := range f.Engines {
		if f.Kubelet.Uses(engine) {
			return nil
		}
		installed = append(installed, engine.Name+" at "+engine.Socket)
		sockets = append(sockets, engine.Socket)
	}

	asked := strings.TrimPrefix(endpoint, "unix://")
	return []Finding{{
		Object:  endpoint,
		What:    fmt.Sprintf("kubelet talks to %s; installed: %s", endpoint, strings.Join(installed, ", ")),
		Command: "sudo ls -l " + asked + " " + strings.Join(sockets, " "),
	}}
}

// refused finds what kubelet refuses at its start. Swap and the state of a policy are not a fault
// while it runs.
func refused(code string) func(*Machine) []Finding {
	return func(m *Machine) (found []Finding) {
		k := m.Basics().Kubelet
		list, _ := kubelet.Refusals(m.View, k) // noting notes what could not be read
		for _, refusal := range list {
			if refusal.Code != code || code == "KUB-005" && m.onlyClockIsWrong(k) {
				continue
			}
			alsoWhileRunning := code == "KUB-005" || code == "KUB-015"
			if alsoWhileRunning || m.isDown(k) {
				found = append(found, Finding{
					Object:  refusal.Object,
					What:    refusal.What,
					Fix:     refusal.Advice,
					Command: refusal.Fix,
				})
			}
		}

		return found
	}
}

// onlyClockIsWrong reports whether kubelet's certificate is valid by the API server's clock.
func (m *Machine) onlyClockIsWrong(k facts.Kubelet) bool {
	clocks, ok := m.clock()
	return ok && !clocks.least && holdsAt(k, clocks.server)
}

// oldCgroups finds a kubelet that does not start because of this machine's cgroups: from 1.35 on.
func oldCgroups(m *Machine) []Finding {
	k := m.Basics().Kubelet
	if !m.isDown(k) || !kubelet.Cgroup1(m.Basics()) {
		return nil
	}
	return []Finding{{
		Object: k.Unit,
		What:   fmt.Sprintf("kubelet %s does not start with cgroups of version 1, and its configuration does not say failCgroupV1: false", k.Version),
	}}
}

// pluginNames returns the names of the processes of NVIDIA's and of Google's device plugin. The
// kernel cuts them after 15 letters.
// Sources: deployments/container/Dockerfile of https://github.com/NVIDIA/k8s-device-plugin
// (nvidia-device-plugin); cmd/nvidia_gpu/device-plugin.yaml of
// https://github.com/GoogleCloudPlatform/container-engine-accelerators (nvidia-gpu-device-plugin);
// proc_pid_comm(5).
func pluginNames() []string { return []string{"nvidia-device-p", "nvidia-gpu-devi"} }

// ofOtherKubelet reports whether a process belongs to a kubelet in a container, such as kind's or
// k3d's. The process of a pod is in the machine's namespace of process ids, or in one below it; a
// pod of a kubelet in a container is one level deeper.
// Sources: proc_pid_status(5), NSpid; https://docs.kernel.org/filesystems/proc.html (NSpid).
func (m *Machine) ofOtherKubelet(pid string) bool {
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

// plugins lists the processes of device plugins that serve the machine's kubelet.
func (m *Machine) plugins() (processes []string) {
	entries, err := m.View.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, pid := range entries {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		comm, err := m.View.ReadFile(path.Join("/proc", pid, "comm"))
		if err != nil {
			continue // it has ended
		}

		name := strings.TrimSpace(string(comm))
		if slices.Contains(pluginNames(), name) && !m.ofOtherKubelet(pid) {
			processes = append(processes, fmt.Sprintf("process %s (%s)", pid, name))
		}
	}

	return processes
}

func twoPlugins(m *Machine) []Finding {
	processes := m.plugins()
	if len(processes) < 2 {
		return nil
	}
	return []Finding{{
		What:    strings.Join(processes, " and ") + " run side by side",
		Command: "kubectl get pods -A -o wide --field-selector spec.nodeName=NODE",
	}}
}

// deadPlugin finds a plugin that was killed: by the socket that it left, or by what the Node says.
func deadPlugin(m *Machine) []Finding {
	if len(m.plugins()) > 0 {
		return nil
	}
	if socket := m.deadSocket(); socket != "" {
		return []Finding{{
			Object:  socket,
			What:    fmt.Sprintf("%s is there, and no device plugin answers or runs", socket),
			Command: "kubectl get pods -A -o wide --field-selector spec.nodeName=NODE",
		}}
	}

	registered, ok := m.Registration()
	if !ok || m.wholeGPUs() == 0 || !registered.offeredGPUs() {
		return nil
	}
	// Kubelet still shows zero devices of a plugin that a DRA driver has replaced: kubernetes issue
	// 52510.
	pod, known := registered.devicePlugin()
	if !known {
		return nil
	}
	name := pod.Namespace + "/" + pod.Name
	const what = "the Node %s offers no GPU, and the device plugin of pod %s does not run"
	return []Finding{{
		Object:  name,
		What:    fmt.Sprintf(what, registered.name, name),
		Command: registered.logs(),
	}}
}

// deadSocket returns a socket of NVIDIA's plugin on which no process answers; "" if there is none.
// Kubelet removes such sockets only when it starts itself.
// Source: pluginapi.DevicePluginPath and its manager in kubernetes, pkg/kubelet/cm/devicemanager.
func (m *Machine) deadSocket() string {
	names, _ := m.View.ReadDir(facts.PluginSockets)
	for _, name := range names {
		if !strings.HasPrefix(name, "nvidia") || !strings.HasSuffix(name, ".sock") {
			continue
		}
		socket := path.Join(facts.PluginSockets, name)
		_, err := m.View.Call(m.ctx, socket, "/v1beta1.DevicePlugin/GetDevicePluginOptions", nil)
		if err != nil {
			return socket
		}
	}

	return ""
}

// offeredGPUs reports whether the Node has offered GPUs once and offers none now: its capacity
// still has the resource, with the count 0.
func (r registration) offeredGPUs() bool {
	if r.node == nil || len(r.node.Status.Allocatable) == 0 {
		return false
	}
	count, had := r.node.Status.Capacity[gpuResource]
	return had && count.Count() == 0
}
