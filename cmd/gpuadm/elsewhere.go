// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// elsewhere is a machine that the command line describes.
type elsewhere struct {
	os   string
	arch string
	gpus []string
}

// example is a command line with what the machine lacks, for a node in a cloud. It leaves out a
// wrong processor and a wrong cloud.
func (m *elsewhere) example(cloud string) string {
	flags := ""
	for _, gpu := range m.gpus {
		flags += " --gpu " + host.ShellWord(fullModel(gpu))
	}
	flags = cmp.Or(flags, " --gpu H100-80GB")
	flags += " --os " + host.ShellWord(cmp.Or(m.os, "ubuntu-24.04"))

	if isArch(m.arch) {
		flags += " --arch " + m.arch
	}
	if cloud != "none" && slices.Contains(clouds, cloud) {
		flags += " --cloud " + cloud
	}
	return trouble.Command("init" + flags)
}

// isArch says whether --arch takes a processor.
func isArch(arch string) bool { return arch == "amd64" || arch == "arm64" }

// fullModel is the whole name of a model that known has found. A GPU of several ids, or of no name,
// stays as it was typed: the first driver is that of the id.
func fullModel(typed string) string {
	pci, _, _ := modelOf(typed)
	name := strings.ReplaceAll(pci.Model, " ", "-")
	named, _, err := modelOf(name)
	if name == "" || err != nil || named.Device != pci.Device {
		return typed
	}
	return name
}

func (m *elsewhere) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.os, "os", "", "for the operating system `ID`: ubuntu-24.04, rocky-9")
	cmd.Flags().StringVar(&m.arch, "arch", "", "for a machine of this `ARCH`: amd64 or arm64; by default that of the GPUs, else amd64")
	cmd.Flags().StringSliceVar(&m.gpus, "gpu", nil, "for this `MODEL` of GPU: H100-80GB, T4, or a PCI device id; repeatable, one for each GPU")
	systems := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return drivers.Load().Systems(), cobra.ShellCompDirectiveNoFileComp
	}
	arches := cobra.FixedCompletions([]string{"amd64", "arm64"}, cobra.ShellCompDirectiveNoFileComp)
	cmd.RegisterFlagCompletionFunc("os", systems)
	cmd.RegisterFlagCompletionFunc("gpu", gpuModels)
	cmd.RegisterFlagCompletionFunc("arch", arches)
}

// gpuModels completes the models of GPUs that have MIG.
func gpuModels(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, m := range mig.Models() {
		names = append(names, m.Name+"\t"+m.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// known refuses a GPU or an operating system that gpuadm does not know.
func (m *elsewhere) known() error {
	for _, name := range m.gpus {
		if _, _, err := modelOf(name); err != nil {
			return usage{err}
		}
	}

	if m.os == "" {
		return nil
	}
	return knownOS(m.os)
}

// facts returns the facts of such a machine; a model that is given once counts as n GPUs.
func (m *elsewhere) facts(day string, n int) (facts.Facts, []host.GPU, error) {
	if err := m.chooseArch(); err != nil {
		return facts.Facts{Arch: m.arch, Day: day}, nil, err
	}
	f := facts.Facts{Arch: m.arch, Day: day}
	if m.os != "" {
		if err := knownOS(m.os); err != nil {
			return f, nil, err
		}
		f.OS.ID, f.OS.Version, _ = strings.Cut(m.os, "-")
		f.OS.Name = m.os
	}

	names := m.gpus
	if len(names) == 1 {
		names = slices.Repeat(names, max(1, n))
	}
	var gpus []host.GPU
	for i, name := range names {
		pci, gpu, err := modelOf(name)
		if err != nil {
			return f, nil, usage{err}
		}
		pci.Address = fmt.Sprintf("0000:%02x:00.0", i+1)
		gpu.Address = pci.Address
		gpu.Index = i
		f.GPUs = append(f.GPUs, pci)
		gpus = append(gpus, gpu)
	}

	return f, gpus, nil
}

// chooseArch chooses the processor of the GPUs, and refuses another one.
func (m *elsewhere) chooseArch() error {
	onArm := slices.ContainsFunc(m.gpus, func(name string) bool {
		pci, _, err := modelOf(name)
		return err == nil && facts.OnArm(pci.Model)
	})
	switch {
	case m.arch == "" && onArm:
		m.arch = "arm64"
	case m.arch == "":
		m.arch = "amd64"
	case !isArch(m.arch):
		return usage{fmt.Errorf("cannot use --arch %q: it takes amd64 or arm64", m.arch)}
	case onArm && m.arch != "arm64":
		return usage{&trouble.Error{
			What: fmt.Sprintf("cannot use --arch %s with --gpu %s: this GPU is on one board with an Arm processor", m.arch, strings.Join(m.gpus, ", ")),
			Try:  []string{"--arch arm64"},
		}}
	}

	return nil
}

// knownOS refuses a system for which this gpuadm knows no drivers, and names the one that it may be
// meant for.
func knownOS(name string) error {
	catalog := drivers.Load()
	known, like := catalog.Knows(name)
	if known {
		return nil
	}

	knowsNoneLike := len(like) == len(catalog.Systems())
	meant := cmp.Or(catalog.Called(name), nearest.Of(name, like))
	if knowsNoneLike && meant != "" {
		like = []string{meant}
	}
	if len(like) == 1 {
		like[0] = "--os " + like[0]
		return usage{&trouble.Error{
			What: fmt.Sprintf("cannot find a driver for %q: --os takes ID-VERSION_ID of /etc/os-release", name),
			Try:  like,
		}}
	}

	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot find a driver for %q: --os takes what /etc/os-release says, as ID-VERSION_ID, of a system that this gpuadm knows drivers for", name),
		Try:  []string{"write one of " + strings.Join(like, ", ")},
	}}
}

// modelOf returns a model as the PCI bus shows it, and as NVML shows it before any change.
func modelOf(name string) (facts.PCI, host.GPU, error) {
	m, err := mig.Find(name)
	if err == nil {
		gpu := m.GPU()
		gpu.Name = m.Name
		pci := facts.PCI{
			Vendor: "10de",
			Device: strings.ToLower(gpu.Device[2:6]),
			Class:  "030200",
			Model:  m.Name,
		}
		return pci, gpu, nil
	}

	pci, known := facts.Named(name)
	if known {
		return pci, host.GPU{
			Name:   pci.Model,
			Device: "0x" + strings.ToUpper(pci.Device) + "10DE",
		}, nil
	}

	var t *trouble.Error
	if errors.As(err, &t) && t.Err == nil { // Find knows only those with MIG
		t.What = fmt.Sprintf("cannot find GPU %q: this release knows none of this name or PCI device id", name)
		t.Try = []string{modelMeant(name)}
	}
	return pci, host.GPU{}, err
}

// modelMeant advises what to write in place of an unknown model.
func modelMeant(name string) string {
	family := strings.ToLower(strings.ReplaceAll(name, " ", "-")) + "-"
	isOther := func(model string) bool {
		return !strings.HasPrefix(strings.ToLower(model), family)
	}
	like := slices.DeleteFunc(facts.Models(), isOther)
	if len(like) > 0 {
		return "write one of " + strings.Join(like, ", ")
	}

	near := nearest.Of(name, facts.Models())
	if near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	return "write the model and its memory, such as H100-80GB, or the PCI device id, such as 2330; on the machine itself leave --gpu and --os out"
}
