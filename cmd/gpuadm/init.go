// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// schemaHome is the address of the schemas of node.toml and of -o json. Editors with Taplo (Even
// Better TOML) or Tombi complete a TOML file by the schema in its first line; Tombi requires an
// empty line after it.
// Sources: https://taplo.tamasfe.dev/configuration/using-schemas.html and
// https://tombi-toml.github.io/tombi/docs/comment-directive/schema-document-directive.
const schemaHome = "https://raw.githubusercontent.com/gpuadm/gpuadm/main/docs/schema/"

// clouds are the values of --cloud.
var clouds = []string{"eks", "aks", "gke", "none"}

func newInit(c *common) *cobra.Command {
	var m elsewhere
	var cloud string
	var only bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "write a commented node.toml to start from",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(m.gpus) > 0 || m.os != "" || cloud != "" {
				return c.initElsewhere(m, cmp.Or(cloud, "none"))
			}
			return c.initHere(cmd.Context(), only)
		},
	}
	m.flags(cmd)
	cmd.Flags().StringVar(&cloud, "cloud", "", "for a node in this `CLOUD`: "+strings.Join(clouds, ", "))
	cmd.Flags().BoolVar(&only, "print", false, "print the spec in place of writing it")
	cmd.RegisterFlagCompletionFunc("cloud", cobra.FixedCompletions(clouds, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// initElsewhere prints a spec for a machine that the command line describes.
func (c *common) initElsewhere(m elsewhere, cloud string) error {
	switch {
	case len(m.gpus) == 0 || m.os == "":
		return usage{errors.New("cannot choose a driver: --gpu needs --os, --os needs --gpu, and --cloud needs both; without them init is for this machine")}
	case !slices.Contains(clouds, cloud):
		return usage{fmt.Errorf("cannot use --cloud %q: it takes %s", cloud, strings.Join(clouds, ", "))}
	}
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	f, gpus, err := m.facts(h.Now().UTC().Format("2006-01-02"), 1)
	if err != nil {
		return err
	}
	text, err := (&draft{facts: f, gpus: gpus, cloud: cloud, engine: true}).spec()
	if err == nil {
		_, err = io.WriteString(c.stdout, text)
	}
	return err
}

// initHere writes a spec for this machine.
func (c *common) initHere(ctx context.Context, only bool) error {
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	f, err := facts.Gather(ctx, h, facts.Everything)
	if err != nil {
		return err
	}
	d := draft{facts: f, engine: len(f.Engines) > 0}
	d.cloud, _, _ = strings.Cut(f.Cloud.Managed, "-") // eks-al2
	for _, p := range f.GPUs {
		if !p.Display() {
			continue
		}
		if _, g, err := modelOf(p.Device); err == nil {
			d.gpus = append(d.gpus, g)
		}
	}
	text, err := c.planned(ctx, &d)
	if err != nil {
		return err
	}
	if only {
		_, err := io.WriteString(c.stdout, text)
		return err
	}
	if err := c.mayTouch("init"); err != nil {
		return err
	}
	name := path.Join(specHome, "node.toml")
	if err := h.Mkdir(specHome, host.Attr{Mode: 0o755}); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make %s: %w", specHome, cause(err))
	}
	absent := func(found *host.Entry) bool { return found == nil }
	err = h.Replace(name, &host.Entry{Data: []byte(text), Attr: host.Attr{Mode: 0o644}}, absent)
	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{What: fmt.Sprintf("cannot write %s: it is there already, and init writes over no file", name), Try: []string{trouble.Command("init --print") + "    prints what it would write", trouble.Command("validate") + "    checks the file that is there"}}
	} else if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, cause(err))
	}
	c.answer(fmt.Sprintf("Wrote %s. To see what it would change: %s", name, c.typed("plan")))
	return nil
}

// planned returns the draft's text; it leaves out sections that cannot be planned on this machine,
// with the reason.
func (c *common) planned(ctx context.Context, d *draft) (string, error) {
	d.left = map[string]string{}
	for {
		text, err := d.spec()
		if err != nil {
			return "", err
		}
		trial := *c
		trial.files, trial.stdin = []string{"-"}, strings.NewReader(text)
		e, h, err := trial.engine(ctx, nil, nil)
		if err != nil {
			return "", err
		}
		p, err := e.Plan(ctx, h)
		if err != nil {
			return "", err
		}
		before := len(d.left)
		for _, ch := range p.Cannot() {
			section := cmp.Or(map[string]string{"toolkit": "toolkit", "runtime": "runtime"}[ch.Stage], "driver")
			if d.left[section] == "" {
				d.left[section] = strings.Join(strings.Fields(ch.Cannot), " ")
			}
		}
		if len(d.left) == before {
			return text, nil
		}
	}
}

// A draft is a spec that init writes: its inputs, and its text. A line that begins with "# " is
// prose; a "#" without a space precedes a key that an operator may want.
type draft struct {
	facts  facts.Facts
	gpus   []host.GPU
	cloud  string            // one of clouds; "" for none
	engine bool              // a container engine is or will be installed
	left   map[string]string // left-out sections, with the reasons
	text   strings.Builder
}

func (d *draft) say(lines ...string) { d.text.WriteString(strings.Join(lines, "\n") + "\n") }

// spec is the text of the draft.
func (d *draft) spec() (string, error) {
	d.text.Reset()
	d.say("#:schema "+schemaHome+"node.json", "")
	d.say("# The desired state of this node: "+d.facts.String(),
		"# gpuadm help spec lists all keys. A section that is not here changes nothing.",
		"format = 1", "")
	d.driver()
	if why := d.left["runtime"]; why != "" {
		d.say("# Left out: "+why, "#[runtime]", "")
	} else if d.engine {
		d.say("# The container engine runs containers with the NVIDIA runtime.", "[runtime]")
		if d.cloud == "gke" {
			d.say("# GKE writes the engine's configuration at each boot: the device plugin names CDI devices, and that file stays.", `inject = "cdi"`)
		} else {
			d.say("# Containers get GPUs without a RuntimeClass:", "#set_as_default = true")
		}
		d.say("")
	}
	d.mig()
	d.say("# What the node tells Kubernetes about itself.", "[node]", `#labels = { "example.com/pool" = "gpu" }`)
	d.nearness()
	d.say("")
	d.join()
	text := d.text.String()
	if _, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)}); err != nil {
		return "", fmt.Errorf("internal error: init made a spec that is wrong: %w", err)
	}
	return text, nil
}

// driver writes [driver] and [toolkit]: the machine's branch if gpuadm would install it, else the
// advised branch.
func (d *draft) driver() {
	off := func(why string) {
		d.say("# "+why, "#[driver]", `#version = "580"`, "")
	}
	if why := d.left["driver"]; why != "" {
		off("Left out: " + why)
		return
	}
	asked := spec.Defaults()
	asked.Sections = []string{"driver"}
	choice, err := d.advised()
	careful := choice
	exact := d.present()
	branch, _, _ := strings.Cut(exact, ".")
	for _, version := range []string{branch, choice.Branch} {
		asked.Driver.Version = version
		if found, ok, wrong := drivers.New().Choose(asked, d.facts); ok && wrong == nil {
			choice, err = found, nil
			break
		}
	}
	switch {
	case err != nil:
		off("Left out: " + err.Error() + ".")
		return
	case choice.Source == drivers.SourceNone && choice.Owner == "":
		off("There is no NVIDIA GPU here yet: where one comes, a driver does.")
		return
	case choice.Source == drivers.SourceNone && exact == "":
		off("The driver is left to " + choice.Owner + "; with a version here gpuadm verifies it.")
		return
	case choice.Source == drivers.SourceNone:
		d.say("# The driver is left to " + choice.Owner + ": gpuadm verifies that it is of this branch.")
	default:
		d.say("# The driver: the newest of a branch, or an exact version where all nodes must have the same.")
		if asked.Driver.Version == careful.Branch && careful.Reason != "" {
			d.say("# Branch " + careful.Branch + ": " + careful.Reason + ".")
		}
	}
	d.say("[driver]", fmt.Sprintf("version = %q", asked.Driver.Version))
	if choice.Source != drivers.SourceNone && asked.Driver.Version == branch && exact != branch {
		d.say(fmt.Sprintf("# Where a fleet must be alike, exactly what this machine has: version = %q.", exact))
	}
	if n := len(d.gpus); n > 0 {
		d.say("# A node with fewer GPUs on its bus is not ready:", fmt.Sprintf("#gpu_count = %d", n))
	}
	var needs []string
	for _, l := range choice.Lacks(d.facts) {
		if !l.Enabled && l.Unavailable() == nil {
			needs = append(needs, l.Name)
		}
	}
	if len(needs) > 0 {
		d.say("# The driver's packages depend on "+strings.Join(needs, " and ")+", which gpuadm enables until undo.", "[driver.repo]", "enable_needed = true")
	}
	d.say("")
	if choice.Source != drivers.SourceNone && d.left["toolkit"] == "" {
		d.say("# The NVIDIA container toolkit, the newest; or a version:", "[toolkit]", `#version = "1.18"`, "")
	}
}

// nearness writes which settings of kubelet, which are not gpuadm's, keep a pod's CPUs and memory
// near its GPU, for machines of which it is known. Sources:
// https://github.com/nebius/nebius-solutions-library/pull/996 (H200, B200, B300: restricted,
// static, and 1329Mi reserved on node 0) and
// https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/ (what is reserved); for
// coherent GPUs https://github.com/kubernetes/kubernetes/pull/135581 and
// https://github.com/kubernetes/enhancements/issues/5726.
func (d *draft) nearness() {
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
	if m := d.facts.Modules; m != nil && len(m.Libraries) > 0 {
		return m.Libraries[0].Version
	} else if d.facts.Driver != nil {
		return d.facts.Driver.Version
	}
	return ""
}

// advised returns the driver that gpuadm chooses unasked. The error says why there is none.
func (d *draft) advised() (drivers.Choice, error) {
	return drivers.Choose(drivers.Load(), hardware.MachineOf(d.facts, d.facts.Cloud.Type), spec.Defaults().Driver)
}

// mig writes an example of partitions for the first GPU.
func (d *draft) mig() {
	for _, g := range d.gpus {
		if m, err := mig.Of(g); err == nil && len(m.Profiles) > 0 {
			p := m.Profiles[0]
			d.say("# Partitions; gpuadm mig profiles shows what there is. For example on each "+m.Name+":", "#[[mig.gpu]]",
				fmt.Sprintf("#match = [%q]", m.Devices[0]), fmt.Sprintf("#layout = { %q = %d }", p.Name, p.Max), "")
			return
		}
	}
}

// join writes the alternatives for the join, for the operator's decision.
func (d *draft) join() {
	if d.cloud == "" || d.cloud == "none" {
		d.say("# Another program joins this machine to its cluster, such as kubeadm join, after gpuadm apply --install.")
		return
	}
	d.say("# How the node joins its cluster; without this section another program does that.", "#[join]", fmt.Sprintf("#method = %q", d.cloud))
}
