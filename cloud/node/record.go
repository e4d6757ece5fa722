// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
)

const (
	// labelRecord is the annotation of the Node that names gpuadm's labels. Kubelet sets most of
	// them when it registers the node, and no journal distinguishes these from a cloud's: without
	// the record, a label that was dropped from node.toml, or whose partition is gone, would stay
	// for ever.
	labelRecord = "nvidia.com/gpuadm.labels"
	// taintRecord is the annotation of the Node that names the taints by which gpuadm keeps pods
	// off: startup taints, and a failure's. The key of a taint that was dropped from node.toml does
	// not show that it is gpuadm's, and no run of the journal puts on a failure's: without the
	// record the taint would keep pods off for ever.
	taintRecord = "nvidia.com/gpuadm.startup-taints"
)

// record wants an annotation of the Node to name parts of the Node. The same PATCH removes the
// parts that it no longer names. Keys and values of labels and taints have no commas.
func (r readyStage) record(key, why string, names func(found converge.State) []string) converge.Want {
	w := r.want("record "+key, "", why)
	w.AsFound = true
	w.To = func(found converge.State) (converge.State, error) {
		list := names(found)
		if len(list) == 0 && found == "" {
			return "", nil
		}
		return recordState(list), nil
	}

	return w
}

func recordState(names []string) converge.State {
	slices.Sort(names)
	return valueState(strings.Join(names, ","))
}

// recordedLabels wants the record to name these labels. It keeps the names of labels that GPU
// Feature Discovery has taken over: gpuadm releases these, and does not remove them.
func (r readyStage) recordedLabels(labels map[string]string) converge.Want {
	names := func(found converge.State) []string {
		named := map[string]string{}
		_, gfd := gpuLabels(r.spec, r.facts)
		if gfd != "" && r.spec.Node.GPULabels {
			for key, value := range readRecord(found) {
				if strings.HasPrefix(key, "nvidia.com/") {
					named[key] = value
				}
			}
		}

		for key, value := range labels {
			// The ServiceAccount sets restricted labels, and the journal has them.
			if !spec.RestrictedLabel(key) {
				named[key] = value
			}
		}

		return kubelet.Pairs(named)
	}
	return r.record(labelRecord, "so that labels can be taken off that are no longer asked for", names)
}

// readRecord returns the labels that a record names, with their values: a label with another value
// now belongs to another client, or an undo has restored its value from before gpuadm. Keys and
// values of labels have neither commas nor equals signs.
func readRecord(s converge.State) map[string]string {
	named := map[string]string{}
	for part := range strings.SplitSeq(stateValue(s), ",") {
		if key, value, ok := strings.Cut(part, "="); ok {
			named[key] = value
		}
	}

	return named
}

// recordedTaint wants the record to name the startup taint. It drops former taints only after all
// has converged. If no account here may change taints, the record does not change.
func (r readyStage) recordedTaint(startup spec.Taint) converge.Want {
	names := func(found converge.State) []string {
		former := r.former(found, startup)
		named := slices.DeleteFunc(recordedTaints(found), func(t spec.Taint) bool {
			return slices.Contains(former, t)
		})
		if startup.Key != "" && !slices.Contains(named, startup) {
			named = append(named, startup)
		}
		return kubelet.TaintTexts(named)
	}

	w := r.record(taintRecord, "so that a startup taint can be taken off that node.toml names no more", names)

	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		if taintRemover(r.spec, r.facts) == "" {
			return found, nil
		}
		return to(found)
	}

	w.Thing = r.part(w.Ref().Name, func(ctx context.Context, v host.View, n *kube.Node) error {
		for _, t := range r.former(converge.State(n.Annotations[taintRecord]), startup) {
			if err := r.mayRemove(t, hasValue(t))(ctx, v, n); err != nil {
				return err
			}
		}
		return nil
	})
	return w
}

// former returns the taints of a record that node.toml no longer asks for. A taint that is now in
// taints of [node] stays in the record.
func (r readyStage) former(found converge.State, startup spec.Taint) []spec.Taint {
	return slices.DeleteFunc(recordedTaints(found), func(t spec.Taint) bool {
		return sameTaint(t, startup) || hasTaint(r.spec.Node.Taints, t)
	})
}

// recordTaints adds to the record taints that gpuadm is about to add, or may have added already; it
// removes no taint. due is false if there is nothing to add.
func recordTaints(n *kube.Node, taints ...spec.Taint) (edit partEdit, due bool) {
	record := nodePart{what: partRecord, key: taintRecord}
	named := recordedTaints(record.stateOn(n))
	for _, t := range taints {
		if t.Key != "" && !slices.Contains(named, t) {
			named = append(named, t)
			due = true
		}
	}

	return editOf(n, record, recordState(kubelet.TaintTexts(named))), due
}

// recordedTaints returns the taints that a record names. Other clients may write the record, so a
// taint with another owner's key never counts.
func recordedTaints(s converge.State) []spec.Taint {
	var taints []spec.Taint
	for part := range strings.SplitSeq(stateValue(s), ",") {
		if t := parsedTaint(part); isValid(t) && ownerOf(t.Key) == "" {
			taints = append(taints, t)
		}
	}

	return taints
}

// isValid reports whether Kubernetes accepts a taint.
func isValid(t spec.Taint) bool {
	effects := []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
	return slices.Contains(effects, t.Effect) && spec.IsLabelKey(t.Key) && spec.IsLabelValue(t.Value)
}

// removals returns edits that remove the labels or taints which a state of the record names.
func (e partEdit) removals(s converge.State) []partEdit {
	var list []partEdit
	switch e.key {
	case labelRecord:
		for key, value := range readRecord(s) {
			if !spec.RestrictedLabel(key) && ownerOf(key) == "" {
				label := nodePart{what: partLabel, key: key}
				list = append(list, partEdit{nodePart: label, before: valueState(value)})
			}
		}
	case taintRecord:
		for _, t := range recordedTaints(s) {
			list = append(list, partEdit{nodePart: taintPart(t), before: valueState(t.Value)})
		}
	}

	return list
}

// dropped returns the edits that follow from an edit of a record: they remove the labels or taints
// that the record no longer names, that the Node still has with the recorded value, and that have
// no edit of their own. An undo that removes the record of labels removes no label: each has its
// own line in the journal. A startup taint has none before gpuadm removes it, if kubelet registered
// the node with it, and would keep pods off for ever. A roll-back keeps it.
func (e partEdit) dropped(n *kube.Node, others []partEdit) []partEdit {
	undone := e.after == ""
	if e.what != partRecord || undone && !(e.key == taintRecord && e.rebuilt) {
		return nil
	}
	stay := slices.Concat(e.removals(e.after), others)
	return slices.DeleteFunc(e.removals(e.before), func(gone partEdit) bool {
		return gone.stateOn(n) != gone.before ||
			slices.ContainsFunc(stay, func(other partEdit) bool {
				return other.name() == gone.name()
			})
	})
}
