// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// checks are checks that verify the GPUs and the engine once more. Each reports a problem; this
// stage fixes none.
func (r readyStage) checks(answers Answers, lacksCDI LacksCDI) []converge.Want {
	var list []converge.Want
	for _, c := range gpuChecks(r.spec, r.facts) {
		list = append(list, r.check(c.what, c.look, c.try...))
	}
	if r.facts.Driver == nil {
		list[0].Releases = true // the driver's labels are unknown now, which is no reason to remove them
		return list
	}

	lookForCDI := func(_ context.Context, v host.View) (string, error) {
		return draLacksCDI(v, r.facts, lacksCDI), nil
	}
	list = append(list, r.check("dynamic resource allocation", lookForCDI))
	if answers != nil && r.spec.Has("runtime") {
		list = append(list, r.handlerCheck(answers))
	}
	return list
}

// handlerCheck verifies that the container engine has the runtime handler.
func (r readyStage) handlerCheck(answers Answers) converge.Want {
	join := platform.Of(r.facts.Cloud.Managed).Join
	byUnit := join.Unit != ""
	try := trouble.Command("apply runtime")
	if byUnit && r.spec.Runtime.Owner != "gpuadm" {
		try = "reboot: " + join.By + " writes containerd's configuration, and the handler into it, at each boot"
	}
	look := func(ctx context.Context, v host.View) (string, error) {
		err := answers(ctx, v, r.spec, r.facts)
		switch {
		case err == nil:
			return "", nil
		case byUnit && r.facts.Kubelet.Active != "active":
			return "", waitForJoiner(join, err)
		}

		return err.Error(), nil
	}

	name := strings.TrimSuffix("runtime handler "+r.spec.Runtime.Handler, " auto") // auto is not a name
	return r.check(name, look, try)
}

// waitForJoiner waits for the platform's unit that gives containerd its configuration, and then
// starts it and kubelet.
func waitForJoiner(join platform.Join, cause error) error {
	return trouble.Wait{
		For: join.By + " to configure containerd and start kubelet: " + trouble.OneLine(cause.Error()),
		Try: []string{
			"journalctl -u " + join.Unit + ", which says what it waits for",
			trouble.Command("apply") + ", once it has run",
		},
		Err: joinerRuns,
	}
}

// kubeconfigCheck verifies that the kubeconfig of [node] exists. As long as kubelet's identity is
// enough, nothing else would show that the file is missing.
func (r readyStage) kubeconfigCheck() converge.Want {
	name := r.spec.Node.Kubeconfig
	return r.check("kubeconfig of [node]", func(_ context.Context, v host.View) (string, error) {
		_, err := v.Stat(name)
		if host.NotExist(err) {
			return name + ", which kubeconfig in [node] names, is not there", nil
		}
		return "", err
	})
}

// check wants a look to find no problem. It is deferred while there is no API server to ask: a
// machine that has not joined need not be ready.
func (r readyStage) check(what string, look lookFunc, try ...string) converge.Want {
	whenJoined := func(ctx context.Context, v host.View) (string, error) {
		if r.identity.later.Until != "" {
			return "", r.identity.later
		}
		problem, err := look(ctx, v)
		if problem != "" {
			problem = "cannot call the node ready: " + problem
		}
		return problem, err
	}

	w := things.Check("ready: "+what, whenJoined, "looked at once more before pods come", try...)
	w.Section = r.section
	return w
}

// gpusReady waits until no monitor reports the GPUs faulty, the cluster hears of kubelet, the GPUs
// work, and the node offers them. It refuses a condition that another client writes.
func (r readyStage) gpusReady(ctx context.Context, v host.View, n *kube.Node) error {
	if err := cmp.Or(r.refuseSecondOwner(n, v.Now()), waitForRepair(n), r.waitForKubelet(n)); err != nil {
		return err
	}
	if err := r.waitForGPUs(ctx, v); err != nil {
		return err
	}
	return r.waitForOffer(ctx, v, n)
}
