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
	edit func([]byte) ([]byte, error) // of an administrator's file
	data []byte                       // of a file that gpuadm writes whole
}

// Want wants the file.
func (f File) Want(why string) converge.Want {
	if f.edit == nil {
		w := things.Exact(f.Name, f.data, 0o644, why)
		w.Thing.(*things.FileThing).Formed(FormKubelet) // others may add lines before undo
		return w
	}

	edit := func(found []byte) ([]byte, error) {
		edited, err := f.edit(found)
		if err != nil {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot add flags for kubelet to %s: %v", f.Name, err),
				Try:  []string{"write it on one line, in one pair of quotes; or add the labels and taints by hand, and drop them from [node]"},
				Err:  err,
			}
		}

		return edited, nil
	}

	return things.Edited(things.NewFile(f.Name, TakeOut).Formed(FormKubelet), edit, why)
}

// confTaints is the key of a KubeletConfiguration with the taints to register with.
const confTaints = "registerWithTaints"

// FileFor returns the file for the labels and taints. internal/facts/kubelet_flags.go selects it:
// both are in the same file, or only one of the two has a file.
func FileFor(k facts.Kubelet, labels map[string]string, taints []spec.Taint) File {
	labelsAt := k.LabelsAt
	taintsAt := k.TaintsAt
	file := cmp.Or(labelsAt.File, taintsAt.File)

	switch {
	case cmp.Or(labelsAt.How, taintsAt.How) == "env":
		variable := cmp.Or(labelsAt.Var, taintsAt.Var)
		return flagsFile(variable, file, taintsAt.Others, labels, taints)
	case taintsAt.Key == confTaints:
		return confFile(taintsAt, taints)
	}

	return rancherFile(file, labels, taints)
}

// flagsFile adds gpuadm's flags to an administrator's file.
func flagsFile(
	variable, name string, others []facts.Taint, labels map[string]string, taints []spec.Taint,
) File {
	otherTaints := TaintTexts(specTaints(others))
	edit := func(found []byte) ([]byte, error) {
		withLabels, err := withFlag(found, variable, labelFlag, Pairs(labels), nil)
		if err != nil {
			return nil, err
		}
		return withFlag(withLabels, variable, taintFlag, TaintTexts(taints), otherTaints)
	}

	return File{Name: name, edit: edit}
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
	replaced := func(other spec.Taint) bool {
		return hasTaint(taints, other.Key, other.Effect)
	}
	others := slices.DeleteFunc(specTaints(at.Others), replaced)

	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + at.Key + ":\n"
	for _, t := range append(others, taints...) {
		text += fmt.Sprintf("- {key: %q, value: %q, effect: %q}\n", t.Key, t.Value, t.Effect)
	}
	return File{Name: path.Join(at.File, facts.OwnConf), data: []byte(text)}
}

// hasTaint says whether a list has a taint with this key and effect, whatever its value.
func hasTaint(taints []spec.Taint, key, effect string) bool {
	return slices.ContainsFunc(taints, func(t spec.Taint) bool {
		return t.Key == key && t.Effect == effect
	})
}

// rancherFile is gpuadm's file beside K3s's or RKE2's config. A key that ends in + adds to the list
// of earlier files.
// Source: https://docs.k3s.io/installation/configuration#multiple-config-files, readConfigFile in
// k3s's pkg/configfilearg/parser.go.
func rancherFile(dir string, labels map[string]string, taints []spec.Taint) File {
	text := rancherList("node-label+", Pairs(labels)) + rancherList("node-taint+", TaintTexts(taints))
	return File{Name: path.Join(dir, facts.OwnSettings), data: []byte(text)}
}

// rancherList writes a key of K3s's or RKE2's config; "" for an empty list.
func rancherList(key string, items []string) string {
	if len(items) == 0 {
		return ""
	}
	return key + ":\n- \"" + strings.Join(items, "\"\n- \"") + "\"\n"
}

// NoTaints says why gpuadm has no place to write taints; "" if it has one.
func NoTaints(k facts.Kubelet) string {
	if k.TaintsAt.How == "" {
		return k.TaintsAt.Why
	}
	if k.TaintsAt.Key == confTaints && ignoresConfigDir(k.Version) {
		const text = "gpuadm writes to the folder of --config-dir for kubelet 1.30 and newer, and this is %s"
		return fmt.Sprintf(text, k.Version)
	}
	return ""
}

// ignoresConfigDir says whether a kubelet is older than 1.30. Kubelets 1.28 and 1.29 start with
// --config-dir only where KUBELET_CONFIG_DROPIN_DIR_ALPHA is set.
// Sources: https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/,
// https://www.kubernetes.dev/resources/keps/3983/.
func ignoresConfigDir(kubelet string) bool {
	v, err := version.NewVersion(kubelet)
	return err == nil && v.Core().LessThan(version.Must(version.NewVersion("1.30.0")))
}
