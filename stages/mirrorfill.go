// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// fill gets packages, modules and their list into the new folder, and returns the names of the
// files, and the errors of modules that did not build.
func (m Mirror) fill(
	ctx context.Context, h host.Host, from packages.Gatherer, s spec.Spec, f facts.Facts, lock *packages.Lock,
) (names []string, failed []error, err error) {
	next := m.newFolder()
	g := packages.Gathering{
		Via:    via(s),
		Work:   path.Join(next, mirrorWork),
		Into:   next,
		Before: m.Dir,
		Say:    m.Say,
		Note:   m.Note,
	}
	names, err = m.gather(ctx, h, from, g, s, f)
	if err != nil {
		return nil, nil, err
	}
	failed, err = m.share(ctx, h, from, g, s, f, names, lock)
	if err != nil {
		return nil, nil, err
	}

	names = slices.AppendSeq(names, maps.Keys(lock.Modules))
	if m.Keep {
		names, err = m.linkKept(ctx, h, lock, names)
		if err != nil {
			return nil, nil, err
		}
	}

	list, err := from.Index(ctx, h, g, names)
	return append(names, list...), failed, err
}

// linkKept links the packages of the folder that an earlier run has written, in addition to those
// that are wanted now. It leaves out damaged ones.
func (m Mirror) linkKept(
	ctx context.Context, h host.Host, lock *packages.Lock, names []string,
) ([]string, error) {
	old, err := packages.ReadLock(h, m.Dir)
	if err != nil { // the machine has no mirror yet: see begin
		return names, nil
	}

	lock.Failed = stillFailed(old.Failed, *lock)
	var files []string
	for _, file := range old.Files {
		extension := path.Ext(file.Name)
		isPackage := extension == ".deb" || extension == ".rpm"
		if !isPackage || slices.Contains(names, file.Name) || !file.In(h, m.Dir) {
			continue
		}
		names = append(names, file.Name)
		files = append(files, path.Join(m.Dir, file.Name))
		if modules, built := old.Modules[file.Name]; built {
			lock.Modules[file.Name] = modules
		}
	}

	if len(files) == 0 {
		return names, nil
	}

	argv := append([]string{"ln", "-f", "-t", m.newFolder(), "--"}, files...)
	_, err = h.Do(ctx, argv...)
	return names, err
}

// gather gets the packages and the runfile into the folder, and returns the names of the files.
func (m Mirror) gather(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering,
	s spec.Spec, f facts.Facts,
) ([]string, error) {
	names, w, err := m.packages(ctx, h, from, g, s, f)
	if err != nil {
		return nil, err
	}

	// The headers may name a compiler that the spec's packages must include.
	kernels, err := m.compilers(ctx, h, from, g, w, names)
	if err != nil {
		return nil, err
	}
	f.Modules = &facts.Modules{Kernels: kernels}
	again, err := wantedPackages(drivers.New(nil), s, f)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(again.names(), w.names()) {
		names, _, err = m.packages(ctx, h, from, g, s, f)
		if err != nil {
			return nil, err
		}
	}

	choice, asked, err := drivers.New(nil).Choose(s, f)
	if err != nil || !asked || choice.Source != drivers.SourceRunfile {
		return names, err
	}
	runfile := path.Base(choice.Repo.URL)
	return append(names, runfile), m.getRunfile(ctx, h, g, s, choice.Repo.URL)
}

// compilers returns the kernels with the compiler that built each. DKMS builds modules with that
// compiler; the kernel's headers name it, except those of other builders. In dnf's distributions
// compilers have no packages of their own.
func (m Mirror) compilers(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, w wanted, names []string,
) (kernels []facts.KernelModules, err error) {
	folder := g.Work + "/headers"
	for _, kernel := range slices.Sorted(maps.Keys(w.headers)) {
		for _, file := range names {
			if !strings.HasPrefix(file, w.headers[kernel]+"_") {
				continue
			}
			if _, err := from.Open(ctx, h, path.Join(g.Into, file), folder); err != nil {
				return nil, err
			}
		}

		config, err := h.ReadFile(folder + "/usr/src/linux-headers-" + kernel + "/.config")
		if host.NotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		compiler := facts.CompilerIn(string(config))
		kernels = append(kernels, facts.KernelModules{Kernel: kernel, Compiler: compiler})
	}

	return kernels, nil
}

// getRunfile gets the runfile into the folder: from there or from the old mirror if it has the
// digest that the spec names, else from its URL.
func (m Mirror) getRunfile(
	ctx context.Context, h host.Host, g packages.Gathering, s spec.Spec, url string,
) error {
	name := path.Base(url)
	target := path.Join(g.Into, name)
	digest := s.Driver.Runfile.SHA256
	for _, dir := range []string{g.Into, m.Dir} {
		file, err := packages.Digest(h, path.Join(dir, name))
		if err != nil || !strings.EqualFold(file.SHA256, digest) {
			continue
		}
		if dir == m.Dir {
			_, err = h.Do(ctx, "ln", "-f", "--", path.Join(dir, name), target)
		}
		return err
	}

	m.Say(1, 0)
	request := host.Request{
		URL:    url,
		SHA256: digest,
		Max:    drivers.MaxRunfile,
		Via:    via(s),
	}
	return h.Download(ctx, request, target, host.Attr{Mode: 0o644})
}

// packages gets the packages that a spec asks for into the folder.
func (m Mirror) packages(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering,
	s spec.Spec, f facts.Facts,
) (names []string, w wanted, err error) {
	w, err = wantedPackages(drivers.New(nil), s, f)
	if err != nil {
		return nil, w, err
	}
	all := w.all()
	if len(all) == 0 {
		return nil, w, &trouble.Error{
			What: "cannot write the mirror: the spec asks for no packages",
			Try:  []string{"write [driver] with a version, or [toolkit]"},
		}
	}

	g.Repos = w.repos
	g.Request = packages.Request{Stream: w.stream}
	if w.family != nil {
		family := *w.family
		family.Exclude = "" // see Gather
		g.Request.Family = &family
	}

	for _, name := range w.names() {
		g.Request.Changes = append(g.Request.Changes, converge.Change{
			Ref:   converge.Ref{Kind: "package", Name: name},
			After: all[name].String(),
		})
	}

	names, err = from.Gather(ctx, h, g)
	return names, w, err
}
