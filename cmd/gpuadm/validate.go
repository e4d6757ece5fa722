// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
)

// validated lists what validate has checked of valid files, and what not.
type validated struct {
	Format    int       `json:"format"`
	Files     []string  `json:"files"`
	Spec      string    `json:"spec,omitempty"` // its digest
	Checked   []checked `json:"checked,omitempty"`
	Unchecked []string  `json:"unchecked,omitempty"`
	Warnings  []string  `json:"warnings,omitempty"`
}

type checked struct {
	What   string `json:"what"`   // driver, mig, pods
	Result string `json:"result"` // in words
}

func newValidate(c *common) *cobra.Command {
	var m elsewhere
	var layouts string
	cmd := &cobra.Command{
		Use:   "validate [FILE…]",
		Short: "check a spec anywhere: on a laptop, in CI",
		RunE: func(cmd *cobra.Command, files []string) error {
			c.files = append(c.files, files...)
			return c.validate(cmd.Context(), m, layouts)
		},
	}
	m.flags(cmd)
	cmd.Flags().StringVar(&layouts, "mig-file", "", "check this `FILE` in mig-parted's format, for file in [mig]; without -f alone")
	return cmd
}

// validateInput is what validate reads: a spec, and layouts in mig-parted's format.
type validateInput struct {
	spec    spec.Spec
	places  spec.Places
	layouts partedFile
	hasSpec bool
	faults  trouble.Faults
}

// validate prints what it has checked. The error is trouble.Faults if the files have faults.
func (c *common) validate(ctx context.Context, m elsewhere, layoutFile string) error {
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return err
	}

	v := validated{Format: 1}
	in, err := c.readInput(h, layoutFile, &v)
	if err != nil {
		return err
	}
	isOwn := len(c.files) == 0 && layoutFile == ""
	isValid := len(in.faults) == 0
	if isOwn && isValid {
		used := append(slices.Clone(v.Files), in.spec.Files()...)
		err := trust(h, used...)
		if err != nil {
			return err
		}
		in.layouts = ownLayouts(h, in.spec.MIG.File)
	}

	count := max(in.spec.Driver.GPUCount, gpusNeeded(in.spec.MIG, in.layouts))
	f, gpus, err := m.facts(h.Now().UTC().Format(time.DateOnly), count)
	if err != nil {
		return err
	}
	asksMachine := isOwn && len(m.gpus) == 0 && in.spec.MIG.Asked()
	if isValid && asksMachine {
		gpus, err = partitionable(ctx, h)
		if err != nil {
			return err
		}
	}

	wrong := in.faults
	if isValid && in.hasSpec {
		wrong = v.driver(in.spec, in.places, m, f)
		wrong = append(wrong, v.mig(in.spec, in.places, in.layouts, gpus)...)
		wrong = append(wrong, ofOthers(in.spec, in.places)...)
		inNamed, err := v.named(ctx, c, h, in.spec, in.places)
		if err != nil {
			return err
		}
		wrong = append(wrong, inNamed...)
		v.Warnings = append(v.Warnings, c.unread(h)...)
	}

	if len(wrong) > 0 {
		return c.unquoted(h, append(slices.Clone(c.files), layoutFile), wrong)
	}
	return show(c, v, c.validText)
}

// readInput reads the files, and notes their names and the digest of the spec in v. Layouts alone
// need no spec. The faults of the spec come first.
func (c *common) readInput(h host.View, layoutFile string, v *validated) (n validateInput, err error) {
	n.layouts.name = layoutFile
	var inLayouts trouble.Faults
	if layoutFile != "" {
		n.layouts.data, err = c.file(layoutFile)
		if err != nil {
			return n, usage{cannotRead(layoutFile, err)}
		}
		_, err := mig.ParseParted(layoutFile, n.layouts.data)
		errors.As(err, &inLayouts)
	}

	n.hasSpec = len(c.files) > 0 || layoutFile == ""
	if n.hasSpec {
		files, err := c.specFiles(h, c.files)
		if err != nil {
			return n, err
		}
		for _, f := range files {
			v.Files = append(v.Files, f.Name)
		}
		n.spec, n.places, err = spec.Read(files...)
		v.Spec = n.spec.Digest()
		errors.As(err, &n.faults)
	}

	if layoutFile != "" {
		v.Files = append(v.Files, layoutFile)
	}
	n.faults = append(n.faults, inLayouts...)
	return n, nil
}

// blame returns a refusal at the place of the first of its keys in the spec, else of these.
func blame(places spec.Places, err error, keys ...string) trouble.Faults {
	f := failureOf(err)
	var refused *trouble.Error
	if errors.As(err, &refused) {
		keys = append(slices.Clone(refused.Keys), keys...)
	}
	return trouble.Faults{places.Error(f.Error, trouble.Either(f.Try), keys...)}
}

// partedFile is a file in mig-parted's format.
type partedFile struct {
	name    string
	data    []byte // nil if it was not read
	private bool   // not every user can read it
	own     bool   // the machine's: the looks at what the spec names judge it, too
}

// ownLayouts is the file that the machine's own spec names.
func ownLayouts(h host.View, name string) partedFile {
	if name == "" {
		return partedFile{}
	}
	data, err := h.ReadFile(name)
	if err != nil {
		data = nil // named says why
	}
	return partedFile{name, data, !host.Public(h, name), true}
}

// partitionable are this machine's GPUs as their driver reports them, for gpuadm to partition; none
// where no driver answers, or where another program makes partitions when pods ask for them.
func partitionable(ctx context.Context, h host.View) ([]host.GPU, error) {
	f, err := facts.Gather(ctx, h, facts.Needs{Driver: true})
	if err != nil || f.Driver == nil || f.VGPU != nil || f.DynamicMIG != "" {
		return nil, err
	}
	return f.Driver.GPUs, nil
}

// gpusNeeded returns the number of GPUs that the entries of a layout need.
func gpusNeeded(m spec.MIG, layouts partedFile) int {
	if layouts.data != nil {
		m.File = layouts.name
	}
	entries, err := mig.Asked(m, layouts.data, layouts.private)
	if err != nil {
		return 1
	}
	return mig.Needs(entries)
}

// unchecked notes what validate could not check.
func (v *validated) unchecked(what string) { v.Unchecked = append(v.Unchecked, what) }

// driver checks that such a machine has a driver.
func (v *validated) driver(s spec.Spec, places spec.Places, m elsewhere, f facts.Facts) trouble.Faults {
	if !s.Has("driver") || s.Driver.Version == "" {
		return nil
	}
	if m.os == "" {
		v.unchecked("which driver: --os and --gpu say for which machine")
		return nil
	}
	choice, _, err := drivers.New(nil).Choose(s, f)
	if err != nil {
		return blame(places, err, "driver.version")
	}

	v.Warnings = append(v.Warnings, choice.Warnings...)
	if choice.Unlisted {
		v.unchecked(fmt.Sprintf(
			"whether a source has driver %s: %s on the machine says it, once the package lists are read",
			s.Driver.Version, trouble.Command("plan"),
		))
	}
	result := choice.Why
	if choice.Source != drivers.SourceNone {
		result = fmt.Sprintf("from %s, %s kernel modules", choice.Source, choice.Flavour)
	}
	machine := "on " + m.os
	if len(m.gpus) > 0 {
		machine = "for " + strings.Join(m.gpus, ", ") + " " + machine
	}
	v.Checked = append(v.Checked, checked{"driver", s.Driver.Version + " " + machine + ": " + result})
	return nil
}

// ofOthers refuses all labels and taints that are another owner's to set.
func ofOthers(s spec.Spec, places spec.Places) (wrong trouble.Faults) {
	for _, f := range node.Foreigns(s) {
		wrong = append(wrong, blame(places, f.Trouble(), f.Key)...)
	}
	return wrong
}

// mig checks whether the layout fits such GPUs.
func (v *validated) mig(
	s spec.Spec, places spec.Places, layouts partedFile, gpus []host.GPU,
) trouble.Faults {
	want := s.MIG
	if !want.Asked() || !v.hasLayout(want, layouts) {
		return nil
	}
	if want.File != "" {
		want.File = layouts.name
	}

	keys := []string{"mig.layout", "mig.gpu", "mig.file"}
	entries, err := mig.Asked(want, layouts.data, layouts.private)
	switch {
	case err != nil && layouts.own && want.File != "":
		return nil // named says it
	case err != nil:
		return blame(places, err, keys...)
	}

	if len(gpus) == 0 {
		v.unchecked("whether the layout fits: --gpu says on which GPUs")
		return nil
	}
	for _, gpu := range gpus {
		if err := mig.Unlisted(gpu.Device); err != nil && len(gpu.Profiles) == 0 {
			return blame(places, err, keys...)
		}
	}

	all, err := mig.Assign(entries, gpus)
	if err != nil {
		return blame(places, err, keys...)
	}

	offer, err := mig.Offered(s, all, gpus)
	wrong := v.layoutsFit(all, places, keys)
	if err != nil {
		sharing := blame(places, err, append([]string{"sharing.strategy"}, keys...)...)
		wrong = append(sharing, wrong...)
	}
	if len(wrong) == 0 {
		v.Checked = append(v.Checked, checked{"pods", mig.OfferText(offer)})
	}
	return wrong
}

// hasLayout reports whether the layout that the spec asks for can be read here, and notes why not.
func (v *validated) hasLayout(want spec.MIG, layouts partedFile) bool {
	isMissing := want.File != "" && layouts.data == nil
	switch {
	case isMissing && layouts.own: // named says why
	case isMissing:
		v.unchecked(want.File + ": --mig-file names the file here")
	case want.FollowLabel:
		v.unchecked("whether the layout fits: the node's label will name it")
	default:
		return true
	}

	return false
}

// layoutsFit checks the layout of each GPU, and notes those that fit.
func (v *validated) layoutsFit(all []mig.Assigned, places spec.Places, keys []string) (wrong trouble.Faults) {
	for _, a := range all {
		f, err := fitOn(a)
		if err != nil {
			wrong = append(wrong, blame(places, err, keys...)...)
			continue
		}
		fits := fmt.Sprintf("GPU %d, %s: %s fits", f.GPU, f.Model, f.Layout)
		v.Checked = append(v.Checked, checked{"mig", fits})
	}
	return wrong
}

// named looks at what the spec names outside itself: at the machine's own for its own spec, and as
// far as this machine can tell for another's.
func (v *validated) named(
	ctx context.Context, c *common, h host.View, s spec.Spec, places spec.Places,
) (wrong trouble.Faults, err error) {
	isOwn := len(c.files) == 0
	f := facts.Facts{Live: h.Live()}
	if isOwn {
		f, err = facts.Gather(ctx, h, facts.Needs{Modules: len(s.Driver.Parameters) > 0})
		if err != nil {
			return nil, err
		}
	}

	for _, seen := range stages.NamedAll(ctx, h, s, f) {
		keys := seen.Keys()
		place := placeOf(places, keys)
		var later host.Later
		var refused *trouble.Error
		judged := errors.As(seen.Err, &refused)
		ofSpec := seen.Key == "driver.parameters" // the catalog judges these anywhere
		switch {
		case seen.Err == nil:
		case errors.As(seen.Err, &later):
			v.unchecked(fmt.Sprintf("%s%s %s: %s", place, seen.Key, seen.Value, later.Until))
		case judged && (isOwn || ofSpec):
			wrong = append(wrong, blame(places, seen.Err, keys...)...)
		case seen.Key == "mig.file" && !isOwn: // --mig-file names it here
		default:
			looks := trouble.Command("plan") + " on the machine looks at it"
			v.unchecked(fmt.Sprintf("%s%s %s: %s; here: %v", place, seen.Key, seen.Value, looks, seen.Err))
		}
	}

	return wrong, nil
}

// placeOf is where the spec states a key, as the beginning of a line: "n.toml:7: ".
func placeOf(places spec.Places, keys []string) string {
	at := places.At(keys...)
	if at.Line == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d: ", at.File, at.Line)
}

func (c *common) validText(v validated) {
	head := strings.Join(v.Files, ", ") + ": valid"
	if v.Spec != "" {
		head += "; spec " + v.Spec
	}
	printf(c.stdout, "%s\n", head)
	for _, ch := range v.Checked {
		rows(c.stdout, 2, 8, ch.What, ch.Result)
	}
	c.notes(v.Warnings)
	for _, what := range v.Unchecked {
		printf(c.stdout, "not checked: %s\n", what)
	}
}
