// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// nodeFile is a file that labels or taints go into, and the edits that bring them, in their order.
type nodeFile struct {
	name   string
	edits  []func([]byte) ([]byte, error)
	data   []byte // the whole file, where it is ours alone
	unit   bool   // it is a part of kubelet's unit
	mode   fs.FileMode
	brings []string // what the node registers with by it, in words
}

func (n nodeFile) want(why string) converge.Want {
	if n.data != nil {
		w := things.Exact(n.name, n.data, cmp.Or(n.mode, 0o644), why)
		w.Thing.(*things.FileThing).Formed(FormKubelet) // undo may find it with lines of others
		return w
	}
	return things.Edited(things.NewFile(n.name, TakeOut).Formed(FormKubelet), func(found []byte) (out []byte, err error) {
		out = found
		for _, edit := range n.edits {
			if out, err = edit(out); err != nil {
				return nil, nodeCannot(n.name, err)
			}
		}
		return out, nil
	}, why)
}

func nodeCannot(name string, err error) error {
	if _, later := err.(host.Later); later {
		return err
	}
	return &converge.Trouble{
		What: fmt.Sprintf("cannot put labels and taints into %s: %v", name, err),
		Try:  []string{"write that part of " + name + " in a plainer way, or put them there by hand and drop them from [node]"},
		Err:  err,
	}
}

// nodeFiles returns the files that the labels and taints go into.
func nodeFiles(k facts.Kubelet, labels map[string]string, taints []spec.Taint) (files []nodeFile, err error) {
	l, t := k.LabelsAt, k.TaintsAt
	if len(labels) == 0 {
		l = facts.Place{}
	}
	if len(taints) == 0 {
		t = facts.Place{}
	}
	switch {
	case strings.HasSuffix(l.Key, "+") || strings.HasSuffix(t.Key, "+"):
		return nodeRancher(k, l, t, labels, taints), nil
	case l.How == "unit" || t.How == "unit":
		file, err := nodeDropIn(l, t, labels, taints)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if l.How == "env" {
		files = nodeEdit(files, l.File, nodeLabelsSay(labels), nodeEnv(l, kubeletLabelFlag(), kubeletParts(labels)))
	}
	switch {
	case t.How == "env":
		files = nodeEdit(files, t.File, nodeTaintsSay(taints), nodeEnv(t, kubeletTaintFlag(), kubeletTaintParts(taints)))
	case t.How == "drop-in":
		files = append(files, nodeConfDropIn(path.Join(t.File, nodeConfName), taints))
	case t.How == "config" && path.Base(t.File) == nodeConfName:
		files = append(files, nodeConfDropIn(t.File, taints)) // ours since an earlier run
	case t.How == "config":
		files = nodeEdit(files, t.File, nodeTaintsSay(taints), func(found []byte) ([]byte, error) {
			if found == nil {
				return nil, host.Later{Until: "kubelet is set up"}
			}
			return kubeletConfEdited(found, taints)
		})
	}
	return files, nil
}

// nodeEdit adds an edit to a file, once there.
func nodeEdit(files []nodeFile, name, brings string, edit func([]byte) ([]byte, error)) []nodeFile {
	i := slices.IndexFunc(files, func(f nodeFile) bool { return f.name == name })
	if i < 0 {
		files = append(files, nodeFile{name: name})
		i = len(files) - 1
	}
	files[i].edits, files[i].brings = append(files[i].edits, edit), append(files[i].brings, brings)
	return files
}

// nodeEnv edits a variable. Where the file does not set it, it begins with what is set elsewhere, which the file will hide.
func nodeEnv(p facts.Place, f kubeletFlag, parts []string) func([]byte) ([]byte, error) {
	return func(found []byte) ([]byte, error) {
		vars, err := parseKubeletEnv(found)
		if err != nil {
			return nil, err
		}
		if p.Value != "" && kubeletLast(vars, p.Var) < 0 {
			if strings.ContainsAny(p.Value, "\"'\\$`\n\r") {
				return nil, fmt.Errorf("%s is set in the unit already, with quotes in it", p.Var)
			}
			if p.Private {
				return nil, fmt.Errorf("%s is set in a file of the unit that only root may read, and its value is not copied into one that others may", p.Var)
			}
			found = kubeletAppended(found, fmt.Sprintf("%s=\"%s\"", p.Var, p.Value))
		}
		return kubeletEdited(found, p.Var, f, parts)
	}
}

// nodeConfName is our file in the folder of kubelet's --config-dir, which is read where the name ends in .conf.
const nodeConfName = "50-gpuadm.conf"

func nodeConfDropIn(name string, taints []spec.Taint) nodeFile {
	e := &confEdit{nl: "\n"}
	return nodeFile{name: name, brings: []string{nodeTaintsSay(taints)}, data: []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		confTaints + ":\n" + strings.Join(e.blockItems(taints, 0), "\n") + "\n")}
}

// nodeRancher is our file beside K3s's or RKE2's config. A key that ends in + adds to the list of the files before it.
// Source: https://docs.k3s.io/installation/configuration#multiple-config-files, readConfigFile in k3s's
// pkg/configfilearg/parser.go.
func nodeRancher(k facts.Kubelet, l, t facts.Place, labels map[string]string, taints []spec.Taint) []nodeFile {
	var text strings.Builder
	list := func(key string, items []string) {
		if len(items) == 0 {
			return
		}
		text.WriteString(key + ":\n")
		for _, item := range items {
			text.WriteString("- \"" + item + "\"\n")
		}
	}
	var brings []string
	dir := t.File
	if l.How != "" {
		list(l.Key, kubeletParts(labels))
		dir, brings = l.File, append(brings, nodeLabelsSay(labels))
	}
	if t.How != "" {
		list(t.Key, kubeletTaintParts(taints))
		brings = append(brings, nodeTaintsSay(taints))
	}
	return []nodeFile{{name: path.Join(dir, nodeRancherName(k, dir)), data: []byte(text.String()), brings: brings}}
}

// nodeRancherName is our file's name: it comes after those of others that would replace the lists.
func nodeRancherName(k facts.Kubelet, dir string) string {
	const name, last = "50-gpuadm.yaml", "zz-gpuadm.yaml"
	for _, f := range k.Files {
		text := "\n" + string(f.Data)
		replaces := strings.Contains(text, "\nnode-label:") || strings.Contains(text, "\nnode-taint:")
		if path.Dir(f.Path) == path.Clean(dir) && path.Base(f.Path) > name && replaces {
			return last
		}
	}
	return name
}

// nodeDropIn is our drop-in of kubelet's unit, where no file takes flags: it sets a variable that the unit uses, or repeats
// the command line with more flags.
func nodeDropIn(l, t facts.Place, labels map[string]string, taints []spec.Taint) (nodeFile, error) {
	vars, start, name, mode := map[string][]string{}, "", "", fs.FileMode(0o644)
	var flags, brings []string
	add := func(p facts.Place, f kubeletFlag, parts []string, say string) {
		if p.How != "unit" {
			return
		}
		name, brings = p.File, append(brings, say)
		if p.Var == "" {
			if start = p.Value; p.Private { // the command line may hold a secret
				mode = 0o600
			}
			flags = append(flags, f.name+"="+strings.Join(nodeUnion(f, p.Value, parts), ","))
			return
		}
		vars[p.Var] = append(vars[p.Var], f.name+"="+strings.Join(parts, ","))
	}
	add(l, kubeletLabelFlag(), kubeletParts(labels), nodeLabelsSay(labels))
	add(t, kubeletTaintFlag(), kubeletTaintParts(taints), nodeTaintsSay(taints))
	if strings.ContainsAny(start, "\n\r;") {
		return nodeFile{}, nodeCannot(name, fmt.Errorf("the unit's ExecStart holds more than one command"))
	}
	var text strings.Builder
	text.WriteString("[Service]\n")
	for _, v := range slices.Sorted(maps.Keys(vars)) {
		text.WriteString("Environment=\"" + v + "=" + strings.Join(vars[v], " ") + "\"\n")
	}
	if start != "" {
		text.WriteString("ExecStart=\nExecStart=" + start + " " + strings.Join(flags, " ") + "\n")
	}
	return nodeFile{name: name, data: []byte(text.String()), unit: true, mode: mode, brings: brings}, nil
}

// nodeUnion returns what a flag must say that comes last: of a flag of which the last counts, what earlier ones say too.
func nodeUnion(f kubeletFlag, line string, parts []string) []string {
	if !f.last {
		return parts
	}
	ids, stated := f.stated([]byte(line))
	var all []string
	for _, id := range ids {
		if !slices.ContainsFunc(parts, func(p string) bool { return f.id(p) == id }) {
			all = append(all, stated[id])
		}
	}
	return append(all, parts...)
}
