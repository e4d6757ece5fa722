// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// ownRepos is the folder below dnf.root with the repositories that a mirror is made from.
const ownRepos = "/repos"

// isolate makes the root folder: the machine's database, streams and repositories, and those that
// the mirror is made from. main is the section of dnf.conf's own settings.
func (a dnf) isolate(
	ctx context.Context,
	h host.Host,
	g packages.Gathering,
	database string,
) (repos, main []repository, err error) {
	if err := a.copyDatabase(ctx, h, database); err != nil {
		return nil, nil, err
	}
	files, err := a.machineFiles(h)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range g.Repos {
		if r.URL == "" {
			continue
		}
		file := g.Work + "/" + path.Base(dnfKey(r))
		key := things.Key(file, r.Key, r.Fingerprint, g.Via, "").Thing
		if err := key.Make(ctx, h, converge.State(r.Fingerprint)); err != nil {
			return nil, nil, err
		}
		files[a.root+ownRepos+"/"+path.Base(dnfSource(r))] = repoFile(r, file, g.Via)
	}

	if g.Request.Stream != "" {
		module := stream(driverModule)
		files[a.root+module.file()] = module.text(g.Request.Stream)
	}

	// Files of repositories may hold passwords, and everybody may read the folder of a mirror.
	private := host.Attr{Mode: 0o600}
	for name, data := range files {
		if err := h.WriteFile(name, data, private); err != nil {
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

// copyDatabase copies rpm's database once no transaction runs.
func (a dnf) copyDatabase(ctx context.Context, h host.Host, database string) error {
	if err := a.free(ctx, h); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"rm", "-rf", "--", a.root},
		{"mkdir", "-p", "--", a.root + database, a.root + ownRepos, a.root + moduleFolder},
		// dnf reads there for which platform streams are.
		{"cp", "-L", "--", "/etc/os-release", a.root + "/etc/os-release"},
	} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return fmt.Errorf("cannot prepare a folder for dnf: %w", err)
		}
	}

	// The files __db.* are memory that processes share while Berkeley DB is open, of rpm before
	// 4.16.
	names, err := namesIn(h, database)
	if err != nil {
		return err
	}
	var files []string
	for _, name := range names {
		if !strings.HasPrefix(name, "__db.") {
			files = append(files, path.Join(database, name))
		}
	}

	return copyInto(ctx, h, a.root+database, files, "cp", "-a")
}

// machineFiles returns the machine's streams and other tools' repositories, by their names below
// the root folder.
func (a dnf) machineFiles(v host.View) (map[string][]byte, error) {
	files := map[string][]byte{}
	read := func(file, to string) error {
		data, err := v.ReadFile(file)
		files[to] = data
		return err
	}

	streams, err := namesIn(v, moduleFolder)
	if err != nil {
		return nil, err
	}
	for _, name := range streams {
		file := moduleFolder + "/" + name
		if err := read(file, a.root+file); err != nil {
			return nil, err
		}
	}

	repos, err := namesIn(v, dnfRepos)
	if err != nil {
		return nil, err
	}
	for _, name := range repos {
		if strings.HasPrefix(name, packages.OurFiles) || !strings.HasSuffix(name, ".repo") {
			continue
		}
		if err := read(dnfRepos+"/"+name, a.root+ownRepos+"/"+name); err != nil {
			return nil, err
		}
	}

	return files, nil
}

// namesIn returns the names in a folder, none if it does not exist. Of a folder that cannot be listed
// a mirror would miss a part.
func namesIn(v host.View, folder string) ([]string, error) {
	names, err := v.ReadDir(folder)
	if host.NotExist(err) {
		return nil, nil
	}
	return names, err
}

// keepForeign leaves only the packages in the database that no repository has: a package that came
// from a file cannot be fetched.
func (a dnf) keepForeign(ctx context.Context, h host.Host, database string) (rpmDatabase, error) {
	d, err := a.readRPM(ctx, h)
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

	var foreign []rpmPackage
	var remove []string
	for _, p := range d.list {
		switch {
		case !known[p.name]:
			foreign = append(foreign, p)
		case !slices.Contains(remove, p.name):
			remove = append(remove, p.name)
		}
	}

	if len(remove) > 0 {
		erase := []string{
			"rpm", "--dbpath", a.root + database, "-e", "--justdb", "--nodeps",
			"--noscripts", "--notriggers", "--allmatches", "--",
		}
		if out, err := h.Do(ctx, append(erase, remove...)...); err != nil {
			return d, explain(h, string(out), err)
		}
	}

	d.list = foreign
	d.locks = locks{}
	d.fill()
	return d, nil
}

// copyInto runs a program that gets files into a folder, if there are any.
func copyInto(ctx context.Context, h host.Host, into string, files []string, argv ...string) error {
	if len(files) == 0 {
		return nil
	}
	_, err := h.Do(ctx, slices.Concat(argv, []string{"-t", into, "--"}, files)...)
	return err
}
