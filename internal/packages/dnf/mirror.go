// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	index   = "repodata" // the folder with the list of a mirror's packages
	indexer = "/usr/bin/createrepo_c"
)

// Gather has dnf itself resolve, fetch and verify, on a database in which only packages are
// installed that no repository has: see apt's Gather.
func (a dnf) Gather(ctx context.Context, h host.Host, g packages.Gathering) ([]string, error) {
	if err := requireDnf4(h); err != nil {
		return nil, err
	}
	if _, err := h.Stat(indexer); errors.Is(err, fs.ErrNotExist) {
		return nil, &trouble.Error{
			What: "cannot write the mirror: createrepo_c is not installed, which writes the list of packages that dnf reads",
			Try:  []string{"dnf install createrepo_c, then run the same command again"},
		}
	}

	a.root = rootOf(g)
	out, err := h.Ask(ctx, "rpm", "--eval", "%_dbpath")
	if err != nil {
		return nil, err
	}
	database := strings.TrimSpace(string(out))
	repos, main, err := a.isolate(ctx, h, g, database)
	if err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, h, "makecache"); err != nil {
		return nil, err
	}
	d, err := a.keepForeign(ctx, h, database)
	if err != nil {
		return nil, err
	}

	g.Request.Changes = d.withPlugin(g.Request.Changes)
	r, err := packages.Resolve(ctx, h, g.Request, d.packages, solver{a, d})
	if err != nil {
		return nil, err
	}
	var want []string
	for _, c := range packages.Due(r.Changes) {
		to := packages.Parse(c.After)
		if to.Installed() { // a package that gives way has no file
			want = append(want, named(c.Name, to.Version))
		}
	}
	files, err := a.files(ctx, h, want)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(unverified(repos, main, files))) {
		g.Note("repository " + id + " has gpgcheck=0 and repo_gpgcheck=0: packages of it are in the mirror, and no signature says whose they are")
	}
	return slices.Sorted(maps.Keys(files)), a.fetchInto(ctx, h, g, want, files)
}

// rootOf is dnf.root for a mirror.
func rootOf(g packages.Gathering) string { return g.Work + "/root" }

// An rpmFetched is a package's file, as repositories describe it.
type rpmFetched struct {
	size int64
	from []string // ids of the repositories that have it
}

// files returns the files of packages, by the name that dnf gives them.
func (a dnf) files(ctx context.Context, v host.View, want []string) (map[string]rpmFetched, error) {
	const format = "%{name}\t%{epoch}\t%{version}\t%{release}\t%{arch}\t%{repoid}\t%{downloadsize}"
	out, err := a.query(ctx, v, append([]string{"--showduplicates", "--qf", format}, want...)...)
	if err != nil {
		return nil, err
	}
	all := map[string]rpmFetched{}
	for _, row := range rows(out, 7) {
		name := row[0]
		version := row[2]
		release := row[3]
		arch := row[4]
		p := rpmPackage{name, evr(row[1], version, release), arch}
		if !p.isAmong(want) {
			continue
		}

		file := name + "-" + version + "-" + release + "." + arch + ".rpm"
		fetched := all[file]
		fetched.from = append(fetched.from, row[5])
		fetched.size, _ = strconv.ParseInt(row[6], 10, 64)
		all[file] = fetched
	}

	return all, nil
}

// isAmong reports whether the package is one of the wanted names in their versions. For a name
// without an architecture a query lists the packages of all, and dnf installs this machine's.
func (p rpmPackage) isAmong(want []string) bool {
	return slices.ContainsFunc(p.keys(), func(name string) bool {
		return slices.Contains(want, named(name, p.evr))
	})
}

// unverified returns the repositories that have some of the files, and whose settings, and
// dnf.conf's, make dnf verify nothing.
func unverified(repos, main []repository, files map[string]rpmFetched) map[string]bool {
	used := map[string]bool{}
	for _, file := range files {
		for _, id := range file.from {
			used[id] = true
		}
	}

	found := map[string]bool{}
	for _, r := range repos {
		verifies := r.isSet("gpgcheck", main) || r.isSet("repo_gpgcheck", main)
		if used[r.id] && !verifies {
			found[r.id] = true
		}
	}

	return found
}

// isSet reports whether a repository sets a boolean, or the section main of dnf.conf does for it:
// dnf.conf(5).
func (r repository) isSet(key string, conf []repository) bool {
	value, own := r.values[key]
	for _, section := range conf {
		if !own && section.id == "main" {
			value = section.values[key]
		}
	}

	return isTrue(value)
}

// fetchInto gets files into the folder. dnf verifies each by its repository's settings, also files
// of an earlier run: of these the folder has copies, since dnf may write to them.
func (a dnf) fetchInto(
	ctx context.Context,
	h host.Host,
	g packages.Gathering,
	want []string,
	files map[string]rpmFetched,
) error {
	var earlier []string
	missing := 0
	download := int64(0)
	room := int64(0)
	for name, file := range files {
		isIn := func(dir string) bool {
			info, err := h.Stat(path.Join(dir, name))
			return err == nil && info.Size == file.size
		}

		if isIn(g.Into) {
			continue
		}
		room += file.size
		if isIn(g.Before) {
			earlier = append(earlier, path.Join(g.Before, name))
			continue
		}
		missing++
		download += file.size
	}

	if err := packages.RoomFor(h, g.Into, room); err != nil {
		return err
	}
	if err := copyInto(ctx, h, g.Into, earlier, "cp", "--reflink=auto", "--remove-destination"); err != nil {
		return err
	}
	if missing > 0 {
		g.Say(missing, download)
	}
	install := []string{"install", "--allowerasing", "--downloadonly", "--downloaddir", g.Into}
	_, err := a.run(ctx, h, append(install, want...)...)
	return err
}

// Index has createrepo_c describe these packages and no others. The same packages have the same
// index: createrepo_c(8).
func (dnf) Index(ctx context.Context, h host.Host, g packages.Gathering, files []string) ([]string, error) {
	var names []string
	for _, name := range slices.Sorted(slices.Values(files)) {
		if path.Ext(name) == ".rpm" {
			names = append(names, name)
		}
	}

	list := g.Work + "/list"
	text := strings.Join(names, "\n") + "\n"
	if err := h.WriteFile(list, []byte(text), host.Attr{Mode: 0o644}); err != nil {
		return nil, err
	}

	folder := path.Join(g.Into, index)
	unfinished := path.Join(g.Into, "."+index) // of a run that was killed
	// The index has the times of the files.
	touch := []string{"env", "-C", g.Into, "touch", "-d", "@" + packages.Built, "--", list}
	for _, argv := range [][]string{
		{"rm", "-rf", "--", folder, unfinished},
		append(touch, names...),
		{
			"createrepo_c", "--quiet", "--no-database", "--simple-md-filenames",
			"--general-compress-type=gz", "--revision=" + packages.Built,
			"--set-timestamp-to-revision", "--pkglist=" + list, g.Into,
		},
	} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return nil, fmt.Errorf("cannot write the list of the mirror's packages: %w", err)
		}
	}

	var made []string
	for _, file := range packages.ListOf(h, folder) {
		made = append(made, path.Join(index, file))
	}
	return made, nil
}

// Sign signs the list, which has the digests of the other lists, which have those of the packages:
// dnf.conf(5), repo_gpgcheck.
func (dnf) Sign(h host.Host, dir string, by things.Signer) ([]string, error) {
	const name = index + "/repomd.xml"
	data, err := h.ReadFile(path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	signed, err := by.Detached(data, h.Now())
	if err != nil {
		return nil, err
	}
	return []string{name + ".asc"}, h.WriteFile(path.Join(dir, name+".asc"), signed, host.Attr{Mode: 0o644})
}
