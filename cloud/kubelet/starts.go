// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"go.yaml.in/yaml/v3"
)

// Refusal is a reason why kubelet would exit at its next start.
type Refusal struct {
	Code   string // of doctor's check
	Object string // a file, a device
	What   string
	Fix    string // what to type
}

// Refusals lists what kubelet would refuse at its next start, by the files and the state that it
// reads then. A running kubelet is not affected.
func Refusals(v host.View, k facts.Kubelet) (list []Refusal) {
	what, now := "", v.Now()
	if !k.Expired.IsZero() && !k.Expired.After(now) {
		what = fmt.Sprintf("the certificate of %s ended on %s", k.Kubeconfig, k.Expired.Format(time.DateTime))
	} else if k.Begins.After(now) {
		what = fmt.Sprintf("the certificate of %s is valid from %s on, and the clock says %s", k.Kubeconfig, k.Begins.Format(time.DateTime), now.UTC().Format(time.DateTime))
	}
	if what != "" {
		list = append(list, Refusal{Code: "KUB-005", Object: k.Kubeconfig, What: what})
	}
	swaps, _ := v.ReadFile("/proc/swaps")
	if lines := strings.Split(string(swaps), "\n"); len(lines) > 1 && lines[1] != "" && lastOf(k, failSwapOn()) != "false" {
		name := strings.Fields(lines[1])[0]
		list = append(list, Refusal{"KUB-006", name, name + " is in use as swap, and kubelet's configuration does not say failSwapOn: false", faults.Of("KUB-006").Command})
	}
	for _, p := range []struct {
		file string
		key  func() *regexp.Regexp
		none string
	}{{"cpu_manager_state", cpuPolicy, "none"}, {"memory_manager_state", memoryPolicy, "None"}} {
		name := path.Join(k.Folder(), p.file)
		data, _ := v.ReadFile(name)
		want := cmp.Or(lastOf(k, p.key()), p.none)
		if state := policyName().FindSubmatch(data); state != nil && string(state[1]) != want {
			what := fmt.Sprintf("kubelet's configuration asks for the policy %s, and %s is of %s", want, name, state[1])
			list = append(list, Refusal{"KUB-012", name, what, "sudo rm " + name + " && sudo systemctl restart " + k.Unit})
		}
	}
	for _, f := range k.Files {
		if k.Joined && f.Data == nil && f.Path == k.Config && slices.Contains(k.Args, "--config="+k.Config) && host.NotExist(stat(v, f.Path)) {
			list = append(list, Refusal{"KUB-015", f.Path, f.Path + ", which kubelet's command line names, is not there", "ls -l " + path.Dir(f.Path)})
		}
		var settings map[string]any
		if err := yaml.Unmarshal(f.Data, &settings); err != nil && (f.Path == k.Config || path.Ext(f.Path) == ".conf") {
			list = append(list, Refusal{"KUB-015", f.Path, f.Path + " is no YAML: " + strings.Join(strings.Fields(err.Error()), " "), "sudo less " + f.Path})
		}
	}
	return list
}

func stat(v host.View, name string) error {
	_, err := v.Stat(name)
	return err
}

// The value of a key or a flag, and the policy in a state file. Kubelet exits if a state file has
// another policy than its configuration, or if swap is on: state_checkpoint.go in
// pkg/kubelet/cm/cpumanager/state and memorymanager/state of
// https://github.com/kubernetes/kubernetes;
// https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/.
var (
	failSwapOn   = pattern.Of(`(?m)(?:^[\s{]*"?failSwapOn"?\s*:\s*|--fail-swap-on[= ])"?(\w+)`)
	cpuPolicy    = pattern.Of(`(?m)(?:^[\s{]*"?cpuManagerPolicy"?\s*:\s*|--cpu-manager-policy[= ])"?(\w+)`)
	memoryPolicy = pattern.Of(`(?m)(?:^[\s{]*"?memoryManagerPolicy"?\s*:\s*|--memory-manager-policy[= ])"?(\w+)`)
	failCgroupV1 = pattern.Of(`(?m)^[\s{]*"?failCgroupV1"?\s*:\s*"?(\w+)`)
	policyName   = pattern.Of(`"policyName":"(\w+)"`)
)

// Cgroup1 says whether kubelet ends at its start for the machine's cgroups of version 1.
func Cgroup1(f facts.Facts) bool {
	return f.Cgroup == 1 && refusesCgroup1(f.Kubelet.Version) && lastOf(f.Kubelet, failCgroupV1()) != "false"
}

// lastOf returns the value in the last of kubelet's files that has one; "" if none has.
func lastOf(k facts.Kubelet, key *regexp.Regexp) (value string) {
	for _, f := range k.Files {
		if found := key.FindSubmatch(f.Data); found != nil {
			value = string(found[1])
		}
	}
	return value
}

// starts says why kubelet would not work after a restart. kubelet has no dry run: gpuadm looks for
// what it refuses, and runs it with its command line and --version, since it parses the command
// line before it prints its version.
// Sources: NewKubeletCommand in cmd/kubelet/app/server.go of
// https://github.com/kubernetes/kubernetes (cleanFlagSet.Parse, then
// verflag.PrintAndExitIfRequested);
// https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/.
func starts(k facts.Kubelet) things.PrecheckFunc {
	return func(ctx context.Context, v host.View) error {
		if list := Refusals(v, k); len(list) > 0 {
			return &trouble.Error{What: "cannot restart kubelet, which would not start again: " + list[0].What, Try: []string{trouble.Command("doctor") + "    names the fix"}}
		}
		if k.Binary == "" || len(k.Args) == 0 {
			return nil
		}
		said := (*host.CommandError)(nil)
		if _, err := v.Ask(ctx, slices.Concat([]string{k.Binary}, k.Args, []string{"--version"})...); errors.As(err, &said) && said.Code > 0 {
			return &trouble.Error{What: fmt.Sprintf("cannot restart kubelet, which rejects its command line: %v", err), Try: []string{"systemctl cat " + k.Unit}, Err: err}
		}
		return nil
	}
}
