// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// extraArgs is the packages' variable for an administrator's flags. They come last on kubelet's
// command line, and so win over gpuadm's, and over the configuration file.
const extraArgs = "KUBELET_EXTRA_ARGS"

// joinFlag is a flag that the join sets.
type joinFlag struct {
	name  string
	value string // the join's; "" if the join does not set it
	try   string // what to do with another value, which replaces %s or %q
}

// joinFlags returns the flags with which a kubelet would register under another name, with other
// taints, or with another cluster.
func (k Own) joinFlags() []joinFlag {
	taints := strings.Join(TaintTexts(k.Taints), ",")
	return []joinFlag{
		{"hostname-override", k.Name, "write it as node_name = %q in [join] if that is the name"},
		{taintFlag, taints, "write %q as taints in [node]"},
		{"config", ConfigFile, "write the keys of %s that differ into a file, and name it as kubelet_config in [join]"},
		{"kubeconfig", Kubeconfig, "the join has another than %s"},
		{"bootstrap-kubeconfig", "", "the join has another than %s"},
	}
}

// checkExtraArgs refuses an administrator's flags that contradict the join.
func (k Own) checkExtraArgs(f facts.Facts) error {
	if !hasPackagedUnit(f) {
		return nil
	}

	for _, file := range f.Kubelet.Files {
		argv := append([]string{"kubelet"}, wordsOf(file.Data, extraArgs)...)
		for _, flag := range k.joinFlags() {
			values := facts.Options(argv, flag.name)
			allowed := flag.name == taintFlag && flag.value == ""
			if len(values) == 0 || allowed {
				continue
			}
			last := values[len(values)-1]
			if last != flag.value {
				return flag.contradicted(file.Path, last)
			}
		}
	}

	return nil
}

// contradicted returns the error for a flag that a file sets to another value.
func (j joinFlag) contradicted(file, value string) error {
	remove := fmt.Sprintf("take --%s out of %s in %s; ", j.name, extraArgs, file)
	return &trouble.Error{
		What:    fmt.Sprintf("cannot join: %s states --%s, which would win over [join]", file, j.name),
		Because: []string{extraArgs + " comes last on kubelet's command line"},
		Try:     []string{remove + fmt.Sprintf(j.try, value)},
	}
}
