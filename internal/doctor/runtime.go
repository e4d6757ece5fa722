// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

func runtimeChecks() []Check {
	return []Check{
		{
			Code: "RUN-001", Title: "the container engine has no handler for GPUs",
			Reads:   "the engine's configuration and what it imports",
			Meaning: "no container on this node gets a GPU: NVIDIA's Container Toolkit is here, and nothing runs it",
			Fix:     "add the handler to the engine's configuration", Command: trouble.Command("repair RUN-001"), Interrupts: "restarts the engine; containers keep running",
			Sources: []string{"https://github.com/NVIDIA/nvidia-container-toolkit/issues/555", "https://github.com/NVIDIA/gpu-operator/issues/730"},
			Find:    noHandler,
		},
		{
			Code: "RUN-002", Title: "the container engine runs with an older configuration than its files",
			Reads:   "the times of the engine's start and of its files",
			Meaning: "what the files say has no effect until the engine restarts",
			Fix:     "restart the engine", Command: trouble.Command("repair RUN-002"),
			Interrupts: "restarts the engine; containers keep running, with Docker only where live-restore is on",
			Sources:    []string{"https://github.com/NVIDIA/gpu-operator/issues/598", "https://github.com/containerd/containerd/pull/9462"},
			Find:       oldConfiguration,
		},
		{
			Code: "RUN-003", Title: "the container engine cannot serve pods with its configuration",
			Reads:   "the engine's configuration and what it imports, as the engine's own program reads them",
			Meaning: "the engine's next start fails or leaves kubelet without an engine",
			Fix:     "fix the file; if gpuadm wrote it last, " + trouble.Command("undo") + " restores it", Interrupts: "nothing until the engine restarts",
			Sources: []string{"https://github.com/NVIDIA/nvidia-container-toolkit/issues/1430", "https://github.com/NVIDIA/gpu-operator/issues/143"},
			Find:    unreadable,
		},
		{
			Code: "RUN-004", Title: "a handler's program is missing",
			Reads:   "the engine's configuration, and the programs that it names",
			Meaning: "containers of the handler do not start; where it is the default, no new container starts on this node",
			Fix:     "install NVIDIA's Container Toolkit: [toolkit] in node.toml, then " + trouble.Command("apply"), Interrupts: "nothing",
			Sources: []string{"https://github.com/NVIDIA/nvidia-container-runtime/issues/98", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/145"},
			Find:    noProgram,
		},
		{
			Code: "RUN-005", Title: "the container engine does not run",
			Reads:   "systemd's state of the engine's unit",
			Meaning: "no pod starts on this node, and kubelet calls it not ready",
			Fix:     "start the engine", Command: trouble.Command("repair RUN-005"), Interrupts: "nothing",
			Sources: []string{"https://github.com/kubernetes/kubernetes/issues/110383", "https://kubernetes.io/docs/setup/production-environment/container-runtimes/"},
			Find:    idleEngine(false),
		},
		{
			Code: "RUN-006", Title: "kubelet and containerd use different cgroup drivers",
			Reads:   "kubelet's configuration and containerd's",
			Meaning: "pods restart without a reason in their logs, or do not start",
			Fix:     "state SystemdCgroup in the handler's options as kubelet's cgroupDriver asks", Interrupts: "restarts the engine, and the pods of the handler are made again",
			Sources: []string{"https://github.com/containerd/containerd/issues/7276", "https://kubernetes.io/docs/setup/production-environment/container-runtimes/#cgroup-drivers"},
			Find:    otherCgroups,
		},
		{
			Code: "RUN-010", Title: "the container engine ends again and again",
			Reads:   "systemd's state of the engine's unit",
			Meaning: "systemd starts the engine again each time it ends; until its cause is gone, no pod starts on this node",
			Fix:     "read in its log why it ends", Interrupts: "nothing",
			Sources: []string{"https://github.com/moby/moby/issues/34091", "https://github.com/containerd/containerd/blob/main/containerd.service"},
			Find:    idleEngine(true),
		},
	}
}

// engine is the engine that pods run on; ok is false where there is none, or gpuadm cannot tell.
func (m *Machine) engine() (facts.Engine, engine.Configured, bool) {
	e, err := runtime.ForPods(m.Facts())
	if err != nil {
		return e, engine.Configured{}, false
	}
	return e, runtime.ReadConfigured(e), true
}

// generates says whether the engine's process writes its own configuration and kubelet's after each start, as K3s and RKE2 do: those
// files are always the younger ones. Sources: pkg/agent/containerd/config_linux.go in https://github.com/k3s-io/k3s,
// https://docs.k3s.io/advanced.
func (m *Machine) generates() bool {
	e, _, ok := m.engine()
	return ok && (e.Owner == "k3s" || e.Owner == "rke2")
}

// isNvidia says whether a handler's program is one of NVIDIA's.
func isNvidia(program string) bool {
	return strings.HasPrefix(path.Base(program), "nvidia-container-runtime")
}

func noHandler(m *Machine) []Finding {
	f := m.Facts()
	e, c, ok := m.engine()
	if !ok || c.Unreadable != nil || e.Name == "docker" || f.Driver == nil || f.Kubelet.Unit == "" || len(f.Programs) == 0 || !runtime.NeedsHandler(f) ||
		len(cdi.ReadOtherSpecs(m.View).Injectors()) > 0 || len(m.plugins()) > 0 {
		return nil
	}
	for _, program := range c.Programs {
		if isNvidia(program) || slices.Contains(f.Programs, program) { // Bottlerocket's is nvidia-oci
			return nil
		}
	}
	return []Finding{{Object: e.Config, What: fmt.Sprintf("%s is installed, and no handler in %s runs it", f.Programs[0], e.Config)}}
}

func oldConfiguration(m *Machine) []Finding {
	if m.generates() {
		return nil
	}
	wants, err := runtime.Reread(m.Facts())
	if err != nil {
		return nil
	}
	if state, err := wants[0].Look(m.ctx, m.View); err != nil || things.DaemonState(state) != things.Outdated {
		return nil
	}
	unit := wants[0].Ref().Name
	if !m.outdated(unit, wants[0].Ref().Reads) {
		return nil
	}
	return []Finding{{Object: unit, What: fmt.Sprintf("%s started before its configuration was changed last", unit)}}
}

func unreadable(m *Machine) []Finding {
	e, c, ok := m.engine()
	if !ok || m.Facts().Kubelet.Unit == "" {
		return nil
	}
	err := c.Unreadable
	if err == nil && e.Binary != "" && !m.generates() {
		err = runtime.Loads(e)(m.ctx, m.View)
	}
	if err == nil || errors.Is(err, engine.NoProgram) { // RUN-004 names that
		return nil
	}
	return []Finding{{Object: e.Config, What: err.Error()}}
}

func noProgram(m *Machine) (list []Finding) {
	e, c, ok := m.engine()
	if !ok {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Programs)) {
		program := c.Programs[name]
		if !isNvidia(program) || !path.IsAbs(program) || m.has(program) {
			continue
		}
		what := fmt.Sprintf("handler %s in %s runs %s, which is not there", name, e.Config, program)
		if name == c.Default {
			what += ", and it is the default"
		}
		list = append(list, Finding{Object: name, What: what})
	}
	return list
}

// idleEngine finds an engine that crashes in a loop, or is stopped.
func idleEngine(ending bool) func(*Machine) []Finding {
	return func(m *Machine) []Finding {
		e, _, ok := m.engine()
		if !ok || !m.Facts().Kubelet.Joined || !m.isStopped(e.Unit) {
			return nil
		}
		return m.idle(e.Unit, ending)
	}
}

// otherCgroups compares what kubelet states with containerd 1.x. From containerd 2.0 on kubelet asks the engine.
// Sources: https://github.com/containerd/containerd/pull/8722 (RuntimeConfig, first in v2.0.0);
// https://github.com/kubernetes/enhancements, keps/sig-node/4033-group-driver-detection-over-cri.
func otherCgroups(m *Machine) (list []Finding) {
	e, c, ok := m.engine()
	driver := m.Facts().Kubelet.CgroupDriver
	if !ok || e.Name != "containerd" || !strings.HasPrefix(e.Version, "1.") || driver == "" {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Cgroups)) {
		if is := c.Cgroups[name]; is != driver && (name == c.Default || name == "nvidia") {
			list = append(list, Finding{Object: name, What: fmt.Sprintf("handler %s in %s uses %s, and kubelet uses %s", name, e.Config, is, driver)})
		}
	}
	return list
}

func cdiChecks() []Check {
	return []Check{
		{
			Code: "CDI-001", Title: "the CDI spec is not what the driver has",
			Reads:   "the spec of the toolkit's service, and the driver's GPUs and partitions",
			Meaning: "containers that ask for a device by CDI do not start, or start without it",
			Fix:     "have NVIDIA's Container Toolkit write the spec again", Command: trouble.Command("repair CDI-001"), Interrupts: "nothing",
			Sources: []string{"https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828"},
			Find:    oldSpec,
		},
		{
			Code: "CDI-002", Title: "a CDI spec that nothing keeps current names files that are gone",
			Reads:   "the specs for nvidia.com/gpu in /etc/cdi and /var/run/cdi, and the files that they mount",
			Meaning: "containers that get a device by it do not start",
			Fix:     "remove the file, or write it again with nvidia-ctk cdi generate", Interrupts: "nothing",
			Sources: []string{"https://github.com/NVIDIA/NemoClaw/pull/4733", "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"},
			Find:    func(m *Machine) []Finding { return foreign(m, false) },
		},
		{
			Code: "CDI-003", Title: "two CDI specs name the same devices",
			Reads:   "the specs for nvidia.com/gpu in the folder that the toolkit's service writes to",
			Meaning: "a device that two files of one folder name counts for neither, so that containers do not get it",
			Fix:     "remove the file that nothing keeps current", Interrupts: "nothing",
			Sources: []string{"https://github.com/cncf-tags/container-device-interface, pkg/cdi/cache.go", "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"},
			Find:    func(m *Machine) []Finding { return foreign(m, true) },
		},
	}
}

func oldSpec(m *Machine) []Finding {
	state, err := cdi.Spec().Look(m.ctx, m.View)
	if problem := cdi.Problem(state); err == nil && problem != "" {
		return []Finding{{Object: cdi.Output(m.View), What: problem}}
	}
	return nil
}

func foreign(m *Machine, conflicts bool) (list []Finding) {
	for _, s := range cdi.ReadOtherSpecs(m.View).Foreign(m.View) {
		switch {
		case conflicts && s.Conflicts:
			list = append(list, Finding{Object: s.File, What: fmt.Sprintf("%s and %s are both specs for %s", s.File, cdi.Output(m.View), cdi.Kind), Command: "sudo rm " + s.File})
		case !conflicts && !s.Conflicts && s.Problem != "":
			list = append(list, Finding{Object: s.File, What: s.File + ": " + s.Problem, Command: "sudo nvidia-ctk cdi generate --output=" + s.File})
		}
	}
	return list
}
