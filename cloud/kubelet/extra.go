// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// extraArgs is where packages have an administrator's flags. They come last on kubelet's command line, and so win over ours, and
// over the configuration file.
const extraArgs = "KUBELET_EXTRA_ARGS"

// extraFits refuses an administrator's flags that contradict the join: kubelet would register under another name, with other
// taints, or with another cluster.
func extraFits(f facts.Facts, name string, taints []spec.Taint) error {
	if !theirUnit(f) {
		return nil
	}
	for _, file := range f.Kubelet.Files {
		words := wordsOf(file.Data, extraArgs)
		for _, flag := range []string{"hostname-override", taintFlag, "config", "kubeconfig", "bootstrap-kubeconfig"} {
			if try := extraTry(words, flag, name, taints); try != "" {
				return &trouble.Error{
					What:    fmt.Sprintf("cannot join: %s states --%s, which would win over [join]", file.Path, flag),
					Because: []string{extraArgs + " comes last on kubelet's command line"},
					Try:     []string{fmt.Sprintf("take --%s out of %s in %s; %s", flag, extraArgs, file.Path, try)},
				}
			}
		}
	}
	return nil
}

// extraTry says what to write in place of a flag; "" where it is missing or contradicts nothing.
func extraTry(words []string, flag, name string, taints []spec.Taint) string {
	values := facts.Options(append([]string{"kubelet"}, words...), flag)
	if len(values) == 0 {
		return ""
	}
	value := values[len(values)-1]
	switch {
	case flag == taintFlag:
		stated := flagParts(words, flag)
		if slices.ContainsFunc(taints, func(t spec.Taint) bool {
			return !slices.ContainsFunc(stated, func(p string) bool { return flagKey(p) == flagKey(t.String()) })
		}) {
			return "write them as taints in [node]"
		}
		return ""
	case value == map[string]string{"hostname-override": name, "config": ConfigFile, "kubeconfig": Kubeconfig}[flag]:
		return ""
	case flag == "hostname-override":
		return fmt.Sprintf("write node_name = %q in [join] if that is the name", value)
	case flag == "config":
		return "write the keys that differ into a file, and name it as kubelet_config in [join]"
	}
	return "the join has its own"
}
