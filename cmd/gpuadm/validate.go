// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
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
	What   string `json:"what"`   // driver, mig
	Result string `json:"result"` // in words
}

func newValidate(c *common) *cobra.Command {
	var m elsewhere
	var layouts string
	cmd := &cobra.Command{
		Use:   "validate [FILE…]",
		Short: "check a spec anywhere: on a laptop, in CI",
		RunE: func(_ *cobra.Command, files []string) error {
			c.files = append(c.files, files...)
			return c.validate(m, layouts)
		},
	}
	m.flags(cmd)
	cmd.Flags().StringVar(&layouts, "mig-file", "", "check this `FILE` in mig-parted's format, for file in [mig]; without -f alone")
	return cmd
}

// validate prints what it has checked. The error is trouble.Faults if the files have faults.
func (c *common) validate(m elsewhere, layouts string) error {
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	v := validated{Format: 1}
	var wrong trouble.Faults
	var parted []byte
	if layouts != "" {
		if parted, err = c.file(layouts); err != nil {
			return usage{fmt.Errorf("cannot read %s: %w", layouts, cause(err))}
		}
		_, err := mig.ParseParted(layouts, parted)
		errors.As(err, &wrong)
	}
	var s spec.Spec
	var places spec.Places
	if len(c.files) > 0 || layouts == "" {
		files, err := c.specFiles(h, c.files)
		if err != nil {
			return err
		}
		for _, f := range files {
			v.Files = append(v.Files, f.Name)
		}
		inSpec := trouble.Faults(nil)
		s, places, err = spec.Read(files...)
		errors.As(err, &inSpec)
		wrong = append(inSpec, wrong...)
		v.Spec = s.Digest()
	}
	if layouts != "" {
		v.Files = append(v.Files, layouts)
	}
	f, gpus, err := m.facts(h.Now().UTC().Format("2006-01-02"), max(s.Driver.GPUCount, needs(s.MIG, layouts, parted)))
	if err != nil {
		return err
	}
	if len(wrong) == 0 && v.Spec != "" {
		wrong = append(v.driver(s, places, m, f), v.mig(s, places, layouts, parted, gpus)...)
	}
	if len(wrong) > 0 {
		return c.unquoted(h, append(slices.Clone(c.files), layouts), wrong)
	}
	return show(c, v, c.validText)
}

// merged is the merged content of a spec's files.
type merged struct {
	Format int           `json:"format"`
	Spec   string        `json:"spec"` // its digest
	Keys   []spec.Stated `json:"keys"`
}

func newConfig(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "config [FILE…]",
		Short: "show the merged spec, and the file that each value comes from",
		RunE: func(_ *cobra.Command, files []string) error {
			c.files = append(c.files, files...)
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			all, err := c.specFiles(h, c.files)
			if err != nil {
				return err
			}
			s, places, err := spec.Read(all...)
			if err != nil {
				return c.unquoted(h, c.files, err)
			}
			return show(c, merged{1, s.Digest(), places.Stated(s)}, c.mergedText)
		},
	}
}

func (c *common) mergedText(m merged) {
	key, value := 0, 0
	lines := make([][2]string, len(m.Keys))
	for i, k := range m.Keys {
		text, _ := encoded(k.Value) // a value from TOML can always be encoded
		lines[i] = [2]string{k.Key, strings.TrimSpace(string(text))}
		key, value = max(key, len(k.Key)), max(value, min(len(lines[i][1]), 40))
	}
	for i, k := range m.Keys {
		printf(c.stdout, "%-*s  %-*s  %s:%d\n", key, lines[i][0], value, lines[i][1], k.File, k.Line)
	}
}

// blame returns a refusal at the place of the first of these keys in the spec.
func blame(places spec.Places, err error, keys ...string) trouble.Faults {
	f := failureOf(err)
	return trouble.Faults{places.Error(f.Error, strings.Join(f.Try, "; or "), keys...)}
}

// needs returns the number of GPUs that the entries of a layout need.
func needs(m spec.MIG, name string, layouts []byte) int {
	if layouts != nil {
		m.File = name
	}
	entries, err := mig.Asked(m, layouts, false)
	if err != nil {
		return 1
	}
	return mig.Needs(entries)
}

// driver checks that there is a driver for such a machine.
func (v *validated) driver(s spec.Spec, places spec.Places, m elsewhere, f facts.Facts) trouble.Faults {
	if !s.Has("driver") || s.Driver.Version == "" {
		return nil
	}
	if m.os == "" {
		v.Unchecked = append(v.Unchecked, "which driver: --os and --gpu say for which machine")
		return nil
	}
	choice, _, err := drivers.New().Choose(s, f)
	if err != nil {
		return blame(places, err, "driver.version")
	}
	v.Warnings = append(v.Warnings, choice.Warnings...)
	if choice.Unlisted {
		v.Unchecked = append(v.Unchecked, fmt.Sprintf("whether a source has driver %s: %s on the machine says it, once the package lists are read", s.Driver.Version, trouble.Command("plan")))
	}
	result := choice.Why
	if choice.Source != drivers.SourceNone {
		result = fmt.Sprintf("from %s, %s kernel modules", choice.Source, choice.Flavour)
	}
	on := "on " + m.os
	if len(m.gpus) > 0 {
		on = "for " + strings.Join(m.gpus, ", ") + " " + on
	}
	v.Checked = append(v.Checked, checked{"driver", s.Driver.Version + " " + on + ": " + result})
	return nil
}

// mig checks whether the layout fits such GPUs.
func (v *validated) mig(s spec.Spec, places spec.Places, name string, layouts []byte, gpus []host.GPU) trouble.Faults {
	keys, want := []string{"mig.layout", "mig.gpu", "mig.file"}, s.MIG
	switch {
	case !want.Asked():
		return nil
	case want.File != "" && layouts == nil:
		v.Unchecked = append(v.Unchecked, want.File+": --mig-file names the file here")
		return nil
	case want.FollowLabel:
		v.Unchecked = append(v.Unchecked, "whether the layout fits: the node's label will name it")
		return nil
	case want.File != "":
		want.File = name
	}
	entries, err := mig.Asked(want, layouts, false)
	if err != nil {
		return blame(places, err, keys...)
	}
	if len(gpus) == 0 {
		v.Unchecked = append(v.Unchecked, "whether the layout fits: --gpu says on which GPUs")
		return nil
	}
	all, err := mig.Assign(entries, gpus)
	if err != nil {
		return blame(places, err, keys...)
	}
	var wrong trouble.Faults
	if err := mig.Offered(s.Sharing, all, gpus); err != nil {
		wrong = blame(places, err, append([]string{"sharing.strategy"}, keys...)...)
	}
	for _, a := range all {
		if f, err := fitOn(a); err != nil {
			wrong = append(wrong, blame(places, err, keys...)...)
		} else {
			v.Checked = append(v.Checked, checked{"mig", fmt.Sprintf("GPU %d, %s: %s fits", f.GPU, f.Model, f.Layout)})
		}
	}
	return wrong
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
