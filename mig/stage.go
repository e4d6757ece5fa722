// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Stage partitions the GPUs before a process can hold them.
var Stage = converge.Stage{
	Name:  "mig",
	About: "partitions the GPUs that can be",
	Wants: wants,
	Notes: func(_ host.View, s spec.Spec, f facts.Facts) []string {
		if !s.MIG.Asked() || f.DynamicMIG == "" {
			return nil
		}
		return []string{"the DRA driver makes partitions as pods ask for them (DynamicMIG, " + f.DynamicMIG + "): gpuadm leaves MIG to it, and [mig] does nothing"}
	},
	Needs: func(s spec.Spec) facts.Needs {
		if !s.MIG.Asked() {
			return facts.Needs{}
		}
		n := facts.Needs{Driver: true}
		if s.MIG.File != "" {
			n.Files = []string{s.MIG.File}
		}
		return n
	},
}

func wants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !s.MIG.Asked() {
		return nil, nil
	}
	if f.VGPU != nil {
		// Sources: NVIDIA vGPU user guide, "Configuring a GPU for MIG-Backed vGPUs";
		// NVIDIA/k8s-device-plugin, internal/vgpu.
		return nil, &trouble.Error{
			What: "cannot partition the GPUs: a hypervisor has cut them out of whole ones, and MIG is set on its side",
			Try:  []string{"remove [mig] from node.toml"},
		}
	}
	if f.DynamicMIG != "" {
		return []converge.Want{untouched("partitions of the GPUs", nil, "the DRA driver makes them")}, nil
	}
	if s.MIG.FollowLabel && s.MIG.Layout == "" {
		return []converge.Want{untouched("partitions of the GPUs", nil, "no label nvidia.com/mig.config has named a layout yet")}, nil
	}
	if f.Driver == nil {
		return []converge.Want{unknown(f)}, impossible(s, f)
	}
	entries, err := Asked(s.MIG, f.Files[s.MIG.File], f.Private[s.MIG.File])
	if err != nil {
		return nil, err
	}
	all, err := Assign(entries, f.Driver.GPUs)
	if err != nil {
		return nil, err
	}
	if err := Offered(s.Sharing, all, f.Driver.GPUs); err != nil {
		return nil, err
	}
	var list []converge.Want
	shared := &driverCache{driver: f.Driver}
	for _, a := range all {
		if a.GPU.Lost != "" && perGPU(s, f) {
			list = append(list, waits(a.GPU, "its driver reports its state"))
			continue
		}
		w, err := partitioned(a, shared)
		if err != nil {
			return nil, err
		}
		if perGPU(s, f) && !mayStop(s) && (f.Booting || s.Disruption.Policy != "drain") { // a drain empties all GPUs
			w.Thing = alone{w.Thing.(gpu), w.To}
		}
		if f.MIGOwner != nil {
			w = verify(a, w, *f.MIGOwner)
		}
		list = append(list, w)
	}
	if !s.Has("runtime") || s.Runtime.CDI {
		list = append(list, cdi.PartitionNodes(), cdi.Run()) // the CDI spec names nodes that are there
	}
	return append(list, things.Resumed()), nil
}

// Asked reads what a spec asks for: its tables, or a layout in a file in mig-parted's format: the
// named one, or the only one. Errors do not quote a private file, which not every user can read.
func Asked(m spec.MIG, file []byte, private bool) ([]Entry, error) {
	if m.Layout == "" && (len(m.GPU) > 0 || m.File == "") {
		return Entries(m)
	}
	if file == nil {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot read %s: it is not there", m.File),
			Try:  []string{"put a file in mig-parted's format there, or write [[mig.gpu]] tables in node.toml"},
		}
	}
	c, err := ParseParted(m.File, file)
	if faults := trouble.Faults(nil); errors.As(err, &faults) {
		t := &trouble.Error{What: fmt.Sprintf("cannot read the layouts in %s", m.File)}
		for _, f := range faults.Unquoted(func(string) bool { return !private }) {
			t.Because = append(t.Because, fmt.Sprintf("line %d: %s", f.At.Line, f.What))
			t.Try = append(t.Try, f.Try...)
		}
		return nil, t
	} else if err != nil {
		return nil, err
	}
	entries, err := c.Layout(m.Layout)
	if err != nil && private {
		err = fmt.Errorf("cannot find layout %q in %s", m.Layout, m.File)
	}
	return entries, err
}

// impossible refuses, while no driver answers, layouts that the GPUs on the bus cannot have by the
// table of known GPUs. It does not judge unknown GPUs, nor a file that does not exist yet.
func impossible(s spec.Spec, f facts.Facts) error {
	m := s.MIG
	if m.TrustDriver || m.File != "" && len(m.GPU) == 0 && f.Files[m.File] == nil {
		return nil
	}
	entries, err := Asked(m, f.Files[m.File], f.Private[m.File])
	if err != nil {
		return err
	}
	t, index := read(), 0
	var fits []Assigned
	for _, p := range f.GPUs {
		if !p.Display() || p.Driver == "vfio-pci" { // the driver does not count GPUs that are passed through to virtual machines
			continue
		}
		model, known := t.byDevice(wide(p.Device + ":" + p.Vendor))
		g := model.GPU()
		vendor, device, _ := strings.Cut(p.Subsystem, ":")
		g.Index, g.Address, g.Device, g.Sub = index, p.Address, wide(p.Device+":"+p.Vendor), wide(device+":"+vendor)
		index++
		for _, e := range entries {
			if !known || !e.Matches(g) {
				continue
			}
			_, err := model.Fit(StateOf(g), e.Layout)
			if errors.Is(err, errKnown) { // only the driver can judge this layout
				continue
			}
			if t := (*trouble.Error)(nil); errors.As(err, &t) {
				t.Because = append(t.Because, fmt.Sprintf("no driver answers, so GPU %s is judged by its PCI id %s and the table of known GPUs", p.Address, g.Device))
				t.Try = append(t.Try, "trust_driver = true in [mig], if the driver that will be installed knows more")
			}
			if err != nil {
				return err
			}
			fits = append(fits, Assigned{g, e})
		}
	}
	return Offered(s.Sharing, fits, nil)
}

// wide writes two PCI ids, "2330:10de", like host.GPU and mig-parted: 0x233010DE.
func wide(pair string) string { return "0x" + strings.ToUpper(strings.ReplaceAll(pair, ":", "")) }

// unknown is the want for the partitions of all GPUs while no driver answers.
func unknown(f facts.Facts) converge.Want {
	later := error(host.FirstBoot)
	switch {
	case f.DriverAgain:
		later = host.NewProcess
	case f.Live:
		later = host.Later{Until: "once the driver answers (" + f.NoDriver + ")"}
	}
	return untouched("partitions of the GPUs", later, "their driver reports their state")
}

// Offered refuses partitions of which the device plugin would offer none. gpus are all GPUs of the
// machine: those without an entry keep their state.
func Offered(s spec.Sharing, all []Assigned, gpus []host.GPU) error {
	var offers []spec.Offers
	offer := func(g host.GPU, to State) {
		o := spec.Offers{GPU: fmt.Sprintf("GPU %d", g.Index), Model: g.Name, MIG: to.Mode == On}
		for _, p := range to.Parts {
			o.Kinds = append(o.Kinds, p.kinds()...)
		}
		offers = append(offers, o)
	}
	for _, a := range all {
		m, err := Of(a.GPU)
		if err != nil {
			continue
		}
		if fit, err := m.Fit(StateOf(a.GPU), a.Entry.Layout); err == nil {
			offer(a.GPU, fit.Target)
		}
	}
	for _, g := range gpus {
		if g.Lost == "" && !slices.ContainsFunc(all, func(a Assigned) bool { return a.GPU.Address == g.Address }) {
			offer(g, StateOf(g))
		}
	}
	if t := s.Single(offers); t != nil {
		return t
	}
	return nil
}

// kinds names the devices that a part offers, one for each compute instance.
func (p Part) kinds() (names []string) {
	n, _ := parseName(p.Profile)
	for _, c := range p.Compute {
		kind := n
		if c < n.slices {
			kind.compute = c
		}
		names = append(names, kind.String())
	}
	return names
}

// untouched wants nothing of the partitions, or waits. Earlier partitions cannot be read now, or
// belong to another program; gpuadm undoes them in neither case.
func untouched(what string, later error, why string) converge.Want {
	w := things.Check(what, func(context.Context, host.View) (string, error) { return "", later }, why)
	w.Releases = true
	return w
}

// partitioned wants one GPU to have its entry's layout, with the least disturbance.
func partitioned(a Assigned, shared *driverCache) (converge.Want, error) {
	w := converge.Want{Thing: gpu{a.GPU.Address, shared}, Why: fmt.Sprintf("GPU %d: %s", a.GPU.Index, a.Entry.Layout), AsFound: true}
	m, err := Of(a.GPU)
	if err != nil {
		return w, err
	}
	now := StateOf(a.GPU)
	w.To = func(found converge.State) (converge.State, error) {
		from := now // with the instances in use; a state's text does not have them
		if string(found) != now.String() {
			var err error
			if from, err = ParseState(string(found)); err != nil {
				return "", err
			}
		}
		fit, err := m.Fit(from, a.Entry.Layout)
		if err != nil {
			return "", err
		}
		return converge.State(fit.Target.String()), nil
	}
	_, err = m.Fit(now, a.Entry.Layout) // so the stage reports an impossible layout once, and not for each GPU
	return w, err
}

// verify only reads: another owner partitions this machine's GPUs.
func verify(a Assigned, w converge.Want, owner facts.Owner) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		found, err := w.Look(ctx, v)
		if err != nil {
			return "", err
		}
		want, err := w.To(found)
		if err != nil || want == found {
			return "", err
		}
		return fmt.Sprintf("cannot partition GPU %d: %s partitions the GPUs of this machine; this one is %q, and %q is wanted", a.GPU.Index, owner, found, want), nil
	}
	v := things.Check("partitions of GPU "+strings.TrimSpace(a.GPU.Address), look, owner.String()+" partitions the GPUs, so gpuadm looks and touches nothing", owner.Ends)
	v.Releases = true
	return v
}
