// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Plugin is NVIDIA's device plugin on a machine: what runs it, and the MIG strategy that it has.
type Plugin struct {
	Runner
	Strategy string // none, single, mixed; "" = gpuadm cannot tell
	From     string // the setting that the strategy comes from
}

// Runner is what runs a program: an enabled unit, or a pod.
type Runner struct {
	Program string // "" = nothing runs it
	Unit    string // the enabled unit; "" = a pod does
	Process string // its process's number; "" = it does not run now
}

// The programs that offer GPUs to kubelet. The name of NVIDIA's plugin is the same in
// Bottlerocket's nvidia-k8s-device-plugin.service and AKS's nvidia-device-plugin.service. Sources:
// NVIDIA/k8s-device-plugin, cmd; bottlerocket-os/bottlerocket-core-kit,
// packages/nvidia-k8s-device-plugin; Azure/AgentBaker, cse_config.sh;
// GoogleCloudPlatform/container-engine-accelerators, cmd/nvidia_gpu/Dockerfile;
// kubernetes-sigs/dra-driver-nvidia-gpu, cmd. Evidence of 2026-11; out of date where kubelet's
// folder has a socket, and no program is found.
const (
	NvidiaPlugin = "nvidia-device-plugin"
	GooglePlugin = "nvidia-gpu-device-plugin"
	DRAPlugin    = "gpu-kubelet-plugin"

	// KubeVirtPlugin offers GPUs of vfio-pci to virtual machines.
	// Sources: NVIDIA/kubevirt-gpu-device-plugin, Dockerfile; NVIDIA/gpu-operator,
	// assets/state-sandbox-device-plugin.
	KubeVirtPlugin = "nvidia-kubevirt-gpu-device-plugin"
)

// Offering asks the machine which programs offer GPUs to kubelet, or would: the processes, then the
// enabled units. The error says what could not be looked at.
func Offering(ctx context.Context, v host.View) (found []Runner, err error) {
	g := &gathering{v: v}
	for _, program := range []string{NvidiaPlugin, GooglePlugin, DRAPlugin, KubeVirtPlugin} {
		found = append(found, g.runners(ctx, program)...)
	}
	return found, g.err
}

// runners finds all that run a program: a pod's plugin beside that of a unit offers the same GPUs
// twice.
func (g *gathering) runners(ctx context.Context, program string) (found []Runner) {
	var pids []string
	if g.v.Live() {
		pids = g.processes(program[:min(15, len(program))])
	}
	runs := func(unit string) bool {
		return slices.ContainsFunc(found, func(r Runner) bool { return r.Unit == unit })
	}
	for _, pid := range pids {
		unit := ""
		if !g.inPod(pid) {
			_, unit = g.commandOf(pid)
		}
		if !runs(unit) {
			found = append(found, Runner{
				Program: program,
				Unit:    unit,
				Process: pid,
			})
		}
	}

	if s := g.enabledService(ctx, program); s != nil && !runs(s.name) {
		found = append(found, Runner{Program: program, Unit: s.name})
	}
	return found
}

// FindPlugin asks the machine for NVIDIA's device plugin. The error says what could not
// be looked at.
func FindPlugin(ctx context.Context, v host.View) (found Plugin, err error) {
	g := &gathering{v: v}
	r, s := g.runner(ctx, NvidiaPlugin)
	found.Runner = r
	switch {
	case r.Process != "":
		argv, _ := g.commandOf(r.Process)
		environment := g.processEnviron(r.Process)
		found.Strategy, found.From = g.migStrategy(argv, environment, "/proc/"+r.Process+"/root")
	case s != nil:
		found.Strategy, found.From = g.migStrategy(g.argv(s), g.environ(s).pairs(), "")
	}

	return found, g.err
}

// MPS is the control daemon of CUDA MPS for the device plugin, and what starts it: NVIDIA's program
// mps-control-daemon, which starts one nvidia-cuda-mps-control for each resource, with a folder
// below /mps, on Bottlerocket below /run/nvidia/mps. One that an operator starts has another
// folder, where the plugin does not look.
// Sources: NVIDIA/k8s-device-plugin, cmd/mps-control-daemon, mps/daemon.go (EnvVars) and
// mps/root.go; bottlerocket-os/bottlerocket-core-kit, packages/nvidia-k8s-device-plugin,
// 0001-Update-MPS-roots-for-immutable-host-OS.patch, and bottlerocket-kernel-kit pull 415.
type MPS struct {
	Runner         // of mps-control-daemon
	Control string // the process of the plugin's control daemon; "" = it does not run
	Other   string // the process of another control daemon
	At      string // the other one's folder
}

// FindMPS asks the machine for the control daemon of MPS. The error says what could not
// be looked at.
func FindMPS(ctx context.Context, v host.View) (found MPS, err error) {
	const folder = "CUDA_MPS_PIPE_DIRECTORY="
	g := &gathering{v: v}
	found.Runner, _ = g.runner(ctx, "mps-control-daemon")
	if !v.Live() {
		return found, g.err
	}
	for _, pid := range g.processes("nvidia-cuda-mps") { // nvidia-cuda-mps-control, and its servers
		at := "/tmp/nvidia-mps" // CUDA's default
		for _, variable := range g.processEnviron(pid) {
			if value, ok := strings.CutPrefix(variable, folder); ok {
				at = value
			}
		}

		if strings.HasPrefix(at, "/mps/") || strings.HasPrefix(at, "/run/nvidia/mps/") {
			found.Control = pid
		} else {
			found.Other = pid
			found.At = at
		}
	}

	return found, g.err
}

// runner finds what runs a program, and the unit's settings where its process is not there.
func (g *gathering) runner(ctx context.Context, program string) (Runner, *service) {
	var pids []string
	if g.v.Live() {
		pids = g.processes(program[:min(15, len(program))])
	}
	if len(pids) > 0 {
		r := Runner{Program: program, Process: pids[0]}
		if !g.inPod(r.Process) {
			_, r.Unit = g.commandOf(r.Process)
		}
		return r, nil
	}

	s := g.enabledService(ctx, program)
	if s == nil {
		return Runner{}, nil
	}
	return Runner{Program: program, Unit: s.name}, s
}

// unitFolders are systemd's folders in which links enable units: the administrator's, this boot's,
// an image's own.
func unitFolders() []string {
	return []string{"/etc/systemd/system/", "/run/systemd/system/", "/usr/lib/systemd/system/"}
}

// enabledService returns the enabled unit that starts a program; nil if there is none. The links in
// the folders .wants and .requires are what enables a unit: systemd.unit(5).
func (g *gathering) enabledService(ctx context.Context, program string) *service {
	var asked []string
	for _, folder := range unitFolders() {
		for _, name := range g.enabledBy(folder) {
			if slices.Contains(asked, name) {
				continue
			}
			asked = append(asked, name)
			s := g.service(ctx, name)
			if s != nil && slices.ContainsFunc(s.start, startsProgram(program)) {
				return s
			}
		}
	}

	return nil
}

// enabledBy returns the names of the services that the links in a folder of systemd's enable.
func (g *gathering) enabledBy(folder string) (names []string) {
	for _, links := range append(g.glob(folder+"*.wants"), g.glob(folder+"*.requires")...) {
		for _, name := range g.list(links) {
			if strings.HasSuffix(name, ".service") {
				names = append(names, name)
			}
		}
	}
	return names
}

// startsProgram reports whether a line of ExecStart= starts a program, in any folder. A prefix such
// as - or @ may stand before the path: systemd.service(5), table "Special executable prefixes".
func startsProgram(program string) func(line string) bool {
	return func(line string) bool {
		words := Words(line)
		return len(words) > 0 && path.Base(strings.TrimLeft(words[0], "-@:+!|")) == program
	}
}

// migStrategy returns the plugin's MIG strategy and the setting that it comes from: a flag, a
// variable, the configuration file, or the default. root is the folder in which the plugin sees its
// files.
// Source: https://github.com/NVIDIA/k8s-device-plugin, api/config/v1/config.go (NewConfig) and
// cmd/nvidia-device-plugin/main.go.
func (g *gathering) migStrategy(argv, environment []string, root string) (strategy, from string) {
	setting := func(flag, variable string) (value, from string) {
		for i, word := range argv {
			name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
			switch {
			case name != flag || !strings.HasPrefix(word, "-"):
			case joined:
				return value, "--" + flag + "=" + value
			case i+1 < len(argv):
				return argv[i+1], "--" + flag + "=" + argv[i+1]
			}
		}

		for _, pair := range environment {
			name, value, _ := strings.Cut(pair, "=")
			if name == variable && value != "" {
				return value, pair
			}
		}

		return "", ""
	}

	if value, from := setting("mig-strategy", "MIG_STRATEGY"); value != "" {
		return value, from
	}
	const byDefault = "the plugin's default"
	file, _ := setting("config-file", "CONFIG_FILE")
	if file == "" {
		return "none", byDefault
	}

	data, err := g.v.ReadFile(root + file)
	var config struct {
		Flags struct {
			MigStrategy string `yaml:"migStrategy"`
		}
	}
	if err != nil || yaml.Unmarshal(data, &config) != nil {
		return "", ""
	}
	if config.Flags.MigStrategy == "" {
		return "none", byDefault
	}
	return config.Flags.MigStrategy, "migStrategy in its file " + file
}
