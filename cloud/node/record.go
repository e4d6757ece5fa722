// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// labelRecord is the annotation of the Node that names gpuadm's labels. Kubelet puts most of them on when it registers the
// node, and no journal tells those from a cloud's: without the record a label that is dropped from node.toml, or of a partition
// that is gone, would stay for ever.
const labelRecord = "nvidia.com/gpuadm.labels"

// recorded wants the record to name these labels. What it named before and does not any more goes with it, in the same PATCH.
// Labels that GPU Feature Discovery has taken over stay named: gpuadm releases them, and does not remove them.
func (r readyStage) recorded(labels map[string]string) converge.Want {
	w := r.want("record "+labelRecord, "", "so that labels can be taken off that are no longer asked for")
	_, gfd := gpuLabels(r.spec, r.facts)
	w.AsFound = true
	w.To = func(found converge.State) (converge.State, error) {
		named := map[string]string{}
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
		if len(named) == 0 && found == "" {
			return "", nil
		}
		var list []string
		for _, key := range slices.Sorted(maps.Keys(named)) {
			list = append(list, key+"="+named[key])
		}
		return valueState(strings.Join(list, ",")), nil
	}
	return w
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

// droppedLabels are the labels that go with an edit of their record: those that it named and does not any more, that the Node still has as
// it named them, and that have no edit of their own. An undo removes the record alone: what else it restores has its own line in the
// journal.
func (e partEdit) droppedLabels(n *kube.Node, others []partEdit) (keys []string) {
	if e.key != labelRecord || e.after == "" {
		return nil
	}
	stay := readRecord(e.after)
	for key, was := range readRecord(e.before) {
		value, there := n.Labels[key]
		_, stays := stay[key]
		edited := slices.ContainsFunc(others, func(o partEdit) bool { return o.what == "label" && o.key == key })
		if there && value == was && !edited && !stays && !spec.RestrictedLabel(key) && ownerOf(key) == "" {
			keys = append(keys, key)
		}
	}
	return keys
}
