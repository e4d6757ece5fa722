// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

const (
	// cordonedBy is the annotation that gpuadm sets and removes in the same patch as its cordon: a
	// cordon without it is an operator's.
	cordonedBy = "nvidia.com/gpuadm.cordoned"
	// mayBeCordoned is a file that exists from before gpuadm cordons its Node until it has
	// uncordoned it: after a kill or a reboot the next run finds it, and a run without the file
	// does not ask the API server for a cordon.
	mayBeCordoned = converge.Home + "/cordoned"
	// evictPause is the pause between two tries to evict, with a jitter of up to a fifth: kubectl
	// drain's (kubernetes, staging/src/k8s.io/kubectl/pkg/drain/drain.go).
	evictPause = 5 * time.Second
)

// A Drain frees the GPUs of the machine's own Node from pods. It uses kubelet's identity, whose
// rights end at this Node and its pods: kubelet may set spec.unschedulable of its own Node, and
// create pods/eviction for pods bound to it. Sources: kubernetes,
// plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go (NodeRules: patch nodes, create
// pods/eviction) and plugin/pkg/admission/noderestriction/admission.go (admitNode refuses taints
// and some labels alone; admitPodEviction); Talos Linux cordons and drains its node so:
// siderolabs/talos, pkg/kubernetes/kubernetes.go (NewClientFromKubeletKubeconfig, CordonAndDrain).
type Drain struct {
	session *Session
	h       host.Host
	who     who
	client  *kube.Client
	node    string
	limit   time.Duration
	pods    map[string]kube.Pod // of the node: by NAMESPACE/NAME and by "uid UID"
}

// Drain finds the pods that can be evicted; nil if there is no API server to ask yet.
func (s *Session) Drain(ctx context.Context, h host.Host, sp spec.Spec) (*Drain, error) {
	f, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil {
		return nil, err
	}
	d := &Drain{session: s, h: h, who: whose(sp, f), pods: map[string]kube.Pod{}}
	if d.who.later.Until != "" {
		return nil, nil
	}
	if d.limit, err = time.ParseDuration(sp.Disruption.DrainDeadline); err != nil {
		return nil, err
	}
	if d.client, err = s.kubelet(h, d.who); err != nil {
		return nil, err
	}
	n, err := s.look(ctx, h, d.who)
	if err != nil {
		return nil, undrained(err)
	}
	d.node = n.Name
	pods, err := d.client.Pods(ctx, n.Name)
	if err != nil {
		return nil, undrained(err)
	}
	for _, p := range pods {
		d.pods[p.Namespace+"/"+p.Name], d.pods["uid "+p.UID] = p, p
	}
	return d, nil
}

// kubelet returns a client with kubelet's identity, never with another: a ServiceAccount with these
// rights could drain any node.
func (s *Session) kubelet(h host.Host, w who) (*kube.Client, error) {
	if w.kubelet == "" {
		return nil, &trouble.Error{
			What: "cannot drain this node: kubelet's command line names no kubeconfig",
			Try:  []string{`kubectl drain it by hand, or policy = "idle" in [disruption]`}, Err: noKubeconfig,
		}
	}
	return s.clients.Do(h, w.from(w.kubelet))
}

// undrained wraps an error of the API server: nothing was interrupted, and the next run tries
// again.
func undrained(err error) error {
	because, try := details(err)
	return &trouble.Error{
		What: "cannot drain this node: " + err.Error(), Because: because, Try: try,
		Err: errors.Join(converge.ErrInUse, trouble.Wait{For: "the API server"}, err),
	}
}

// Leaves says whether a drain evicts a pod.
func (d *Drain) Leaves(pod string) bool { p, known := d.pods[pod]; return known && p.Drained() }

// Stays adds to a refusal that a drain cannot resolve the owners of the pods that use the GPUs and
// that a drain does not evict. A DaemonSet's pod can have a GPU open without a request for one:
// NVIDIA/gpu-operator issue 2570.
func (d *Drain) Stays(ctx context.Context, refused error) error {
	using, err := devices.Pods(ctx, d.h)
	t, says := refused.(*trouble.Error)
	if err != nil || !says {
		return refused
	}
	told := *t
	for _, pod := range using {
		p := d.pods[pod]
		i := slices.IndexFunc(p.OwnerReferences, func(o kube.Owner) bool { return o.Controller })
		if i >= 0 && !p.Drained() {
			told.Because = append(slices.Clip(told.Because), fmt.Sprintf("a drain leaves pod %s/%s, which belongs to %s %s", p.Namespace, p.Name, p.OwnerReferences[i].Kind, p.OwnerReferences[i].Name))
		}
	}
	return &told
}

// Run cordons the Node, evicts the pods that use the GPUs, and waits until they are gone. If their
// disruption budgets do not allow that before the deadline, the error is a wait for it. It leaves
// the Node cordoned: Uncordon ends that.
func (d *Drain) Run(ctx context.Context) error {
	using, err := devices.Pods(ctx, d.h)
	if err != nil {
		return err
	}
	leaving := map[string]kube.Pod{}
	for _, pod := range using {
		if p := d.pods[pod]; d.Leaves(pod) {
			leaving[p.UID] = p
		}
	}
	if len(leaving) == 0 {
		return nil // they have ended meanwhile
	}
	if err := d.session.cordon(ctx, d.h, d.who, true); err != nil {
		return undrained(err)
	}
	for w := StartWait(d.h, d.limit); ; {
		over := w.Over() // one more look after the deadline
		why, err := d.evict(ctx, leaving)
		if err != nil {
			return undrained(err)
		}
		if len(why) == 0 {
			return nil
		}
		problem := "pods that use the GPUs have not left this node: " + strings.Join(trouble.Few(why, 3), "; ")
		if over {
			return &trouble.Error{
				What:    fmt.Sprintf("cannot drain this node within %v: %s", d.limit, problem),
				Because: append(trouble.Few(why, 6), "the GPUs were not changed"),
				Try:     []string{"see the budgets: kubectl get poddisruptionbudgets --all-namespaces", "or a longer drain_deadline in [disruption]"},
				Err:     errors.Join(converge.ErrInUse, trouble.Wait{For: problem, Err: podsStay}),
			}
		}
		w.Tell(ctx, problem)
		pause := min(evictPause*4/5+rand.N(evictPause*2/5), d.limit)
		if err := host.Pause(ctx, pause); err != nil {
			return context.Cause(ctx)
		}
		w.Paused += pause
	}
}

// evict tries to evict each pod once, and returns those that are still here and why. A pod of the
// same name with another UID is another pod.
func (d *Drain) evict(ctx context.Context, leaving map[string]kube.Pod) (why []string, err error) {
	ctx = kube.Within(ctx, 0)
	now, err := d.client.Pods(ctx, d.node)
	if err != nil && !trouble.Passes(err) {
		return nil, err
	}
	unknown := err != nil
	for _, uid := range slices.Sorted(maps.Keys(leaving)) {
		p := leaving[uid]
		name := p.Namespace + "/" + p.Name
		i := slices.IndexFunc(now, func(o kube.Pod) bool { return o.UID == uid })
		switch {
		case unknown:
			why = append(why, fmt.Sprintf("pod %s: %v", name, err))
			continue
		case i < 0:
			continue
		case now[i].DeletionTimestamp != "":
			why = append(why, "pod "+name+" is ending")
			continue
		}
		switch err := d.client.Evict(ctx, p); {
		case err == nil:
			why = append(why, "pod "+name+" is ending")
		case errors.Is(err, kube.Missing), errors.Is(err, kube.Conflict):
		case trouble.Passes(err):
			line := "pod " + name + ": "
			if because, _ := details(err); len(because) > 0 {
				line += strings.Join(because, "; ")
			} else {
				line += err.Error()
			}
			why = append(why, line)
		default:
			return nil, err
		}
	}
	return why, nil
}

// Uncordon ends gpuadm's own cordon, also that of a killed run; an operator's cordon stays. It asks
// the API server only if gpuadm may have cordoned. If sp is nil it reads the machine's spec.
func (s *Session) Uncordon(ctx context.Context, h host.Host, sp *spec.Spec) error {
	if _, err := h.Stat(mayBeCordoned); err != nil || !h.Live() {
		return nil
	}
	f, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil {
		return err
	}
	if sp == nil {
		on := specOn(h)
		sp = &on
	}
	w := whose(*sp, f)
	if w.later.Until != "" {
		return nil // the run after that does it
	}
	if err := s.cordon(ctx, h, w, false); err != nil && !errors.Is(err, notRegistered) {
		return &trouble.Error{
			What: "cannot uncordon this node: " + err.Error(), Err: errors.Join(trouble.Wait{For: "the API server"}, err),
			Try: []string{"run the same command again, or kubectl uncordon it"},
		}
	}
	return h.Remove(mayBeCordoned)
}

// cordon cordons the Node or ends gpuadm's cordon. A cordon without the annotation is an
// operator's, and stays.
func (s *Session) cordon(ctx context.Context, h host.Host, w who, on bool) error {
	c, err := s.kubelet(h, w)
	if err != nil {
		return err
	}
	defer s.forget()
	for try := range patchTries {
		n, err := s.look(ctx, h, w)
		if err != nil {
			return err
		}
		patch := cordonPatch(n, on, h.Now())
		if patch == nil {
			return nil
		}
		if on {
			if err := keep(h, mayBeCordoned, n.Name); err != nil {
				return err
			}
		}
		if _, err = c.PatchNode(ctx, n.Name, patch); !errors.Is(err, kube.Conflict) || try == patchTries-1 {
			return err
		}
		s.forget()
		if err := breathe(ctx, try); err != nil {
			return err
		}
	}
	return nil
}

// keep writes a line into a file of gpuadm's home, for later runs.
func keep(h host.Host, name, line string) error {
	if err := h.Mkdir(converge.Home, host.Attr{Mode: 0o700}); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return h.WriteFile(name, []byte(line+"\n"), host.Attr{Mode: 0o600})
}

// cordonPatch returns the patch for the Node's version that was read; nil if nothing has to change.
func cordonPatch(n *kube.Node, on bool, now time.Time) kube.Patch {
	_, ours := n.Annotations[cordonedBy]
	if on && n.Spec.Unschedulable || !on && !ours {
		return nil
	}
	mark, unschedulable := any(nil), any(nil)
	if on {
		mark, unschedulable = now.UTC().Format(time.RFC3339), true
	}
	return kube.Patch{
		"metadata": kube.Patch{"resourceVersion": n.ResourceVersion, "annotations": kube.Patch{cordonedBy: mark}},
		"spec":     kube.Patch{"unschedulable": unschedulable},
	}
}
