// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// GPUReady is the type of the Node's condition that shows whether the GPUs are ready.
const GPUReady = "nvidia.com/GPUReady"

// The condition's reasons: while it is true; after a boot; while the cluster cannot allocate the
// GPUs; while a change waits until no process uses them; and the suffix of a failure's reason.
// gpuadm recognises its own conditions by them.
const (
	readyReason   = "GPUsReady"
	newBootReason = "NewBoot"
	waitingReason = "WaitingForGPUs"
	busyReason    = "WaitingUntilIdle"
	failedSuffix  = "Failed"
)

// Answers checks that a container engine answers and has the runtime handler.
type Answers func(context.Context, host.View, spec.Spec, facts.Facts) error

// LacksCDI says why the engine of pods gives them no CDI devices; "" if it does.
type LacksCDI func(facts.Facts) string

// NewReady is the last stage: it adds missing labels and taints, verifies everything again, sets
// the condition, and then removes the startup taint. Answers may be nil. The session is shared with
// NewGuard.
func NewReady(se *Session, answers Answers, lacksCDI LacksCDI) converge.Stage {
	return converge.Stage{
		Name:  "ready",
		About: "shows the cluster that the GPUs are ready, and lets pods in",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			return readyWants(se, answers, lacksCDI, s, f)
		},
		Needs: func(s spec.Spec) facts.Needs { return readyNeeds(s, facts.Needs{Driver: true}) },
		Notes: func(_ host.View, s spec.Spec, f facts.Facts) []string { return readyNotes(s, f) },
		Whole: true,
	}
}

// readyNeeds returns the facts about the account that may change taints, and more; none if the spec
// asks for no node.
func readyNeeds(s spec.Spec, more facts.Needs) facts.Needs {
	if !TellsCluster(s) {
		return facts.Needs{}
	}
	return more.And(StartupNeeds())
}

// TellsCluster says whether the spec asks for a node at all.
func TellsCluster(s spec.Spec) bool { return s.Has("node") || s.Has("join") && s.Join.Method != "none" }

// hasGPU says whether the machine has a GPU.
func hasGPU(f facts.Facts) bool { return slices.ContainsFunc(f.GPUs, facts.PCI.Display) }

// shouldHaveGPU says whether the machine has a GPU, or must have one by the spec: a machine that
// has lost all its GPUs is not ready.
func shouldHaveGPU(s spec.Spec, f facts.Facts) bool { return hasGPU(f) || s.Driver.GPUCount > 0 }

// nodeSection returns the section of the spec that asks for labels, taints and the condition.
func nodeSection(s spec.Spec) string {
	if s.Has("node") {
		return "node"
	}
	return "join"
}

// readyStage is one evaluation of the stage.
type readyStage struct {
	session *Session
	spec    spec.Spec
	facts   facts.Facts
	who     who
	section string
	waits   func(context.Context, host.View) error // for the GPUs, asked once
}

func newReadyStage(se *Session, s spec.Spec, f facts.Facts) readyStage {
	return readyStage{se, s, f, whose(s, f), nodeSection(s), waitsForGPUs(s, f)}
}

func readyWants(se *Session, answers Answers, lacksCDI LacksCDI, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !TellsCluster(s) {
		return nil, nil
	}
	r := newReadyStage(se, s, f)
	labels, taints, err := Registration(s, f)
	if err != nil {
		return nil, err
	}
	maps.Copy(labels, s.Node.Labels) // also those that only the API accepts
	startup, on, _, err := startupTaint(s, f)
	if err != nil {
		return nil, err
	}
	var list []converge.Want
	if hasGPU(f) {
		list = r.checks(answers, lacksCDI)
	}
	if name := s.Node.Kubeconfig; name != "" { // what kubelet's identity may do needs no other, and would hide that it is missing
		list = append(list, r.check("kubeconfig of [node]", func(_ context.Context, v host.View) (string, error) {
			_, err := v.Stat(name)
			if host.NotExist(err) {
				return name + ", which kubeconfig in [node] names, is not there", nil
			}
			return "", err
		}))
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, r.want("label "+key, valueState(labels[key]), "as node.toml says, or as the GPUs are"))
	}
	list = append(list, r.recordedLabels(labels))
	for _, t := range taints {
		if on && t.Key == startup.Key && t.Effect == startup.Effect {
			continue
		}
		list = append(list, r.want(taintName(t), valueState(t.Value), "taints in [node]"))
	}
	if !hasGPU(f) || f.Driver == nil {
		return list, nil
	}
	list = append(list, r.recordedTaint(startup, on), r.recordedGPUs())
	return append(list, r.lastWants(startup)...), nil
}

// lastWants returns the wants for the condition and then for the removal of taints.
func (r readyStage) lastWants(startup spec.Taint) []converge.Want {
	condition := r.want("condition "+GPUReady, converge.State("True "+readyReason+" "+r.summary()), "so that the cluster knows that the GPUs are ready")
	condition.Thing = r.part(condition.Ref().Name, r.gpusReady)
	if failed, on := failedTaint(r.spec, r.facts); on { // Report adds it without an entry in the journal
		condition.Leaves = fmt.Sprintf("the node keeps the taint %s if the last report to the cluster was a failure; remove it with: %s", failed, byHand("NODE", failed))
	}
	list := []converge.Want{condition}
	for _, t := range formerTaints(r.facts) {
		if taintName(t) != taintName(startup) && !slices.ContainsFunc(r.spec.Node.Taints, func(o spec.Taint) bool { return taintName(o) == taintName(t) }) {
			list = append(list, r.off(t, func(found converge.State) bool { return found == valueState(t.Value) }))
		}
	}
	if startup.Key != "" {
		list = append(list, r.off(startup, func(found converge.State) bool { return found != "" }))
	}
	return list
}

// off wants a taint removed from the node, if it is gpuadm's.
func (r readyStage) off(t spec.Taint, ours func(found converge.State) bool) converge.Want {
	w := r.want(taintName(t), "", "all GPUs are ready: pods may come")
	w.Thing = r.part(taintName(t), r.goes(t, ours))
	w.To = func(found converge.State) (converge.State, error) {
		if ours(found) {
			return "", nil
		}
		return found, nil
	}
	w.Keeps = "the taint " + t.String() + " is off the node, and no other tool would remove it"
	return w
}

func taintName(t spec.Taint) string { return "taint " + t.Key + ":" + t.Effect }

// part is a part of the Node in this evaluation.
func (r readyStage) part(name string, must func(context.Context, host.View, *kube.Node) error) nodePart {
	t, _ := NewPart(name, r.session) // the names are valid
	p, _ := t.(nodePart)
	p.who, p.must, p.rebuilt = &r.who, must, false
	return p
}

// want wants a part of the Node to have this state.
func (r readyStage) want(name string, to converge.State, why string) converge.Want {
	return converge.Want{
		Thing: r.part(name, nil), Why: why, Section: r.section,
		To: func(converge.State) (converge.State, error) { return to, nil },
	}
}

// goes waits until the GPUs work and are offered, and, if gpuadm may not remove the taint, for the
// client that removes it.
func (r readyStage) goes(t spec.Taint, ours func(converge.State) bool) func(context.Context, host.View, *kube.Node) error {
	return func(ctx context.Context, v host.View, n *kube.Node) error {
		if !ours(r.part(taintName(t), nil).of(n)) {
			return nil
		}
		if err := r.gpusReady(ctx, v, n); err != nil {
			return err
		}
		if r.who.serviceAccount(v) == "" {
			return trouble.Wait{
				For: fmt.Sprintf("another client must remove the taint %s: a kubelet may not", t),
				Try: []string{
					"where the node readiness controller runs it does so by the condition " + GPUReady,
					"else: " + byHand(n.Name, t),
				}, Err: noAccount,
			}
		}
		return nil
	}
}

// summary is the condition's message. It ends with the boot for which it is true: in a later boot
// gpuadm has not checked yet.
func (r readyStage) summary() string {
	var models []string
	counts := map[string]int{}
	partitions := 0
	for _, g := range r.facts.Driver.GPUs {
		name := strings.TrimPrefix(g.Name, "NVIDIA ")
		if i := slices.IndexFunc(r.facts.GPUs, func(p facts.PCI) bool { return p.Address == g.Address && p.Model != "" }); i >= 0 {
			name = r.facts.GPUs[i].Model
		}
		if counts[name]++; counts[name] == 1 {
			models = append(models, name)
		}
		for _, in := range g.Instances {
			partitions += len(in.Compute)
		}
	}
	for i, name := range models {
		models[i] = fmt.Sprintf("%d × %s", counts[name], name)
	}
	text := strings.Join(models, " + ") + ", driver " + r.facts.Driver.Version
	if partitions > 0 {
		text += ", " + trouble.Count(partitions, "MIG partition")
	}
	return text + bootMark(r.facts.BootID)
}

// bootMark marks the boot at a message's end, with enough of its id to distinguish it from others.
func bootMark(id string) string {
	if id == "" {
		return ""
	}
	return ", boot " + id[max(0, len(id)-8):]
}

// checks verify everything once more. Each reports a problem; this stage fixes none.
func (r readyStage) checks(answers Answers, lacksCDI LacksCDI) []converge.Want {
	var list []converge.Want
	for _, c := range gpuChecks(r.spec, r.facts) {
		list = append(list, r.check(c.what, c.look, c.try...))
	}
	if r.facts.Driver == nil {
		list[0].Releases = true // the driver's labels are unknown now, which is no reason to remove them
		return list
	}
	list = append(list, r.check("dynamic resource allocation", func(_ context.Context, v host.View) (string, error) { return draReady(v, r.facts, lacksCDI), nil }))
	if answers != nil && r.spec.Has("runtime") {
		try := trouble.Command("apply runtime")
		if r.facts.Cloud.Managed == "eks" && r.spec.Runtime.Owner != "gpuadm" {
			try = "reboot: nodeadm writes containerd's configuration, and the handler into it, at each boot"
		}
		list = append(list, r.check(strings.TrimSuffix("runtime handler "+r.spec.Runtime.Handler, " auto"), func(ctx context.Context, v host.View) (string, error) {
			err := answers(ctx, v, r.spec, r.facts)
			switch {
			case err == nil:
				return "", nil
			case r.facts.Cloud.Managed == "eks" && r.facts.Kubelet.Active != "active":
				return "", nodeadmComes(err)
			}
			return err.Error(), nil
		}, try))
	}
	return list
}

func (r readyStage) check(what string, look func(context.Context, host.View) (string, error), try ...string) converge.Want {
	inside := func(ctx context.Context, v host.View) (string, error) {
		if r.who.later.Until != "" { // it is no fault that a machine which has not joined is not ready
			return "", r.who.later
		}
		problem, err := look(ctx, v)
		if problem != "" {
			problem = "cannot call the node ready: " + problem
		}
		return problem, err
	}
	w := things.Check("ready: "+what, inside, "looked at once more before pods come", try...)
	w.Section = r.section
	return w
}
