// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// gkePartitions is GKE's label of a pool whose GPUs its own partition_gpu cuts, and gkeConfig what that reads. Source:
// https://cloud.google.com/kubernetes-engine/docs/how-to/gpus-multi; GoogleCloudPlatform/container-engine-accelerators at 992db812, partition_gpu.
const (
	gkePartitions = "cloud.google.com/gke-gpu-partition-size"
	gkeConfig     = "/etc/nvidia/gpu_config.json"
)

// migOwner says who else partitions the GPUs and would undo what gpuadm does. NVIDIA's GPU Operator runs nvidia-mig-manager in a pod,
// and its packages as a unit; both follow the node's label nvidia.com/mig.config. The link to a container's log is there also while its
// pod does not run. Sources: https://github.com/NVIDIA/mig-parted, deployments; kubernetes, pkg/kubelet/kuberuntime/legacy.go.
func (l *look) migOwner(k Kubelet) *Owner {
	const comm, logs = "nvidia-mig-mana", "/var/log/containers"
	manager := func(why string) *Owner {
		return &Owner{"nvidia-mig-manager", why, "set the node's label nvidia.com/mig.config for it, or take it off the machine and run the same command again"}
	}
	if l.v.Live() {
		if pid := l.process(comm); pid != "" {
			return manager("process " + pid)
		}
		for _, name := range l.names(logs) {
			if strings.HasPrefix(name, "nvidia-mig-manager") {
				return manager(logs + "/" + name)
			}
		}
	}
	const pool = "GPUs of a pool are cut as it was made: make one without "
	why := ""
	if size := k.Labels[gkePartitions]; size != "" {
		why = "kubelet's label " + gkePartitions + "=" + size
	} else if strings.Contains(l.attr(gkeConfig), `"GPUPartitionSize"`) {
		why = gkeConfig + " has a GPUPartitionSize"
	}
	if why != "" {
		return &Owner{"GKE", why, pool + "gpu-partition-size"}
	}
	unit, calls := l.partitioner()
	switch {
	case unit == "":
		return nil
	case unit == "nvidia-mig-manager.service":
		return manager(unit)
	case l.cloud.Managed == "aks":
		return &Owner{"AKS", unit + " is enabled and calls " + calls, pool + "--gpu-instance-profile"}
	}
	return &Owner{unit, "it is enabled and calls " + calls, "systemctl disable --now " + unit}
}

// partitioner finds an enabled unit that cuts GPUs, itself or by a script, and what it calls. AKS's mig-partition.service does it by
// both: Azure/AgentBaker at 06836ee2, parts/linux/cloud-init/artifacts/mig-partition.service and mig-partition.sh.
func (l *look) partitioner() (unit, calls string) {
	const etc = "/etc/systemd/system"
	for _, folder := range l.names(etc) {
		if kind := path.Ext(folder); kind != ".wants" && kind != ".requires" {
			continue
		}
		for _, name := range l.names(path.Join(etc, folder)) {
			if name == "nvidia-mig-manager.service" {
				return name, "nvidia-mig-parted"
			}
			if calls = l.callsMIG(l.attr(path.Join(etc, folder, name))); calls != "" {
				return name, calls
			}
		}
	}
	return "", ""
}

// partitions is a call that cuts GPUs. A list of what is there ("nvidia-smi mig -lgi") cuts none.
var partitions = pattern.Of(`nvidia-smi\b.*\s(-mig|--multi-instance-gpu|mig\s+(-i\s*\S+\s+)?(-[cd][gc]i|--(create|destroy)-))|nvidia-mig-parted`)

// callsMIG says what a unit, or a script that its command lines name, calls.
func (l *look) callsMIG(unit string) string {
	for _, line := range logicalLines(unit) {
		key, command, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(key, "Exec") {
			continue
		}
		if is := cuts(command); is != "" {
			return is
		}
		for _, word := range strings.Fields(strings.TrimLeft(command, "-@:+!")) {
			if info, err := l.v.Stat(word); !path.IsAbs(word) || err != nil || !info.Mode.IsRegular() || info.Size > maxScript {
				continue
			}
			if text := l.attr(word); strings.HasPrefix(text, "#!") && cuts(text) != "" {
				return cuts(text) + ", in " + word
			}
		}
	}
	return ""
}

// maxScript is the size, in bytes, of the largest file that is read as a script.
const maxScript = 256 << 10

func cuts(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && partitions().MatchString(line) {
			if strings.Contains(line, "nvidia-smi") {
				return "nvidia-smi"
			}
			return "nvidia-mig-parted"
		}
	}
	return ""
}
