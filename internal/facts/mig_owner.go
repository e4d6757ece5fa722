// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
)

// gkePartitions is GKE's label of a pool whose GPUs its own partition_gpu cuts, and gkeConfig what
// that reads. Source: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus-multi;
// GoogleCloudPlatform/container-engine-accelerators at 992db812, partition_gpu.
const (
	gkePartitions = "cloud.google.com/gke-gpu-partition-size"
	gkeConfig     = "/etc/nvidia/gpu_config.json"
)

// migOwner says who else partitions the GPUs and would undo what gpuadm does. NVIDIA's GPU Operator
// runs nvidia-mig-manager in a pod, and its packages as a unit; both follow the node's label
// nvidia.com/mig.config. The link to a container's log is there also while its pod does not run.
// Sources: https://github.com/NVIDIA/mig-parted, deployments; kubernetes,
// pkg/kubelet/kuberuntime/legacy.go.
func (g *gathering) migOwner(k Kubelet) *Owner {
	const comm, logs = "nvidia-mig-mana", "/var/log/containers"
	manager := func(why string) *Owner {
		return &Owner{"nvidia-mig-manager", why, "set the node's label nvidia.com/mig.config for it, or take it off the machine and run the same command again"}
	}
	if g.v.Live() {
		if pids := g.processes(comm); len(pids) > 0 {
			return manager("process " + pids[0])
		}
		for _, name := range g.list(logs) {
			if strings.HasPrefix(name, "nvidia-mig-manager") {
				return manager(logs + "/" + name)
			}
		}
	}
	if g.v.Live() {
		for _, pid := range slices.Concat(g.processes("sh"), g.processes("bash"), g.processes("dash"), g.processes("python3")) {
			argv, _ := g.commandOf(pid)
			if is := migCommand(strings.Join(argv, " ")); is != "" && g.inPod(pid) {
				return &Owner{"a pod", "its process " + pid + " calls " + is, "delete what makes it: kubectl get pods -A -o wide lists the pods of this node"}
			}
		}
	}
	const pool = "GPUs of a pool are cut as it was made: make one without "
	why := ""
	if size := k.Labels[gkePartitions]; size != "" {
		why = "kubelet's label " + gkePartitions + "=" + size
	} else if strings.Contains(g.attr(gkeConfig), `"GPUPartitionSize"`) {
		why = gkeConfig + " has a GPUPartitionSize"
	}
	if why != "" {
		return &Owner{"GKE", why, pool + "gpu-partition-size"}
	}
	name, at, calls := g.partitioner()
	switch {
	case name == "":
		return nil
	case name == "nvidia-mig-manager.service":
		return manager(name)
	case at != "":
		return &Owner{at, "it calls " + calls + " at each boot", "remove that from " + at}
	}
	if p := platform.Of(g.cloud.Managed); p.MIG.Ends != "" {
		return &Owner{p.Title, name + " is enabled and calls " + calls, p.MIG.Ends}
	}
	return &Owner{name, "it is enabled and calls " + calls, "systemctl disable --now " + name}
}

// bootScripts are files whose commands run at each boot without a unit of their own: cron(8),
// systemd-rc-local-generator(8), udev(7), static pods
// (https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/), and those of cloud-init
// (https://docs.cloud-init.io/en/latest/reference/modules.html: bootcmd, scripts-per-boot).
const bootScripts = "/etc/crontab /etc/cron.d/* /var/spool/cron/crontabs/* /var/spool/cron/* /etc/rc.local /etc/rc.d/rc.local " +
	"/etc/udev/rules.d/*.rules /etc/kubernetes/manifests/*.yaml /etc/cloud/cloud.cfg.d/*.cfg /var/lib/cloud/scripts/per-boot/*"

// firstBoot are files of cloud-init that also have commands for the first boot of an instance alone
// (runcmd), and firstBootOver is there once those have run:
// https://docs.cloud-init.io/en/latest/explanation/boot.html.
const (
	firstBoot     = "/var/lib/cloud/instance/cloud-config.txt /var/lib/cloud/instance/scripts/* /var/lib/cloud/scripts/per-instance/* /var/lib/cloud/scripts/per-once/*"
	firstBootOver = "/var/lib/cloud/instance/sem/config_scripts_user"
)

// partitioner finds what cuts GPUs at a boot, itself or by a script, and what it calls: an enabled
// unit, a unit that one starts, or a file at that is no unit. AKS's mig-partition.service does it
// by both: Azure/AgentBaker at 06836ee2, parts/linux/cloud-init/artifacts/mig-partition.service and
// mig-partition.sh.
func (g *gathering) partitioner() (name, at, calls string) {
	const etc = "/etc/systemd/system/"
	units := append(g.glob(etc+"*.wants/*"), g.glob(etc+"*.requires/*")...)
	for seen := 0; seen < len(units); seen++ {
		name := path.Base(units[seen])
		if name == "nvidia-mig-manager.service" {
			return name, "", "nvidia-mig-parted"
		}
		// The unit of the same name is what a timer, path or socket starts: systemd.timer(5),
		// systemd.path(5), systemd.socket(5).
		starts := []string{strings.TrimSuffix(name, path.Ext(name)) + ".service"}
		for _, file := range append(g.glob(etc+name+".d/*.conf"), units[seen]) {
			calls, others := g.findMIGCall(file, g.attr(file), 0)
			switch {
			case calls != "" && file != units[seen] && platform.Of(g.cloud.Managed).MIG.Ends == "":
				return name, file, calls
			case calls != "":
				return name, "", calls
			}
			starts = append(starts, others...)
		}
		for _, unit := range starts {
			if g.exists(etc+unit) && !slices.ContainsFunc(units, func(u string) bool { return path.Base(u) == unit }) {
				units = append(units, etc+unit)
			}
		}
	}
	globs := strings.Fields(bootScripts)
	if !g.exists(firstBootOver) {
		globs = append(globs, strings.Fields(firstBoot)...)
	}
	for _, glob := range globs {
		for _, file := range g.glob(glob) {
			if calls, _ := g.findMIGCall(file, g.attr(file), 0); calls != "" {
				return file, file, calls
			}
		}
	}
	return "", "", ""
}

// dynamicMIG says by which sign NVIDIA's DRA driver makes partitions as pods ask for them: its
// plugin runs with the gate DynamicMIG, which its chart hands over in the environment. Sources:
// kubernetes-sigs/dra-driver-nvidia-gpu, pkg/featuregates/featuregates.go and
// deployments/helm/dra-driver-nvidia-gpu/templates/kubeletplugin.yaml.
func (g *gathering) dynamicMIG() string {
	if !g.v.Live() {
		return ""
	}
	for _, pid := range g.processes("gpu-kubelet-plu") { // gpu-kubelet-plugin
		for _, variable := range strings.Split(g.attr("/proc/"+pid+"/environ"), "\x00") {
			gates, is := strings.CutPrefix(variable, "FEATURE_GATES=")
			if is && slices.Contains(strings.Split(gates, ","), "DynamicMIG=true") {
				return "process " + pid
			}
		}
	}
	return ""
}
