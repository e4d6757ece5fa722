// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// taintRecord is the annotation of the Node that names gpuadm's startup taints of it. One that node.toml stated and does not any
// more has a key that no other tool would know to be ours, and it would keep pods away for ever.
const taintRecord = "nvidia.com/gpuadm.startup-taints"

// recordedTaint wants the record to name the startup taint. What it named before and does not any more goes with it, in the same
// PATCH, and so only when all has converged. Where no account here may change taints the record stays as it is.
func (r readyStage) recordedTaint(startup spec.Taint, on bool) converge.Want {
	w := r.want("record "+taintRecord, "", "so that a startup taint can be taken off that node.toml names no more")
	w.Thing = r.part(w.Ref().Name, func(ctx context.Context, v host.View, n *kube.Node) error {
		for _, t := range r.former(converge.State(n.Annotations[taintRecord]), startup, on) {
			if err := r.goes(t, func(found converge.State) bool { return found == valueState(t.Value) })(ctx, v, n); err != nil {
				return err
			}
		}
		return nil
	})
	w.AsFound = true
	w.To = func(found converge.State) (converge.State, error) {
		if clears(r.spec, r.facts) == "" {
			return found, nil
		}
		var named []spec.Taint
		former := r.former(found, startup, on)
		for _, t := range recordedTaints(found) {
			if !slices.Contains(former, t) {
				named = append(named, t)
			}
		}
		if on && !slices.Contains(named, startup) {
			named = append(named, startup)
		}
		if len(named) == 0 && found == "" {
			return "", nil
		}
		return taintsState(named), nil
	}
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
	p := nodePart{what: "record", key: taintRecord, session: se}
	found := p.of(n)
	named := recordedTaints(found)
	if startup.Key == "" || slices.Contains(named, startup) {
		return partEdit{}, false
	}
	return partEdit{p, found, taintsState(append(named, startup))}, true
}

// taintsState is a record that names some taints. Their keys and values have no commas.
func taintsState(taints []spec.Taint) converge.State {
	var list []string
	for _, t := range taints {
		list = append(list, t.String())
	}
	slices.Sort(list)
	return valueState(strings.Join(list, ","))
}

// recordedTaints are the taints that a record names. Other clients may write the record: a taint of another owner is never
// gpuadm's, whatever the record says.
func recordedTaints(s converge.State) (taints []spec.Taint) {
	for part := range strings.SplitSeq(stateValue(s), ",") {
		t := parsedTaint(part)
		if registrationTaints([]spec.Taint{t}) == nil && ownerOf(t.Key) == "" {
			taints = append(taints, t)
		}
	}
	return taints
}

// dropped are the taints that go with an edit of the record: those that it names no more, that the Node still has as it named
// them, and that have no edit of their own. An undo takes off the record alone.
func (e partEdit) dropped(n *kube.Node, others []partEdit) (list []partEdit) {
	if e.what != "record" || e.key != taintRecord || e.after == "" {
		return nil
	}
	stay := recordedTaints(e.after)
	for _, t := range recordedTaints(e.before) {
		p := nodePart{what: "taint", key: t.Key, effect: t.Effect, session: e.session}
		edited := slices.ContainsFunc(others, func(o partEdit) bool { return o.name() == p.name() })
		if !slices.Contains(stay, t) && !edited && p.of(n) == valueState(t.Value) {
			list = append(list, partEdit{p, p.of(n), ""})
		}
	}
	return list
}

// byHand is the command by which an administrator removes a taint.
func byHand(node string, t spec.Taint) string {
	return fmt.Sprintf("kubectl taint node %s %s:%s-", node, t.Key, t.Effect)
}
