// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// FormKubelet is the journal's name for the form of files whose edits TakeOut reverts.
const FormKubelet = "kubelet"

// File is a file to which gpuadm writes labels or taints.
type File struct {
	Name string
	edit func([]byte) ([]byte, error) // an administrator's file is edited,
	data []byte                       // a file of gpuadm's is written whole
}

// Want wants the file.
func (n File) Want(why string) converge.Want {
	if n.edit == nil {
		w := things.Exact(n.Name, n.data, 0o644, why)
		w.Thing.(*things.FileThing).Formed(FormKubelet) // others may add lines before undo
		return w
	}
	return things.Edited(things.NewFile(n.Name, TakeOut).Formed(FormKubelet), func(found []byte) ([]byte, error) {
		out, err := n.edit(found)
		if err != nil {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot add flags for kubelet to %s: %v", n.Name, err),
				Try:  []string{"write it so; or add the labels and taints by hand, and drop them from [node]"},
				Err:  err,
			}
		}
		return out, nil
	}, why)
}

// confTaints is the key of a KubeletConfiguration with the taints to register with.
const confTaints = "registerWithTaints"

// FileFor returns the file for the labels and taints. internal/facts/kubelet_flags.go selects it:
// both are in the same file, or only one of the two has a file.
func FileFor(k facts.Kubelet, labels map[string]string, taints []spec.Taint) File {
	switch l, t := k.LabelsAt, k.TaintsAt; {
	case cmp.Or(l.How, t.How) == "env":
		return flagsFile(cmp.Or(l.Var, t.Var), cmp.Or(l.File, t.File), t.Others, labels, taints)
	case t.Key == confTaints:
		return confFile(t, taints)
	default:
		return rancherFile(cmp.Or(l.File, t.File), labels, taints)
	}
}

// flagsFile adds gpuadm's flags to an administrator's file.
func flagsFile(variable, name string, others []facts.Taint, labels map[string]string, taints []spec.Taint) File {
	return File{Name: name, edit: func(found []byte) ([]byte, error) {
		out, err := withFlag(found, variable, labelFlag, Pairs(labels), nil)
		if err != nil {
			return nil, err
		}
		return withFlag(out, variable, taintFlag, TaintTexts(taints), TaintTexts(specTaints(others)))
	}}
}

func specTaints(list []facts.Taint) (taints []spec.Taint) {
	for _, t := range list {
		taints = append(taints, spec.Taint(t))
	}
	return taints
}

// confFile is gpuadm's drop-in in the folder of kubelet's --config-dir. Its list replaces the lists
// of earlier files, so it repeats their taints.
// Sources: https://kubernetes.io/docs/reference/node/kubelet-config-directory-merging/;
// mergeKubeletConfigurations in kubernetes, cmd/kubelet/app/server.go.
func confFile(at facts.Place, taints []spec.Taint) File {
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + at.Key + ":\n"
	others := slices.DeleteFunc(specTaints(at.Others), func(o spec.Taint) bool {
		return slices.ContainsFunc(taints, func(t spec.Taint) bool { return t.Key == o.Key && t.Effect == o.Effect })
	})
	for _, t := range append(others, taints...) {
		text += fmt.Sprintf("- {key: %q, value: %q, effect: %q}\n", t.Key, t.Value, t.Effect)
	}
	return File{Name: path.Join(at.File, facts.OwnConf), data: []byte(text)}
}

// rancherFile is gpuadm's file beside K3s's or RKE2's config. A key that ends in + adds to the list
// of earlier files.
// Source: https://docs.k3s.io/installation/configuration#multiple-config-files, readConfigFile in
// k3s's pkg/configfilearg/parser.go.
func rancherFile(dir string, labels map[string]string, taints []spec.Taint) File {
	text := ""
	for _, list := range []struct {
		key   string
		items []string
	}{{"node-label+", Pairs(labels)}, {"node-taint+", TaintTexts(taints)}} {
		if len(list.items) > 0 {
			text += list.key + ":\n- \"" + strings.Join(list.items, "\"\n- \"") + "\"\n"
		}
	}
	return File{Name: path.Join(dir, facts.OwnSettings), data: []byte(text)}
}

// NoTaints says why gpuadm has no place to write taints; "" if it has one.
func NoTaints(k facts.Kubelet) string {
	if k.TaintsAt.How == "" {
		return k.TaintsAt.Why
	}
	// Kubelets 1.28 and 1.29 start with --config-dir only where KUBELET_CONFIG_DROPIN_DIR_ALPHA is
	// set. Sources: https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/,
	// https://www.kubernetes.dev/resources/keps/3983/.
	if v, err := version.NewVersion(k.Version); k.TaintsAt.Key == confTaints && err == nil && v.Segments()[0] == 1 && v.Segments()[1] < 30 {
		return fmt.Sprintf("gpuadm writes to the folder of --config-dir for kubelet 1.30 and newer, and this is %s", k.Version)
	}
	return ""
}
