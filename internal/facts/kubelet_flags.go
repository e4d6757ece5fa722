// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strings"
)

// flags reads the labels and taints from the command line, and decides where gpuadm writes its own:
// LabelsAt and TaintsAt.
func (k *Kubelet) flags(c kubeletCommand) {
	k.Labels = labels(Options(c.argv, "node-labels", "node_labels"))
	k.LabelsAt = c.flagPlace()

	// One flag replaces another and the config file's list: TaintsVar in pkg/util/flag of
	// Kubernetes.
	if lists := taintFlags(c.argv); len(lists) > 0 {
		k.Taints = taints(lists[len(lists)-1])
	}
	others := k.TaintsAt.Others
	otherLists := taintFlags(c.argvWithout(k.LabelsAt.Var))
	if len(otherLists) > 0 {
		others = taints(otherLists[len(otherLists)-1])
	}

	k.TaintsAt = k.LabelsAt
	dir := option(c.argv, "config-dir")
	if k.TaintsAt.How == "" && dir != "" {
		k.TaintsAt = Place{
			How:  "drop-in",
			File: path.Clean(dir),
			Key:  taintsKey,
		}
	}

	overridden := false
	switch k.TaintsAt.How {
	case "":
		return
	case "drop-in":
		overridden = len(otherLists) > 0
	case "env":
		overridden = c.taintsAfter(k.TaintsAt.Var)
	}

	if overridden {
		k.TaintsAt = Place{Why: c.name + " states --register-with-taints, which wins over what could be added"}
		return
	}
	k.TaintsAt.Others = others
}

// argvWithout returns the command line without the arguments from a variable.
func (c kubeletCommand) argvWithout(variable string) (argv []string) {
	for i, arg := range c.argv {
		if variable == "" || c.from[i] != variable {
			argv = append(argv, arg)
		}
	}
	return argv
}

func taintFlags(argv []string) []string {
	return Options(argv, "register-with-taints", "register_with_taints")
}

// taintsAfter says whether the command line has taints after this variable: then they win over
// those in the variable.
func (c kubeletCommand) taintsAfter(name string) bool {
	_, tail, _ := strings.Cut(c.start[0], "$"+name)
	after, _ := traced("kubelet "+tail, func() map[string]string { return c.values })
	return len(taintFlags(after)) > 0
}

// flagPlace says where gpuadm adds a flag: to the file that kubelet's packages keep for
// administrators, and whose variable comes last on the command line of the unit's drop-in.
// Sources: https://github.com/kubernetes/release,
// cmd/krel/templates/latest/kubeadm/10-kubeadm.conf;
// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/kubelet-integration/
func (c kubeletCommand) flagPlace() Place {
	switch {
	case c.service == nil:
		return Place{Why: "there is no unit kubelet.service"}
	case len(c.start) == 0:
		return Place{Why: c.name + " has no ExecStart"}
	case len(c.argv) == 0:
		return Place{Why: c.name + " does not start kubelet itself"}
	}

	for _, word := range Words(c.start[0]) {
		name := strings.TrimPrefix(word, "$")
		if !alone().MatchString(word) || !strings.HasSuffix(name, "EXTRA_ARGS") {
			continue // other variables belong to kubeadm and the packages
		}
		file := c.environ.from[name]
		if file == "" && c.values[name] != "" {
			return Place{Why: c.name + " sets " + name + " itself, and a file would hide that; " +
				"move it to /etc/default/kubelet (Debian) or /etc/sysconfig/kubelet (RPM)"}
		}
		if file == "" {
			file = c.defaultsFile()
		}
		if file != "" {
			return Place{How: "env", File: file, Var: name}
		}
	}

	return Place{Why: c.name + " takes no KUBELET_EXTRA_ARGS from /etc/default/kubelet or /etc/sysconfig/kubelet"}
}

// defaultsFile returns the first of the unit's environment files that packages keep for
// administrators; "" if it has none.
func (c kubeletCommand) defaultsFile() string {
	for _, file := range c.environ.files {
		switch file.Path {
		case "/etc/default/kubelet", "/etc/sysconfig/kubelet":
			return file.Path
		}
	}
	return ""
}

// labels reads the values of --node-labels, which add up; the last value of a label counts.
// Source: ConfigurationMap in k8s.io/component-base/cli/flag.
func labels(values []string) map[string]string {
	var all map[string]string
	for _, list := range values {
		for label := range strings.SplitSeq(list, ",") {
			key, value, _ := strings.Cut(label, "=")
			key = strings.TrimSpace(key)
			if key == "" {
				continue
			}
			if all == nil {
				all = map[string]string{}
			}
			all[key] = strings.TrimSpace(value)
		}
	}

	return all
}

// taints reads a value of --register-with-taints: key=value:effect or key:effect, with commas
// between.
func taints(list string) []Taint {
	var all []Taint
	for taint := range strings.SplitSeq(list, ",") {
		front, effect, _ := strings.Cut(taint, ":")
		key, value, _ := strings.Cut(front, "=")
		if key != "" {
			all = append(all, Taint{key, value, effect})
		}
	}

	return all
}
