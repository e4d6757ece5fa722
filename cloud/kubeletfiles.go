// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// nodeFile is a file that labels or taints go into.
type nodeFile struct {
	name string
	edit func([]byte) ([]byte, error) // an administrator's file is edited,
	data []byte                       // a file of gpuadm's is written whole
}

func (n nodeFile) want(why string) converge.Want {
	if n.edit == nil {
		return things.Exact(n.name, n.data, 0o644, why)
	}
	return things.Edited(things.NewFile(n.name, TakeOut), func(found []byte) ([]byte, error) {
		out, err := n.edit(found)
		if err != nil {
			return nil, &converge.Trouble{
				What: fmt.Sprintf("cannot add flags for kubelet to %s: %v", n.name, err),
				Try:  []string{"write it so; or add the labels and taints by hand, and drop them from [node]"},
				Err:  err,
			}
		}
		return out, nil
	}, why)
}

// confTaints is the key of a KubeletConfiguration that holds the taints to register with.
const confTaints = "registerWithTaints"

// nodeFileFor returns the file that the labels and taints go into. Both have the same place, or only one of the two has any.
func nodeFileFor(k facts.Kubelet, labels map[string]string, taints []spec.Taint) nodeFile {
	switch l, t := k.LabelsAt, k.TaintsAt; {
	case cmp.Or(l.How, t.How) == "env":
		return nodeFlags(cmp.Or(l.Var, t.Var), cmp.Or(l.File, t.File), t.Others, labels, taints)
	case t.Key == confTaints:
		return nodeConf(t, taints)
	default:
		return nodeRancher(cmp.Or(l.File, t.File), labels, taints)
	}
}

// nodeFlags adds our flags to an administrator's file.
func nodeFlags(variable, name string, others []facts.Taint, labels map[string]string, taints []spec.Taint) nodeFile {
	return nodeFile{name: name, edit: func(found []byte) ([]byte, error) {
		out, err := withFlag(found, variable, labelFlag, sortedPairs(labels), nil)
		if err != nil {
			return nil, err
		}
		return withFlag(out, variable, taintFlag, taintTexts(taints), taintTexts(specTaints(others)))
	}}
}

func specTaints(list []facts.Taint) (taints []spec.Taint) {
	for _, t := range list {
		taints = append(taints, spec.Taint(t))
	}
	return taints
}

// nodeConf is our file in the folder of kubelet's --config-dir. Its list replaces those of the files before it, so it repeats them.
// Sources: https://kubernetes.io/docs/reference/node/kubelet-config-directory-merging/; mergeKubeletConfigurations in kubernetes,
// cmd/kubelet/app/server.go.
func nodeConf(at facts.Place, taints []spec.Taint) nodeFile {
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + at.Key + ":\n"
	others := slices.DeleteFunc(specTaints(at.Others), func(o spec.Taint) bool {
		return slices.ContainsFunc(taints, func(t spec.Taint) bool { return t.Key == o.Key && t.Effect == o.Effect })
	})
	for _, t := range append(others, taints...) {
		text += fmt.Sprintf("- {key: %s, value: %s, effect: %s}\n", quotedYAML(t.Key), quotedYAML(t.Value), quotedYAML(t.Effect))
	}
	return nodeFile{name: path.Join(at.File, facts.OwnConf), data: []byte(text)}
}

// nodeRancher is our file beside K3s's or RKE2's config. A key that ends in + adds to the list of the files before it.
// Source: https://docs.k3s.io/installation/configuration#multiple-config-files, readConfigFile in k3s's
// pkg/configfilearg/parser.go.
func nodeRancher(dir string, labels map[string]string, taints []spec.Taint) nodeFile {
	text := ""
	for _, list := range []struct {
		key   string
		items []string
	}{{"node-label+", sortedPairs(labels)}, {"node-taint+", taintTexts(taints)}} {
		if len(list.items) > 0 {
			text += list.key + ":\n- \"" + strings.Join(list.items, "\"\n- \"") + "\"\n"
		}
	}
	return nodeFile{name: path.Join(dir, facts.OwnSettings), data: []byte(text)}
}
