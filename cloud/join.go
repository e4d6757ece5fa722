// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Join makes the machine a node of its cluster, or leaves that to the tool that does it on this cloud. It looks at the Node object
// together with the other stages of a run.
func Join(node *Session) converge.Stage {
	return converge.Stage{
		Name:  "join",
		About: "joins the cluster",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			wants, err := joinWants(s, f)
			for i, w := range wants {
				switch t := w.Thing.(type) {
				case registered:
					t.session, t.looks = node, &nodeLooks{}
					wants[i].Thing = t
				case certificate:
					t.join.silence = &node.silence // all that ask for the join share it
				}
			}
			return wants, err
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
func Joined(node *Session) converge.Stage {
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
			w := waitReady(s, f, name, cmp.Or(f.Kubelet.Kubeconfig, kubelet.Kubeconfig))
			j := w.Thing.(joined)
			j.session, j.looks = node, &nodeLooks{}
			w.Thing, w.Section = j, "join"
			return []converge.Want{w}, nil
		},
	}
}

// joinsIt names whose scripts make the machine a node, "" if nobody's.
func joinsIt(f facts.Facts) string {
	return map[string]string{"eks": "nodeadm", "eks-hybrid": "nodeadm", "eks-al2": "EKS's bootstrap.sh", "aks": "AKS", "gke": "GKE"}[f.Cloud.Managed]
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

func joinWants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	switch howOf(s, f) {
	case "none":
		return nil, nil
	case "token":
		return tokenAnyway(s, f)
	case "eks":
		return eks(s, f)
	case "gke":
		return gke(s, f)
	case "aks":
		return aks(f)
	case "":
		return nil, untold(f)
	}
	return nil, fmt.Errorf("internal error: no way to join is called %q", s.Join.Method)
}

// ownsKubelet says whether the join sets up kubelet itself: then the stage that puts labels and taints into the files of
// a kubelet of another owner has nothing to do.
func ownsKubelet(s spec.Spec, f facts.Facts) bool {
	return howOf(s, f) == "token" && !joinedByOthers(f) || eksOwn(s, f)
}

// setUpByUs says whether kubelet runs by a file that gpuadm's join has written, whatever [join] says now: where the
// section is gone, gpuadm releases what it made, and leaves it.
func setUpByUs(f facts.Facts) bool {
	return slices.ContainsFunc(ownUnits(), func(name string) bool { return bytes.HasPrefix(f.Files[name], []byte(kubelet.Written)) })
}

// ownUnits are the files by which a kubelet runs that gpuadm has set up: one of them.
func ownUnits() []string { return []string{kubelet.UnitFile, kubelet.DropIn} }

// joinFiles are the files that joining reads and that every user may read. The token is not among them: what is in the facts may
// be printed.
func joinFiles(s spec.Spec) (names []string) {
	if s.Join.Method == "none" {
		return nil
	}
	names = []string{"/proc/swaps", "/etc/resolv.conf", kubelet.Kubeconfig, kubelet.UnitFile, kubelet.DropIn, nodeadmResolved, nodeadmDropIn, eksProviderConfig}
	for _, name := range []string{s.Join.CAFile, s.Join.KubeletConfig} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// nodeName is what the node is called: as kubelet does it, the host's name in lower case
// (kubernetes, pkg/util/node/node.go, GetHostname).
func nodeName(s spec.Spec, f facts.Facts) string {
	if s.Join.NodeName != "" {
		return s.Join.NodeName
	}
	if name := eksName(s, f); name != "" {
		return name
	}
	return strings.ToLower(strings.TrimSpace(f.Hostname))
}

// via is how the machine reaches the API server.
func via(s spec.Spec) host.Via {
	return host.Via{HTTP: s.Proxy.HTTP, HTTPS: s.Proxy.HTTPS, No: s.Proxy.NoProxy, CAFile: s.Proxy.CAFile}
}
