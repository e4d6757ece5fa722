// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// elsewhere is a machine that only the command line describes.
type elsewhere struct {
	os, arch string
	gpus     []string
}

func (m *elsewhere) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.os, "os", "", "for the operating system `ID`: ubuntu-24.04, rocky-9")
	cmd.Flags().StringVar(&m.arch, "arch", "amd64", "for a machine of this `ARCH`: amd64 or arm64")
	cmd.Flags().StringArrayVar(&m.gpus, "gpu", nil, "for this `MODEL` of GPU: H100-80GB, T4, or a PCI device id; repeatable, one for each GPU")
	cmd.RegisterFlagCompletionFunc("os", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return drivers.Load().Systems(), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.RegisterFlagCompletionFunc("gpu", gpuModels)
	cmd.RegisterFlagCompletionFunc("arch", cobra.FixedCompletions([]string{"amd64", "arm64"}, cobra.ShellCompDirectiveNoFileComp))
}

// gpuModels completes the models of GPUs that have MIG.
func gpuModels(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, m := range mig.Models() {
		names = append(names, m.Name+"\t"+m.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// facts are what can be known of such a machine; a model that is given once counts as n GPUs.
func (m *elsewhere) facts(day string, n int) (facts.Facts, []host.GPU, error) {
	f := facts.Facts{Arch: m.arch, Day: day}
	if m.arch != "amd64" && m.arch != "arm64" {
		return f, nil, usage{fmt.Errorf("cannot use --arch %q: it takes amd64 or arm64", m.arch)}
	}
	if m.os != "" {
		c := drivers.Load()
		if known, like := c.Knows(m.os); !known {
			return f, nil, usage{&trouble.Error{What: fmt.Sprintf("cannot find a driver for %q: --os takes what /etc/os-release says, as ID-VERSION_ID, of a system that this gpuadm knows drivers for", m.os), Try: []string{"write one of " + strings.Join(like, ", ")}}}
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
		p, g, err := modelOf(name)
		if err != nil {
			return f, nil, usage{err}
		}
		p.Address = fmt.Sprintf("0000:%02x:00.0", i+1)
		g.Index, g.Address = i, p.Address
		f.GPUs, gpus = append(f.GPUs, p), append(gpus, g)
	}
	return f, gpus, nil
}

// modelOf is a GPU as the PCI bus shows it, and as NVML shows it before any change.
func modelOf(name string) (facts.PCI, host.GPU, error) {
	m, err := mig.Find(name)
	if err == nil {
		g := m.GPU()
		g.Name = m.Name
		return facts.PCI{Vendor: "10de", Device: strings.ToLower(g.Device[2:6]), Class: "030200", Model: m.Name}, g, nil
	}
	p, known := facts.Named(name)
	if !known {
		return p, host.GPU{}, err
	}
	return p, host.GPU{Name: p.Model, Device: "0x" + strings.ToUpper(p.Device) + "10DE"}, nil
}
