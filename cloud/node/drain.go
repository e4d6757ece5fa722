// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// evictPause is the pause between two tries to evict, with a jitter of up to a fifth: kubectl
// drain's (kubernetes, staging/src/k8s.io/kubectl/pkg/drain/drain.go).
const evictPause = 5 * time.Second

// A Drain frees the GPUs of the machine's own Node from pods. It uses kubelet's identity, whose
// rights end at this Node and its pods: kubelet may set spec.unschedulable of its own Node, and
// create pods/eviction for pods bound to it. Sources: kubernetes,
// plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go (NodeRules: patch nodes, create
// pods/eviction) and plugin/pkg/admission/noderestriction/admission.go (admitNode refuses taints
// and some labels alone; admitPodEviction); Talos Linux cordons and drains its node so:
// siderolabs/talos, pkg/kubernetes/kubernetes.go (NewClientFromKubeletKubeconfig, CordonAndDrain).
type Drain struct {
	session  *Session
	identity identity
	h        host.Host
	client   *kube.Client
	node     string
	limit    time.Duration
	pods     map[string]kube.Pod // of the node: by NAMESPACE/NAME and by "uid UID"
}

// Drain finds the pods that can be evicted; nil if there is no API server to ask yet.
func (s *Session) Drain(ctx context.Context, h host.Host, sp spec.Spec) (*Drain, error) {
	f, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil {
		return nil, err
	}
	id := identityOf(sp, f)
	if id.later.Until != "" {
		return nil, nil
	}
	limit, err := time.ParseDuration(sp.Disruption.DrainDeadline)
	if err != nil {
		return nil, err
	}
	client, err := s.kubeletClient(h, id)
	if err != nil {
		return nil, err
	}

	n, err := s.look(ctx, h, id)
	if err != nil {
		return nil, drainFailed(err)
	}
	pods, err := client.Pods(ctx, n.Name)
	if err != nil {
		return nil, drainFailed(err)
	}
	byName := map[string]kube.Pod{}
	for _, p := range pods {
		byName[p.Namespace+"/"+p.Name] = p
		byName["uid "+p.UID] = p
	}

	return &Drain{
		session:  s,
		identity: id,
		h:        h,
		client:   client,
		node:     n.Name,
		limit:    limit,
		pods:     byName,
	}, nil
}

// kubeletClient returns a client with kubelet's identity, never with another: a ServiceAccount with
// these rights could drain any node.
func (s *Session) kubeletClient(h host.Host, id identity) (*kube.Client, error) {
	if id.kubelet == "" {
		return nil, &trouble.Error{
			What: "cannot drain this node: kubelet's command line names no kubeconfig",
			Try:  []string{`kubectl drain it by hand, or policy = "idle" in [disruption]`},
			Err:  noKubeconfig,
		}
	}
	return s.clients.Do(h, id.from(id.kubelet))
}

// drainFailed wraps an error of the API server: nothing was interrupted, and the next run tries
// again.
func drainFailed(err error) error {
	because, try := detailsOf(err)
	return &trouble.Error{
		What:    "cannot drain this node: " + err.Error(),
		Because: because,
		Try:     try,
		Err:     errors.Join(converge.ErrInUse, trouble.Wait{For: "the API server"}, err),
	}
}

// Leaves reports whether a drain evicts a pod.
func (d *Drain) Leaves(pod string) bool {
	p, known := d.pods[pod]
	return known && p.Drained()
}

// Stays adds to a refusal that a drain cannot resolve the owners of the pods that use the GPUs and
// that a drain does not evict. A DaemonSet's pod can have a GPU open without a request for one:
// NVIDIA/gpu-operator issue 2570.
func (d *Drain) Stays(ctx context.Context, refused error) error {
	using, err := devices.Pods(ctx, d.h)
	t, ok := refused.(*trouble.Error)
	if err != nil || !ok {
		return refused
	}

	detailed := *t
	for _, pod := range using {
		p := d.pods[pod]
		i := slices.IndexFunc(p.OwnerReferences, func(o kube.Owner) bool {
			return o.Controller
		})
		if i < 0 || p.Drained() {
			continue
		}
		line := whyStays(p, p.OwnerReferences[i])
		detailed.Because = append(slices.Clip(detailed.Because), line)
	}

	return &detailed
}

// whyStays says why a drain does not evict a pod. A static pod's mirror has the Node as its owner:
// kubernetes, pkg/kubelet/pod/mirror_client.go.
func whyStays(p kube.Pod, owner kube.Owner) string {
	if owner.Kind == "Node" {
		const text = "a drain leaves the static pod %s/%s: kubelet runs it as long as its file is on this machine"
		return fmt.Sprintf(text, p.Namespace, p.Name)
	}
	const text = "a drain leaves pod %s/%s, which belongs to %s %s"
	return fmt.Sprintf(text, p.Namespace, p.Name, owner.Kind, owner.Name)
}

// Run cordons the Node, evicts the pods that use the GPUs, and waits until they are gone. If their
// disruption budgets do not allow that before the deadline, the error is a wait for it. It leaves
// the Node cordoned: Uncordon ends that.
func (d *Drain) Run(ctx context.Context) error {
	using, err := devices.Pods(ctx, d.h)
	if err != nil {
		return err
	}
	leaving := map[string]kube.Pod{} // by UID
	for _, pod := range using {
		if d.Leaves(pod) {
			p := d.pods[pod]
			leaving[p.UID] = p
		}
	}

	if len(leaving) == 0 {
		return nil // they have ended meanwhile
	}
	if err := d.session.cordon(ctx, d.h, d.identity); err != nil {
		return drainFailed(err)
	}

	wait := newReportedWait(d.h, d.limit)
	for {
		over := wait.over() // one more look after the deadline
		remaining, budgets, err := d.evict(ctx, leaving)
		if err != nil {
			return drainFailed(err)
		}
		if len(remaining) == 0 {
			return nil
		}
		few := strings.Join(trouble.Few(remaining, 3), "; ")
		problem := "pods that use the GPUs have not left this node: " + few
		if over {
			return d.deadlinePassed(problem, remaining, budgets)
		}

		wait.report(ctx, problem)
		jittered := evictPause*4/5 + rand.N(evictPause*2/5)
		pause := min(jittered, d.limit)
		if err := host.Pause(ctx, pause); err != nil {
			return context.Cause(ctx)
		}
		wait.paused += pause
	}
}

// deadlinePassed says which pods stay. budgets reports whether a disruption budget keeps one.
func (d *Drain) deadlinePassed(problem string, remaining []string, budgets bool) error {
	try := []string{"see why they do not end: kubectl get pods --all-namespaces --field-selector spec.nodeName=" + d.node}
	if budgets {
		try = []string{"see the budgets: kubectl get poddisruptionbudgets --all-namespaces"}
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot drain this node within %v: %s", d.limit, problem),
		Because: append(trouble.Few(remaining, 6), "the GPUs were not changed"),
		Try:     append(try, "or a longer drain_deadline in [disruption]"),
		Err:     errors.Join(converge.ErrInUse, trouble.Wait{For: problem, Err: podsStay}),
	}
}

// evict tries to evict each pod once, and returns those that are still here and why, and whether a
// disruption budget keeps one of them. A pod of the same name with another UID is another pod.
func (d *Drain) evict(
	ctx context.Context, leaving map[string]kube.Pod,
) (remaining []string, budgets bool, err error) {
	client := d.client.Within(0) // the next round is the next try
	present, err := client.Pods(ctx, d.node)
	if err != nil && !trouble.Passes(err) {
		return nil, false, err
	}

	for _, uid := range slices.Sorted(maps.Keys(leaving)) {
		p := leaving[uid]
		name := p.Namespace + "/" + p.Name
		if err != nil { // the API server does not say which pods are here
			remaining = append(remaining, fmt.Sprintf("pod %s: %v", name, err))
			continue
		}
		i := slices.IndexFunc(present, func(found kube.Pod) bool { return found.UID == uid })
		if i < 0 {
			continue
		}
		if present[i].DeletionTimestamp != "" {
			remaining = append(remaining, "pod "+name+" is ending")
			continue
		}

		refused := client.Evict(ctx, p)
		switch {
		case refused == nil:
			remaining = append(remaining, "pod "+name+" is ending")
		case errors.Is(refused, kube.Missing), errors.Is(refused, kube.Conflict): // it has ended
		case trouble.Passes(refused):
			budgets = budgets || errors.Is(refused, kube.Busy)
			remaining = append(remaining, "pod "+name+": "+detailedCause(refused))
		default:
			return nil, false, refused
		}
	}

	return remaining, budgets, nil
}

// detailedCause returns the lines of an error after the first, or the error if it has one line.
func detailedCause(err error) string {
	if because, _ := detailsOf(err); len(because) > 0 {
		return strings.Join(because, "; ")
	}
	return err.Error()
}
