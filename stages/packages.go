// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"cmp"
	"slices"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// needrestart is installed if its configuration exists.
const needrestart = "/etc/needrestart/needrestart.conf"

// packageNeeds are the facts that both stages of packages read.
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

// sources is the stage of package repositories and the keys that sign them.
func sources(d drivers.Driver, database *packages.Reading) converge.Stage {
	return converge.Stage{
		Name:  "sources",
		About: "where packages come from, and whose key signs them",
		Needs: packageNeeds,
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			w, err := wantedPackages(d, s, f)
			if err != nil || len(w.all()) == 0 {
				return sections(d.LeftAlone(s, f), s), err
			}
			wants, err := sourceWants(w, database, s, f)
			if err != nil {
				return nil, err
			}
			return sections(slices.Concat(d.LeftAlone(s, f), wants), s), nil
		},
	}
}

// sourceWants are the wants of the repositories that the packages come from.
func sourceWants(
	w wanted, database *packages.Reading, s spec.Spec, f facts.Facts,
) ([]converge.Want, error) {
	repositories, err := database.Repositories(w.manager, w.repos, via(s))
	if err != nil {
		return nil, err
	}
	w.markToolkits(repositories, database, s)
	enabled, err := database.Enabled(w.manager, w.enables())
	if err != nil {
		return nil, err
	}

	// So Database finishes half-done jobs of these packages.
	set := packages.NewSet(database)
	set.Family = w.family
	for name, to := range w.all() {
		packages.Want(set, name, to, "")
	}
	wants := []converge.Want{
		packages.Database(set, w.manager, "nothing is installed on top of a half-done job"),
	}

	for _, dir := range slices.Backward(w.mirrors) {
		wants = append(wants, database.Mirrored(dir, w.all()))
	}
	system := packages.System{
		ID:      f.OS.ID,
		Version: f.OS.Version,
		Arch:    f.Arch,
		Files:   f.Files,
	}
	wants = append(wants, enabled...)
	wants = append(wants, database.Declared(w.manager, w.repos, system)...)
	wants = append(wants, repositories...)
	if w.stream != "" {
		wants = append(wants, dnf.Stream(w.stream, "dnf hides the driver's packages until their stream is enabled"))
	}
	return wants, nil
}

// packageStage is the stage of all packages: one transaction.
func packageStage(d drivers.Driver, database *packages.Reading) converge.Stage {
	return converge.Stage{
		Name:     "packages",
		About:    "driver and toolkit packages, each in its one version: one transaction",
		Needs:    packageNeeds,
		Verifies: "sources",
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			w, err := wantedPackages(d, s, f)
			if err != nil {
				return nil, err
			}
			runfile, err := d.Runfile(s, f)
			if err != nil {
				return nil, err
			}

			if database.Named(w.manager) == nil { // the stage sources refuses these packages
				w.driver = nil
				w.toolkit = nil
			}
			if len(w.all())+len(runfile) == 0 {
				return sections(d.LeftAlone(s, f), s), nil
			}

			wants, err := d.Settings(s, f)
			if err != nil {
				return nil, err
			}
			wants = append(wants, packageWants(w, database, s, f)...)
			return sections(slices.Concat(d.LeftAlone(s, f), wants, runfile), s), nil
		},
	}
}

// packageWants are the wants of all packages, behind those of the lists of repositories: the lists
// say whether the distribution has built modules, or DKMS builds them.
func packageWants(
	w wanted, database *packages.Reading, s spec.Spec, f facts.Facts,
) []converge.Want {
	_, restarts := f.Files[needrestart]
	wants := database.Upgrades(w.manager, w.held(), restarts)

	set := packages.NewSet(database)
	set.Reads, set.Hold = w.reads(database.Contents(w.manager, w.repos, via(s)))
	set.Stream = w.stream
	set.Family = w.family
	set.AsFound = w.asFound
	set.IfThere = w.ifThere
	set.Lacks = w.lacks

	all := w.all()
	for _, name := range w.names() {
		_, ofToolkit := w.toolkit[name]
		why := "NVIDIA driver"
		section := ""
		if ofToolkit {
			why = "NVIDIA Container Toolkit"
			section = "toolkit"
		}

		want := packages.Want(set, name, all[name], why)
		want.Section = section
		want.Brings = w.brings[name]
		wants = append(wants, want)
	}

	return wants
}

// markToolkits marks the wants that only the toolkit's repository needs as section toolkit's. A
// repository's ID is its section's name.
func (w wanted) markToolkits(wants []converge.Want, database *packages.Reading, s spec.Spec) {
	if len(w.driver) == 0 || len(w.toolkit) == 0 {
		return
	}

	isToolkits := func(r packages.Repository) bool { return r.ID == "toolkit" }
	others := slices.DeleteFunc(slices.Clone(w.repos), isToolkits)
	// The caller has called it for all of them without an error.
	needed, _ := database.Repositories(w.manager, others, via(s))
	for i, want := range wants {
		ref := want.Ref()
		same := func(o converge.Want) bool {
			return o.Ref().Kind == ref.Kind && o.Ref().Name == ref.Name
		}
		if !slices.ContainsFunc(needed, same) {
			wants[i].Section = "toolkit"
		}
	}
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

// via is the proxy through which gpuadm gets packages.
func via(s spec.Spec) host.Via {
	return host.Via{
		HTTP:   s.Proxy.HTTP,
		HTTPS:  s.Proxy.HTTPS,
		No:     s.Proxy.NoProxy,
		CAFile: s.Proxy.CAFile,
	}
}
