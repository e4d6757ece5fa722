// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"
)

// OwnDropIn is the drop-in of kubelet's unit that our flags go into where nothing of the machine's takes them up. Its name
// comes after those of kubeadm and of the clouds.
const OwnDropIn = "/etc/systemd/system/kubelet.service.d/90-gpuadm.conf"

// flags reads the labels and taints from the command line and finds out where changes to them must go.
func (k *Kubelet) flags(c kubeletCommand) {
	k.Labels = labels(options(c.argv, "node-labels", "node_labels"))
	k.LabelsAt = k.flagPlace(c)
	inFile := k.TaintsAt
	name, stated := "", false // the variable that holds the flag for taints
	for i := 1; i < len(c.argv); i++ {
		// One flag replaces another and the config file's list: TaintsVar in pkg/util/flag of Kubernetes.
		if one := options(append([]string{""}, c.argv[i:min(i+2, len(c.argv))]...), "register-with-taints", "register_with_taints"); isTaintsFlag(c.argv[i]) && len(one) > 0 {
			k.Taints, name, stated = taints(one[0]), c.from[i], true
		}
	}
	dir := option(c.argv, "config-dir")
	switch {
	case stated && name != "" && c.environ.from[name] != "":
		k.TaintsAt = Place{How: "env", File: c.environ.from[name], Var: name, Value: c.hidden[name], Private: c.private}
	case stated && name != "" && name == k.LabelsAt.Var:
		k.TaintsAt = k.LabelsAt // the unit sets it: what hides that must carry it over, labels and all
	case stated && name != "":
		k.TaintsAt = Place{Why: c.name + " states --register-with-taints in its variable " + name + ", and another flag would replace that"}
	case stated:
		k.TaintsAt = k.unitPlace(c)
	case len(c.argv) == 0:
		k.TaintsAt = k.LabelsAt
	case k.ConfigOwner == "kubeadm" && !k.Joined:
		k.TaintsAt = k.LabelsAt // kubeadm join writes the config file anew
	case inFile.How != "":
	case dir != "":
		k.TaintsAt = Place{How: "drop-in", File: path.Clean(dir), Key: taintsKey}
	case option(c.argv, "config") != "" && k.there(k.Config):
		k.TaintsAt = Place{How: "config", File: k.Config, Key: taintsKey}
	default:
		k.TaintsAt = k.LabelsAt // there is no config file, or none yet: a flag
	}
}

// there says whether a file of the kubelet's is there.
func (k *Kubelet) there(name string) bool {
	return slices.ContainsFunc(k.Files, func(f File) bool { return f.Path == name && f.Data != nil })
}

func isTaintsFlag(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return arg != name && strings.ReplaceAll(name, "_", "-") == "register-with-taints"
}

// flagPlace says where one more flag must go.
func (k *Kubelet) flagPlace(c kubeletCommand) Place {
	switch {
	case c.service == nil:
		return Place{Why: "there is no unit kubelet.service"}
	case len(c.argv) == 0 && len(c.start) == 0:
		return Place{Why: c.name + " has no ExecStart"}
	case len(c.argv) == 0:
		return Place{Why: c.name + " does not start kubelet itself"}
	}
	for _, word := range words(c.start[0]) {
		name, ok := strings.CutPrefix(word, "$")
		if !ok || !isName(name) || !strings.HasSuffix(name, "EXTRA_ARGS") {
			continue // others are their owners'
		}
		p := Place{How: "env", File: c.environ.from[name], Var: name, Value: c.hidden[name], Private: c.private}
		if p.File == "" {
			p.Value = c.values[name]
		}
		for _, f := range c.environ.files {
			// The packages' files for people: https://github.com/kubernetes/release, 10-kubeadm.conf of deb and rpm.
			if c.environ.from[name] == "" && (f.Path == "/etc/default/kubelet" || f.Path == "/etc/sysconfig/kubelet") {
				p.File = f.Path
			}
		}
		if p.File != "" {
			return p
		}
		if _, set := c.values[name]; !set || c.onlyOurs(name) {
			return k.unitPlace(c).with(name)
		}
	}
	return k.unitPlace(c)
}

// with makes it a place that sets a variable that nobody else sets.
func (p Place) with(name string) Place {
	if p.How == "unit" {
		p.Var, p.Value = name, ""
	}
	return p
}

// onlyOurs says whether no file but our own drop-in sets a variable.
func (c kubeletCommand) onlyOurs(name string) bool {
	for _, line := range c.without(OwnDropIn).env {
		for _, word := range words(line) {
			if strings.HasPrefix(word, name+"=") {
				return false
			}
		}
	}
	return c.environ.from[name] == ""
}

// unitPlace is a drop-in of our own.
func (k *Kubelet) unitPlace(c kubeletCommand) Place {
	for _, f := range c.service.files {
		later := &service{start: []string{""}}
		later.add(string(f.Data))
		if path.Base(f.Path) > path.Base(OwnDropIn) && path.Ext(f.Path) == ".conf" && (len(later.start) != 1 || later.start[0] != "") {
			return Place{Why: f.Path + " sets ExecStart after all that could be said before"}
		}
	}
	start := c.without(OwnDropIn).start
	if len(start) == 0 {
		return Place{Why: c.name + " has no ExecStart but ours"}
	}
	return Place{How: "unit", File: OwnDropIn, Value: start[0], Private: c.private}
}

// without is the service as it would be without one of its files.
func (s *service) without(name string) *service {
	out := &service{name: s.name}
	for _, f := range s.files {
		if f.Path != name {
			out.add(string(f.Data))
		}
	}
	return out
}

// labels reads the values of --node-labels, which add up; the last value of a label counts.
// Source: ConfigurationMap in k8s.io/component-base/cli/flag.
func labels(values []string) map[string]string {
	var all map[string]string
	for _, list := range values {
		for one := range strings.SplitSeq(list, ",") {
			key, value, _ := strings.Cut(one, "=")
			if key = strings.TrimSpace(key); key == "" {
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

// taints reads a value of --register-with-taints: key=value:effect or key:effect, with commas between.
func taints(list string) []Taint {
	var all []Taint
	for one := range strings.SplitSeq(list, ",") {
		front, effect, _ := strings.Cut(one, ":")
		key, value, _ := strings.Cut(front, "=")
		if key != "" {
			all = append(all, Taint{key, value, effect})
		}
	}
	return all
}
