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

// unitFolders returns all folders that systemd reads; the first that has a file wins:
// systemd.unit(5).
func unitFolders() []string {
	return []string{
		"/etc/systemd/system.control", "/run/systemd/system.control",
		"/run/systemd/transient", "/run/systemd/generator.early",

		unitFolder, "/etc/systemd/system.attached",
		"/run/systemd/system", "/run/systemd/system.attached", "/run/systemd/generator",

		"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
		"/run/systemd/generator.late",
	}
}

// unitFiles reads what systemd would know of a unit from its files alone. It serves machines on
// which systemd does not run.
type unitFiles struct {
	*files.Files
	folders []listedFolder // those of unitFolders that exist
}

// listedFolder is one of systemd's folders with the names in it: most folders have no file and no
// drop-ins for a unit.
type listedFolder struct {
	path   string
	names  []string // sorted
	listed bool
}

// mayHave reports whether a name is in the folder, or the folder is not listed.
func (d listedFolder) mayHave(name string) bool {
	_, found := slices.BinarySearch(d.names, name)
	return found || !d.listed
}

// unitsOf lists the folders, by ReadDir or by a reader that remembers. It does not list the
// distribution's own folder, which has hundreds of files: a look for the few names in question
// takes less time. On most machines /lib is /usr/lib, so that it has nothing new.
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
		if notThere(err) {
			continue
		}
		u.folders = append(u.folders, listedFolder{
			path:   folder,
			names:  names,
			listed: err == nil,
		})
	}

	return u
}

// unitFile is a unit by its files.
type unitFile struct {
	host.Unit
	install map[string][]string // the [Install] section, drop-ins added
	link    string              // what a link that enables it says: its file as it was found
}

// read describes a unit. A unit that does not exist is not an error: its Load is not-found.
func (u unitFiles) read(name string) (unitFile, error) {
	found, err := u.list(name)
	if err != nil || found.Load != "loaded" {
		return found, err
	}
	found.install, err = u.install(name, found.Files)
	switch {
	case errors.As(err, new(malformed)):
		found.Load = "bad-setting"
		return found, nil
	case err != nil:
		return found, err
	}
	found.Enabled, err = u.enabled(name, found.install)
	return found, err
}

// list is read without the content of the files.
func (u unitFiles) list(name string) (unitFile, error) {
	found := unitFile{Unit: host.Unit{Load: "not-found"}}
	file, masked, err := u.find(name)
	switch {
	case err != nil:
		return found, err
	case masked:
		found.Load = "masked"
		found.Enabled = "masked"
		return found, nil
	case file == "":
		return found, nil
	}

	found.Load = "loaded"
	found.link = file
	names := []string{name}
	if real, err := u.Resolve(file); err == nil {
		found.Files = append(found.Files, real)
		if of := path.Base(real); of != name && u.holds(path.Dir(real)) {
			names = append(names, of)
		}
	}

	dropins, err := u.dropins(names...)
	found.Files = append(found.Files, dropins...)

	return found, err
}

// holds reports whether a folder is one of the unit folders: a link to a file in one is an alias, a
// link to another file is not. systemd.unit(5).
func (u unitFiles) holds(folder string) bool {
	return slices.ContainsFunc(u.folders, func(f listedFolder) bool {
		real, err := u.Resolve(f.path)
		return f.path == folder || err == nil && real == folder
	})
}

// find looks for a unit's own file. It does not look for instances of templates: gpuadm deals with
// none.
func (u unitFiles) find(name string) (file string, masked bool, err error) {
	for _, folder := range u.folders {
		if !folder.mayHave(name) {
			continue
		}
		file := path.Join(folder.path, name)
		masked, err := u.masks(file)
		if notThere(err) {
			continue
		}
		if err != nil {
			return "", false, err
		}
		return file, masked, nil
	}
	return "", false, nil
}

// masks reports whether a unit's file masks the unit: a link to /dev/null, an empty file, or a file
// that is not regular. systemd.unit(5).
func (u unitFiles) masks(file string) (bool, error) {
	i, err := u.Plain(file)
	if err != nil {
		return false, host.Failed("stat", file, err)
	}
	if i.Mode&fs.ModeSymlink != 0 {
		to, err := u.Readlink(file)
		if err == nil && path.Clean(to) == "/dev/null" {
			return true, nil
		}
		i, err = u.Stat(file)
		if err != nil {
			return false, err
		}
	}

	return i.Size == 0 || !i.Mode.IsRegular(), nil
}

// notThere reports whether an error says that a file does not exist, or that its folder is a file.
func notThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// dropins lists the drop-ins of a unit in the order in which systemd reads them: by their own name.
// If several have one name, the one in the more special folder counts. An alias has those of the
// unit that it names, too. systemd.unit(5).
func (u unitFiles) dropins(names ...string) ([]string, error) {
	var folders []string
	for _, name := range names {
		folders = append(folders, dropinFolders(name)...)
	}
	found := map[string]string{} // the path, by the drop-in's own name
	for _, name := range folders {
		for _, folder := range u.folders {
			if !folder.mayHave(name) {
				continue
			}
			dir := path.Join(folder.path, name)
			files, err := u.ReadDir(dir)
			if notThere(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				if _, ok := found[file]; !ok && strings.HasSuffix(file, ".conf") {
					found[file] = path.Join(dir, file)
				}
			}
		}
	}

	var all []string
	for _, file := range slices.Sorted(maps.Keys(found)) {
		real, err := u.Resolve(found[file])
		if err != nil {
			continue
		}
		i, err := u.Stat(found[file])
		if err != nil || !i.Mode.IsRegular() { // masked by a link to /dev/null, or dangling
			continue
		}
		all = append(all, real)
	}

	return slices.Compact(all), nil // /lib and /usr/lib are one on most machines
}

// dropinFolders lists the names that the folders of a unit's drop-ins have, the most special first:
// foo-bar.service.d, foo-.service.d, service.d.
func dropinFolders(unit string) []string {
	kind := path.Ext(unit)
	names := []string{unit + ".d"}
	stem := strings.TrimSuffix(unit, kind)
	for {
		cut := strings.LastIndex(strings.TrimSuffix(stem, "-"), "-")
		if cut < 0 {
			return append(names, strings.TrimPrefix(kind, ".")+".d")
		}
		stem = stem[:cut+1]
		names = append(names, stem+kind+".d")
	}
}

// malformed is the error of a unit's file that is not in the form of one.
type malformed struct{ error }

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
			return nil, malformed{host.Failed("read", file, err)}
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

// enabled returns systemd's UnitFileState by the unit's files. It does not read presets: they say
// what should be, not what is.
func (u unitFiles) enabled(name string, install map[string][]string) (string, error) {
	links, err := u.links(name)
	if err != nil {
		return "", err
	}
	if len(links) > 0 {
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
// .upholds folders of other units, and aliases: links in the same folder with another name.
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
