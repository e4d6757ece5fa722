// SPDX-License-Identifier: Apache-2.0

// Package drivers chooses an NVIDIA driver for a machine's GPUs, and names its packages.
//
// The facts about GPUs, branches, repositories and package names are data in the folder catalog.
// The choice is pure: the same catalog, machine and spec give the same driver.
package drivers

import (
	"bytes"
	"embed"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/drivers/hardware"
)

// Catalog has the facts about NVIDIA's GPUs and drivers. It does not change after it is loaded.
type Catalog struct {
	Architectures []Architecture  `toml:"architectures"`
	Ranges        []rangeRow      `toml:"ranges"`
	GPUs          []gpuRow        `toml:"gpus"`
	Exceptions    []exceptionRow  `toml:"exceptions"`
	Branches      []branchRow     `toml:"branches"`
	Rules         []ruleRow       `toml:"rules"`
	CUDA          []cudaRow       `toml:"cuda"`
	Unload        []unloadRow     `toml:"unload"` // the order in which modules are unloaded where holders do not decide it
	Bad           []badRow        `toml:"bad"`
	Keys          []keyRow        `toml:"keys"`
	Repositories  []repositoryRow `toml:"repositories"`
	Runfiles      []runfileRow    `toml:"runfiles"`
	Owners        []ownerRow      `toml:"owners"`
	Tools         []toolRow       `toml:"tools"`
	Headers       []headerRow     `toml:"headers"`
	Sets          []setRow        `toml:"sets"`
}

// Origin says where a row's facts come from and how far to trust them.
type Origin struct {
	Where      string `toml:"origin"`     // a URL or the name of a document
	Checked    string `toml:"checked"`    // repository (seen in a real one), source, documentation, memory
	Confidence string `toml:"confidence"` // high, medium, low
	Date       string `toml:"date"`       // of the check: 2026-11-21
}

// Architecture is a generation of GPUs.
type Architecture struct {
	Name  string `toml:"name"`  // hopper
	Open  string `toml:"open"`  // open kernel modules: must, may, no
	First int    `toml:"first"` // the first driver branch; 0 = any
	Last  int    `toml:"last"`  // the last one; 0 = any
	Note  string `toml:"note"`
	Origin
}

//go:embed catalog/*.toml
var catalogFiles embed.FS

// Load returns the built-in catalog, which the process reads once, in about 2 ms. All callers share
// its tables and must not write to them.
var Load = sync.OnceValue(func() (c Catalog) {
	names, err := fs.Glob(catalogFiles, "catalog/*.toml")
	for _, name := range names {
		text, failed := catalogFiles.ReadFile(name)
		err = errors.Join(err, failed, toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&c)) // no two files have a table in common
	}
	if err != nil {
		panic(err) // the files are part of the program: the first test that loads them would fail
	}
	return c
})

// Arch returns the architecture of a PCI device id, written as 2330 or 0x2330. For an unknown id it
// returns the architecture to assume, unknown-newer or unknown-older, and false.
func (c Catalog) Arch(pciID string) (Architecture, bool) {
	r := c.rangeOf(pciID)
	for _, a := range c.Architectures {
		if r != nil && a.Name == r.Architecture {
			return a, !strings.HasPrefix(a.Name, "unknown-")
		}
	}
	return Architecture{}, false
}

// coherent says whether the GPU with a device id shares one memory with the CPU.
func (c Catalog) coherent(pciID string) bool {
	r := c.rangeOf(pciID)
	return r != nil && r.Coherent
}

// rangeOf returns the row whose range has a device id, nil if the text is no device id.
func (c Catalog) rangeOf(pciID string) *rangeRow {
	id, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(pciID), "0x"), 16, 16)
	for i, r := range c.Ranges {
		from, err1 := strconv.ParseUint(r.From, 16, 16)
		to, err2 := strconv.ParseUint(r.To, 16, 16)
		if err == nil && err1 == nil && err2 == nil && from <= id && id <= to {
			return &c.Ranges[i]
		}
	}
	return nil
}

// KnownBad says why a driver's modules do not build on a kernel, "" if nothing is known against it.
// Kernel is its release.
func (c Catalog) KnownBad(version, kernel string) (why string) {
	return c.knownBad(version, kernel, "")
}

// knownBad is KnownBad for one flavour of modules; "" means both.
func (c Catalog) knownBad(version, kernel, flavour string) string {
	for _, b := range c.Bad {
		if flavour != "" && b.Flavour != "" && b.Flavour != flavour {
			continue
		}
		if hardware.Compare(version, b.From) < 0 || hardware.Compare(version, b.Below) >= 0 {
			continue
		}
		for _, begin := range b.Kernels {
			if strings.HasPrefix(kernel, begin) {
				return b.Why
			}
		}
		if up := hardware.LeadingNumbers(kernel); b.LinuxFrom != "" && up != "" && hardware.Compare(up, b.LinuxFrom) >= 0 && hardware.Compare(up, b.LinuxBelow) < 0 {
			return b.Why
		}
	}
	return ""
}

// UnloadOrder lists the modules of the driver in the order they are unloaded where holders do not
// decide it.
func (c Catalog) UnloadOrder() []string {
	var names []string
	for _, u := range c.Unload {
		names = append(names, u.Module)
	}
	return names
}

// rule returns the branch that a rule names; 0 if the catalog lacks the rule.
func (c Catalog) rule(name string) int {
	for _, r := range c.Rules {
		if r.Name == name {
			return r.Branch
		}
	}
	return 0
}

// gpu returns the row of a device id, nil if it has none.
func (c Catalog) gpu(id string) *gpuRow {
	for i, g := range c.GPUs {
		for _, known := range g.IDs {
			if known == id {
				return &c.GPUs[i]
			}
		}
	}
	return nil
}

// cudaMajor returns the newest CUDA major version with programs that a driver version, or any of a
// branch, runs; 0 if none.
func (c Catalog) cudaMajor(version string) int {
	newest := 0
	for _, row := range c.CUDA {
		floor := row.Min
		if !strings.Contains(version, ".") {
			floor, _, _ = strings.Cut(floor, ".") // the newest of the branch is meant
		}
		if row.Major > newest && hardware.Compare(version, floor) >= 0 {
			newest = row.Major
		}
	}
	return newest
}
