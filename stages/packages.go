// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
)

// needrestart is installed if its configuration is there.
const needrestart = "/etc/needrestart/needrestart.conf"

func packageNeeds(s spec.Spec) facts.Needs {
	if !s.Has("driver") && !s.Has("toolkit") {
		return facts.Needs{}
	}
	files := append(packages.SourceFolders(), needrestart)
	for _, url := range []string{s.Driver.Repo.URL, s.Toolkit.Repo.URL} {
		files = append(files, packages.LocksOf(url)...)
	}
	return drivers.Needs(s).And(facts.Needs{Files: files})
}

// wanted is all that the spec asks to install, and from where.
type wanted struct {
	manager string
	repos   []packages.Repository
	driver  map[string]packages.State
	toolkit map[string]packages.State
	headers map[string]string   // by kernel that modules are built for
	brings  map[string][]string // kernel modules, by the driver's packages
	asFound []string            // packages that no build needs now: they stay as found
	ifThere []string            // headers of kernels that need not have the driver yet: wanted only if available
	stream  string              // of dnf's module nvidia-driver; "" where there is none
	family  *packages.Family    // of the driver's packages
	lacks   []packages.Lack     // repositories and components that the driver's packages need, and that are not enabled here
	enable  bool                // gpuadm enables these
	mirrors []string            // folders that gpuadm mirror wrote
}

func (w wanted) names() []string {
	return slices.Sorted(maps.Keys(w.all()))
}

// held are the packages that are held in their version.
func (w wanted) held() (names []string) {
	for _, name := range w.names() {
		if w.all()[name].Held {
			names = append(names, name)
		}
	}
	return names
}

func (w wanted) all() map[string]packages.State {
	all := make(map[string]packages.State, len(w.driver)+len(w.toolkit))
	maps.Copy(all, w.driver)
	maps.Copy(all, w.toolkit)
	return all
}

func wantedPackages(d drivers.Driver, s spec.Spec, f facts.Facts) (wanted, error) {
	w := wanted{manager: f.OS.Packager().Name}
	c, asked, err := d.Choose(s, f)
	if err != nil {
		return w, err
	}
	if asked && c.Source != drivers.SourceNone {
		w.repos, w.driver, w.stream, w.headers, w.family = c.Repositories(), c.Packages(), c.Stream, c.Headers(), c.Family()
		w.brings = c.Brings()
		w.asFound, w.ifThere = c.Spared(s.Driver, f)
		if isMirror(f, s.Driver.Repo.URL) && c.Source == drivers.SourceRunfile {
			r := s.Driver.Repo // the packages that build modules come from the same folder
			w.repos = []packages.Repository{{ID: "driver", About: "what builds NVIDIA's modules", URL: r.URL, Key: r.Key, Fingerprint: r.Fingerprint, Mixed: true}}
		}
		w.enable = s.Driver.Repo.EnableNeeded
		if w.enable || f.Modules == nil || len(f.Modules.Libraries) == 0 { // an installed driver has found what it needs
			w.lacks = c.Lacks(f)
		}
	}
	if s.Has("toolkit") {
		w.add(toolkit.Repository(s.Toolkit, w.manager, f.Arch))
		w.toolkit = toolkit.Packages(s.Toolkit)
	}
	w.fromMirrors(f)
	return w, nil
}

// add adds a repository, once if both sections name it: apt refuses one URL with two keyrings
// (apt-pkg/deb/debmetaindex.cc: "Conflicting values set for option Signed-By").
func (w *wanted) add(r packages.Repository) {
	for i, other := range w.repos {
		if other.URL == r.URL && other.Fingerprint == r.Fingerprint && other.Signed == r.Signed && r.URL != "" {
			w.repos[i].Pins = slices.Concat(other.Pins, r.Pins)
			return
		}
	}
	w.repos = append(w.repos, r)
}

// isMirror says whether gpuadm mirror wrote the folder that a URL names.
func isMirror(f facts.Facts, url string) bool {
	return slices.ContainsFunc(packages.LocksOf(url), func(lock string) bool { _, is := f.Files[lock]; return is })
}

// fromMirrors has packages come from a mirror, if gpuadm mirror wrote one: the network may not
// reach the distribution's newer ones. A pin does this for apt; dnf reads no other repositories.
func (w *wanted) fromMirrors(f facts.Facts) {
	for i, r := range w.repos {
		if isMirror(f, r.URL) {
			w.mirrors, w.repos[i].Whole = append(w.mirrors, packages.FolderOf(r.URL)), true
			if r.ID == "driver" {
				w.stream, w.lacks, w.enable = "", nil, false // a mirror lists no streams, and has what the driver depends on
			}
			w.repos[i].Pins = append(slices.Clone(r.Pins), packages.Pin{Names: []string{"*"}, Pin: "release o=" + packages.MirrorOrigin, Priority: 990})
		}
	}
}

// sources is the stage of package repositories and the keys that sign them.
func sources(d drivers.Driver, database *packages.Reading) converge.Stage {
	return converge.Stage{
		Name: "sources", About: "where packages come from, and whose key signs them", Needs: packageNeeds,
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			w, err := wantedPackages(d, s, f)
			if err != nil || len(w.all()) == 0 {
				return sections(d.LeftAlone(s, f), s), err
			}
			wants, err := database.Repositories(w.manager, w.repos, via(s))
			if err != nil {
				return nil, err
			}
			w.sectioned(wants, database, s)
			more, err := database.Enabled(w.manager, w.enables())
			if err != nil {
				return nil, err
			}
			system := packages.System{ID: f.OS.ID, Version: f.OS.Version, Arch: f.Arch, Files: f.Files}
			wants = slices.Concat(more, database.Declared(w.manager, w.repos, system), wants)
			for _, dir := range w.mirrors {
				wants = append([]converge.Want{database.Mirrored(dir, w.all())}, wants...)
			}
			if w.stream != "" {
				wants = append(wants, dnf.Stream(w.stream, "dnf hides the driver's packages until their stream is enabled"))
			}
			set := packages.NewSet(database)
			set.Family = w.family
			for name, to := range w.all() {
				packages.Want(set, name, to, "") // so Database finishes half-done jobs of these packages
			}
			first := packages.Database(set, w.manager, "nothing is installed on top of a half-done job")
			wants = slices.Concat(d.LeftAlone(s, f), []converge.Want{first}, wants)
			return sections(wants, s), nil
		},
	}
}

// packageStage is the stage of all packages: one transaction.
func packageStage(d drivers.Driver, database *packages.Reading) converge.Stage {
	return converge.Stage{
		Name: "packages", About: "driver and toolkit packages, each in its one version: one transaction", Needs: packageNeeds, Verifies: "sources",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			w, err := wantedPackages(d, s, f)
			if err != nil {
				return nil, err
			}
			runfile, err := d.Runfile(s, f)
			if err == nil && len(w.all()) > 0 && database.Named(w.manager) == nil { // the stage sources has refused them
				w.driver, w.toolkit = nil, nil
			}
			if err != nil || len(w.all())+len(runfile) == 0 {
				return sections(d.LeftAlone(s, f), s), err
			}
			wants, err := d.Settings(s, f)
			if err != nil {
				return nil, err
			}
			// The lists must be read first: they say whether the distribution has built modules, or
			// DKMS builds them.
			_, restarts := f.Files[needrestart]
			wants = append(wants, database.Upgrades(w.manager, w.held(), restarts)...)
			set := packages.NewSet(database)
			set.Reads, set.Hold = w.reads(database.Contents(w.manager, w.repos, via(s)))
			set.Stream, set.Family, set.AsFound, set.IfThere, set.Lacks = w.stream, w.family, w.asFound, w.ifThere, w.lacks
			for _, name := range w.names() {
				why := "NVIDIA driver"
				if _, is := w.toolkit[name]; is {
					why = "NVIDIA Container Toolkit"
				}
				want := packages.Want(set, name, w.all()[name], why)
				want.Brings = w.brings[name]
				if _, is := w.toolkit[name]; is {
					want.Section = "toolkit"
				}
				wants = append(wants, want)
			}
			return sections(slices.Concat(d.LeftAlone(s, f), wants, runfile), s), nil
		},
	}
}

// sectioned marks the wants that only the toolkit's repository needs as section toolkit's. A
// repository's ID is its section's name.
func (w wanted) sectioned(wants []converge.Want, database *packages.Reading, s spec.Spec) {
	if len(w.driver) == 0 || len(w.toolkit) == 0 {
		return
	}
	other := slices.DeleteFunc(slices.Clone(w.repos), func(r packages.Repository) bool { return r.ID == "toolkit" })
	of, _ := database.Repositories(w.manager, other, via(s)) // the caller has called it for all of them without an error
	for i, want := range wants {
		if !slices.ContainsFunc(of, func(o converge.Want) bool { return o.Ref().Kind == want.Ref().Kind && o.Ref().Name == want.Ref().Name }) {
			wants[i].Section = "toolkit"
		}
	}
}

// via is the proxy through which gpuadm gets packages.
func via(s spec.Spec) host.Via {
	return host.Via{HTTP: s.Proxy.HTTP, HTTPS: s.Proxy.HTTPS, No: s.Proxy.NoProxy, CAFile: s.Proxy.CAFile}
}

// sections gives each want without a section one: driver, or toolkit if the spec has no [driver].
func sections(wants []converge.Want, s spec.Spec) []converge.Want {
	section := "driver"
	if !s.Has(section) {
		section = "toolkit"
	}
	for i, w := range wants {
		wants[i].Section = cmp.Or(w.Section, section)
	}
	return wants
}

// enables are the repositories and components that gpuadm enables: none, unless the spec says
// enable_needed.
func (w wanted) enables() []packages.Lack {
	if !w.enable {
		return nil
	}
	return w.lacks
}

// reads are the files about sources that gpuadm writes, and those of packages that gpuadm installs
// for them; hold is their desired content.
func (w wanted) reads(contents map[string][]byte) (files []string, hold map[string][]byte) {
	files = append(slices.Sorted(maps.Keys(contents)), packages.EnabledBy(w.enables())...)
	hold = maps.Clone(contents)
	for _, l := range w.enables() {
		if l.File != "" {
			hold[l.File] = l.Data
		}
	}
	return files, hold
}
