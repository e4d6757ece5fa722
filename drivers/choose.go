// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Values of Choice.Source and Choice.Flavour.
const (
	SourceNVIDIA    = "nvidia"    // NVIDIA's package repository, or a mirror of it
	SourceAmazon    = "amazon"    // Amazon's repository of NVIDIA's packages
	SourceUbuntu    = "ubuntu"    // Ubuntu's archive
	SourceDebian    = "debian"    // Debian's archive
	SourceMicrosoft = "microsoft" // Microsoft's repository for Azure Linux
	SourceRedHat    = "redhat"    // Red Hat's repositories for RHEL
	SourceAlmaLinux = "almalinux" // AlmaLinux's repository of NVIDIA's packages
	SourceRunfile   = "runfile"   // NVIDIA's installer
	SourceNone      = "none"      // nothing is to be installed

	FlavourOpen        = "open"
	FlavourProprietary = "proprietary"
)

// Choice is the driver for a machine, and its packages.
type Choice struct {
	Source string
	Owner  string // with SourceNone: the driver's owner; "" if there is no GPU
	Why    string // with SourceNone: why nothing is to be installed

	Flavour  string
	Branch   string // 580
	Version  string // 580.95.05; "" when only a branch is asked for: its newest version
	Minimum  string // the first version of the branch that the GPUs work with; "" if none is known
	Reason   string // why gpuadm chose the branch, where the spec names none
	Unlisted bool   // only the source's own lists say whether it has this version

	Members    []Member
	Extras     []string // parts that are installed only where the source has them in the driver's version
	OwnVersion []string // packages with a driver's name that do not have the driver's version
	Stream     string   // of dnf's module nvidia-driver; "" where there are no streams
	Repo       Repository

	Precompiled bool     // the modules are not built on this machine
	Shared      bool     // gpuadm mirror has built them, once for all machines; else the distribution has
	Skipped     []string // kernels without ready-made modules, for which gpuadm installs none

	// Parameters are those of the module nvidia that the machine's kind needs and the spec does not
	// set.
	Parameters map[string]string

	Fabric   string // what joins the GPUs: FabricOf
	Guest    bool   // a guest driver of NVIDIA vGPU
	Coherent bool   // CPU and GPU have one memory
	CUDA     string // the newest CUDA major version with programs that run: 13

	Warnings []string
}

// Member is one package of a driver.
type Member struct {
	Name      string // of headers on dnf systems with the kernel's version and architecture
	Role      string // module, library, firmware, utils, persistenced, modprobe, fabricmanager, headers, …
	Lockstep  bool   // its version is the driver's
	PerKernel string // the kernel that it is for; "" for all
}

// Repository is where the packages come from.
type Repository struct {
	URL         string   // "" for the repositories that the distribution has set up
	Distro      string   // ubuntu2404
	Arch        string   // as the repository says it: x86_64, sbsa
	Mirror      bool     // the spec names it: its other contents are not known
	Signed      string   // what the key signs, where the spec says it: both, metadata, packages
	KeyURL      string   // URL, or absolute path where the spec names a key
	Fingerprint string   // 40 or 64 upper-case hex digits; or "sha256:" and the digest of the key's file
	Component   string   // of the distribution's archive: restricted
	Needs       []string // repositories or components that the packages depend on: epel, crb, contrib
}

// Choose chooses the driver for a machine. It is pure. Each error is a *trouble.Error; its first
// sentence names the GPU or the setting that forbids a driver.
func Choose(c Catalog, m hardware.Machine, d spec.Driver) (Choice, error) {
	if owner := c.owner(m, d); owner != "" {
		if d.Owner == "gpuadm" {
			return Choice{}, refuse(
				fmt.Sprintf("cannot manage the driver: it is left to %s", owner),
				`write owner = "other" in [driver]: the driver is then verified, and not touched`,
				takeOver(owner))
		}
		return Choice{
			Source: SourceNone,
			Owner:  owner,
			Why:    "the driver is left to " + owner,
		}, nil
	}

	// GPUs is nil where they cannot be seen: an image may be for machines with GPUs.
	if m.GPUs != nil && len(m.GPUs) == 0 {
		return Choice{Source: SourceNone, Why: "there is no NVIDIA GPU on the PCI bus"}, nil
	}

	p := plan{catalog: c, machine: m, spec: d, limits: c.limits(m)}
	steps := []func() error{
		p.checkGPUs,
		p.checkGuest,
		p.chooseRepository,
		p.chooseVersion,
		p.chooseMembers,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return Choice{}, err
		}
	}

	p.derive()
	p.warnOfGPUs()
	p.warnOfBranch()
	p.warnOfVersion()
	return p.choice, nil
}

// plan is a choice in progress.
type plan struct {
	catalog Catalog
	machine hardware.Machine
	spec    spec.Driver
	limits  []limit // one for each GPU

	repo    repositoryRow
	branch  int
	missing []string // why modules are built here: a kernel has no ready-made ones
	choice  Choice
}

func (p *plan) warn(format string, args ...any) {
	p.choice.Warnings = append(p.choice.Warnings, fmt.Sprintf(format, args...))
}

func refuse(what string, try ...string) error {
	return &trouble.Error{What: what, Try: try}
}

// asked returns the version that was chosen, or else the branch.
func (p *plan) asked() string { return cmp.Or(p.choice.Version, p.choice.Branch) }

// derive sets the fields of the choice that follow from the others.
func (p *plan) derive() {
	choice := &p.choice
	choice.Repo.Component = p.components()
	choice.Minimum = p.minimum()
	choice.Unlisted = choice.Version != "" && choice.Source != SourceRunfile

	if major := p.catalog.cudaMajor(p.asked()); major > 0 {
		choice.CUDA = strconv.Itoa(major)
	}
	for _, l := range p.limits {
		if p.catalog.coherent(l.gpu.ID) {
			choice.Coherent = true
		}
	}
}

// warnOfGPUs warns of GPUs that the catalog does not know, or not for certain.
func (p *plan) warnOfGPUs() {
	for _, l := range p.limits {
		switch {
		case !l.known && l.arch.Open == "must":
			p.warn("%s is newer than this release knows: open kernel modules are taken, and it may need a newer driver", l)
		case !l.known:
			p.warn("%s is not known to this release, and older than Turing by its id: proprietary kernel modules are taken", l)
		}
	}

	if p.machine.GPUs == nil {
		p.warn("cannot see the GPUs from here: kernel modules are chosen for current GPUs")
	}
}

// warnOfBranch gives the reason for a branch that the spec does not name, and warns of a branch
// that has ended or that the catalog does not know.
func (p *plan) warnOfBranch() {
	row := p.catalog.branch(p.branch)
	if row == nil {
		p.warn("driver branch %d is not known to this release", p.branch)
		p.choice.Unlisted = true
		return
	}

	if p.spec.Version == "" {
		p.choice.Reason = row.Why
		p.warn("no version is asked for: branch %d is taken, and its newest version: %s",
			p.branch, cmp.Or(row.Why, p.repo.String()+" has no other branch"))
	}

	if p.spec.Repo.URL != "" {
		if why := p.notAtVendors(p.branch, strconv.Itoa(p.branch)); why != "" {
			p.warn("whether %s has branch %d is known once its lists are read: %s is not known to have it", p.spec.Repo.URL, p.branch, p.repo)
		}
	}

	if row.ended(p.machine.Day) {
		p.warn("driver branch %d ended in %s: no security fix will come for it", p.branch, row.End)
	}
}

// hasModules says whether a kernel has the modules that are asked for: then nothing is
// built for it.
func (p *plan) hasModules(kernel string) bool {
	on := p.machine.OnDisk[kernel]
	return p.isAsked(on.Version, on.Flavour)
}

// warnOfVersion warns of kernels that an exact version is known not to build for, and of modules
// whose version is not known before they are installed.
func (p *plan) warnOfVersion() {
	version := p.choice.Version
	if version == "" {
		return
	}

	for _, kernel := range p.machine.Kernels {
		why := p.catalog.knownBad(version, kernel, p.choice.Flavour)
		if why == "" && p.buildsNVIDIAs() && !p.hasModules(kernel) {
			why = tooOldFor(version, kernel)
		}
		if why != "" {
			p.warn("driver %s on kernel %s: %s", version, kernel, why)
		}
	}

	kernelsVersion := func(m Member) bool { return m.Role == "module" && !m.Lockstep }
	if p.choice.Precompiled && slices.ContainsFunc(p.choice.Members, kernelsVersion) {
		p.warn("the signed modules' packages have the kernel's version, not the driver's: whether they are %s is known only after they are installed", version)
	}
}
