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

// engine is the engine that pods run on; ok is false where there is none, or gpuadm cannot tell.
func (m *Machine) engine() (facts.Engine, engine.Configured, bool) {
	e, err := runtime.ForPods(m.Facts())
	if err != nil {
		return e, engine.Configured{}, false
	}
	return e, runtime.ReadConfigured(e), true
}

// generates says whether the engine's process writes its own configuration and kubelet's after each
// start, as K3s and RKE2 do: those files are always the younger ones. Sources:
// pkg/agent/containerd/config_linux.go in https://github.com/k3s-io/k3s,
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
		len(cdi.ReadOtherSpecs(m.View, "").Injectors()) > 0 || len(m.plugins()) > 0 {
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
	if !ok {
		return nil
	}
	err := c.Unreadable
	if err == nil && e.Binary != "" && !m.generates() {
		err = runtime.Loads(e)(m.ctx, m.View)
	}
	// RUN-004 names a program that is missing; without a kubelet containerd may be here for other
	// tools.
	if err == nil || errors.Is(err, engine.NoProgram) || m.Facts().Kubelet.Unit == "" && errors.Is(err, engine.NoCRI) {
		return nil
	}
	return []Finding{{Object: e.Config, What: err.Error(), Command: engine.Shows(e)}}
}

func unreadSettings(m *Machine) (list []Finding) {
	e, c, _ := m.engine()
	for _, what := range c.Unread {
		list = append(list, Finding{Object: e.Config, What: what, Command: engine.Shows(e)})
	}
	return list
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
		what := fmt.Sprintf("handler %s in %s runs %s, which is not there", name, decidingFile(e, program), program)
		f := Finding{Object: name, What: what, Command: "ls -l " + program}
		if name == c.Default {
			f.What, f.Part = what+", and it is the default", "default"
		}
		list = append(list, f)
	}
	return list
}

// idleEngine finds an engine that crashes in a loop, or does not run. Before kubelet has joined an
// engine may be stopped.
func idleEngine(ending bool) func(*Machine) []Finding {
	return func(m *Machine) []Finding {
		e, _, ok := m.engine()
		if u, _ := m.Unit(e.Unit); !ok || !m.isStopped(e.Unit) || !m.Facts().Kubelet.Joined && u.Active == "inactive" {
			return nil
		}
		return m.idle(e.Unit, ending)
	}
}

// otherCgroups compares what kubelet states with containerd 1.x. From containerd 2.0 on kubelet
// asks the engine.
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
			file, want := decidingFile(e, "SystemdCgroup"), driver == "systemd"
			f := Finding{Object: name, What: fmt.Sprintf("handler %s in %s uses %s, and kubelet uses %s", name, file, is, driver)}
			if decidingFile(e, fmt.Sprintf("SystemdCgroup = %t", !want)) == file {
				f.Command = fmt.Sprintf("sudo sed -i 's/SystemdCgroup = %t/SystemdCgroup = %t/' %s && %s", !want, want, file, trouble.Command("repair RUN-002"))
			}
			list = append(list, f)
		}
	}
	return list
}

func oldSpec(m *Machine) []Finding {
	state, err := cdi.Spec().Look(m.ctx, m.View)
	if problem := cdi.Problem(state); err == nil && problem != "" {
		return []Finding{{Object: cdi.Output(m.View), What: problem}}
	}
	return nil
}

func foreign(m *Machine, conflicts bool) (list []Finding) {
	for _, s := range cdi.ReadOtherSpecs(m.View, m.Facts().ReadsCDI(m.View)).Foreign(m.View) {
		switch {
		case conflicts && s.Conflicts:
			list = append(list, Finding{Object: s.File, What: fmt.Sprintf("%s and %s are both specs for %s", s.File, cdi.Output(m.View), cdi.Kind), Command: "sudo rm " + s.File})
		case !conflicts && !s.Conflicts && s.Problem != "":
			command := "sudo nvidia-ctk cdi generate --output=" + s.File
			if s.Kind != cdi.Kind {
				command = "sudo nvidia-ctk cdi list"
			}
			list = append(list, Finding{Object: s.File, What: s.File + ": " + s.Problem, Command: command})
		}
	}
	return list
}
