// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
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
	// taintRecord is the annotation of the Node that names its startup taints from gpuadm. The key
	// of a taint that was dropped from node.toml does not show that it is gpuadm's: without the
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
	return r.record(labelRecord, "so that labels can be taken off that are no longer asked for", func(found converge.State) []string {
		named := map[string]string{}
		_, gfd := gpuLabels(r.spec, r.facts)
		for key, value := range readRecord(found) {
			if gfd != "" && r.spec.Node.GPULabels && strings.HasPrefix(key, "nvidia.com/") {
				named[key] = value
			}
		}
		for key, value := range labels {
			if !spec.RestrictedLabel(key) { // the ServiceAccount sets restricted labels, and the journal has them
				named[key] = value
			}
		}
		return kubelet.Pairs(named)
	})
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
func (r readyStage) recordedTaint(startup spec.Taint, on bool) converge.Want {
	w := r.record(taintRecord, "so that a startup taint can be taken off that node.toml names no more", func(found converge.State) []string {
		former := r.former(found, startup, on)
		named := slices.DeleteFunc(recordedTaints(found), func(t spec.Taint) bool { return slices.Contains(former, t) })
		if on && !slices.Contains(named, startup) {
			named = append(named, startup)
		}
		return kubelet.TaintTexts(named)
	})
	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		if clears(r.spec, r.facts) == "" {
			return found, nil
		}
		return to(found)
	}
	w.Thing = r.part(w.Ref().Name, func(ctx context.Context, v host.View, n *kube.Node) error {
		for _, t := range r.former(converge.State(n.Annotations[taintRecord]), startup, on) {
			if err := r.goes(t, func(found converge.State) bool { return found == valueState(t.Value) })(ctx, v, n); err != nil {
				return err
			}
		}
		return nil
	})
	return w
}

// former returns the taints of a record that node.toml no longer asks for. A taint that is now in
// taints of [node] stays in the record.
func (r readyStage) former(found converge.State, startup spec.Taint, on bool) []spec.Taint {
	return slices.DeleteFunc(recordedTaints(found), func(t spec.Taint) bool {
		return on && taintName(t) == taintName(startup) ||
			slices.ContainsFunc(r.spec.Node.Taints, func(o spec.Taint) bool { return taintName(o) == taintName(t) })
	})
}

// recordTaint adds to the record a startup taint that gpuadm is about to add, or may have added
// already; it removes no taint. due is false if there is nothing to add.
func recordTaint(n *kube.Node, startup spec.Taint, se *Session) (edit partEdit, due bool) {
	p := nodePart{what: partRecord, key: taintRecord, session: se}
	found := p.of(n)
	named := recordedTaints(found)
	if startup.Key == "" || slices.Contains(named, startup) {
		return partEdit{}, false
	}
	return partEdit{p, found, recordState(kubelet.TaintTexts(append(named, startup)))}, true
}

// recordedTaints returns the taints that a record names. Other clients may write the record, so a
// taint with another owner's key never counts.
func recordedTaints(s converge.State) (taints []spec.Taint) {
	for part := range strings.SplitSeq(stateValue(s), ",") {
		t := parsedTaint(part)
		known := slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, t.Effect)
		if known && spec.IsLabelKey(t.Key) && spec.IsLabelValue(t.Value) && ownerOf(t.Key) == "" {
			taints = append(taints, t)
		}
	}
	return taints
}

// named returns edits that remove the labels or taints which a state of the record names.
func (e partEdit) named(s converge.State) (list []partEdit) {
	switch e.key {
	case labelRecord:
		for key, value := range readRecord(s) {
			if !spec.RestrictedLabel(key) && ownerOf(key) == "" {
				list = append(list, partEdit{nodePart{what: partLabel, key: key}, valueState(value), ""})
			}
		}
	case taintRecord:
		for _, t := range recordedTaints(s) {
			list = append(list, partEdit{nodePart{what: partTaint, key: t.Key, effect: t.Effect}, valueState(t.Value), ""})
		}
	}
	return list
}

// dropped returns the edits that follow from an edit of a record: they remove the labels or taints
// that the record no longer names, that the Node still has with the recorded value, and that have
// no edit of their own. An undo removes only the record: other changes have their own lines in the
// journal.
func (e partEdit) dropped(n *kube.Node, others []partEdit) []partEdit {
	if e.what != partRecord || e.after == "" {
		return nil
	}
	stay := slices.Concat(e.named(e.after), others)
	return slices.DeleteFunc(e.named(e.before), func(p partEdit) bool {
		return p.of(n) != p.before || slices.ContainsFunc(stay, func(o partEdit) bool { return o.name() == p.name() })
	})
}

// byHand returns the command with which an operator removes a taint.
func byHand(node string, t spec.Taint) string {
	return fmt.Sprintf("kubectl taint node %s %s:%s-", node, t.Key, t.Effect)
}
