// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Texts of the table name NODE, and a GPU as -i GPU: those of the machine take their place.
var (
	nodeWord    = pattern.Of(`\bNODE\b`)
	drainedNode = pattern.Of(`(kubectl (?:drain|cordon|uncordon) )NODE\b`)
	ofCluster   = pattern.Of(` \(kubectl [^)]*\bNODE\b[^)]*\)`)
	address     = pattern.Of(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// fillIn names the machine's Node and the GPUs of each cause in its fix and commands. A machine
// that has not joined a cluster has no Node to drain by kubectl.
func (m *Machine) fillIn(causes []Cause) {
	kubelet := m.Basics().Kubelet
	node, drained := m.nodeNames()
	for i := range causes {
		cause := &causes[i]
		if !kubelet.Joined {
			cause.Fix = ofCluster().ReplaceAllString(cause.Fix, "")
		}
		cause.fill(node, drained)
		for j := range cause.Commands {
			cause.Commands[j] = m.withSection(cause.Commands[j])
		}
	}
}

// fillWithoutNode is fillIn where a part of the machine does not answer: the shell that a command
// is typed in knows the host's name.
func fillWithoutNode(causes []Cause) {
	for i := range causes {
		causes[i].fill("$(hostname)", "--selector=kubernetes.io/hostname=$(hostname)")
	}
}

// fill names the Node, which kubectl drains by the second words, and the cause's GPUs. Commands
// that are the same but for the GPU are one.
func (c *Cause) fill(node, drained string) {
	fill := func(text string) string {
		text = drainedNode().ReplaceAllString(text, "${1}"+drained)
		text = nodeWord().ReplaceAllString(text, node)
		if gpus := c.gpus(); len(gpus) > 0 {
			text = strings.ReplaceAll(text, "-i GPU", "-i "+strings.Join(gpus, ","))
		}
		return text
	}

	c.Fix = fill(c.Fix)
	c.Commands = ofAllGPUs(c.Commands)
	for i := range c.Commands {
		c.Commands[i] = fill(c.Commands[i])
	}
}

// ofOneGPU is a command that names one GPU: nvidia-smi(1), --id, takes a list of them.
var ofOneGPU = pattern.Of(`^(sudo nvidia-smi (?:[a-z-]+ )*-i )([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])((?: .*)?)$`)

// ofAllGPUs makes one command of those that are the same but for the GPU, in the place
// of the first.
func ofAllGPUs(commands []string) (joined []string) {
	at := map[string]int{}
	for _, command := range commands {
		parts := ofOneGPU().FindStringSubmatch(command)
		if parts == nil {
			joined = append(joined, command)
			continue
		}
		before := parts[1]
		gpu := parts[2]
		after := parts[3]
		i, more := at[before+after]
		if !more {
			at[before+after] = len(joined)
			joined = append(joined, command)
			continue
		}

		joined[i] = strings.TrimSuffix(joined[i], after) + "," + gpu + after
	}

	return joined
}

// nodeNames are what kubectl calls the machine's Node: its name, and words by which it is drained.
// Where kubelet does not run, the cluster was not asked for the name, and a cloud may give another
// than the host's; kubelet's label has the host's in each case. Source: kubernetes,
// pkg/kubelet/kubelet_node_status.go (initialNode: LabelHostname);
// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetesiohostname.
func (m *Machine) nodeNames() (name, drained string) {
	kubelet := m.Basics().Kubelet
	if kubelet.Joined {
		if registered, ok := m.Registration(); ok && registered.name != "" {
			return registered.name, registered.name
		}
	}

	hostname, _ := m.text("/proc/sys/kernel/hostname")
	name = cmp.Or(kubelet.NodeName, strings.ToLower(hostname))
	return name, "--selector=kubernetes.io/hostname=" + name
}

// withSection replaces the plan of stages whose section node.toml lacks, or of a machine that has
// none: it would show nothing, or end with an error. init prints a spec that has the section.
func (m *Machine) withSection(command string) string {
	sections := map[string]string{
		"packages modules": "driver",
		"toolkit":          "toolkit",
		"runtime":          "runtime",
	}
	for stages, section := range sections {
		if !m.spec.Has(section) {
			plan := trouble.Command("plan " + stages)
			command = strings.ReplaceAll(command, plan, trouble.Command("init --print"))
		}
	}
	return command
}

// gpus are the addresses of the GPUs that the cause is about, each once.
func (c Cause) gpus() (addresses []string) {
	for _, found := range c.Found {
		isGPU := address().MatchString(found.Object)
		if isGPU && !slices.Contains(addresses, found.Object) {
			addresses = append(addresses, found.Object)
		}
	}
	return addresses
}
