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

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	ownRepos = "/repos" // below dnf.root: the repositories that a mirror is made from
	index    = "repodata"
	indexer  = "/usr/bin/createrepo_c"
)

// Gather has dnf itself resolve, fetch and verify, on a database in which only packages are
// installed that no repository has: see apt's Gather.
func (a dnf) Gather(ctx context.Context, h host.Host, g packages.Gathering) ([]string, error) {
	if err := spoken(h); err != nil {
		return nil, err
	}
	if _, err := h.Stat(indexer); errors.Is(err, fs.ErrNotExist) {
		return nil, &trouble.Error{
			What: "cannot write the mirror: createrepo_c is not installed, which writes the list of packages that dnf reads",
			Try:  []string{"dnf install createrepo_c, then run the same command again"},
		}
	}
	a.root = g.Work + "/root"
	out, err := h.Ask(ctx, "rpm", "--eval", "%_dbpath")
	if err != nil {
		return nil, err
	}
	database := strings.TrimSpace(string(out))
	repos, main, err := a.apart(ctx, h, g, database)
	if err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, h, "makecache"); err != nil {
		return nil, err
	}
	d, err := a.bare(ctx, h, database)
	if err != nil {
		return nil, err
	}
	g.Request.Changes = d.withPlugin(g.Request.Changes)
	r, err := packages.Resolve(ctx, h, g.Request, d.packages, solver{a, d})
	if err != nil {
		return nil, err
	}
	var what []string
	for _, c := range packages.Due(r.Changes) {
		what = append(what, named(c.Name, packages.Parse(c.After).Version))
	}
	files, err := a.files(ctx, h, what)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(unverified(repos, main, files))) {
		g.Note("repository " + id + " has gpgcheck=0 and repo_gpgcheck=0: packages of it are in the mirror, and no signature says whose they are")
	}
	return slices.Sorted(maps.Keys(files)), a.fetch(ctx, h, g, what, files)
}

// apart makes the root folder: the machine's database, streams and repositories, and those that the
// mirror is made from.
func (a dnf) apart(ctx context.Context, h host.Host, g packages.Gathering, database string) (repos, main []repository, err error) {
	if err := a.free(ctx, h); err != nil {
		return nil, nil, err
	}
	for _, argv := range [][]string{
		{"rm", "-rf", "--", a.root},
		{"mkdir", "-p", "--", a.root + database, a.root + ownRepos, a.root + moduleFolder},
		{"cp", "-L", "--", "/etc/os-release", a.root + "/etc/os-release"}, // dnf reads there of which platform streams are
	} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return nil, nil, fmt.Errorf("cannot prepare a folder for dnf: %w", err)
		}
	}
	var parts []string
	for _, name := range packages.ListOf(h, database) {
		if !strings.HasPrefix(name, "__db.") { // memory that processes share while Berkeley DB is open, of rpm before 4.16
			parts = append(parts, path.Join(database, name))
		}
	}
	if err := each(ctx, h, a.root+database, parts, "cp", "-a"); err != nil {
		return nil, nil, err
	}
	files := map[string][]byte{}
	for _, dir := range []string{moduleFolder, dnfRepos} {
		for _, name := range packages.ListOf(h, dir) {
			to := a.root + dir + "/" + name
			if dir == dnfRepos {
				to = a.root + ownRepos + "/" + name
				if strings.HasPrefix(name, packages.OurFiles) || !strings.HasSuffix(name, ".repo") {
					continue
				}
			}
			if files[to], err = h.ReadFile(dir + "/" + name); err != nil {
				return nil, nil, err
			}
		}
	}
	for _, r := range g.Repos {
		if r.URL == "" {
			continue
		}
		key := g.Work + "/" + path.Base(dnfKey(r))
		if err := things.Key(key, r.Key, r.Fingerprint, g.Via, "").Thing.Make(ctx, h, converge.State(r.Fingerprint)); err != nil {
			return nil, nil, err
		}
		files[a.root+ownRepos+"/"+path.Base(dnfSource(r))] = dnfRepo(r, key, g.Via)
	}
	if g.Request.Stream != "" {
		files[a.root+stream(driverModule).file()] = stream(driverModule).text(g.Request.Stream)
	}
	for name, data := range files {
		if err := h.WriteFile(name, data, host.Attr{Mode: 0o644}); err != nil {
			return nil, nil, err
		}
		if strings.HasPrefix(name, a.root+ownRepos) {
			repos = append(repos, enabled(name, data)...)
		}
	}
	conf, err := h.ReadFile("/etc/dnf/dnf.conf")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	return repos, parseRepos("dnf.conf", conf), nil
}

// bare leaves only the packages in the database that no repository has: a package that came from a
// file cannot be fetched.
func (a dnf) bare(ctx context.Context, h host.Host, database string) (rpmDatabase, error) {
	d, err := readRPM(ctx, h)
	if err != nil {
		return d, err
	}
	out, err := a.unfiltered().query(ctx, h, "--qf", "%{name}")
	if err != nil {
		return d, err
	}
	known := map[string]bool{}
	for name := range strings.Lines(out) {
		known[strings.TrimSpace(name)] = true
	}
	argv := []string{"rpm", "--dbpath", a.root + database, "-e", "--justdb", "--nodeps", "--noscripts", "--notriggers", "--allmatches", "--"}
	var list []rpmPackage
	for _, p := range d.list {
		if !known[p.name] {
			list = append(list, p)
		} else if !slices.Contains(argv, p.name) {
			argv = append(argv, p.name)
		}
	}
	if len(list) < len(d.list) {
		if out, err := h.Do(ctx, argv...); err != nil {
			return d, explain(h, string(out), err)
		}
	}
	d.list, d.locks = list, locks{}
	d.fill()
	return d, nil
}

// An rpmFetched is a package's file, as repositories describe it.
type rpmFetched struct {
	size int64
	from []string // ids of the repositories that have it
}

// files returns the files of packages, by the name that dnf gives them.
func (a dnf) files(ctx context.Context, v host.View, what []string) (map[string]rpmFetched, error) {
	const format = "%{name}\t%{epoch}\t%{version}\t%{release}\t%{arch}\t%{repoid}\t%{downloadsize}"
	out, err := a.query(ctx, v, append([]string{"--showduplicates", "--qf", format}, what...)...)
	if err != nil {
		return nil, err
	}
	all := map[string]rpmFetched{}
	for _, f := range rows(out, 7) {
		file := f[0] + "-" + f[2] + "-" + f[3] + "." + f[4] + ".rpm"
		one := all[file]
		one.size, _ = strconv.ParseInt(f[6], 10, 64)
		one.from = append(one.from, f[5])
		all[file] = one
	}
	return all, nil
}

// unverified returns the repositories that have some of the files, and whose settings, and
// dnf.conf's, make dnf verify nothing.
func unverified(repos, main []repository, files map[string]rpmFetched) map[string]bool {
	found := map[string]bool{}
	for _, r := range repos {
		verified := func(key string) bool {
			value, is := r.values[key]
			for _, m := range main {
				if !is && m.id == "main" { // dnf.conf(5)
					value = m.values[key]
				}
			}
			return says(value)
		}
		for _, one := range files {
			if slices.Contains(one.from, r.id) && !verified("gpgcheck") && !verified("repo_gpgcheck") {
				found[r.id] = true
			}
		}
	}
	return found
}

// fetch gets files into the folder. dnf verifies each by its repository's settings, also files of
// an earlier run: of these the folder has copies, since dnf may write to them.
func (a dnf) fetch(ctx context.Context, h host.Host, g packages.Gathering, what []string, files map[string]rpmFetched) error {
	missing, size, room := 0, int64(0), int64(0)
	var there []string
	for name, one := range files {
		in := func(dir string) bool {
			i, err := h.Stat(path.Join(dir, name))
			return err == nil && i.Size == one.size
		}
		switch {
		case in(g.Into):
			continue
		case in(g.Before):
			there = append(there, path.Join(g.Before, name))
		default:
			missing, size = missing+1, size+one.size
		}
		room += one.size
	}
	if err := packages.RoomFor(h, g.Into, room); err != nil {
		return err
	}
	if err := each(ctx, h, g.Into, there, "cp", "--reflink=auto", "--remove-destination"); err != nil {
		return err
	}
	if missing > 0 {
		g.Say(missing, size)
	}
	_, err := a.run(ctx, h, append([]string{"install", "--allowerasing", "--downloadonly", "--downloaddir", g.Into}, what...)...)
	return err
}

// each runs a program that gets files into a folder, if there are any.
func each(ctx context.Context, h host.Host, into string, files []string, argv ...string) error {
	if len(files) == 0 {
		return nil
	}
	_, err := h.Do(ctx, slices.Concat(argv, []string{"-t", into, "--"}, files)...)
	return err
}

// Index has createrepo_c describe these packages and no others.
func (dnf) Index(ctx context.Context, h host.Host, g packages.Gathering, files []string) ([]string, error) {
	names := slices.DeleteFunc(slices.Sorted(slices.Values(files)), func(name string) bool { return path.Ext(name) != ".rpm" })
	list := g.Work + "/list"
	if err := h.WriteFile(list, []byte(strings.Join(names, "\n")+"\n"), host.Attr{Mode: 0o644}); err != nil {
		return nil, err
	}
	for _, argv := range [][]string{
		{"rm", "-rf", "--", path.Join(g.Into, index), path.Join(g.Into, "."+index)},                          // the second is of a run that was killed
		slices.Concat([]string{"env", "-C", g.Into, "touch", "-d", "@" + packages.Built, "--", list}, names), // the index has their times
		{
			"createrepo_c", "--quiet", "--no-database", "--simple-md-filenames", "--general-compress-type=gz", "--revision=" + packages.Built,
			// so that the same packages have the same index: createrepo_c(8)
			"--set-timestamp-to-revision", "--pkglist=" + list, g.Into,
		},
	} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return nil, fmt.Errorf("cannot write the list of the mirror's packages: %w", err)
		}
	}
	var made []string
	for _, file := range packages.ListOf(h, path.Join(g.Into, index)) {
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
