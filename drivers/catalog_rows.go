// SPDX-License-Identifier: Apache-2.0

package drivers

// The rows of the catalog. The files in the folder catalog say what the columns mean.

type rangeRow struct {
	From         string `toml:"from"` // four hex digits, lower case; included, as To is
	To           string `toml:"to"`
	Architecture string `toml:"architecture"`
	Chips        string `toml:"chips"`
	Coherent     bool   `toml:"coherent"` // CPU and GPU have one memory
	Origin
}

type exceptionRow struct {
	Instances  []string          `toml:"instances"`
	Clouds     []string          `toml:"clouds"`
	IDs        []string          `toml:"ids"`
	Except     []string          `toml:"except"`
	RDMA       bool              `toml:"rdma"`
	MIG        bool              `toml:"mig"`
	Whole      bool              `toml:"whole"`
	From       string            `toml:"from"` // driver versions; Below is excluded
	Below      string            `toml:"below"`
	Flavour    string            `toml:"flavour"`
	Parameters map[string]string `toml:"parameters"`
	Refused    bool              `toml:"refused"`
	Guest      bool              `toml:"guest"`
	Why        string            `toml:"why"`
	Origin
}

type guestRow struct {
	Cloud string            `toml:"cloud"`
	Files string            `toml:"files"`
	Gridd map[string]string `toml:"gridd"` // keys of gridd.conf; "" removes one
	Origin
}

type branchRow struct {
	Branch      int    `toml:"branch"`
	Designation string `toml:"designation"`
	End         string `toml:"end"`
	Default     string `toml:"default"` // gpuadm chooses it unasked from this month on; "" = never

	// DefaultOn are the names of repositories where it does so; nil = everywhere.
	DefaultOn []string `toml:"default_on"`

	Why   string `toml:"why"`   // the reason for that
	VGPU  int    `toml:"vgpu"`  // the release of NVIDIA vGPU with guest drivers of it; 0 if unknown
	Known string `toml:"known"` // a version of it; "" = none
	Origin
}

// ended says whether the branch's end of life is past on a day. A day before the row's own date
// comes from a wrong clock: the row's date counts instead. A branch without a known end has not
// ended.
func (b branchRow) ended(day string) bool {
	day = max(day, b.Date)
	if b.End == "" || len(day) < len(b.End) {
		return false
	}

	// "2026-06" is over from 2026-07 on, "2024" from 2025 on: later dates do not begin with it, and
	// sort after it.
	return day[:len(b.End)] > b.End
}

type ruleRow struct {
	Name   string `toml:"name"`
	Branch int    `toml:"branch"`
	About  string `toml:"about"`
	Origin
}

type cudaRow struct {
	Major int    `toml:"major"`
	Min   string `toml:"min"`
	Origin
}

type unloadRow struct {
	Module string `toml:"module"`
	Origin
}

type parameterRow struct {
	Module string   `toml:"module"` // "" is nvidia
	Names  []string `toml:"names"`  // uvm_* is each name that begins so
	Origin
}

type badRow struct {
	From       string   `toml:"from"`
	Below      string   `toml:"below"`
	Kernels    []string `toml:"kernels"`
	LinuxFrom  string   `toml:"linux_from"`
	LinuxBelow string   `toml:"linux_below"`
	Flavour    string   `toml:"flavour"`
	Why        string   `toml:"why"`
	Origin
}

type keyRow struct {
	Name        string `toml:"name"`
	Fingerprint string `toml:"fingerprint"`
	SHA256      string `toml:"sha256"` // of its file, where the fingerprint is not known
	Origin
}

type repositoryRow struct {
	Source      string   `toml:"source"` // nvidia, amazon, redhat, almalinux, ubuntu, debian
	Name        string   `toml:"name"`
	IDs         []string `toml:"ids"`
	Version     string   `toml:"version"`
	Called      string   `toml:"called"` // by users: noble
	Family      string   `toml:"family"` // apt, dnf
	AMD64       string   `toml:"amd64"`
	ARM64       string   `toml:"arm64"`
	URL         string   `toml:"url"`
	Key         string   `toml:"key"`
	First       int      `toml:"first"`
	Last        int      `toml:"last"`
	Component   string   `toml:"component"`
	Precompiled bool     `toml:"precompiled"`
	OpenOnly    bool     `toml:"open_only"`
	Streams     bool     `toml:"streams"`
	Needs       []string `toml:"needs"`
	Refused     string   `toml:"refused"`
	Multiverse  []int    `toml:"multiverse"` // branches that Ubuntu has in that component

	ProprietaryLast int `toml:"proprietary_last"` // the last branch with proprietary modules; 0 = by the rule
	Origin
}

type runfileRow struct {
	URL   string `toml:"url"`
	AMD64 string `toml:"amd64"`
	ARM64 string `toml:"arm64"`
	Origin
}

type ownerRow struct {
	IDs   []string `toml:"ids"`
	Name  string   `toml:"name"`
	Owner string   `toml:"owner"`
	Origin
}

type toolRow struct {
	Family  string   `toml:"family"`
	Distros []string `toml:"distros"`
	Role    string   `toml:"role"`
	Name    string   `toml:"name"`
	Origin
}

type headerRow struct {
	Family   string   `toml:"family"`
	Distros  []string `toml:"distros"`
	IDs      []string `toml:"ids"`
	Prefix   string   `toml:"prefix"`
	Contains string   `toml:"contains"`
	Suffix   string   `toml:"suffix"`
	Name     string   `toml:"name"`
	Extra    string   `toml:"extra"`
	Origin
}

type setRow struct {
	Sources []string `toml:"sources"`
	Distros []string `toml:"distros"`
	First   int      `toml:"first"` // branches, both ends included
	Last    int      `toml:"last"`
	// OwnVersion are packages with a driver's name that have versions of their own.
	OwnVersion []string    `toml:"own_version"`
	Members    []memberRow `toml:"members"`
	Origin
}

type memberRow struct {
	Role  string   `toml:"role"`
	Name  string   `toml:"name"`
	When  []string `toml:"when"`
	Own   bool     `toml:"own"`
	Arch  string   `toml:"arch"`
	First int      `toml:"first"` // branches, both ends included; 0 = no bound
	Last  int      `toml:"last"`
	Extra bool     `toml:"extra"`
}

// in says whether a branch has the member by this name.
func (m memberRow) in(branch int) bool {
	return m.First <= branch && (m.Last == 0 || branch <= m.Last)
}
