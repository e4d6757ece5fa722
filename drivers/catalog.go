// SPDX-License-Identifier: Apache-2.0

// Package drivers chooses an NVIDIA driver for a machine's GPUs, and names its packages.
//
// The facts about GPUs, branches, repositories and package names are data in the folder catalog.
// The choice is pure: the same catalog, machine and spec give the same driver.
package drivers

import (
	"bytes"
	"embed"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/gputable"
	"github.com/gpuadm/gpuadm/internal/nearest"
)

// Catalog has the facts about NVIDIA's GPUs and drivers. It does not change after it is loaded.
type Catalog struct {
	Architectures []Architecture  `toml:"architectures"`
	Ranges        []rangeRow      `toml:"ranges"`
	GPUs          []gputable.GPU  `toml:"-"` // of internal/gputable, without NVSwitches
	Exceptions    []exceptionRow  `toml:"exceptions"`
	Guests        []guestRow      `toml:"guests"`
	Branches      []branchRow     `toml:"branches"`
	Rules         []ruleRow       `toml:"rules"`
	CUDA          []cudaRow       `toml:"cuda"`
	Unload        []unloadRow     `toml:"unload"` // see UnloadOrder
	Parameters    []parameterRow  `toml:"parameters"`
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
var Load = sync.OnceValue(func() Catalog {
	catalog, err := readCatalog()
	if err != nil {
		panic(err) // the files are part of the program: the first test that loads them would fail
	}
	return catalog
})

// readCatalog reads the files of the catalog. Each table is in one file only.
func readCatalog() (Catalog, error) {
	var catalog Catalog
	names, err := fs.Glob(catalogFiles, "catalog/*.toml")
	if err != nil {
		return Catalog{}, err
	}

	for _, name := range names {
		text, err := catalogFiles.ReadFile(name)
		if err != nil {
			return Catalog{}, err
		}
		decoder := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields()
		if err := decoder.Decode(&catalog); err != nil {
			return Catalog{}, err
		}
	}

	for _, gpu := range gputable.All() {
		if !gpu.Switch() {
			catalog.GPUs = append(catalog.GPUs, gpu)
		}
	}

	return catalog, nil
}

// Arch returns the architecture of a PCI device id, written as 2330 or 0x2330. For an unknown id it
// returns the architecture to assume, unknown-newer or unknown-older, and false.
func (c Catalog) Arch(pciID string) (Architecture, bool) {
	row := c.rangeOf(pciID)
	if row == nil {
		return Architecture{}, false
	}

	name := row.Architecture
	if gpu := c.gpu(plainID(pciID)); gpu != nil {
		name = gpu.Arch
	}
	for _, a := range c.Architectures {
		if a.Name == name {
			return a, !strings.HasPrefix(a.Name, "unknown-")
		}
	}

	return Architecture{}, false
}

// coherent says whether the GPU with a device id shares one memory with the CPU.
func (c Catalog) coherent(pciID string) bool {
	if gpu := c.gpu(plainID(pciID)); gpu != nil {
		return gpu.Coherent
	}
	row := c.rangeOf(pciID)
	return row != nil && row.Coherent
}

// plainID returns a device id as the tables write it: 2330 of 0x2330.
func plainID(pciID string) string {
	return strings.TrimPrefix(strings.ToLower(pciID), "0x")
}

// rangeOf returns the row whose range has a device id, nil if the text is not a device id.
func (c Catalog) rangeOf(pciID string) *rangeRow {
	id, err := strconv.ParseUint(plainID(pciID), 16, 16)
	if err != nil {
		return nil
	}

	for i, row := range c.Ranges {
		first, firstErr := strconv.ParseUint(row.From, 16, 16)
		last, lastErr := strconv.ParseUint(row.To, 16, 16)
		if firstErr == nil && lastErr == nil && first <= id && id <= last {
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
	for _, row := range c.Bad {
		if flavour != "" && row.Flavour != "" && row.Flavour != flavour {
			continue
		}
		if hardware.Compare(version, row.From) < 0 || hardware.Compare(version, row.Below) >= 0 {
			continue
		}
		if row.concerns(kernel) {
			return row.Why
		}
	}
	return ""
}

// concerns says whether the row is about a kernel: by the start of its release, or by its version.
func (b badRow) concerns(kernel string) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(kernel, prefix) }
	if slices.ContainsFunc(b.Kernels, begins) {
		return true
	}

	version := hardware.LeadingNumbers(kernel)
	if b.LinuxFrom == "" || version == "" {
		return false
	}
	return hardware.Compare(version, b.LinuxFrom) >= 0 && hardware.Compare(version, b.LinuxBelow) < 0
}

// UnloadOrder lists the modules of the driver in the order they are unloaded where holders do not
// decide it.
func (c Catalog) UnloadOrder() []string {
	var names []string
	for _, row := range c.Unload {
		names = append(names, row.Module)
	}
	return names
}

// branch returns the row of a branch, nil if the catalog does not have it.
func (c Catalog) branch(number int) *branchRow {
	for i, row := range c.Branches {
		if row.Branch == number {
			return &c.Branches[i]
		}
	}
	return nil
}

// rule returns the branch that a rule names; 0 if the catalog lacks the rule.
func (c Catalog) rule(name string) int {
	for _, row := range c.Rules {
		if row.Name == name {
			return row.Branch
		}
	}
	return 0
}

// gpu returns the row of a device id, nil if it has none.
func (c Catalog) gpu(id string) *gputable.GPU {
	for i, row := range c.GPUs {
		if row.ID == id {
			return &c.GPUs[i]
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

// Systems lists the operating systems in the catalog by os-release's ID and VERSION_ID:
// ubuntu-24.04, rocky-9. A system that has its own driver, or whose every version is supported, is
// listed by its ID alone.
func (c Catalog) Systems() []string {
	var all []string
	for _, row := range c.Repositories {
		for _, id := range row.IDs {
			if row.Version != "*" {
				id += "-" + row.Version
			}
			all = append(all, id)
		}
	}

	for _, row := range c.Owners {
		all = append(all, row.IDs...)
	}

	slices.Sort(all)
	return slices.Compact(all)
}

// Called returns the system with this common name, noble or al2023, or with a similar name; ""
// if there is none.
func (c Catalog) Called(name string) string {
	systems := map[string]string{}
	for _, row := range c.Repositories {
		if row.Called != "" {
			systems[row.Called] = row.IDs[0] + "-" + row.Version
		}
	}

	return systems[nearest.Of(name, slices.Sorted(maps.Keys(systems)))]
}

// Knows says whether a system is among Systems, or a minor release of one: rhel-9.6. If not, like
// lists the systems of that name, or all.
func (c Catalog) Knows(system string) (known bool, like []string) {
	all := c.Systems()
	id, version, _ := strings.Cut(system, "-")
	if slices.Contains(all, system) || len(c.repositoriesOf(id, version)) > 0 {
		return true, nil
	}

	for _, name := range all {
		if strings.HasPrefix(name, id+"-") {
			like = append(like, name)
		}
	}

	if len(like) == 0 {
		like = all
	}
	return false, like
}
