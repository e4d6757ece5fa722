// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
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
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Answers checks that a container engine answers and has the runtime handler.
type Answers func(context.Context, host.View, spec.Spec, facts.Facts) error

// LacksCDI says why the engine of pods gives them no CDI devices; "" if it does.
type LacksCDI func(facts.Facts) string

// NewReady is the last stage: it adds missing labels and taints, verifies everything again, sets
// the condition, and then removes the startup taint. Answers may be nil. The session is shared with
// NewGuard.
func NewReady(session *Session, answers Answers, lacksCDI LacksCDI) converge.Stage {
	return converge.Stage{
		Name:  "ready",
		About: "tells the cluster that the GPUs are ready, so that it schedules pods here",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			if !ReportsToCluster(s) {
				return nil, nil
			}
			return newReadyStage(session, s, f).wants(answers, lacksCDI)
		},
		Needs: func(s spec.Spec) facts.Needs { return readyNeeds(s, facts.Needs{Driver: true}) },
		Notes: func(_ host.View, s spec.Spec, f facts.Facts) []string { return readyNotes(s, f) },
		Whole: true,
	}
}

// readyNeeds returns the facts about the account that may change taints, and more; none if the spec
// asks for no node.
func readyNeeds(s spec.Spec, more facts.Needs) facts.Needs {
	if !ReportsToCluster(s) {
		return facts.Needs{}
	}
	return more.And(StartupNeeds())
}

// ReportsToCluster reports whether the spec asks for a node at all.
func ReportsToCluster(s spec.Spec) bool { return wantsJoin(s) || s.Has("node") }

// wantsJoin reports whether the spec asks for a node that joins a cluster.
func wantsJoin(s spec.Spec) bool { return s.Has("join") && s.Join.Method != "none" }

// hasGPU reports whether the machine has a GPU.
func hasGPU(f facts.Facts) bool { return slices.ContainsFunc(f.GPUs, facts.PCI.Display) }

// shouldHaveGPU reports whether the machine has a GPU, or must have one by the spec: a machine that
// has lost all its GPUs is not ready.
func shouldHaveGPU(s spec.Spec, f facts.Facts) bool {
	return hasGPU(f) || s.Driver.GPUCount > 0
}

// nodeSection returns the section of the spec that asks for labels, taints and the condition.
func nodeSection(s spec.Spec) string {
	if s.Has("node") {
		return "node"
	}
	return "join"
}

// readyStage is one evaluation of the stage.
type readyStage struct {
	session     *Session
	spec        spec.Spec
	facts       facts.Facts
	identity    identity
	section     string
	waitForGPUs func(context.Context, host.View) error // asks once
}

func newReadyStage(session *Session, s spec.Spec, f facts.Facts) readyStage {
	return readyStage{
		session:     session,
		spec:        s,
		facts:       f,
		identity:    identityOf(s, f),
		section:     nodeSection(s),
		waitForGPUs: waitForGPUs(s, f),
	}
}

// label wants a label of the Node. The node registers with gpu.clique, and once NVIDIA's DRA driver
// sets it, what is there stays: two writers would overwrite each other for ever.
func (r readyStage) label(key, value string) converge.Want {
	w := r.want("label "+key, valueState(value), "as node.toml says, or as the GPUs are")
	if key != gpuClique || r.facts.Clique == "" {
		return w
	}
	w.AsFound = true
	w.To = func(found converge.State) (converge.State, error) {
		return cmp.Or(found, valueState(value)), nil
	}
	return w
}

func (r readyStage) wants(answers Answers, lacksCDI LacksCDI) ([]converge.Want, error) {
	labels, taints, err := Registration(r.spec, r.facts)
	if err != nil {
		return nil, err
	}
	maps.Copy(labels, r.spec.Node.Labels) // also those that only the API accepts
	startup, _, err := startupTaint(r.spec, r.facts)
	if err != nil {
		return nil, err
	}

	var list []converge.Want
	if hasGPU(r.facts) {
		list = r.checks(answers, lacksCDI)
	}
	if r.spec.Node.Kubeconfig != "" {
		list = append(list, r.kubeconfigCheck())
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, r.label(key, labels[key]))
	}
	list = append(list, r.recordedLabels(labels))
	for _, t := range taints {
		if !sameTaint(t, startup) {
			list = append(list, r.want(taintName(t), valueState(t.Value), "taints in [node]"))
		}
	}

	if !hasGPU(r.facts) || r.facts.Driver == nil {
		return list, nil
	}

	list = append(list, r.recordedTaint(startup), r.recordedGPUs(), r.readyCondition())
	former, err := formerTaints(r.facts)
	if err != nil {
		return nil, err
	}
	for _, t := range former {
		if !sameTaint(t, startup) && !hasTaint(r.spec.Node.Taints, t) {
			list = append(list, r.removed(t, hasValue(t)))
		}
	}

	if startup.Key != "" {
		list = append(list, r.removed(startup, func(found converge.State) bool {
			return found != ""
		}))
	}

	return list, nil
}

// want wants a part of the Node to have this state.
func (r readyStage) want(name string, to converge.State, why string) converge.Want {
	return converge.Want{
		Thing:   r.part(name, nil),
		Why:     why,
		Section: r.section,
		To:      func(converge.State) (converge.State, error) { return to, nil },
	}
}

// part is a part of the Node in this evaluation.
func (r readyStage) part(name string, waits partWait) nodePart {
	p, _ := parsedPart(name) // the names are valid
	p.session = r.session
	p.identity = &r.identity
	p.waits = waits
	return p
}

// readyCondition wants the condition to be true once the GPUs are ready.
func (r readyStage) readyCondition() converge.Want {
	state := converge.State("True " + readyReason + " " + r.summary())
	w := r.want(conditionPart().name(), state, "so that the cluster knows that the GPUs are ready")
	w.Thing = r.part(w.Ref().Name, r.gpusReady)
	return w
}

// removed wants a taint removed from the node, if it is gpuadm's.
func (r readyStage) removed(t spec.Taint, isOurs func(found converge.State) bool) converge.Want {
	w := r.want(taintName(t), "", "all GPUs are ready: pods may come")
	w.Thing = r.part(taintName(t), r.mayRemove(t, isOurs))
	w.To = func(found converge.State) (converge.State, error) {
		if isOurs(found) {
			return "", nil
		}
		return found, nil
	}

	w.Keeps = "the taint " + t.String() + " is off the node, and no other tool would remove it"
	return w
}

// hasValue returns a function that reports whether a taint's state is this taint's value.
func hasValue(t spec.Taint) func(found converge.State) bool {
	return func(found converge.State) bool { return found == valueState(t.Value) }
}

// mayRemove waits until the GPUs work and are offered, and, if gpuadm may not remove the taint, for
// the client that removes it.
func (r readyStage) mayRemove(t spec.Taint, isOurs func(found converge.State) bool) partWait {
	return func(ctx context.Context, v host.View, n *kube.Node) error {
		if !isOurs(taintPart(t).stateOn(n)) {
			return nil
		}
		if err := r.gpusReady(ctx, v, n); err != nil {
			return err
		}
		if r.identity.serviceAccount(v) != "" {
			return nil
		}
		return trouble.Wait{
			For: fmt.Sprintf("another client must remove the taint %s: a kubelet may not", t),
			Try: []string{
				"where the node readiness controller runs it does so by the condition " + GPUReady,
				"else: " + removeTaintCommand(n.Name, t),
			},
			Err: noAccount,
		}
	}
}

// removeTaintCommand returns the command with which an operator removes a taint.
func removeTaintCommand(node string, t spec.Taint) string {
	return fmt.Sprintf("kubectl taint node %s %s:%s-", node, t.Key, t.Effect)
}

// summary is the condition's message. It ends with the boot for which it is true: in a later boot
// gpuadm has not checked yet.
func (r readyStage) summary() string {
	var models []string
	counts := map[string]int{}
	partitions := 0
	for _, g := range r.facts.Driver.GPUs {
		model := r.model(g)
		if counts[model] == 0 {
			models = append(models, model)
		}
		counts[model]++
		for _, instance := range g.Instances {
			partitions += len(instance.Compute)
		}
	}

	for i, model := range models {
		models[i] = fmt.Sprintf("%d × %s", counts[model], model)
	}
	text := strings.Join(models, " + ") + ", driver " + r.facts.Driver.Version
	if partitions > 0 {
		text += ", " + trouble.Count(partitions, "MIG partition")
	}
	return text + r.session.remark() + bootMark(r.facts.BootID)
}

// model names a GPU's model as the bus does, or else as the driver does.
func (r readyStage) model(g host.GPU) string {
	for _, p := range r.facts.GPUs {
		if p.Address == g.Address && p.Model != "" {
			return p.Model
		}
	}
	return strings.TrimPrefix(g.Name, "NVIDIA ")
}

// readyNotes names the GPUs that the node would wait for if they were not in MIG mode.
func readyNotes(s spec.Spec, f facts.Facts) []string {
	if !ReportsToCluster(s) || f.Driver == nil {
		return nil
	}

	var exempt []string
	for _, g := range f.Driver.GPUs {
		if g.Mode && !inFabric(g) {
			exempt = append(exempt, g.Address)
		}
	}

	if len(exempt) == 0 {
		return nil
	}
	const note = "the node does not wait until GPUs in MIG mode have registered with the NVLink fabric, since they cannot use NVLink: "
	return []string{note + strings.Join(exempt, ", ")}
}
