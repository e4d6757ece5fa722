// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// extraArgs is where packages have an administrator's flags. They come last on kubelet's command line, and so win over ours, and
// over the configuration file.
const extraArgs = "KUBELET_EXTRA_ARGS"

// extraFits refuses flags of an administrator's that contradict the join: kubelet would register by another name, with other
// taints, or as somebody else, and nothing would tell why.
func extraFits(f facts.Facts, name string, taints []spec.Taint) error {
	if !theirUnit(f) {
		return nil
	}
	for _, file := range f.Kubelet.Files {
		vars, _ := parseKubeletEnv(file.Data) // what is no such file holds no such variable
		i := kubeletLast(vars, extraArgs)
		if i < 0 {
			continue
		}
		words := kubeletWords(vars[i].value)
		for _, flag := range []string{"--hostname-override", "--register-with-taints", "--config", "--kubeconfig", "--bootstrap-kubeconfig"} {
			for _, o := range (kubeletFlag{name: flag, last: true}).find(words) {
				if mend := extraMend(flag, words[o.first].text[o.list:], name, taints); mend != "" {
					return &converge.Trouble{
						What:    fmt.Sprintf("cannot join: %s states %s, which would win over [join]", file.Path, flag),
						Because: []string{extraArgs + " comes last on kubelet's command line"},
						Try:     []string{fmt.Sprintf("take %s out of %s in %s; %s", flag, extraArgs, file.Path, mend)},
					}
				}
			}
		}
	}
	return nil
}

// extraMend says what to write in place of a flag; "" where it contradicts nothing.
func extraMend(flag, value, name string, taints []spec.Taint) string {
	switch flag {
	case "--hostname-override":
		if value == name {
			return ""
		}
		return fmt.Sprintf("write node_name = %q in [join] if that is the name", value)
	case "--register-with-taints":
		ids, _ := kubeletTaintFlag().stated([]byte(flag + "=" + value))
		if !slices.ContainsFunc(taints, func(t spec.Taint) bool { return !slices.Contains(ids, t.Key+":"+t.Effect) }) {
			return ""
		}
		return "write them as taints in [node]"
	case "--config":
		if value == kubeletConfig {
			return ""
		}
		return "what shall differ goes into a file that kubelet_config in [join] names"
	case "--kubeconfig":
		if value == kubeletKubeconfig {
			return ""
		}
	}
	return "the join has its own"
}
