// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// nodeadmReadsFolder is the option with which nodeadm-run.service makes nodeadm read gpuadm's file;
// without it nodeadm reads no folder.
// Source: https://github.com/awslabs/amazon-eks-ami, pulls 2427 and 2477, first in v20251023;
// nodeadm/internal/cli/options.go.
const nodeadmReadsFolder = "--config-source file:///etc/eks/nodeadm.d"

// nodeadm configures the labels and taints that nodeadm registers the node with, and makes nodeadm
// wait until the GPUs are ready.
//
// The file has a second use. nodeadm configures the NVIDIA runtime in containerd if the runtime is
// installed when nodeadm-config runs, which is before gpuadm installs a toolkit in the same boot.
// nodeadm-run reuses that result unless the files of the folder change the spec. gpuadm's file
// changes it, so nodeadm checks again.
// Source: nodeadm/internal/containerd/runtime_config_nvidia.go and cmd/nodeadm/init, needsRecache.
func nodeadm(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	labels, taints, err := node.Registration(s, f)
	if err != nil {
		return nil, err
	}
	resolved, err := method.NodeadmReads(f.Files[method.NodeadmResolved])
	if err != nil {
		return nil, err
	}
	text, err := nodeadmText(s, f, labels, taints, resolved)
	if err != nil {
		return nil, err
	}

	unit := f.Files[method.NodeadmUnit]
	readsFolder := unit == nil || bytes.Contains(unit, []byte(nodeadmReadsFolder))
	if text != nil && !readsFolder {
		return nil, nodeadmTooOld(labels, taints)
	}

	var wants []converge.Want
	if text != nil {
		wants = append(wants, things.Folders(path.Dir(method.NodeadmDropIn), "holds nodeadm's settings")...)
		wants = append(wants, things.Exact(method.NodeadmDropIn, text, 0o644, nodeadmWhy(f, labels, taints)))
	}
	if f.Files[node.BootUnit] != nil {
		drop, text := nodeadmUnit(s)
		wants = append(wants, things.Folders(path.Dir(drop), "holds what "+method.NodeadmRun+" waits for")...)
		wants = append(wants,
			things.Exact(drop, []byte(text), 0o644, "it starts kubelet, and not before the GPUs are ready"),
			things.UnitFilesRead("systemd starts units as it has read them", method.NodeadmRun),
		)
	}
	return wants, nil
}

// nodeadmTooOld is the error for an image whose nodeadm does not read gpuadm's file.
func nodeadmTooOld(labels map[string]string, taints []spec.Taint) error {
	const text = "cannot have nodeadm register the node with %s: this image's %s does not read %s"
	folder := path.Dir(method.NodeadmDropIn)
	return &trouble.Error{
		What:    fmt.Sprintf(text, node.RegistersWith(labels, taints), method.NodeadmRun, folder),
		Because: []string{"EKS's images before v20251023 do not have " + nodeadmReadsFolder + " in its ExecStart"},
		Try: []string{
			"use an image v20251023 or newer",
			"or give labels and taints in the NodeConfig of the user data, and write method = \"none\" in [join]",
		},
	}
}

// nodeadmWhy says for the plan why gpuadm writes its file for nodeadm.
func nodeadmWhy(f facts.Facts, labels map[string]string, taints []spec.Taint) string {
	why := "nodeadm has the node register with " + node.RegistersWith(labels, taints)
	if len(labels)+len(taints) == 0 {
		why = "nodeadm gives containerd the NVIDIA runtime"
	}
	if f.Kubelet.Active == "active" {
		why += "; it runs at the next boot"
	}
	return why
}

// nodeadmUnit returns the drop-in that makes nodeadm-run wait. With a closed gate, nodeadm-run
// waits within its own start, which has no time limit for a oneshot unit. A restart of nodeadm-run
// would also run nodeadm-config, which it requires, and one failure of that would keep the node out
// for good; so would Requires= on a gpuadm.service that fails. With an open gate it waits until
// gpuadm.service has ended, in success or failure; Wants= starts gpuadm.service if nothing else
// does.
// Sources: systemd.unit(5), Requires=; systemd.service(5), TimeoutStartSec=; nodeadm-run.service in
// awslabs/amazon-eks-ami.
func nodeadmUnit(s spec.Spec) (name, text string) {
	name = node.GateOf(method.NodeadmRun)
	text = kubelet.Written + "\n[Unit]\nAfter=gpuadm.service\n"
	if s.Join.Gate == "open" {
		return name, text + "Wants=gpuadm.service\n"
	}
	return name, text + "\n[Service]\nExecStartPre=/usr/local/sbin/gpuadm gate --wait\n"
}

// fromNode marks, in gpuadm's file, the taints of node.toml, so that gpuadm can remove them later.
const fromNode = "node.toml"

// nodeadmTaints returns the list that the node must register with. nodeadm replaces lists and does
// not merge them, so the result includes the user data's taints: without Karpenter's
// karpenter.sh/unregistered, pods would start before Karpenter knows the node.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/api/merge.go.
func nodeadmTaints(ours []byte, resolved method.NodeadmSpec, taints []spec.Taint) (all []spec.Taint, theirs int) {
	marked := nodeadmMarked(ours)
	for _, t := range resolved.Spec.Kubelet.Config.RegisterWithTaints {
		taint := spec.Taint(t)
		known := slices.Contains(marked, taint) || slices.Contains(all, taint)
		if taint.Key != "" && !known {
			all = append(all, taint)
		}
	}
	theirs = len(all)

	for _, t := range taints {
		sameTaint := func(other spec.Taint) bool { return other.Key == t.Key && other.Effect == t.Effect }
		if !slices.ContainsFunc(all, sameTaint) {
			all = append(all, t)
		}
	}
	return all, theirs
}

// nodeadmMarked returns the taints in gpuadm's file that come from node.toml.
func nodeadmMarked(ours []byte) (marked []spec.Taint) {
	var doc struct {
		Spec struct {
			Kubelet struct {
				Config struct {
					RegisterWithTaints []yaml.Node `yaml:"registerWithTaints"`
				}
			}
		}
	}
	if yaml.Unmarshal(ours, &doc) != nil {
		return nil
	}

	for _, node := range doc.Spec.Kubelet.Config.RegisterWithTaints {
		var t struct{ Key, Value, Effect string }
		comment := node.LineComment
		for _, c := range node.Content {
			comment += c.LineComment
		}
		if strings.Contains(comment, fromNode) && node.Decode(&t) == nil {
			marked = append(marked, spec.Taint(t))
		}
	}
	return marked
}

// nodeadmText returns gpuadm's file for nodeadm; nil if nodeadm needs none.
func nodeadmText(
	s spec.Spec, f facts.Facts, labels map[string]string, taints []spec.Taint, resolved method.NodeadmSpec,
) ([]byte, error) {
	handler := s.Runtime.Handler
	writesHandler := s.Has("runtime") && s.Runtime.Owner != "gpuadm"
	if writesHandler && !slices.Contains([]string{"", "auto", "nvidia"}, handler) {
		const text = "cannot give containerd the handler %s: nodeadm writes its configuration at each boot, with the handler nvidia"
		return nil, &trouble.Error{
			What: fmt.Sprintf(text, handler),
			Try: []string{
				"write handler = \"nvidia\" in [runtime]",
				"or add another handler in spec.containerd.config of the user data",
			},
		}
	}

	all, theirs := nodeadmTaints(f.Files[method.NodeadmDropIn], resolved, taints)
	addsTaints := len(all) > theirs
	if len(labels) == 0 && !addsTaints {
		return nil, nil
	}

	var b strings.Builder
	fmt.Fprintf(&b, "%sapiVersion: %s\n%s\nspec:\n  kubelet:\n", kubelet.Written, method.NodeadmAPI, method.NodeadmKind)
	if len(labels) > 0 {
		flag := "--node-labels=" + strings.Join(kubelet.Pairs(labels), ",")
		b.WriteString("    flags:\n    - " + quotedYAML(flag) + "\n")
	}
	if addsTaints {
		writeTaints(&b, all, theirs)
	}
	return []byte(b.String()), nil
}

// writeTaints writes a list of taints, of which the first come from the user data.
func writeTaints(b *strings.Builder, all []spec.Taint, theirs int) {
	b.WriteString("    config:\n")
	b.WriteString("      registerWithTaints: # a list in place of the user data's, so that is repeated\n")
	for i, t := range all {
		source := "the user data"
		if i >= theirs {
			source = fromNode
		}
		fmt.Fprintf(b, "      - {key: %s, value: %s, effect: %s} # %s\n",
			quotedYAML(t.Key), quotedYAML(t.Value), quotedYAML(t.Effect), source)
	}
}

// quotedYAML quotes a text as in JSON, which YAML reads as well.
func quotedYAML(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		return `""` // a string can be written
	}
	return string(out)
}

// kubeletFlagsSay returns the flags with which another owner must start kubelet so that it
// registers as node.toml asks; "" for none.
func kubeletFlagsSay(labels map[string]string, taints []spec.Taint) string {
	var flags []string
	if len(labels) > 0 {
		flags = append(flags, "--node-labels="+strings.Join(kubelet.Pairs(labels), ","))
	}
	if len(taints) > 0 {
		flags = append(flags, "--register-with-taints="+strings.Join(kubelet.TaintTexts(taints), ","))
	}
	return strings.Join(flags, " ")
}

// HybridInit is the command that joins a machine outside EC2, after nodeadm has installed its
// parts.
// Source: https://docs.aws.amazon.com/eks/latest/userguide/hybrid-nodes-nodeadm.html
const HybridInit = "nodeadm init --config-source file://nodeConfig.yaml"

// hybrid checks what would keep EKS's nodeadm for hybrid nodes from joining the machine. It leaves
// the rest to nodeadm, which turns swap off, and checks the network, the clock, the API server, the
// credentials and the node's name.
// Source: https://github.com/aws/eks-hybrid, internal/system/swap.go and internal/validation.
func hybrid(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !f.Live || f.Booting || f.Kubelet.Joined {
		return nil, nil
	}
	return nil, kubelet.Starts(map[string]any{"failSwapOn": false}, s, f)
}
