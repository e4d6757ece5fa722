// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"cmp"
	"context"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Join makes the machine a node of its cluster, or leaves that to the cloud's own tool. It shares
// the session, which reads the Node object, with the other stages of a run.
func Join(session *node.Session) converge.Stage {
	return converge.Stage{
		Name:  "join",
		About: "joins the cluster",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			return joinWants(session, s, f)
		},
		Needs: joinNeeds,
		Notes: joinNotes,
	}
}

// Begin returns the checks of the node, and of a cloud's own scripts and pools, before the first
// change.
func Begin(s spec.Spec, f facts.Facts) []converge.Want {
	if refused := sealed(f); refused != nil {
		return refused
	}
	return append(scriptChecks(s, f), pluginChecks(s, f)...)
}

// joinNeeds: a kubelet that the join sets up registers with all labels and taints.
func joinNeeds(s spec.Spec) facts.Needs {
	if s.Join.Method == "none" {
		return facts.Needs{Files: method.Files(s)}
	}
	return node.StartupNeeds().And(facts.Needs{
		Driver:  s.Node.GPULabels,
		Files:   method.Files(s),
		Cluster: method.ClusterRef(s),
	})
}

// Joined waits until the node is ready in the cluster. It is a stage of its own: a node that
// becomes ready late, perhaps for lack of a network plugin, has joined nevertheless, and gpuadm
// does not roll the join back.
func Joined(session *node.Session) converge.Stage {
	return converge.Stage{
		Name:  "joined",
		About: "waits until the cluster has the node",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			if s.Join.Method == "none" || platform.Of(f.Cloud.Managed).Join.Unseen {
				return nil, nil
			}
			return []converge.Want{joinedWant(session, s, f)}, nil
		},
	}
}

// joinedWant waits until kubelet has joined the cluster, and then until the node is ready.
func joinedWant(session *node.Session, s spec.Spec, f facts.Facts) converge.Want {
	joiner := method.Joiner(f)
	isOwn := method.SetsUpKubelet(s, f)
	switch {
	case joiner != "" && !isOwn && !f.Kubelet.Joined:
		return notJoinedYet(joiner, f)
	case isOwn && !f.Kubelet.Joined: // the stage before this reports what it waits for
		later := host.Later{Until: node.UntilJoined}
		return things.Deferred("the cluster has the node", later, "kubelet registers the node")
	}

	name := method.NodeName(s, f)
	if !isOwn { // a cloud may give the node another name
		name = cmp.Or(f.Kubelet.NodeName, name)
	}
	kubeconfig := cmp.Or(f.Kubelet.Kubeconfig, kubelet.Kubeconfig)
	w := node.WaitReady(session, s, f, name, kubeconfig)
	w.Section = "join"
	return w
}

// notJoinedYet waits for a cloud's own scripts, which may take an hour, or wait for this run: so
// this run does not wait for them.
func notJoinedYet(by string, f facts.Facts) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if f.Booting || !v.Live() {
			return "", host.Later{Until: "once kubelet runs"}
		}
		unit := cmp.Or(f.Kubelet.Unit, "kubelet")
		try := []string{
			"journalctl -u " + unit + ", which says what it waits for",
			trouble.Command("apply") + ", once it has joined",
		}
		join := platform.Of(f.Cloud.Managed).Join
		switch {
		case join.Unit != "":
			try[0] = "journalctl -u " + join.First + " -u " + join.Unit + " -u " + unit + ", which say what they wait for"
		case join.Init != "":
			try = append([]string{join.Init + ", if it has not run yet: everything before the join has converged"}, try...)
		}

		return "", trouble.Wait{
			For: by + " to join this machine: its kubelet has no credentials yet",
			Try: try,
		}
	}
	return things.Check(by+" has joined this machine", look, "kubelet registers the node")
}

// SetsUpKubelet reports whether gpuadm's own join writes the files of this machine's kubelet.
func SetsUpKubelet(s spec.Spec, f facts.Facts) bool {
	return s.Has("join") && method.SetsUpKubelet(s, f) || method.SetUpByGpuadm(f)
}
