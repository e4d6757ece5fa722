// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"bytes"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// folderOption returns the option with which nodeadm-run.service makes nodeadm read gpuadm's file;
// without it nodeadm reads no folder.
// Source: https://github.com/awslabs/amazon-eks-ami, pulls 2427 and 2477, first in v20251023;
// nodeadm/internal/cli/options.go.
func folderOption() string { return "--config-source file://" + path.Dir(nodeadm().Settings) }

// nodeadm has the units and files of nodeadm on EKS's own images.
func nodeadm() platform.Join { return platform.Of("eks").Join }

// settings configures the labels and taints that nodeadm registers the node with, and makes nodeadm
// wait until the GPUs are ready.
//
// The file has a second use. nodeadm configures the NVIDIA runtime in containerd if the runtime is
// installed when nodeadm-config runs, which is before gpuadm installs a toolkit in the same boot.
// nodeadm-run reuses that result unless the files of the folder change the spec. gpuadm's file
// changes it, so nodeadm checks again.
// Source: nodeadm/internal/containerd/runtime_config_nvidia.go and cmd/nodeadm/init, needsRecache.
func settings(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	labels, taints, err := node.Registration(s, f)
	if err != nil {
		return nil, err
	}
	file := nodeadm().Resolved
	resolved, err := instance.ReadResolved(file, f.Files[file])
	if err != nil {
		return nil, err
	}
	text, err := settingsText(s, f, labels, taints, resolved)
	if err != nil {
		return nil, err
	}

	unit := f.Files[nodeadm().UnitFile]
	readsFolder := unit == nil || bytes.Contains(unit, []byte(folderOption()))
	if text != nil && !readsFolder {
		return nil, readsNoFolder(labels, taints)
	}

	var wants []converge.Want
	if text != nil {
		wants = append(wants, things.Folders(path.Dir(nodeadm().Settings), "holds nodeadm's settings")...)
		wants = append(wants, things.Exact(nodeadm().Settings, text, 0o644, settingsWhy(f, labels, taints)))
	}
	if f.Files[node.BootUnit] != nil {
		dropIn, text := waitDropIn(s)
		wants = append(wants, things.Folders(path.Dir(dropIn), "holds what "+nodeadm().Unit+" waits for")...)
		wants = append(wants,
			things.Exact(dropIn, []byte(text), 0o644, "it starts kubelet, and not before the GPUs are ready"),
			things.UnitFilesRead("systemd starts units as it has read them", nodeadm().Unit),
		)
	}

	return wants, nil
}

// readsNoFolder is the error for an image whose nodeadm does not read gpuadm's file.
func readsNoFolder(labels map[string]string, taints []spec.Taint) error {
	const text = "cannot have nodeadm register the node with %s: this image's %s does not read %s"
	folder := path.Dir(nodeadm().Settings)
	return &trouble.Error{
		What:    fmt.Sprintf(text, node.RegistersWith(labels, taints), nodeadm().Unit, folder),
		Because: []string{"EKS's images before v20251023 do not have " + folderOption() + " in its ExecStart"},
		Try: []string{
			"use an image v20251023 or newer",
			"or give labels and taints in the NodeConfig of the user data, and write method = \"none\" in [join]",
		},
	}
}

// settingsWhy says for the plan why gpuadm writes its file for nodeadm.
func settingsWhy(f facts.Facts, labels map[string]string, taints []spec.Taint) string {
	why := "nodeadm has the node register with " + node.RegistersWith(labels, taints)
	if len(labels)+len(taints) == 0 {
		why = "nodeadm gives containerd the NVIDIA runtime"
	}
	if f.Kubelet.Active == "active" {
		why += "; it runs at the next boot"
	}
	return why
}

// waitDropIn returns the drop-in that makes nodeadm-run wait. With a closed gate, nodeadm-run
// waits within its own start, which has no time limit for a oneshot unit. A restart of nodeadm-run
// would also run nodeadm-config, which it requires, and one failure of that would keep the node out
// for good; so would Requires= on a gpuadm.service that fails. With an open gate it waits until
// gpuadm.service has ended, in success or failure; Wants= starts gpuadm.service if nothing else
// does.
// Sources: systemd.unit(5), Requires=; systemd.service(5), TimeoutStartSec=; nodeadm-run.service in
// awslabs/amazon-eks-ami.
func waitDropIn(s spec.Spec) (name, text string) {
	name = node.GateOf(nodeadm().Unit)
	text = kubelet.Written + "\n[Unit]\nAfter=gpuadm.service\n"
	if s.Join.Gate == "open" {
		return name, text + "Wants=gpuadm.service\n"
	}
	return name, text + "\n[Service]\nExecStartPre=/usr/local/sbin/gpuadm gate --wait\n"
}
