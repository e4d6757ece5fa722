// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
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
	Notes: notes,
	Needs: needs,
}

func notes(_ host.View, s spec.Spec, f facts.Facts) []string {
	if !s.MIG.Asked() || f.DynamicMIG == "" {
		return offerNotes(s, f)
	}
	return []string{"the DRA driver makes partitions as pods ask for them (DynamicMIG, " + f.DynamicMIG + "): gpuadm makes none"}
}

func needs(s spec.Spec) facts.Needs {
	if !s.MIG.Asked() {
		return facts.Needs{Driver: s.Has("sharing")}
	}

	n := facts.Needs{Driver: true}
	if s.MIG.File != "" {
		n.Files = []string{s.MIG.File}
	}

	return n
}

// wants are asked's. A refusal is at the place of what asks for the layout.
func wants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if s.MIG.Asked() {
		list, err := asked(s, f)
		return list, trouble.WithKeys(err, "mig.layout", "mig.gpu", "mig.file")
	}

	if f.DynamicMIG != "" {
		return []converge.Want{leftToDRA()}, nil
	}
	return nil, nil
}

// asked are the wants of a spec that asks for partitions.
func asked(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if f.VGPU != nil {
		// Sources: NVIDIA vGPU user guide, "Configuring a GPU for MIG-Backed vGPUs";
		// NVIDIA/k8s-device-plugin, internal/vgpu.
		return nil, &trouble.Error{
			What: "cannot partition the GPUs: a hypervisor has cut them out of whole ones, and MIG is set on its side",
			Try:  []string{"remove [mig] from node.toml"},
		}
	}

	if f.DynamicMIG != "" {
		return besideDRA(s, f)
	}
	if s.MIG.FollowLabel && s.MIG.Layout == "" {
		const why = "no label nvidia.com/mig.config has named a layout yet"
		return []converge.Want{untouched("partitions of the GPUs", nil, why)}, nil
	}
	if f.Driver == nil {
		return []converge.Want{withoutDriver(s, f)}, refuseByTable(s, f)
	}

	if why := f.NoFiles[s.MIG.File]; why != "" {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot use %s as file in [mig]: %s", s.MIG.File, why),
			Try:  []string{"name another file with file in [mig]"},
			Keys: []string{"mig.file"},
		}
	}

	entries, err := Asked(s.MIG, f.Files[s.MIG.File], f.Private[s.MIG.File])
	if err != nil {
		return nil, err
	}
	all, err := Assign(entries, f.Driver.GPUs)
	if err != nil {
		return nil, err
	}
	if _, err := Offered(s, all, f.Driver.GPUs); err != nil {
		return nil, err
	}

	var list []converge.Want
	shared := &driverCache{driver: f.Driver}
	for _, a := range all {
		w, err := wantFor(a, shared, s, f)
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}

	if !s.Has("runtime") || s.Runtime.CDI {
		list = append(list, cdi.PartitionNodes(), cdi.Run()) // the CDI spec names nodes that exist
	}

	return append(list, things.Resumed()), nil
}

// wantFor is the want for the partitions of one GPU.
func wantFor(a Assigned, shared *driverCache, s spec.Spec, f facts.Facts) (converge.Want, error) {
	if a.GPU.Lost != "" && perGPU(s, f) {
		return lostGPU(a.GPU, "its driver reports its state"), nil
	}

	w, err := partitioned(a, shared, s.MIG.Stop)
	if err != nil {
		return w, err
	}
	drains := !f.Booting && s.Disruption.Policy == "drain" // a drain empties all GPUs
	if perGPU(s, f) && !mayStop(s) && !drains {
		w.Thing = gpuThatWaits{w.Thing.(gpu), w.To}
	}
	if f.MIGOwner != nil {
		w = verify(a, w, *f.MIGOwner)
	}

	return w, nil
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
			Keys: []string{"mig.file"},
		}
	}

	c, err := ReadLayouts(m.File, file, private)
	if err != nil {
		return nil, err
	}
	entries, err := c.Layout(m.Layout)
	if err != nil && private {
		err = &trouble.Error{What: fmt.Sprintf("cannot find layout %q in %s", m.Layout, m.File)}
	}

	return entries, trouble.WithKeys(err, "mig.layout", "mig.file")
}

// ReadLayouts is ParseParted with all faults in one error, which does not quote a private file.
func ReadLayouts(name string, data []byte, private bool) (Config, error) {
	c, err := ParseParted(name, data)
	var faults trouble.Faults
	if !errors.As(err, &faults) {
		return c, err
	}

	t := &trouble.Error{
		What: fmt.Sprintf("cannot read the layouts in %s", name),
		Keys: []string{"mig.file"},
	}
	for _, f := range faults.Unquoted(func(string) bool { return !private }) {
		t.Because = append(t.Because, fmt.Sprintf("line %d: %s", f.At.Line, f.What))
		t.Try = append(t.Try, f.Try...)
	}

	return Config{}, t
}

// untouched wants nothing of the partitions, or waits. Earlier partitions cannot be read now, or
// belong to another program; gpuadm undoes them in neither case.
func untouched(what string, wait error, why string) converge.Want {
	look := func(context.Context, host.View) (string, error) { return "", wait }
	w := things.Check(what, look, why)
	w.Releases = true

	return w
}

// partitioned wants one GPU to have its entry's layout, with the least disturbance.
func partitioned(a Assigned, shared *driverCache, stop []string) (converge.Want, error) {
	w := converge.Want{
		Thing:   gpu{a.GPU.Address, shared, strings.Join(stop, " ")},
		Why:     fmt.Sprintf("GPU %d: %s", a.GPU.Index, a.Entry.Layout),
		AsFound: true,
	}
	m, err := Of(a.GPU)
	if err != nil {
		return w, err
	}

	now := StateOf(a.GPU)
	w.To = func(found converge.State) (converge.State, error) {
		from := now // it says which instances are in use; a state's text does not
		if string(found) != now.String() {
			var err error
			from, err = ParseState(string(found))
			if err != nil {
				return "", err
			}
		}

		fit, err := m.Fit(from, a.Entry.Layout)
		if err != nil {
			return "", err
		}
		return converge.State(fit.Target.String()), nil
	}

	// The stage reports an impossible layout once, and not for each GPU.
	_, err = m.Fit(now, a.Entry.Layout)
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
		const wrong = "cannot partition GPU %d: %s partitions the GPUs of this machine; this one is %q, and %q is wanted"
		return fmt.Sprintf(wrong, a.GPU.Index, owner, found, want), nil
	}

	what := "partitions of GPU " + strings.TrimSpace(a.GPU.Address)
	why := owner.String() + " partitions the GPUs, so gpuadm looks and touches nothing"
	check := things.Check(what, look, why, owner.Ends)
	check.Releases = true

	return check
}
