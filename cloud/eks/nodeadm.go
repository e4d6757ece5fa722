// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"bytes"
	"context"
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
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// nodeadmReadsFolder is how nodeadm-run.service has nodeadm read our file; nodeadm by itself reads no folder.
// Source: https://github.com/awslabs/amazon-eks-ami, pulls 2427 and 2477, first in v20251023; nodeadm/internal/cli/options.go.
const nodeadmReadsFolder = "--config-source file:///etc/eks/nodeadm.d"

// nodeadm tells nodeadm what the node shall register with, and holds it back until the GPUs are ready.
//
// The file has a second use. nodeadm gives containerd the NVIDIA runtime where it finds that installed, and
// looks when nodeadm-config runs: before a toolkit that is installed in the same boot. nodeadm-run takes over what was
// resolved then, unless the files of the folder make it another spec; with our file it is one, so nodeadm looks again.
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
	if unit := f.Files[method.NodeadmUnit]; text != nil && unit != nil && !bytes.Contains(unit, []byte(nodeadmReadsFolder)) {
		return nil, &trouble.Error{
			What:    fmt.Sprintf("cannot have nodeadm register the node with %s: this image's %s does not read %s", node.RegistersWith(labels, taints), method.NodeadmRun, path.Dir(method.NodeadmDropIn)),
			Because: []string{"EKS's images before v20251023 do not have " + nodeadmReadsFolder + " in its ExecStart"},
			Try:     []string{"use an image v20251023 or newer", "or give labels and taints in the NodeConfig of the user data, and write method = \"none\" in [join]"},
		}
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
			things.UnitFilesRead("systemd starts units as it has read them", method.NodeadmRun))
	}
	return wants, nil
}

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

// nodeadmUnit is the drop-in by which nodeadm-run waits. Closed, it waits inside, for the gate. Each restart of nodeadm-run would
// run nodeadm-config again, which it requires, and one failure of that would leave the node out for good; so would a failed
// gpuadm.service that it required. A oneshot may start for as long as it takes. Open, it waits for gpuadm.service to end, however it
// ends; Wants= has it start where nothing else does.
// Sources: systemd.unit(5), Requires=; systemd.service(5), TimeoutStartSec=; nodeadm-run.service in awslabs/amazon-eks-ami.
func nodeadmUnit(s spec.Spec) (name, text string) {
	text = kubelet.Written + "\n[Unit]\nAfter=gpuadm.service\n"
	if s.Join.Gate == "open" {
		return node.GateOf(method.NodeadmRun), text + "Wants=gpuadm.service\n"
	}
	return node.GateOf(method.NodeadmRun), text + "\n[Service]\nExecStartPre=/usr/local/sbin/gpuadm gate --wait\n"
}

// fromNode is how our file marks the taints that node.toml asks for, so that they can go again.
const fromNode = "node.toml"

// nodeadmTaints returns the list that the node must register with. nodeadm replaces lists rather than adding to them, so the user
// data's are in it too: without Karpenter's karpenter.sh/unregistered pods would come before the node is known.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/api/merge.go.
func nodeadmTaints(ours []byte, resolved method.NodeadmSpec, taints []spec.Taint) (all []spec.Taint, theirs int) {
	marked := nodeadmMarked(ours)
	for _, t := range resolved.Spec.Kubelet.Config.RegisterWithTaints {
		at := spec.Taint(t)
		if t.Key != "" && !slices.Contains(marked, at) && !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	theirs = len(all)
	for _, t := range taints {
		if !slices.ContainsFunc(all, func(o spec.Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }) {
			all = append(all, t)
		}
	}
	return all, theirs
}

// nodeadmMarked are the taints that our file has for node.toml's sake.
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

// nodeadmText is our file; nil where there is nothing to tell.
func nodeadmText(s spec.Spec, f facts.Facts, labels map[string]string, taints []spec.Taint, resolved method.NodeadmSpec) ([]byte, error) {
	runtime, err := nodeadmRuntime(s, f, resolved)
	if err != nil {
		return nil, err
	}
	all, theirs := nodeadmTaints(f.Files[method.NodeadmDropIn], resolved, taints)
	if len(labels) == 0 && len(all) == theirs && runtime == "" {
		return nil, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%sapiVersion: %s\n%s\nspec:\n", kubelet.Written, method.NodeadmAPI, method.NodeadmKind)
	if runtime != "" {
		b.WriteString("  containerd:\n    config: |\n")
		for line := range strings.Lines(runtime) {
			b.WriteString("      " + line)
		}
	}
	if len(labels) > 0 || len(all) > theirs {
		b.WriteString("  kubelet:\n")
	}
	if len(labels) > 0 {
		b.WriteString("    flags:\n    - " + quotedYAML("--node-labels="+strings.Join(kubelet.Pairs(labels), ",")) + "\n")
	}
	if len(all) > theirs {
		b.WriteString("    config:\n      registerWithTaints: # a list in place of the user data's, so that is repeated\n")
	}
	for i, t := range all {
		if len(all) == theirs {
			break
		}
		from := "the user data"
		if i >= theirs {
			from = fromNode
		}
		fmt.Fprintf(&b, "      - {key: %s, value: %s, effect: %s} # %s\n", quotedYAML(t.Key), quotedYAML(t.Value), quotedYAML(t.Effect), from)
	}
	return []byte(b.String()), nil
}

// quotedYAML is a text as JSON writes it, which YAML reads the same.
func quotedYAML(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		return `""` // a string can be written
	}
	return string(out)
}

// nodeadmRuntime is what nodeadm must write into containerd's configuration beside its own template: nothing for the handler
// nvidia, which the template has, with CDI. nodeadm rewrites the file itself at each boot.
func nodeadmRuntime(s spec.Spec, f facts.Facts, resolved method.NodeadmSpec) (string, error) {
	name := s.Runtime.Handler
	if !s.Has("runtime") || s.Runtime.Owner == "gpuadm" || name == "nvidia" || name == "auto" || name == "" {
		return "", nil
	}
	ours := bytes.Contains(f.Files[method.NodeadmDropIn], []byte("\n  containerd:\n"))
	if resolved.Spec.Containerd.Config != "" && !ours {
		return "", &trouble.Error{
			What:    fmt.Sprintf("cannot give containerd the handler %s: the user data has a spec.containerd.config already", name),
			Because: []string{"older versions of nodeadm drop both where there are two (internal/api/merge.go)"},
			Try:     []string{"add the handler there, or write handler = \"nvidia\" in [runtime], which nodeadm has built in"},
		}
	}
	plugin, version := "io.containerd.cri.v1.runtime", 3
	if e, err := kubelet.EngineOf(f); err == nil && nodeadmOld(e) {
		plugin, version = "io.containerd.grpc.v1.cri", 2
	}
	at := fmt.Sprintf("plugins.%q.containerd", plugin)
	text := fmt.Sprintf("version = %d\n", version)
	if s.Runtime.SetAsDefault {
		text += fmt.Sprintf("[%s]\ndefault_runtime_name = %q\n", at, name)
	}
	return text + fmt.Sprintf("[%s.runtimes.%s]\nruntime_type = \"io.containerd.runc.v2\"\nbase_runtime_spec = \"/etc/containerd/base-runtime-spec.json\"\n"+
		"[%[1]s.runtimes.%[2]s.options]\nBinaryName = \"/usr/bin/nvidia-container-runtime\"\nSystemdCgroup = true\n", at, quotedYAML(name)), nil
}

// nodeadmOld says whether nodeadm writes containerd's older format: as the file says that it has written, else by the engine.
func nodeadmOld(e facts.Engine) bool {
	for _, file := range e.Files {
		if file.Path == e.Config && file.Data != nil {
			return !bytes.Contains(file.Data, []byte("version = 3"))
		}
	}
	return strings.HasPrefix(e.Version, "1.")
}

// kubeletFlagsSay are the flags that a kubelet of another owner must be started with to register as node.toml asks; "" for none.
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

// HybridInit is what joins a machine of one's own, once everything of nodeadm's is on it.
// Source: https://docs.aws.amazon.com/eks/latest/userguide/hybrid-nodes-nodeadm.html
const HybridInit = "nodeadm init --config-source file://nodeConfig.yaml"

// hybrid looks at what would keep EKS's nodeadm for hybrid nodes from joining the machine, and leaves the rest to it: it turns
// swap off by itself, and looks at the API server, the credentials and the node's name with its own words.
// Source: https://github.com/aws/eks-hybrid, internal/system/swap.go and internal/validation.
func hybrid(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !f.Live || f.Booting || f.Kubelet.Joined {
		return nil, nil
	}
	if err := kubelet.Starts(map[string]any{"failSwapOn": false}, s, f); err != nil {
		return nil, err
	}
	if s.Join.Region == "" {
		return nil, nil // its configuration has it, and lies where its administrator has put it
	}
	look := func(ctx context.Context, v host.View) (string, error) {
		return "", instance.ReachEKS(ctx, v, s.Join.Region, method.Via(s))
	}
	return []converge.Want{things.Check("EKS can be reached for nodeadm", look, "nodeadm signs in to AWS from here")}, nil
}
