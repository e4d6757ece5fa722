// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
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
	Advice string // what to do, in place of the check's advice
}

// Refusals lists what kubelet would refuse at its next start, by the files and the state that it
// reads then. A running kubelet is not affected. The error is of what could not be read.
func Refusals(v host.View, k facts.Kubelet) (list []Refusal, unread error) {
	swap, swapUnread := refusedSwap(v, k)
	cpu, cpuUnread := refusedPolicy(v, k, "cpu_manager_state", cpuPolicy(), "none")
	memory, memoryUnread := refusedPolicy(v, k, "memory_manager_state", memoryPolicy(), "None")

	list = slices.Concat(refusedCertificate(v, k), swap, cpu, memory, refusedFiles(v, k))
	return list, errors.Join(swapUnread, cpuUnread, memoryUnread)
}

// refusedCertificate finds a client certificate that has expired, or is not valid yet.
func refusedCertificate(v host.View, k facts.Kubelet) []Refusal {
	var what string
	now := v.Now()
	switch {
	case !k.Expired.IsZero() && !k.Expired.After(now):
		what = fmt.Sprintf("the certificate of %s ended on %s", k.Kubeconfig, k.Expired.Format(time.DateTime))
	case k.Begins.After(now):
		begins := k.Begins.Format(time.DateTime)
		clock := now.UTC().Format(time.DateTime)
		what = fmt.Sprintf("the certificate of %s is valid from %s on, and the clock says %s: "+
			"this machine's clock is behind, or that of the CA was ahead when it signed", k.Kubeconfig, begins, clock)
		return []Refusal{{
			Code:   "KUB-005",
			Object: k.Kubeconfig,
			What:   what,
			Fix:    "timedatectl",
			Advice: "set this machine's clock; if it is right, set the clock of the CA, and get kubelet a new certificate",
		}}
	default:
		return nil
	}

	return []Refusal{{Code: "KUB-005", Object: k.Kubeconfig, What: what}}
}

// refusedSwap finds swap that is on, which kubelet refuses unless failSwapOn is false.
func refusedSwap(v host.View, k facts.Kubelet) ([]Refusal, error) {
	table, err := v.ReadFile("/proc/swaps") // its first line is a heading
	if err != nil && !host.NotExist(err) {  // a kernel without swap has no such file: mm/swapfile.c
		return nil, err
	}
	lines := strings.Split(string(table), "\n")
	inUse := len(lines) > 1 && lines[1] != ""
	if !inUse || isFalse(lastOf(k, failSwapOn())) {
		return nil, nil
	}

	name := strings.Fields(lines[1])[0]
	return []Refusal{{
		Code:   "KUB-006",
		Object: name,
		What:   name + " is in use as swap, and kubelet's configuration does not say failSwapOn: false",
		Fix:    faults.Of("KUB-006").Command,
	}}, nil
}

// refusedPolicy finds a state file of another policy than the configured one, which the key finds.
func refusedPolicy(
	v host.View, k facts.Kubelet, file string, key *regexp.Regexp, preset string,
) ([]Refusal, error) {
	name := path.Join(k.Folder(), file)
	data, err := v.ReadFile(name)
	if err != nil && !host.NotExist(err) {
		return nil, err
	}
	state := policyName().FindSubmatch(data)
	want := cmp.Or(lastOf(k, key), preset)
	if state == nil || string(state[1]) == want {
		return nil, nil
	}

	return []Refusal{{
		Code:   "KUB-012",
		Object: name,
		What:   fmt.Sprintf("kubelet's configuration asks for the policy %s, and %s is of %s", want, name, state[1]),
		Fix:    "sudo rm " + name + " && sudo systemctl restart " + k.Unit,
	}}, nil
}

// refusedFiles finds configuration files that do not exist or cannot be parsed.
func refusedFiles(v host.View, k facts.Kubelet) (list []Refusal) {
	for _, f := range k.Files {
		isConfig := f.Path == k.Config
		needed := k.Joined && isConfig && slices.Contains(k.Args, "--config="+k.Config)
		if needed && f.Data == nil && host.NotExist(stat(v, f.Path)) {
			list = append(list, Refusal{
				Code:   "KUB-015",
				Object: f.Path,
				What:   f.Path + ", which kubelet's command line names, is not there",
				Fix:    "ls -l " + path.Dir(f.Path),
			})
		}

		var settings map[string]any
		err := yaml.Unmarshal(f.Data, &settings)
		if err != nil && (isConfig || path.Ext(f.Path) == ".conf") {
			cause := strings.Join(strings.Fields(err.Error()), " ")
			list = append(list, Refusal{
				Code:   "KUB-015",
				Object: f.Path,
				What:   f.Path + " is not YAML: " + cause,
				Fix:    "sudo less " + f.Path,
			})
		}
	}
	return list
}

func stat(v host.View, name string) error {
	_, err := v.Stat(name)
	return err
}

// The value of a key or a flag, and the policy in a state file. A key begins a line of YAML, or has
// quotes in JSON; a # begins a comment in an environment file. Kubelet exits if a state file has
// another policy than its configuration, or if swap is on: state_checkpoint.go in
// pkg/kubelet/cm/cpumanager/state and memorymanager/state of
// https://github.com/kubernetes/kubernetes;
// https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/.
var (
	failSwapOn   = pattern.Of(`(?m)(?:^[\s{]*"?failSwapOn"?|[{,]\s*"failSwapOn")\s*:\s*"?(\w+)|^[^#\n]*--fail-swap-on[=\s]"?(\w+)`)
	cpuPolicy    = pattern.Of(`(?m)(?:^[\s{]*"?cpuManagerPolicy"?|[{,]\s*"cpuManagerPolicy")\s*:\s*"?(\w+)|^[^#\n]*--cpu-manager-policy[=\s]"?(\w+)`)
	memoryPolicy = pattern.Of(`(?m)(?:^[\s{]*"?memoryManagerPolicy"?|[{,]\s*"memoryManagerPolicy")\s*:\s*"?(\w+)|^[^#\n]*--memory-manager-policy[=\s]"?(\w+)`)
	failCgroupV1 = pattern.Of(`(?m)(?:^[\s{]*"?failCgroupV1"?|[{,]\s*"failCgroupV1")\s*:\s*"?(\w+)`)
	policyName   = pattern.Of(`"policyName":"(\w+)"`)
)

// Cgroup1 says whether kubelet ends at its start for the machine's cgroups of version 1.
func Cgroup1(f facts.Facts) bool {
	return f.Cgroup == 1 && refusesCgroup1(f.Kubelet.Version) && !isFalse(lastOf(f.Kubelet, failCgroupV1()))
}

// lastOf returns the value on kubelet's command line, which wins over all files, or else the value
// in the last of kubelet's files that has one; "" if none has.
func lastOf(k facts.Kubelet, key *regexp.Regexp) (value string) {
	var texts [][]byte
	for _, f := range k.Files {
		texts = append(texts, f.Data)
	}
	commandLine := strings.Join(k.Args, "\n")
	texts = append(texts, []byte(commandLine))

	for _, text := range texts {
		for _, found := range key.FindAllSubmatch(text, -1) {
			value = string(bytes.Join(found[1:], nil)) // one of the groups has matched
		}
	}
	return value
}

// isFalse says whether kubelet reads a value as false.
func isFalse(value string) bool {
	is, err := strconv.ParseBool(value)
	return err == nil && !is
}

// canRestart says why kubelet would not work after a restart: it looks for what kubelet refuses,
// and asks kubelet itself about its command line.
func canRestart(k facts.Kubelet) things.PrecheckFunc {
	return func(ctx context.Context, v host.View) error {
		list, unread := Refusals(v, k)
		switch {
		case unread != nil:
			return &trouble.Unknown{
				What: "what kubelet would refuse at its start",
				Err:  unread,
			}
		case len(list) > 0:
			return &trouble.Error{
				What: "cannot restart kubelet, which would not start again: " + list[0].What,
				Try:  []string{trouble.Command("doctor") + "    names the fix"},
			}
		}

		rejected, err := Rejected(ctx, v, k)
		switch {
		case err != nil:
			return &trouble.Unknown{What: "whether kubelet accepts its command line", Err: err}
		case rejected != nil:
			return &trouble.Error{
				What: fmt.Sprintf("cannot restart kubelet, which rejects its command line: %v", rejected.Said),
				Try:  []string{"systemctl cat " + k.Unit},
				Err:  rejected.Said,
			}
		}

		return nil
	}
}
