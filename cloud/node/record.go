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
	// labelRecord is the annotation of the Node that names gpuadm's labels. Kubelet puts most of them on when it registers the
	// node, and no journal tells those from a cloud's: without the record a label that is dropped from node.toml, or of a partition
	// that is gone, would stay for ever.
	labelRecord = "nvidia.com/gpuadm.labels"
	// taintRecord is the annotation of the Node that names gpuadm's startup taints of it. One that node.toml stated and does not any
	// more has a key that no other tool would know to be ours, and it would keep pods away for ever.
	taintRecord = "nvidia.com/gpuadm.startup-taints"
)

// record wants an annotation of the Node to name parts of it. What it named before and does not any more goes with it, in the same
// PATCH. Keys and values of labels and taints have no commas.
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

// recordedLabels wants the record to name these labels. Labels that GPU Feature Discovery has taken over stay named: gpuadm releases
// them, and does not remove them.
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
			if !spec.RestrictedLabel(key) { // those are the ServiceAccount's, and the journal's
				named[key] = value
			}
		}
		return kubelet.Pairs(named)
	})
}

// readRecord returns the labels that a record names, with their values: a label that has another value now belongs to another
// client, or an undo has restored the value that it had before us. Keys and values of labels have neither commas nor equals signs.
func readRecord(s converge.State) map[string]string {
	named := map[string]string{}
	for part := range strings.SplitSeq(stateValue(s), ",") {
		if key, value, ok := strings.Cut(part, "="); ok {
			named[key] = value
		}
	}
	return named
}

// recordedTaint wants the record to name the startup taint. The taints go only when all has converged. Where no account here may change
// taints the record stays as it is.
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

// former are the taints of a record that node.toml asks for no more. One that has become a lasting taint stays named.
func (r readyStage) former(found converge.State, startup spec.Taint, on bool) []spec.Taint {
	return slices.DeleteFunc(recordedTaints(found), func(t spec.Taint) bool {
		return on && taintName(t) == taintName(startup) ||
			slices.ContainsFunc(r.spec.Node.Taints, func(o spec.Taint) bool { return taintName(o) == taintName(t) })
	})
}

// recordTaint notes a startup taint that is about to be put on, or may be on already: it takes nothing off. The zero edit says
// that there is nothing to note.
func recordTaint(n *kube.Node, startup spec.Taint, se *Session) (edit partEdit, due bool) {
	p := nodePart{what: partRecord, key: taintRecord, session: se}
	found := p.of(n)
	named := recordedTaints(found)
	if startup.Key == "" || slices.Contains(named, startup) {
		return partEdit{}, false
	}
	return partEdit{p, found, recordState(kubelet.TaintTexts(append(named, startup)))}, true
}

// recordedTaints are the taints that a record names. Other clients may write the record: a taint of another owner is never
// gpuadm's, whatever the record says.
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

// named are the labels or taints that a state of the record names, as edits that take them off.
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

// dropped are the edits that go with one of a record: of the labels or taints that it named and does not any more, that the Node still
// has as it named them, and that have no edit of their own. An undo removes the record alone: what else it restores has its own line in
// the journal.
func (e partEdit) dropped(n *kube.Node, others []partEdit) []partEdit {
	if e.what != partRecord || e.after == "" {
		return nil
	}
	stay := slices.Concat(e.named(e.after), others)
	return slices.DeleteFunc(e.named(e.before), func(p partEdit) bool {
		return p.of(n) != p.before || slices.ContainsFunc(stay, func(o partEdit) bool { return o.name() == p.name() })
	})
}

// byHand is the command by which an administrator removes a taint.
func byHand(node string, t spec.Taint) string {
	return fmt.Sprintf("kubectl taint node %s %s:%s-", node, t.Key, t.Effect)
}
