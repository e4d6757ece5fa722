// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
)

// migOwners finds the other owners of the partitions, which would undo gpuadm's changes, each once.
func (g *gathering) migOwners(k Kubelet) (all []Owner) {
	if g.v.Live() {
		if sign := g.migManager(); sign != "" {
			all = append(all, *managerOwner(sign))
		}
		if owner := g.partitioningPod(); owner != nil {
			all = append(all, *owner)
		}
	}

	for _, p := range platform.All() {
		if sign := g.poolPartitioned(p.MIG, k); sign != "" {
			all = append(all, Owner{p.MIG.Who, sign, p.MIG.Ends})
		}
	}

	if owner := g.partitionerOwner(); owner != nil {
		all = append(all, *owner)
	}

	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(o Owner) bool {
		isKnown := seen[o.Name]
		seen[o.Name] = true
		return isKnown
	})
}

// partitionerOwner is the owner of what partitions GPUs at a boot; nil if nothing does.
func (g *gathering) partitionerOwner() *Owner {
	found := g.partitioner()
	switch {
	case found.name == "":
		return nil
	case found.name == migManagerUnit:
		return managerOwner(found.name)
	case found.file != "":
		why := "it calls " + found.calls + " at each boot"
		return &Owner{found.file, why, "remove that from " + found.file}
	}

	enabled := "enabled and calls " + found.calls
	if m := g.kind().MIG; m.Unit {
		return &Owner{m.Who, found.name + " is " + enabled, m.Ends}
	}
	if found.by != "" {
		why := found.by + " is enabled and starts it, and it calls " + found.calls
		return &Owner{found.name, why, "systemctl disable --now " + found.by}
	}
	return &Owner{found.name, "it is " + enabled, "systemctl disable --now " + found.name}
}

// NVIDIA's GPU Operator runs nvidia-mig-manager in a pod, and its packages run it as a unit; both
// follow the node's label nvidia.com/mig.config. Source: https://github.com/NVIDIA/mig-parted,
// deployments.
const (
	migManager     = "nvidia-mig-manager"
	migManagerUnit = migManager + ".service"
)

func managerOwner(sign string) *Owner {
	return &Owner{
		Name: migManager,
		Why:  sign,
		Ends: "set the node's label nvidia.com/mig.config for it, or take it off the machine and run the same command again",
	}
}

// migManager returns the sign of nvidia-mig-manager; "" if there is none. The link to a container's
// log exists also while its pod does not run. Source: kubernetes,
// pkg/kubelet/kuberuntime/legacy.go.
func (g *gathering) migManager() string {
	if pids := g.processes("nvidia-mig-mana"); len(pids) > 0 {
		return "process " + pids[0]
	}
	const logs = "/var/log/containers"
	for _, name := range g.list(logs) {
		if strings.HasPrefix(name, migManager) {
			return logs + "/" + name
		}
	}

	return ""
}

// partitioningPod finds a pod whose shell or Python partitions the GPUs just now.
func (g *gathering) partitioningPod() *Owner {
	var pids []string
	for _, interpreter := range []string{"sh", "bash", "dash", "python3"} {
		pids = append(pids, g.processes(interpreter)...)
	}
	for _, pid := range pids {
		argv, _ := g.commandOf(pid)
		calls := migCommand(strings.Join(argv, " "))
		if calls != "" && g.inPod(pid) {
			return &Owner{
				Name: "a pod",
				Why:  "its process " + pid + " calls " + calls,
				Ends: "delete what makes it: kubectl get pods -A -o wide lists the pods of this node",
			}
		}
	}

	return nil
}

// poolPartitioned returns the sign that a platform cuts the GPUs of the node's pool; "" if there is
// none.
func (g *gathering) poolPartitioned(m platform.MIG, k Kubelet) string {
	size := k.Labels[m.Label]
	switch {
	case m.Label == "":
		return ""
	case size != "":
		return "kubelet's label " + m.Label + "=" + size
	case parseSettings([]byte(g.attr(m.File))).text(m.Key) != "": // it is empty where GPUs are shared
		return m.File + " has a " + m.Key
	}

	return ""
}

// bootScripts are patterns of files whose commands run at each boot without a unit of their own.
// Sources: cron(8); systemd-rc-local-generator(8); udev(7);
// https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/;
// https://docs.cloud-init.io/en/latest/reference/modules.html (bootcmd, scripts-per-boot).
func bootScripts() []string {
	return []string{
		"/etc/crontab", "/etc/cron.d/*", "/var/spool/cron/crontabs/*", "/var/spool/cron/*",
		"/etc/rc.local", "/etc/rc.d/rc.local",
		"/etc/udev/rules.d/*.rules",
		"/etc/kubernetes/manifests/[^.]*", // whatever the ending, kubelet reads it
		"/etc/cloud/cloud.cfg.d/*.cfg", "/var/lib/cloud/scripts/per-boot/*",
	}
}

// firstBootScripts are patterns of cloud-init's files that also have commands for the first boot of
// an instance alone (runcmd). The file firstBootOver exists once those have run. Source:
// https://docs.cloud-init.io/en/latest/explanation/boot.html.
func firstBootScripts() []string {
	return []string{
		"/var/lib/cloud/instance/cloud-config.txt", "/var/lib/cloud/instance/scripts/*",
		"/var/lib/cloud/scripts/per-instance/*", "/var/lib/cloud/scripts/per-once/*",
	}
}

const firstBootOver = "/var/lib/cloud/instance/sem/config_scripts_user"

// A partitioner cuts GPUs at a boot: an enabled unit, a unit that one starts, or another file with
// commands.
type partitioner struct {
	name  string // of the unit, or the file; "" = none was found
	by    string // the enabled unit that starts it, where that is another one
	file  string // the file that makes the call, where that is not a unit of its own
	calls string // the program that it calls, and in which script
}

// partitioner finds what cuts GPUs at a boot, itself or by a script.
func (g *gathering) partitioner() partitioner {
	found := g.partitioningUnit()
	if found.name == "" {
		found = g.partitioningFile()
	}
	return found
}

// partitioningUnit finds the unit that cuts GPUs. AKS's mig-partition.service does it itself and by
// a script: Azure/AgentBaker at 06836ee2, parts/linux/cloud-init/artifacts/mig-partition.service
// and mig-partition.sh.
func (g *gathering) partitioningUnit() partitioner {
	const etc = "/etc/systemd/system/"
	isPlatforms := g.kind().MIG.Unit
	var units []string
	for _, folder := range unitFolders() {
		units = append(units, g.glob(folder+"*.wants/*")...)
		units = append(units, g.glob(folder+"*.requires/*")...)
	}

	by := map[string]string{} // the enabled unit by which a unit is started that is not enabled

	for i := 0; i < len(units); i++ { // units grows
		name := path.Base(units[i])
		if g.masked(name) {
			continue
		}
		if name == migManagerUnit {
			return partitioner{name: name, calls: "nvidia-mig-parted"}
		}

		// The unit of the same name is what a timer, path or socket starts: systemd.timer(5),
		// systemd.path(5), systemd.socket(5).
		starts := []string{strings.TrimSuffix(name, path.Ext(name)) + ".service"}
		for _, file := range append(g.glob(etc+name+".d/*.conf"), units[i]) {
			calls, others := g.findMIGCall(file, g.attr(file), 0)
			switch {
			case calls == "":
				starts = append(starts, others...)
			case file == units[i] || isPlatforms:
				return partitioner{name: name, by: by[name], calls: calls}
			default:
				return partitioner{name: name, file: file, calls: calls}
			}
		}

		for _, unit := range starts {
			known := func(file string) bool { return path.Base(file) == unit }
			file := g.first(etc+unit, "/usr/lib/systemd/system/"+unit)
			if file != "" && !slices.ContainsFunc(units, known) {
				units = append(units, file)
				by[unit] = cmp.Or(by[name], name)
			}
		}
	}

	return partitioner{}
}

// masked says whether an administrator has masked a unit: systemd starts it for no link in a folder
// .wants then. Source: systemctl(1), mask.
func (g *gathering) masked(unit string) bool {
	target, err := g.v.Readlink("/etc/systemd/system/" + unit)
	return err == nil && path.Clean(target) == "/dev/null"
}

// partitioningFile finds a file that is not a unit and whose commands cut GPUs.
func (g *gathering) partitioningFile() partitioner {
	globs := bootScripts()
	if !g.exists(firstBootOver) {
		globs = append(globs, firstBootScripts()...)
	}
	for _, glob := range globs {
		for _, file := range g.glob(glob) {
			if calls, _ := g.findMIGCall(file, g.attr(file), 0); calls != "" {
				return partitioner{name: file, file: file, calls: calls}
			}
		}
	}

	return partitioner{}
}

// dynamicMIG returns the sign that NVIDIA's DRA driver makes partitions as pods ask for them; "" if
// it does not. Its plugin runs with the gate DynamicMIG, which its chart sets in the environment.
// Sources: kubernetes-sigs/dra-driver-nvidia-gpu, pkg/featuregates/featuregates.go and
// deployments/helm/dra-driver-nvidia-gpu/templates/kubeletplugin.yaml.
func (g *gathering) dynamicMIG() string {
	return g.processWith("gpu-kubelet-plu", func(variable string) bool { // gpu-kubelet-plugin
		gates, ok := strings.CutPrefix(variable, "FEATURE_GATES=")
		return ok && slices.Contains(strings.Split(gates, ","), "DynamicMIG=true")
	})
}

// clique returns the sign that NVIDIA's DRA driver sets the label nvidia.com/gpu.clique, as under a
// GPUCluster; "" if it does not.
// Sources: NVIDIA/gpu-operator, pull 2699; kubernetes-sigs/dra-driver-nvidia-gpu, issue 1244;
// NVIDIA/cloud-native-docs, gpu-operator/dra-intro-install.rst.
func (g *gathering) clique() string {
	return g.processWith("compute-domain-", func(variable string) bool { // compute-domain-kubelet-plugin
		return variable == "GPU_CLIQUE_LABEL_ENABLED=true"
	})
}

// processWith returns the process of a name that has such a variable in its environment; "" if
// there is none.
func (g *gathering) processWith(comm string, has func(variable string) bool) string {
	if !g.v.Live() {
		return ""
	}
	for _, pid := range g.processes(comm) {
		environment := g.attr("/proc/" + pid + "/environ")
		if slices.ContainsFunc(strings.Split(environment, "\x00"), has) {
			return "process " + pid
		}
	}

	return ""
}
