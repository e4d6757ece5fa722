// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// unitFolder is where units are made and enabled by hand or by gpuadm.
const unitFolder = "/etc/systemd/system"

// unitFolders are all places that systemd reads, the first wins: systemd.unit(5).
func unitFolders() []string {
	return []string{
		"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient", "/run/systemd/generator.early",
		unitFolder, "/etc/systemd/system.attached", "/run/systemd/system", "/run/systemd/system.attached", "/run/systemd/generator",
		"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late",
	}
}

// unitFiles reads what systemd would know of a unit from its files alone, as where systemd does not
// run.
type unitFiles struct {
	*files.Files
	folders []listedFolder // those of unitFolders that are there
}

// listedFolder is one of systemd's folders, and what is in it: most units, and most folders of
// drop-ins, are looked for in each in vain.
type listedFolder struct {
	path   string
	names  []string // sorted
	listed bool
}

// has says whether a name is in the folder, or may be.
func (d listedFolder) has(name string) bool {
	_, found := slices.BinarySearch(d.names, name)
	return found || !d.listed
}

// unitsOf lists the folders, by ReadDir or by a reader that remembers. The distribution's own has
// hundreds of files: to look for the few names that are asked for takes less time than to list it.
// On most machines /lib is /usr/lib, and nothing new is in it.
func unitsOf(f *files.Files, list func(folder string) ([]string, error)) unitFiles {
	u := unitFiles{Files: f}
	for _, folder := range unitFolders() {
		switch folder {
		case "/lib/systemd/system":
			if real, err := f.Resolve(folder); err == nil && real == "/usr"+folder {
				continue
			}
			fallthrough
		case "/usr/lib/systemd/system":
			u.folders = append(u.folders, listedFolder{path: folder})
			continue
		}
		names, err := list(folder)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		u.folders = append(u.folders, listedFolder{folder, names, err == nil})
	}
	return u
}

// unitFile is a unit by its files.
type unitFile struct {
	host.Unit
	install map[string][]string // the [Install] section, drop-ins added
	link    string              // what a link that enables it says: its file as it was found
}

// read describes a unit. A unit that is not there is no error: its Load is not-found.
func (u unitFiles) read(name string) (unitFile, error) {
	found, err := u.list(name)
	if err != nil || found.Load != "loaded" {
		return found, err
	}
	if found.install, err = u.install(name, found.Files); err != nil {
		found.Load = "bad-setting"
		return found, nil
	}
	found.Enabled, err = u.enabled(name, found.install)
	return found, err
}

// list is read without what the files say.
func (u unitFiles) list(name string) (unitFile, error) {
	found := unitFile{Unit: host.Unit{Load: "not-found"}}
	file, masked, err := u.find(name)
	switch {
	case err != nil:
		return found, err
	case masked:
		found.Load, found.Enabled = "masked", "masked"
		return found, nil
	case file == "":
		return found, nil
	}
	found.Load, found.link = "loaded", file
	if real, err := u.Resolve(file); err == nil {
		found.Files = append(found.Files, real)
	}
	dropins, err := u.dropins(name)
	found.Files = append(found.Files, dropins...)
	return found, err
}

// find looks for a unit's own file. Instances of templates are not looked for: gpuadm has to do
// with none.
func (u unitFiles) find(name string) (file string, masked bool, err error) {
	for _, folder := range u.folders {
		if !folder.has(name) {
			continue
		}
		file := path.Join(folder.path, name)
		i, err := u.Plain(file)
		if err != nil {
			err = host.Failed("stat", file, err)
		}
		if err == nil && i.Mode&fs.ModeSymlink != 0 {
			if to, err := u.Readlink(file); err == nil && path.Clean(to) == "/dev/null" {
				return file, true, nil
			}
			i, err = u.Stat(file)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return "", false, err
		}
		return file, i.Size == 0 || !i.Mode.IsRegular(), nil // an empty file masks as well: systemd.unit(5)
	}
	return "", false, nil
}

// dropins lists the drop-ins of a unit in the order systemd reads them: by their own name, of those
// with the same name the one in the more special folder. systemd.unit(5).
func (u unitFiles) dropins(name string) ([]string, error) {
	kind := path.Ext(name)
	names := []string{name + ".d"}
	for stem := strings.TrimSuffix(name, kind); ; { // foo-bar.service also reads foo-.service.d
		cut := strings.LastIndex(strings.TrimSuffix(stem, "-"), "-")
		if cut < 0 {
			break
		}
		stem = stem[:cut+1]
		names = append(names, stem+kind+".d")
	}
	names = append(names, strings.TrimPrefix(kind, ".")+".d")

	seen := map[string]string{}
	for _, name := range names {
		for _, folder := range u.folders {
			if !folder.has(name) {
				continue
			}
			dir := path.Join(folder.path, name)
			files, err := u.ReadDir(dir)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
				continue
			}
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				if _, ok := seen[file]; !ok && strings.HasSuffix(file, ".conf") {
					seen[file] = path.Join(dir, file)
				}
			}
		}
	}
	var all []string
	for _, file := range slices.Sorted(maps.Keys(seen)) {
		real, err := u.Resolve(seen[file])
		if i, err2 := u.Stat(seen[file]); err != nil || err2 != nil || !i.Mode.IsRegular() { // masked by a link to /dev/null, or dangling
			continue
		}
		all = append(all, real)
	}
	return slices.Compact(all), nil // /lib and /usr/lib are one on most machines
}

// install collects the [Install] section of a unit's files. An empty value drops what came before.
// Of drop-ins only the unit's own count, as for systemctl (unit_file_search in systemd's
// install.c).
func (u unitFiles) install(name string, files []string) (map[string][]string, error) {
	all := map[string][]string{}
	for i, file := range files {
		if i > 0 && path.Base(path.Dir(file)) != name+".d" {
			continue
		}
		data, err := u.ReadFile(file)
		if err != nil {
			return nil, err
		}
		options, err := unit.DeserializeOptions(bytes.NewReader(data))
		if err != nil {
			return nil, host.Failed("read", file, err)
		}
		for _, o := range options {
			if o.Section != "Install" {
				continue
			}
			if o.Value == "" {
				delete(all, o.Name)
				continue
			}
			all[o.Name] = append(all[o.Name], strings.Fields(o.Value)...)
		}
	}
	return all, nil
}

// enabled is systemd's UnitFileState by its files. Presets are not read: they say what should be,
// not what is.
func (u unitFiles) enabled(name string, install map[string][]string) (string, error) {
	if links, err := u.links(name); err != nil {
		return "", err
	} else if len(links) > 0 {
		return "enabled", nil
	}
	if _, err := u.Readlink(path.Join(unitFolder, name)); err == nil {
		return "linked", nil
	}
	for _, by := range []string{"WantedBy", "RequiredBy", "UpheldBy", "Alias"} {
		if len(install[by]) > 0 {
			return "disabled", nil
		}
	}
	if len(install["Also"]) > 0 {
		return "indirect", nil
	}
	return "static", nil
}

// LinkFolders lists the folders of the links that enable units. Where no systemd runs, gpuadm makes
// these links itself.
func LinkFolders(v host.View) []string {
	folders := []string{unitFolder}
	names, _ := v.ReadDir(unitFolder) // a machine without it has no links
	for _, name := range names {
		switch path.Ext(name) {
		case ".wants", ".requires", ".upholds":
			folders = append(folders, path.Join(unitFolder, name))
		}
	}
	return folders
}

// links lists the links that enable a unit: those with its name in the .wants, .requires and
// .upholds folders of others, and those beside it that lead to it under another name.
func (u unitFiles) links(name string) ([]string, error) {
	names, err := u.ReadDir(unitFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []string
	for _, other := range names {
		at := path.Join(unitFolder, other)
		switch path.Ext(other) {
		case ".wants", ".requires", ".upholds":
			at = path.Join(at, name)
			if _, err := u.Readlink(at); err == nil {
				all = append(all, at)
			}
		default:
			if to, err := u.Readlink(at); err == nil && other != name && path.Base(to) == name {
				all = append(all, at)
			}
		}
	}
	return all, nil
}

// UnitOf describes a unit by its files alone, with the error Later.
func UnitOf(files *files.Files, name string) (host.Unit, error) {
	found, err := unitsOf(files, files.ReadDir).read(name)
	if err != nil {
		return found.Unit, err
	}
	return found.Unit, host.FirstBoot
}

// SetUnitOf changes a unit's links; if a job is wanted too, the error is a Later all the same.
func SetUnitOf(files *files.Files, name string, to host.UnitChange) error {
	if err := unitsOf(files, files.ReadDir).set(name, to.File); err != nil {
		return err
	}
	if to.Job != "" {
		return host.FirstBoot
	}
	return nil
}
