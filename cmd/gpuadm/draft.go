// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/mig"
)

// A draft is a spec that init writes: its inputs, and its text. A line that begins with "# " is
// prose; a "#" without a space precedes a key that an operator may want.
type draft struct {
	facts  facts.Facts
	gpus   []host.GPU
	cloud  string            // one of clouds; "" for none
	engine bool              // a container engine is or will be installed
	schema string            // the address of node.toml's schema; "" is schemaHome's
	left   map[string]string // left-out sections, with the reasons
	text   strings.Builder
}

func (d *draft) say(lines ...string) {
	d.text.WriteString(strings.Join(lines, "\n") + "\n")
}

// spec is the text of the draft.
func (d *draft) spec() (string, error) {
	d.text.Reset()
	d.say("#:schema "+cmp.Or(d.schema, schemaHome+"node.json"), "")
	d.say("# The desired state of this node: "+d.facts.String(),
		"# gpuadm help spec lists all keys. A section that is not here changes nothing.",
		"format = 1", "")
	d.driver()
	d.runtime()
	d.mig()
	d.say("# What the node tells Kubernetes about itself.",
		"[node]", `#labels = { "example.com/pool" = "gpu" }`)
	d.numa()
	d.say("")
	d.join()

	text := d.text.String()
	_, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)})
	if err != nil {
		return "", fmt.Errorf("internal error: init made a spec that is wrong: %w", err)
	}
	return text, nil
}

// driver writes [driver] and [toolkit]: the machine's branch if gpuadm would install it, else the
// advised branch.
func (d *draft) driver() {
	choice, version, err := d.choose()
	reason := d.noDriver(choice, err)
	if reason != "" {
		d.say("# "+reason, "#[driver]", `#version = "580"`, "")
		return
	}

	ofOther := choice.Source == drivers.SourceNone
	advised, _ := d.advised()
	switch {
	case ofOther:
		d.say("# The driver is left to " + choice.Owner + ": gpuadm verifies that it is of this branch.")
	default:
		d.say("# The driver: the newest of a branch, or an exact version where all nodes must have the same.")
		if version == advised.Branch && advised.Reason != "" {
			d.say("# Branch " + advised.Branch + ": " + advised.Reason + ".")
		}
	}

	d.say("[driver]", fmt.Sprintf("version = %q", version))

	exact := d.present()
	isBranch := version != exact && version == branchOf(exact)
	if isBranch && !ofOther {
		d.say(fmt.Sprintf("# Where a fleet must be alike, exactly what this machine has: version = %q.", exact))
	}
	if n := len(d.gpus); n > 0 {
		d.say("# A node with more or fewer GPUs on its bus is not ready:", fmt.Sprintf("#gpu_count = %d", n))
	}
	d.enableNeeded(choice)
	d.say("")
	if !ofOther && d.left["toolkit"] == "" {
		d.say("# The NVIDIA container toolkit, the newest; or a version:", "[toolkit]", `#version = "1.18"`, "")
	}
}

// choose returns the driver for the machine's branch, else for the advised one, and that branch.
func (d *draft) choose() (choice drivers.Choice, version string, err error) {
	advised, err := d.advised()
	asked := spec.Defaults()
	asked.Sections = []string{"driver"}
	for _, branch := range []string{branchOf(d.present()), advised.Branch} {
		version = branch
		asked.Driver.Version = branch
		found, ok, wrong := drivers.New(nil).Choose(asked, d.facts)
		if ok && wrong == nil {
			return found, version, nil
		}
	}

	return advised, version, err
}

func branchOf(version string) string {
	branch, _, _ := strings.Cut(version, ".")
	return branch
}

// noDriver says why the draft has no [driver]; "" if it has one.
func (d *draft) noDriver(choice drivers.Choice, err error) string {
	why := d.left["driver"]
	ofOther := choice.Source == drivers.SourceNone
	switch {
	case why != "":
		return "Left out: " + why
	case err != nil:
		return "Left out: " + err.Error() + "."
	case ofOther && choice.Owner == "":
		return "There is no NVIDIA GPU here yet: where one comes, a driver does."
	case ofOther && d.present() == "":
		return "The driver is left to " + choice.Owner + "; with a version here gpuadm verifies it."
	}

	return ""
}

// enableNeeded writes enable_needed if the driver's packages depend on a repository that is not
// enabled.
func (d *draft) enableNeeded(choice drivers.Choice) {
	var needs []string
	for _, lack := range choice.Lacks(d.facts) {
		if !lack.Enabled && lack.Unavailable() == nil {
			needs = append(needs, lack.Name)
		}
	}

	if len(needs) > 0 {
		d.say("# The driver's packages depend on "+strings.Join(needs, " and ")+", which gpuadm enables until undo.",
			"[driver.repo]", "enable_needed = true")
	}
}

// runtime writes [runtime], if the machine has or will have a container engine.
func (d *draft) runtime() {
	why := d.left["runtime"]
	switch {
	case why != "":
		d.say("# Left out: "+why, "#[runtime]", "")
		return
	case !d.engine:
		return
	}

	d.say("# The container engine runs containers with the NVIDIA runtime.", "[runtime]")
	if p := platform.Of(d.cloud); p.Engine.How == platform.NoNeed {
		d.say("# "+p.Title+" writes the engine's configuration at each boot: the device plugin names CDI devices, and that file stays.",
			`inject = "cdi"`)
	} else {
		d.say("# Containers get GPUs without a RuntimeClass:", "#set_as_default = true")
	}

	d.say("")
}

// numa writes which settings of kubelet, which are not gpuadm's, keep a pod's CPUs and memory near
// its GPU, for machines whose settings are known. Sources:
// https://github.com/nebius/nebius-solutions-library/pull/996 (H200, B200, B300: restricted,
// static, and 1329Mi reserved on node 0) and
// https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/ (what is reserved); for
// coherent GPUs https://github.com/kubernetes/kubernetes/pull/135581 and
// https://github.com/kubernetes/enhancements/issues/5726.
func (d *draft) numa() {
	choice, err := d.advised()
	fabric := drivers.FabricOf(drivers.Load(), d.facts)
	switch {
	case err == nil && choice.Coherent:
		d.say("# Kubelet: leave topologyManagerPolicy and memoryManagerPolicy at none. Grace has tens of NUMA nodes without CPUs, and kubelet tries each",
			"# combination of them before it starts a pod: kubernetes/kubernetes pull 135581, kubernetes/enhancements issue 5726.")
	case fabric == drivers.FabricSwitch, fabric == drivers.FabricNVLink5:
		d.say("# Kubelet, for CPUs and memory on the NUMA node of a pod's GPUs: cpuManagerPolicy: static, topologyManagerPolicy: restricted,",
			"# memoryManagerPolicy: Static, and reservedMemory as large as kubeReserved, systemReserved and evictionHard of memory together:",
			"# nebius/nebius-solutions-library pull 996, https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/.")
	}
}

// present returns the version of the machine's driver; "" if it has none.
func (d *draft) present() string {
	modules := d.facts.Modules
	switch {
	case modules != nil && len(modules.Libraries) > 0:
		return modules.Libraries[0].Version
	case d.facts.Driver != nil:
		return d.facts.Driver.Version
	}

	return ""
}

// advised returns the driver that gpuadm chooses unasked. The error says why it chooses none.
func (d *draft) advised() (drivers.Choice, error) {
	machine := hardware.MachineOf(d.facts, d.facts.Cloud.Type)
	return drivers.Choose(drivers.Load(), machine, spec.Defaults().Driver)
}

// mig writes an example of partitions for the first GPU that can be partitioned.
func (d *draft) mig() {
	for _, gpu := range d.gpus {
		model, err := mig.Of(gpu)
		if err != nil || len(model.Profiles) == 0 {
			continue
		}
		profile := model.Profiles[0]
		d.say("# Partitions; gpuadm mig profiles shows what there is. For example on each "+model.Name+":",
			"#[[mig.gpu]]",
			fmt.Sprintf("#match = [%q]", gpu.Device),
			fmt.Sprintf("#layout = { %q = %d }", profile.Name, profile.Max), "")
		return
	}
}

// join writes the alternatives for the join, for the operator's decision.
func (d *draft) join() {
	if d.cloud == "" || d.cloud == "none" {
		d.say("# Another program joins this machine to its cluster, such as kubeadm join, after gpuadm apply --install.")
		return
	}
	d.say("# How the node joins its cluster; without this section another program does that.",
		"#[join]", fmt.Sprintf("#method = %q", d.cloud))
}
