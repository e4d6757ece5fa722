// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
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
func (l *look) migOwner(k Kubelet) *Owner {
	const comm, logs = "nvidia-mig-mana", "/var/log/containers"
	manager := func(why string) *Owner {
		return &Owner{"nvidia-mig-manager", why, "set the node's label nvidia.com/mig.config for it, or take it off the machine and run the same command again"}
	}
	if l.v.Live() {
		if pids := l.processes(comm); len(pids) > 0 {
			return manager("process " + pids[0])
		}
		for _, name := range l.names(logs) {
			if strings.HasPrefix(name, "nvidia-mig-manager") {
				return manager(logs + "/" + name)
			}
		}
	}
	if l.v.Live() {
		for _, pid := range slices.Concat(l.processes("sh"), l.processes("bash"), l.processes("dash"), l.processes("python3")) {
			argv, _ := l.commandOf(pid)
			if is := cuts(strings.Join(argv, " ")); is != "" && l.inPod(pid) {
				return &Owner{"a pod", "its process " + pid + " calls " + is, "delete what makes it: kubectl get pods -A -o wide lists the pods of this node"}
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
	name, at, calls := l.partitioner()
	switch {
	case name == "":
		return nil
	case name == "nvidia-mig-manager.service":
		return manager(name)
	case at != "":
		return &Owner{at, "it calls " + calls + " at each boot", "remove that from " + at}
	}
	if p := platform.Of(l.cloud.Managed); p.MIG.Ends != "" {
		return &Owner{p.Title, name + " is enabled and calls " + calls, p.MIG.Ends}
	}
	return &Owner{name, "it is enabled and calls " + calls, "systemctl disable --now " + name}
}

// atBoot are files whose commands run at each boot without a unit of their own: cron(8),
// systemd-rc-local-generator(8), udev(7), static pods
// (https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/), and those of cloud-init
// (https://docs.cloud-init.io/en/latest/reference/modules.html: bootcmd, scripts-per-boot).
const atBoot = "/etc/crontab /etc/cron.d/* /var/spool/cron/crontabs/* /var/spool/cron/* /etc/rc.local /etc/rc.d/rc.local " +
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
func (l *look) partitioner() (name, at, calls string) {
	const etc = "/etc/systemd/system/"
	units := append(l.glob(etc+"*.wants/*"), l.glob(etc+"*.requires/*")...)
	for seen := 0; seen < len(units); seen++ {
		name := path.Base(units[seen])
		if name == "nvidia-mig-manager.service" {
			return name, "", "nvidia-mig-parted"
		}
		// The unit of the same name is what a timer, path or socket starts: systemd.timer(5),
		// systemd.path(5), systemd.socket(5).
		starts := []string{strings.TrimSuffix(name, path.Ext(name)) + ".service"}
		for _, file := range append(l.glob(etc+name+".d/*.conf"), units[seen]) {
			calls, others := l.callsMIG(file, l.attr(file), 0)
			switch {
			case calls != "" && file != units[seen] && platform.Of(l.cloud.Managed).MIG.Ends == "":
				return name, file, calls
			case calls != "":
				return name, "", calls
			}
			starts = append(starts, others...)
		}
		for _, unit := range starts {
			if l.has(etc+unit) && !slices.ContainsFunc(units, func(u string) bool { return path.Base(u) == unit }) {
				units = append(units, etc+unit)
			}
		}
	}
	globs := strings.Fields(atBoot)
	if !l.has(firstBootOver) {
		globs = append(globs, strings.Fields(firstBoot)...)
	}
	for _, glob := range globs {
		for _, file := range l.glob(glob) {
			if calls, _ := l.callsMIG(file, l.attr(file), 0); calls != "" {
				return file, file, calls
			}
		}
	}
	return "", "", ""
}

// partitions is a call that cuts GPUs. A list of what is there ("nvidia-smi mig -lgi") cuts none.
var partitions = pattern.Of(`nvidia-smi\b.*\s(-mig|--multi-instance-gpu)\b|\bmig\b.*\s(-[cd][gc]i|--(create|destroy)-)|nvidia-mig-parted\b.*\s(apply|restore)\b`)

// The limits of a search through scripts that call scripts: how deep, and the size in bytes of the
// largest that is read.
const (
	deepest   = 3
	maxScript = 256 << 10
)

// callsMIG says what a unit or a script calls that cuts GPUs, itself or in a script that its
// command lines name; and for a unit which others it starts.
func (l *look) callsMIG(file, text string, depth int) (calls string, starts []string) {
	unit := strings.HasPrefix(file, "/etc/systemd/system/")
	for _, line := range logicalLines(text) {
		command := words(line)
		if key, value, _ := strings.Cut(command, "="); unit && slices.Contains([]string{"Wants", "Requires", "BindsTo", "Upholds", "Unit"}, key) {
			starts = append(starts, strings.Fields(value)...)
			continue
		} else if unit {
			if !strings.HasPrefix(key, "Exec") {
				continue
			}
			command = strings.TrimLeft(value, "-@:+!")
		}
		if calls = cuts(command); calls != "" {
			return calls, nil
		}
		for _, word := range strings.Fields(command) {
			_, beside, ok := strings.Cut(word, "/") // "$(dirname "$0")/cut.sh", $HERE/cut.sh, ./cut.sh
			for i, script := range []string{word, path.Join(path.Dir(file), beside)} {
				if !ok || !path.IsAbs(script) || i == 1 && word[0] == '/' && !strings.Contains(line, "$") || depth == deepest || script == file {
					continue
				}
				if info, err := l.v.Stat(script); err != nil || !info.Mode.IsRegular() || info.Size > maxScript {
					continue
				}
				if text := l.attr(script); strings.HasPrefix(text, "#!") {
					if found, _ := l.callsMIG(script, text, depth+1); strings.Contains(found, ", in ") {
						return found, nil
					} else if found != "" {
						return found + ", in " + script, nil
					}
				}
			}
		}
	}
	return "", starts
}

// words is a line with blanks for what is between words in a shell's line, and in a list of YAML or
// Python.
func words(line string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("\"',;&|()[]{}", r) {
			return ' '
		}
		return r
	}, line)
}

// cuts names the program by which a command line cuts GPUs; "" if it cuts none.
func cuts(line string) string {
	switch found := partitions().FindString(words(line)); {
	case strings.HasPrefix(found, "nvidia-mig-parted"):
		return "nvidia-mig-parted"
	case found != "":
		return "nvidia-smi"
	}
	return ""
}
