// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Join makes the machine a node of its cluster, or leaves that to the tool that does it on this cloud. It looks at the Node object
// together with the other stages of a run.
func Join(se *Session) converge.Stage {
	return converge.Stage{
		Name:  "join",
		About: "joins the cluster",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			return joinWants(se, s, f)
		},
		Needs: joinNeeds,
		Notes: joinNotes,
	}
}

// joinNeeds: a kubelet that the join sets up registers with all labels and taints.
func joinNeeds(s spec.Spec) facts.Needs {
	if s.Join.Method == "none" {
		return facts.Needs{Files: joinFiles(s)}
	}
	return startupNeeds().And(facts.Needs{Driver: s.Node.GPULabels, Files: joinFiles(s), Cluster: eksRef(s)})
}

// Joined waits until the node is ready in the cluster. It is a stage of its own: a node that is slow to become ready, for want
// of a network plugin perhaps, has joined all the same, and gpuadm does not roll the join back for it.
func Joined(se *Session) converge.Stage {
	return converge.Stage{
		Name:  "joined",
		About: "waits until the cluster has the node",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			switch by := joinsIt(f); {
			case s.Join.Method == "none", f.Cloud.Managed == "aks-flex": // whose kubelet is out of sight, in a container
				return nil, nil
			case by != "" && howOf(s, f) != "token" && !ownsKubelet(s, f) && !f.Kubelet.Joined:
				return []converge.Want{notJoinedYet(by, f)}, nil
			case eksOwn(s, f) && !f.Kubelet.Joined: // the stage before this one says what it waits for
				return []converge.Want{eksLater("the cluster has the node", host.Later{Until: untilJoined}, "kubelet registers the node")}, nil
			}
			name := nodeName(s, f)
			if howOf(s, f) != "token" && !ownsKubelet(s, f) { // a cloud may name it otherwise
				name = cmp.Or(f.Kubelet.NodeName, name)
			}
			w := waitReady(se, s, f, name, cmp.Or(f.Kubelet.Kubeconfig, kubelet.Kubeconfig))
			w.Section = "join"
			return []converge.Want{w}, nil
		},
	}
}

// notJoinedYet waits for a cloud's own scripts, which may come in an hour, or wait for this very run: it is not waited within it.
func notJoinedYet(by string, f facts.Facts) converge.Want {
	return things.Check(by+" has joined this machine", func(_ context.Context, v host.View) (string, error) {
		if f.Booting || !v.Live() {
			return "", host.Later{Until: "once kubelet runs"}
		}
		try := []string{"journalctl -u kubelet, which says what it waits for", "gpuadm apply, once it has joined"}
		switch f.Cloud.Managed {
		case "eks": // where the first fails, as for want of the metadata service, the second never starts kubelet
			try[0] = "journalctl -u nodeadm-config -u " + nodeadmRun + " -u kubelet, which say what they wait for"
		case "eks-hybrid":
			try = append([]string{hybridInit + ", if it has not run yet: everything before the join has converged"}, try...)
		}
		return "", converge.Wait{For: by + " to join this machine: its kubelet has no credentials yet", Try: try}
	}, "kubelet registers the node")
}

func joinWants(se *Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	switch howOf(s, f) {
	case "none":
		return nil, nil
	case "token":
		return tokenAnyway(se, s, f)
	case "eks":
		return eks(se, s, f)
	case "gke":
		return gke(s, f)
	case "aks":
		return aks(f)
	case "":
		return nil, untold(f)
	}
	return nil, fmt.Errorf("internal error: no way to join is called %q", s.Join.Method)
}
