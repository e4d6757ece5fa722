// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
)

// isDown reports whether a kubelet that has joined does not run.
func (m *Machine) isDown(k facts.Kubelet) bool {
	return k.Joined && !m.Facts().Booting && m.hasNoProcess(k.Unit)
}

func kubeletStopped(m *Machine) []Finding {
	k := m.Facts().Kubelet
	if !m.isDown(k) {
		return nil
	}
	return m.stoppedUnit(k.Unit)
}

func kubeletCrashes(m *Machine) []Finding {
	k := m.Facts().Kubelet
	if !m.isDown(k) {
		return nil
	}
	return m.crashLoop(k.Unit)
}

func oldKubelet(m *Machine) []Finding {
	k := m.Facts().Kubelet
	if k.Unit == "" || m.isDown(k) || m.generates() || !m.outdated(k.Unit, k.Reads()) {
		return nil
	}
	return []Finding{{
		Object: k.Unit,
		What:   fmt.Sprintf("%s started before its configuration was changed last", k.Unit),
	}}
}

func otherEngine(m *Machine) []Finding {
	f := m.Facts()
	endpoint := f.Kubelet.Endpoint
	if endpoint == "" || len(f.Engines) == 0 {
		return nil
	}

	var installed []string
	for _, engine := range f.Engines {
		if f.Kubelet.Uses(engine) {
			return nil
		}
		installed = append(installed, engine.Name+" at "+engine.Socket)
	}
	return []Finding{{
		Object: endpoint,
		What:   fmt.Sprintf("kubelet talks to %s; installed: %s", endpoint, strings.Join(installed, ", ")),
	}}
}

// refused finds what kubelet refuses at its start. Swap and the state of a policy are no fault
// while it runs.
func refused(code string) func(*Machine) []Finding {
	return func(m *Machine) (found []Finding) {
		k := m.Facts().Kubelet
		for _, refusal := range kubelet.Refusals(m.View, k) {
			if refusal.Code != code || code == "KUB-005" && m.onlyClockIsWrong(k) {
				continue
			}
			alsoWhileRunning := code == "KUB-005" || code == "KUB-015"
			if alsoWhileRunning || m.isDown(k) {
				found = append(found, Finding{
					Object:  refusal.Object,
					What:    refusal.What,
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
	return ok && !clocks.least && k.Begins.Before(clocks.server) && k.Expired.After(clocks.server)
}

// oldCgroups finds a kubelet that does not start because of this machine's cgroups: from 1.35 on.
func oldCgroups(m *Machine) []Finding {
	k := m.Facts().Kubelet
	if !m.isDown(k) || !kubelet.Cgroup1(m.Facts()) {
		return nil
	}
	return []Finding{{
		Object: k.Unit,
		What:   fmt.Sprintf("kubelet %s does not start with cgroups of version 1, and its configuration does not say failCgroupV1: false", k.Version),
	}}
}
