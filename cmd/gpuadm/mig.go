// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// newMIG groups the verbs about partitions. They change nothing; apply makes partitions.
func newMIG(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mig",
		Short: "see what GPUs can be partitioned into, and whether a layout fits",
	}
	group(cmd)
	cmd.AddCommand(newMIGFit(c), newMIGProfiles(c), newMIGExport(c), newMIGGenerate(c))
	return cmd
}

const gpuFlag = "plan for `MODEL` instead of this machine's GPUs: H100-80GB, or a PCI device id; repeatable, one for each GPU"

// gpuVerb makes a verb about GPUs: this machine's, or those of --gpu.
func (c *common) gpuVerb(
	cmd *cobra.Command, answer func(gpus []host.GPU, models []string) error,
) *cobra.Command {
	var models []string
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		gpus, err := c.migGPUs(cmd.Context(), models)
		if err != nil {
			return err
		}
		return answer(gpus, models)
	}

	cmd.Flags().StringSliceVar(&models, "gpu", nil, gpuFlag)
	cmd.RegisterFlagCompletionFunc("gpu", gpuModels)
	return cmd
}

func newMIGFit(c *common) *cobra.Command {
	var layout string
	cmd := c.gpuVerb(&cobra.Command{
		Use:   "fit",
		Short: "say whether a layout fits, and what it would disturb",
	}, func(gpus []host.GPU, models []string) error {
		entries, err := c.migEntries(layout)
		if err != nil {
			return err
		}
		if err := enoughModels(models, mig.Needs(entries)); err != nil {
			return err
		}
		return c.migFit(entries, gpus, len(models) > 0)
	})
	cmd.Flags().StringVar(&layout, "layout", "", "the layout of this `NAME`, instead of the one in the spec")
	return cmd
}

// enoughModels refuses a layout that needs more GPUs than --gpu names.
func enoughModels(models []string, needs int) error {
	if len(models) == 0 || needs <= len(models) {
		return nil
	}

	all := strings.Repeat("--gpu "+host.ShellWord(models[0])+" ", min(needs, 16))
	return &trouble.Error{
		What: fmt.Sprintf("cannot partition GPU %d: --gpu is there for %d, and GPUs are counted from 0", needs-1, len(models)),
		Try:  []string{"write --gpu once for each GPU: " + strings.TrimSpace(all)},
	}
}

func newMIGProfiles(c *common) *cobra.Command {
	return c.gpuVerb(&cobra.Command{
		Use:   "profiles",
		Short: "list what GPUs can be partitioned into, with a picture of the slices",
	}, func(gpus []host.GPU, _ []string) error { return c.migProfiles(gpus) })
}

func newMIGExport(c *common) *cobra.Command {
	var parted string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "print how the GPUs are partitioned, as [[mig.gpu]] tables",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			gpus, err := c.migGPUs(cmd.Context(), nil)
			if err != nil {
				return err
			}
			return show(c, migGPUs{1, gpus}, func(is migGPUs) {
				text := mig.Tables(is.GPUs)
				if parted != "" {
					text = mig.Parted(parted, is.GPUs)
				}
				printf(c.stdout, "%s", verbatim(text))
			})
		},
	}
	cmd.Flags().StringVar(&parted, "parted", "", "print mig-parted's format, the layout called `NAME`")
	return cmd
}

func newMIGGenerate(c *common) *cobra.Command {
	return c.gpuVerb(&cobra.Command{
		Use:   "generate",
		Short: "print one layout for each profile, in mig-parted's format",
	}, func(gpus []host.GPU, _ []string) error {
		file, err := mig.Generate(gpus)
		if err != nil {
			return err
		}
		return show(c, file, func(f mig.PartedFile) {
			printf(c.stdout, "%s", verbatim(f.YAML()))
		})
	})
}

// migGPUs returns this machine's GPUs, or GPUs without partitions of the models asked for.
func (c *common) migGPUs(ctx context.Context, models []string) ([]host.GPU, error) {
	if len(models) > 0 {
		return unpartitioned(models)
	}
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return nil, err
	}

	d, err := view.Within(h).Driver(ctx)
	var noDriver *host.NoDriver
	switch {
	case errors.As(err, &noDriver):
		return nil, &trouble.Error{
			What: err.Error(),
			Try:  []string{noDriver.Try, "--gpu MODEL plans for a GPU that this machine does not have"},
			Err:  err,
		}
	case errors.Is(err, host.FirstBoot):
		return nil, &trouble.Error{
			What: "cannot ask the GPUs of a machine that does not run",
			Try:  []string{"leave out --root to ask this machine's, or write --gpu MODEL to plan for a GPU of that model"},
			Err:  err,
		}
	}

	return d.GPUs, err
}

// unpartitioned are GPUs of some models, without partitions.
func unpartitioned(models []string) (gpus []host.GPU, err error) {
	for i, name := range models {
		m, err := mig.Find(name)
		if err != nil {
			return nil, usage{err}
		}
		gpu := m.GPU()
		gpu.Index = i
		gpus = append(gpus, gpu)
	}
	return gpus, nil
}

// migEntries returns the spec's entries, or one layout of a file in mig-parted's format. Such a
// file is the caller's, not in the folder of --root.
func (c *common) migEntries(layout string) ([]mig.Entry, error) {
	if len(c.files) == 1 && slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(c.files[0])) {
		return c.partedEntries(c.files[0], layout)
	}
	h, s, err := c.machine(nil)
	if err != nil {
		return nil, err
	}

	want := s.MIG
	if layout != "" {
		want.Layout = layout
		want.GPU = nil
	}
	if !want.Asked() || want.Layout != "" && want.File == "" {
		return nil, &trouble.Error{
			What: "cannot fit a layout: the spec asks for none",
			Try:  []string{"write one in [mig] of node.toml, or name mig-parted's file: -f config.yaml --layout NAME"},
		}
	}

	var data []byte
	if want.File != "" {
		data, err = h.ReadFile(want.File)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}

	isSecret := asker(c.getenv) != "" && !host.Public(h, want.File)
	return mig.Asked(want, data, isSecret)
}

// partedEntries returns one layout of a file in mig-parted's format.
func (c *common) partedEntries(file, layout string) ([]mig.Entry, error) {
	data, err := c.read(file)
	if err != nil {
		return nil, usage{cannotRead(file, err)}
	}

	isSecret := c.public != nil && !c.public(file)
	return mig.Asked(spec.MIG{File: file, Layout: layout}, data, isSecret)
}

// migFits, migModels and migGPUs are what mig fit, profiles and export print with -o json.
type (
	migFits struct {
		Format int      `json:"format"`
		Fits   []fitted `json:"fits"`
	}
	migModels struct {
		Format int         `json:"format"`
		Models []mig.Model `json:"models"`
	}
	migGPUs struct {
		Format int        `json:"format"`
		GPUs   []host.GPU `json:"gpus"`
	}
)

// fitted is the result of a layout on one GPU.
type fitted struct {
	GPU      int      `json:"gpu"`
	Address  string   `json:"address,omitempty"`
	Model    string   `json:"model"`
	Places   string   `json:"places"` // by which source: driver, dump, inferred, fractions
	Layout   string   `json:"layout"`
	Now      string   `json:"now"`
	Then     string   `json:"then,omitempty"`
	Keeps    int      `json:"keeps"`
	Destroys int      `json:"destroys"`
	Creates  int      `json:"creates"`
	Disturbs []string `json:"disturbs,omitempty"` // instances in use
	Steps    []string `json:"steps,omitempty"`
}

func (c *common) migFit(entries []mig.Entry, gpus []host.GPU, offline bool) error {
	all, err := mig.Assign(entries, gpus)
	if err != nil {
		return err
	}

	changes := false
	list := []fitted{}
	for _, a := range all {
		f, err := fitOn(a)
		if err != nil {
			return err
		}
		changes = changes || f.Now != f.Then
		list = append(list, f)
	}

	err = show(c, migFits{1, list}, func(all migFits) { c.migFitText(all.Fits) })
	if err == nil && changes && !offline {
		return exit(exitPending)
	}
	return err
}

// fitOn says how a layout fits on its GPU.
func fitOn(a mig.Assigned) (fitted, error) {
	f := fitted{
		GPU:     a.GPU.Index,
		Address: a.GPU.Address,
		Model:   a.GPU.Name,
		Layout:  a.Entry.Layout.String(),
	}
	model, err := mig.Of(a.GPU)
	if err != nil {
		return f, err
	}
	f.Places = model.Places
	now := mig.StateOf(a.GPU)
	fit, err := model.Fit(now, a.Entry.Layout)
	if err != nil {
		return f, err
	}
	steps, err := model.Steps(now, fit.Target)
	if err != nil {
		return f, err
	}

	f.Now = now.String()
	f.Then = fit.Target.String()
	f.Keeps = fit.Keeps
	f.Destroys = fit.Destroys
	f.Creates = fit.Creates
	for _, p := range fit.Disturbs {
		f.Disturbs = append(f.Disturbs, p.String())
	}
	for _, s := range steps {
		f.Steps = append(f.Steps, s.String())
	}
	return f, nil
}

func (c *common) migFitText(list []fitted) {
	for i, f := range list {
		if i > 0 {
			printf(c.stdout, "\n")
		}
		c.fittedText(f)
	}
}

// fittedText prints how a layout fits on one GPU. A GPU of --gpu has no address.
func (c *common) fittedText(f fitted) {
	w := c.stdout
	offline := f.Address == ""
	switch {
	case offline:
		printf(w, "%s: %s fits\n", f.Model, f.Layout)
	case f.Now == f.Then:
		printf(w, "GPU %d, %s: already has %s\n", f.GPU, f.Model, f.Layout)
	default:
		printf(w, "GPU %d, %s: %s fits; keeps %d, destroys %d, creates %d instances\n",
			f.GPU, f.Model, f.Layout, f.Keeps, f.Destroys, f.Creates)
	}

	printf(w, "       %s\n", f.Then)
	if f.Places == "fractions" {
		printf(w, "       which memory slices these are, the driver says\n")
	}
	if !offline {
		for _, s := range f.Steps {
			printf(w, "       %s\n", s)
		}
	}

	if len(f.Disturbs) > 0 {
		printf(w, "       destroys instances in use: %s\n", strings.Join(f.Disturbs, ", "))
	}
}

func (c *common) migProfiles(gpus []host.GPU) error {
	var models []mig.Model
	for _, gpu := range gpus {
		if !gpu.MIG {
			continue
		}
		m, err := mig.Of(gpu)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(models, func(o mig.Model) bool { return o.Name == m.Name }) {
			models = append(models, m)
		}
	}

	if len(models) == 0 {
		return &trouble.Error{
			What: "cannot list profiles: none of the GPUs has MIG",
			Try:  []string{"--gpu MODEL lists those of a GPU that this machine does not have"},
		}
	}

	return show(c, migModels{1, models}, func(all migModels) {
		for i, m := range all.Models {
			if i > 0 {
				printf(c.stdout, "\n")
			}
			printf(c.stdout, "%s", verbatim(m.Offer()))
		}
	})
}
