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

// Gather has dnf itself resolve, fetch and verify, on a database in which only packages are installed that no repository has:
// see apt's Gather.
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
	repos, err := a.apart(ctx, h, g, database)
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
	for _, id := range slices.Sorted(maps.Keys(unverified(repos, files))) {
		g.Note("repository " + id + " has gpgcheck=0 and repo_gpgcheck=0: packages of it are in the mirror, and no signature says whose they are")
	}
	if err := a.fetch(ctx, h, g, what, files); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(files))
	if g.Keep {
		var links []string
		for _, name := range kept(h, g.Before, names) {
			names, links = append(names, name), append(links, path.Join(g.Before, name))
		}
		if err := each(ctx, h, g.Into, links, "ln", "-f"); err != nil {
			return nil, err
		}
	}
	return a.index(ctx, h, g, names)
}

// apart makes the root folder: the machine's database, streams and repositories, and those that the mirror is made from.
func (a dnf) apart(ctx context.Context, h host.Host, g packages.Gathering, database string) (repos []repository, err error) {
	if err := a.free(ctx, h); err != nil {
		return nil, err
	}
	for _, argv := range [][]string{
		{"rm", "-rf", "--", a.root},
		{"mkdir", "-p", "--", a.root + database, a.root + ownRepos, a.root + moduleFolder, g.Work + "/rpms"},
		{"cp", "-L", "--", "/etc/os-release", a.root + "/etc/os-release"}, // dnf reads there of which platform streams are
	} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return nil, fmt.Errorf("cannot prepare a folder for dnf: %w", err)
		}
	}
	var parts []string
	for _, name := range packages.ListOf(h, database) {
		if !strings.HasPrefix(name, "__db.") { // memory that processes share while Berkeley DB is open, of rpm before 4.16
			parts = append(parts, path.Join(database, name))
		}
	}
	if err := each(ctx, h, a.root+database, parts, "cp", "-a"); err != nil {
		return nil, err
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
				return nil, err
			}
		}
	}
	for _, r := range g.Repos {
		if r.URL == "" {
			continue
		}
		key := g.Work + "/" + path.Base(dnfKey(r))
		if err := things.Key(key, r.Key, r.Fingerprint, g.Via, "").Thing.Make(ctx, h, converge.State(r.Fingerprint)); err != nil {
			return nil, err
		}
		files[a.root+ownRepos+"/"+path.Base(dnfSource(r))] = dnfRepo(r, key, g.Via)
	}
	if g.Request.Stream != "" {
		files[a.root+stream(driverModule).file()] = stream(driverModule).text(g.Request.Stream)
	}
	for name, data := range files {
		if err := h.WriteFile(name, data, host.Attr{Mode: 0o644}); err != nil {
			return nil, err
		}
		if strings.HasPrefix(name, a.root+ownRepos) {
			repos = append(repos, enabled(name, data)...)
		}
	}
	conf, err := h.ReadFile("/etc/dnf/dnf.conf")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return withMain(repos, parseRepos("dnf.conf", conf)), nil
}

// withMain fills in what dnf.conf says for all repositories of how they are verified: dnf.conf(5).
func withMain(repos, main []repository) []repository {
	for _, m := range main {
		for _, r := range repos {
			for _, key := range []string{"gpgcheck", "repo_gpgcheck"} {
				if _, is := r.values[key]; !is && m.id == "main" {
					r.values[key] = m.values[key]
				}
			}
		}
	}
	return repos
}

// bare leaves only the packages in the database that no repository has: a package that came from a file cannot be fetched.
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

// unverified returns the repositories that have some of the files, and whose settings make dnf verify nothing.
func unverified(repos []repository, files map[string]rpmFetched) map[string]bool {
	found := map[string]bool{}
	for _, r := range repos {
		if says(r.values["gpgcheck"]) || says(r.values["repo_gpgcheck"]) {
			continue
		}
		for _, one := range files {
			if slices.Contains(one.from, r.id) {
				found[r.id] = true
			}
		}
	}
	return found
}

// fetch gets files into the folder. dnf verifies each by its repository's settings, also files of an earlier run: it works on
// copies of these, since it may write to them. An unchanged file becomes a link to the earlier one, with its time.
func (a dnf) fetch(ctx context.Context, h host.Host, g packages.Gathering, what []string, files map[string]rpmFetched) error {
	rpms := g.Work + "/rpms"
	missing, size, all := 0, int64(0), int64(0)
	var there []string
	for name, one := range files {
		all += one.size
		at := slices.IndexFunc([]string{rpms, g.Into, g.Before}, func(dir string) bool {
			i, err := h.Stat(path.Join(dir, name))
			return err == nil && i.Size == one.size
		})
		switch at {
		case -1:
			missing, size = missing+1, size+one.size
		case 1, 2:
			there = append(there, path.Join([]string{"", g.Into, g.Before}[at], name))
		}
	}
	if err := packages.RoomFor(h, g.Into, all); err != nil {
		return err
	}
	if err := each(ctx, h, rpms, there, "cp", "-p", "--reflink=auto"); err != nil {
		return err
	}
	if missing > 0 {
		g.Say(missing, size)
	}
	if _, err := a.run(ctx, h, append([]string{"install", "--downloadonly", "--downloaddir", rpms}, what...)...); err != nil {
		return err
	}
	var same, others []string
	for name := range files {
		is, err := packages.Digest(h, path.Join(rpms, name))
		if err != nil {
			return fmt.Errorf("cannot find the file of a package that dnf fetched: %w", err)
		}
		if was, err := packages.Digest(h, path.Join(g.Before, name)); err == nil && was == is {
			same = append(same, path.Join(g.Before, name))
		} else {
			others = append(others, path.Join(rpms, name))
		}
	}
	if err := each(ctx, h, g.Into, same, "ln", "-f"); err != nil {
		return err
	}
	return each(ctx, h, g.Into, others, "mv", "-f")
}

// each runs a program that gets files into a folder, if there are any.
func each(ctx context.Context, h host.Host, into string, files []string, argv ...string) error {
	if len(files) == 0 {
		return nil
	}
	_, err := h.Do(ctx, slices.Concat(argv, []string{"-t", into, "--"}, files)...)
	return err
}

// kept returns the packages of an earlier mirror, beside those that are wanted now. It leaves out damaged files.
func kept(v host.View, dir string, wanted []string) (names []string) {
	old, err := packages.ReadLock(v, dir)
	if err != nil {
		return nil // there is none
	}
	for _, f := range old.Files {
		if strings.HasSuffix(f.Name, ".rpm") && !slices.Contains(wanted, f.Name) && f.In(v, dir) {
			names = append(names, f.Name)
		}
	}
	return names
}

// index has createrepo_c describe these packages and no others.
func (a dnf) index(ctx context.Context, h host.Host, g packages.Gathering, names []string) ([]string, error) {
	slices.Sort(names)
	list := g.Work + "/list"
	if err := h.WriteFile(list, []byte(strings.Join(names, "\n")+"\n"), host.Attr{Mode: 0o644}); err != nil {
		return nil, err
	}
	for _, argv := range [][]string{
		{"rm", "-rf", "--", path.Join(g.Into, index), path.Join(g.Into, "."+index)}, // the second is of a run that was killed
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
	for _, file := range packages.ListOf(h, path.Join(g.Into, index)) {
		names = append(names, path.Join(index, file))
	}
	return names, nil
}

// Configs is empty: compilers of kernels have no packages of their own, see drivers.
func (dnf) Configs(context.Context, host.Host, string, string, map[string]string) (map[string]string, error) {
	return nil, nil
}

// Sign signs the list, which has the digests of the other lists, which have those of the packages: dnf.conf(5), repo_gpgcheck.
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
