// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
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
	Source      string
	Owner       string // with SourceNone: the driver's owner; "" if there is no GPU
	Why         string // with SourceNone: why nothing is to be installed
	Flavour     string
	Branch      string // 580
	Version     string // 580.95.05; "" when only a branch is asked for: its newest version
	Minimum     string // the driver version that the GPUs need at least; "" if none is known
	Members     []Member
	Extras      []string // parts of the driver that are installed only where the source has them in the driver's version
	Apart       []string // packages with a driver's name that the source gives versions of their own
	Stream      string   // of dnf's module nvidia-driver; "" where there are no streams
	Repo        Repository
	Unlisted    bool              // only the source's own lists say whether it has this version
	Precompiled bool              // the modules are not built here
	Shared      bool              // but once for all machines with the kernel, by gpuadm mirror; else by the distribution
	Without     []string          // kernels without such modules, for which gpuadm installs none
	Parameters  map[string]string // of the module nvidia, which the machine's kind asks for and the spec does not set
	Fabric      string            // what joins the GPUs: FabricOf
	Reason      string            // why gpuadm chose the branch, where the spec names none
	Guest       bool              // a guest driver of NVIDIA vGPU
	Coherent    bool              // CPU and GPU have one memory
	CUDA        string            // the newest CUDA major version with programs that run: 13
	Warnings    []string
}

// Member is one package of a driver.
type Member struct {
	Name      string // for headers on dnf systems with the kernel's version and architecture, which dnf takes as well
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
	Fingerprint string   // of the key: 40 or 64 upper-case hex digits; or "sha256:" and the digest of its file
	Component   string   // of the distribution's archive: restricted
	Needs       []string // repositories or components that the packages depend on: epel, crb, contrib
}

// Choose chooses the driver for a machine. It is pure. Each error is a *trouble.Error; its first
// sentence names the GPU or the setting that forbids a driver.
func Choose(c Catalog, m hardware.Machine, d spec.Driver) (Choice, error) {
	if owner := c.owner(m, d); owner != "" {
		if d.Owner == "gpuadm" {
			return Choice{}, refuse(fmt.Sprintf("cannot manage the driver: it is left to %s", owner),
				`write owner = "other" in [driver]: the driver is then verified, and not touched`, takeOver(owner))
		}
		return Choice{Source: SourceNone, Owner: owner, Why: "the driver is left to " + owner}, nil
	}
	if m.GPUs != nil && len(m.GPUs) == 0 {
		return Choice{Source: SourceNone, Why: "there is no NVIDIA GPU on the PCI bus"}, nil
	}
	p := plan{c: c, m: m, d: d, limits: c.limits(m)}
	if err := p.mixed(); err != nil {
		return Choice{}, err
	}
	if err := p.guest(); err != nil {
		return Choice{}, err
	}
	if err := p.from(); err != nil {
		return Choice{}, err
	}
	if err := p.decide(); err != nil {
		return Choice{}, err
	}
	if err := p.compose(); err != nil {
		return Choice{}, err
	}
	p.choice.Repo.Component = p.components()
	p.remark()
	return p.choice, nil
}

// plan is a choice in progress.
type plan struct {
	c      Catalog
	m      hardware.Machine
	d      spec.Driver
	limits []limit
	repo   repositoryRow
	branch int
	choice Choice

	lacking []string // why modules are not taken that are not built here: a kernel has none
}

func (p *plan) warn(format string, args ...any) {
	p.choice.Warnings = append(p.choice.Warnings, fmt.Sprintf(format, args...))
}

func refuse(what string, try ...string) error { return &trouble.Error{What: what, Try: try} }

// owner names the driver's owner; "" if that is gpuadm.
func (c Catalog) owner(m hardware.Machine, d spec.Driver) string {
	if m.Owner != "" {
		return m.Owner
	}
	for _, o := range c.Owners {
		for _, id := range o.IDs {
			if m.ID == id {
				return o.Owner
			}
		}
		if o.Name != "" && strings.Contains(m.Name, o.Name) {
			return o.Owner
		}
	}
	if d.Owner == "other" {
		return otherOwner + `: the spec says owner = "other"`
	}
	return ""
}

// takeOver says how gpuadm gets to manage a driver that has another owner. A GPUCluster installs no
// driver: NVIDIADriver resources install it, and one of them may be the default for all nodes.
// Source: https://github.com/NVIDIA/gpu-operator config/crd/bases;
// https://github.com/NVIDIA/cloud-native-docs gpu-operator/gpu-driver-configuration.rst and
// dra-intro-install.rst.
func takeOver(owner string) string {
	for _, p := range platform.All() {
		if p.Driver.TakeOver != "" && strings.HasPrefix(owner, p.Driver.Title+" (") {
			return p.Driver.TakeOver
		}
	}
	switch {
	case strings.HasPrefix(owner, facts.GPUOperator):
		return `or take it over: have the operator bring no driver to this node. With a ClusterPolicy that manages the driver, set driver.enabled=false; with NVIDIADriver resources (a GPUCluster has only these), delete the one for this node, the default one too, or keep its nodeSelector off this node. Wait until the driver container has left, then write owner = "gpuadm" in [driver]`
	case strings.HasPrefix(owner, facts.OSTree):
		return "gpuadm cannot take it over here: install the driver in the image (rpm-ostree install, or a new image)"
	case strings.HasPrefix(owner, facts.EKSImage):
		return "gpuadm cannot take it over here: use an image with the driver that is wanted, or one without a driver. An image that was made from an instance with GPUs keeps the driver of that instance: make the image from an instance without GPUs"
	case strings.HasPrefix(owner, facts.CIQDriver):
		return "or have CIQ's packages bring another branch: dnf install nvidia-dc-driver580 kmod-nvidia-dc-open580 --allowerasing. To take it over, remove them and reboot"
	case strings.HasPrefix(owner, otherOwner):
		return `or take it over: remove what its owner installed, and reboot; without owner = "other" in [driver], gpuadm then installs its own`
	}
	return "gpuadm cannot take it over on this system: have its owner install another version"
}

// otherOwner is the owner that a spec names with owner = "other".
const otherOwner = facts.OtherOwner

// remark fills in the fields that follow from the others, and adds the warnings.
func (p *plan) remark() {
	ch := &p.choice
	asked := cmp.Or(ch.Version, ch.Branch)
	if major := p.c.cudaMajor(asked); major > 0 {
		ch.CUDA = strconv.Itoa(major)
	}
	_, ch.Minimum = p.highest()
	ch.Coherent = slices.ContainsFunc(p.limits, func(l limit) bool { return p.c.coherent(l.gpu.ID) })
	for _, l := range p.limits {
		switch {
		case !l.known && l.arch.Open == "must":
			p.warn("%s is newer than this release knows: open kernel modules are taken, and it may need a newer driver", l)
		case !l.known:
			p.warn("%s is not known to this release, and older than Turing by its id: proprietary kernel modules are taken", l)
		case l.row.Confidence == "low" && l.row.Min != "" && below(asked, l.row.Min):
			p.warn("%s may need driver %s or newer; that is not verified", l, l.row.Min)
		}
	}
	if p.m.GPUs == nil {
		p.warn("cannot see the GPUs from here: kernel modules are chosen for current GPUs")
	}
	ch.Unlisted = ch.Version != "" && ch.Source != SourceRunfile
	p.remarkBranch()
	for _, k := range p.m.Kernels {
		if why := p.c.knownBad(ch.Version, k, ch.Flavour); ch.Version != "" && why != "" {
			p.warn("driver %s on kernel %s: %s", ch.Version, k, why)
		}
	}
	if ch.Version != "" && slices.ContainsFunc(ch.Members, func(m Member) bool { return ch.Precompiled && m.Role == "module" && !m.Lockstep }) {
		p.warn("the signed modules' packages have the kernel's version, not the driver's: whether they are %s is known only after they are installed", ch.Version)
	}
}

func (p *plan) remarkBranch() {
	i := slices.IndexFunc(p.c.Branches, func(b branchRow) bool { return b.Branch == p.branch })
	if i >= 0 && p.d.Version == "" {
		p.choice.Reason = p.c.Branches[i].Why
		p.warn("no version is asked for: branch %d is taken, and its newest version: %s", p.branch, cmp.Or(p.choice.Reason, p.repo.String()+" has no other branch"))
	}
	switch {
	case i < 0:
		p.warn("driver branch %d is not known to this release", p.branch)
		p.choice.Unlisted = true
	case p.c.Branches[i].ended(p.m.Day):
		p.warn("driver branch %d ended in %s: no security fix will come for it", p.branch, p.c.Branches[i].End)
	}
}
