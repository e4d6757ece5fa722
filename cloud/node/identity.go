// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// identity names the Node, and the kubeconfigs that may read and change it.
type identity struct {
	node string // the Node's name
	unit string // kubelet's, "" if it has none

	kubelet string   // kubelet's kubeconfig: may set most labels of its own Node, its status, and no taints
	account string   // the kubeconfig in [node], a ServiceAccount's, for the rest
	via     host.Via // proxies

	machineID string // "" if the machine has none
	bootID    string // of this boot

	// later is why there is no API server to ask yet: "once the node has joined". It is empty if
	// there is one.
	later host.Later
}

// UntilJoined is what waits for the join.
const UntilJoined = "once the node has joined"

// identityOf determines the identity from the spec and the facts.
func identityOf(s spec.Spec, f facts.Facts) identity {
	id := identity{
		node:      cmp.Or(f.Kubelet.NodeName, method.NodeName(s, f)),
		unit:      f.Kubelet.Unit,
		kubelet:   f.Kubelet.Kubeconfig,
		account:   s.Node.Kubeconfig,
		via:       method.Via(s),
		machineID: f.MachineID,
		bootID:    f.BootID,
	}
	switch {
	case !f.Live:
		id.later = host.FirstBoot
	case !f.Kubelet.Joined:
		id.later = host.Later{Until: UntilJoined}
	case f.Booting:
		id.later = host.Later{Until: "once kubelet runs"}
	}

	return id
}

// identityOfMachine determines the identity for undo, which has no spec: from the machine and its
// own spec.
func identityOfMachine(ctx context.Context, v host.View) (identity, error) {
	f, err := facts.Gather(ctx, v, facts.Needs{})
	if err != nil {
		return identity{}, err
	}
	return identityOf(machineSpec(v), f), nil
}

// specHome is the folder of a machine's spec.
const specHome = "/etc/gpuadm"

// machineSpec reads the spec on the machine. If it cannot be read or used, the spec counts that was
// applied last, else an empty one.
func machineSpec(v host.View) spec.Spec {
	files, err := specFiles(v)
	if err == nil {
		s, wrong := spec.Parse(files...)
		if wrong == nil {
			return s
		}
	}

	last, _ := converge.ReadLastSpec(v)
	return last.Spec
}

// specFiles reads the files of the spec on the machine: node.toml, and those of node.d. A file of
// node.d may go meanwhile.
func specFiles(v host.View) ([]spec.File, error) {
	main := path.Join(specHome, "node.toml")
	data, err := v.ReadFile(main)
	if err != nil {
		return nil, err
	}
	files := []spec.File{{Name: main, Data: data}}

	folder := path.Join(specHome, "node.d")
	names, err := v.ReadDir(folder) // sorted
	if err != nil && !host.NotExist(err) {
		return nil, err
	}
	for _, name := range names {
		if !spec.Reads(name) {
			continue
		}
		more := path.Join(folder, name)
		data, err := v.ReadFile(more)
		if host.NotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, spec.File{Name: more, Data: data})
	}

	return files, nil
}

// serviceAccount returns the kubeconfig of an identity that may change taints: that of [node], or
// that of the DaemonSet's pod; "" if there is none.
func (id identity) serviceAccount(v host.View) string {
	if id.account != "" {
		return id.account
	}
	if _, err := v.Stat(PodKubeconfig); err == nil {
		return PodKubeconfig
	}
	return ""
}

// from returns the origin of a client with one of the identity's kubeconfigs.
func (id identity) from(kubeconfig string) kube.From {
	return kube.From{
		Kubeconfig: kubeconfig,
		Via:        id.via,
		Judged:     kubeconfig == id.account,
	}
}

// reads returns the kubeconfig for reading.
func (id identity) reads(v host.View) (string, error) {
	if name := cmp.Or(id.kubelet, id.serviceAccount(v)); name != "" {
		return name, nil
	}
	return "", &trouble.Error{
		What: "cannot ask the cluster about this node: kubelet's command line names no kubeconfig",
		Try:  []string{"set kubeconfig in [node] to a file whose user may read and patch this node"},
		Err:  noKubeconfig,
	}
}

// own passes a look's answer on, and refuses the Node of another machine: a clone has the host name
// and the kubelet certificate of its original. kubelet reports the machine's id only when it
// starts, so after a change of the id gpuadm waits for its report. Without a machine id the caller
// has already checked.
func (id identity) own(n *kube.Node, err error) (*kube.Node, error) {
	if err != nil || id.machineID == "" {
		return n, err
	}
	reported := n.Status.NodeInfo.MachineID
	if reported == "" || reported == id.machineID {
		return n, nil
	}
	return nil, trouble.Wait{
		For: fmt.Sprintf("the node %s has the machine id %s, and this machine's is %s: it is another machine's node, or kubelet has not reported since the id changed", n.Name, reported, id.machineID),
		Try: []string{
			"if this machine's id was changed: systemctl restart " + id.unitName(),
			"if it is a clone: it needs a name, a machine id and kubelet credentials of its own; remove those, and it joins again",
		},
		Err: anotherMachine,
	}
}
