// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// blindTo is a machine with a file that cannot be read.
type blindTo struct {
	host.View
	name string
}

func (b blindTo) ReadFile(name string) ([]byte, error) {
	if name == b.name {
		return nil, &host.FileError{
			Verb:  "read",
			Path:  name,
			Cause: syscall.EIO,
		}
	}
	return b.View.ReadFile(name)
}

// TestRefusalsUnread: kubelet is not restarted where it is not known whether it would start again. A
// file that is not there is known.
func TestRefusalsUnread(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	precheck := canRestart(facts.Kubelet{Unit: "kubelet.service"})
	check.OK(t, precheck(t.Context(), n))
	for _, name := range []string{
		"/proc/swaps", "/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/memory_manager_state",
	} {
		err := precheck(t.Context(), blindTo{n, name})
		check.That(t, trouble.IsUnknown(err), "without %s: %v", name, err)
	}
}

// TestSwapIsAllowed: what kubelet's command line says of swap counts, wherever the flag comes from,
// and wins over its files. A comment says nothing, and JSON may stand in one line.
func TestSwapIsAllowed(t *testing.T) {
	const swaps = "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t8388604\t0\t-2\n"
	n := must.Get(simhost.New([]byte("-- proc/swaps --\n" + swaps)))(t)
	file := func(path, text string) []facts.File {
		return []facts.File{{Path: path, Data: []byte(text)}}
	}

	const environment = "/etc/default/kubelet"
	const config = "/var/lib/kubelet/config.yaml"
	for name, c := range map[string]struct {
		kubelet facts.Kubelet
		refused bool
	}{
		"nothing":               {facts.Kubelet{}, true},
		"a unit's Environment=": {facts.Kubelet{Args: []string{"--v=2", "--fail-swap-on=false"}}, false},
		"the flag over the file": {
			facts.Kubelet{Args: []string{"--fail-swap-on=false"}, Files: file(config, "failSwapOn: true\n")}, false,
		},
		"the last flag": {facts.Kubelet{Args: []string{"--fail-swap-on=false", "--fail-swap-on=true"}}, true},
		"an environment file": {
			facts.Kubelet{Files: file(environment, "KUBELET_EXTRA_ARGS=--v=2 --fail-swap-on=false\n")}, false,
		},
		"a comment": {
			facts.Kubelet{Files: file(environment, "# KUBELET_EXTRA_ARGS=--fail-swap-on=false\n")}, true,
		},
		"YAML": {facts.Kubelet{Files: file(config, "kind: KubeletConfiguration\nfailSwapOn: False\n")}, false},
		"JSON in one line": {
			facts.Kubelet{Files: file(config, `{"kind":"KubeletConfiguration","failSwapOn":false}`)}, false,
		},
	} {
		list, err := Refusals(n, c.kubelet)
		check.OK(t, err)
		check.Equal(t, len(list) > 0, c.refused, "%s: refused", name)
	}
}

// TestPolicyOnTheCommandLine: a flag may have its value in the next word.
func TestPolicyOnTheCommandLine(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- var/lib/kubelet/cpu_manager_state --\n{\"policyName\":\"static\"}\n")))(t)
	list, err := Refusals(n, facts.Kubelet{Args: []string{"--cpu-manager-policy", "static"}})
	check.OK(t, err)
	check.Equal(t, len(list), 0, "refusals")
}
