// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Built is the time of what is built for a mirror, so that it is the same each time: 2026-01-01, in
// seconds.
// Source: https://reproducible-builds.org/specs/source-date-epoch/
const Built = "1767225600"

// A ModuleSource is the package by which DKMS builds modules.
type ModuleSource struct {
	Name     string   // nvidia-kernel-open-dkms
	File     string   // its name in the folder
	Version  string   // with epoch and revision: 580.65.06-1, 3:580.65.06-1.el9
	Depends  []string // of SourceOf: only on packages of the driver's version, firmware and support files
	Provides []string
	Folder   string // absolute: .../nvidia-580.65.06
}

// ModulePackage is a package of modules before it is written.
type ModulePackage struct {
	Name, Kernel string
	From         ModuleSource
	Root         string // the folder with its files, as they will lie below /
}

// Fill fills in a text that a package is made of, in which the names begin and end with @. needs
// are the package's relations in addition to those of From: it runs depmod, of kmod.
func (p ModulePackage) Fill(text string, needs []string, more ...string) []byte {
	depends := slices.Concat([]string{"kmod"}, needs, p.From.Depends)
	provides := slices.Concat([]string{"gpuadm-modules"}, p.From.Provides)
	names := append(more,
		"@NAME@", p.Name,
		"@KERNEL@", p.Kernel,
		"@DKMS@", p.From.Name,
		"@ROOT@", p.Root,
		"@DEPENDS@", strings.Join(depends, ", "),
		"@PROVIDES@", strings.Join(provides, ", "),
	)
	return []byte(strings.NewReplacer(names...).Replace(text))
}

// SourceOf unpacks below g.Work the source that DKMS builds modules from: that of the named
// package, or of a package that it depends on in its version, as Ubuntu has it. files are those of
// the folder.
func SourceOf(
	ctx context.Context,
	h host.Host,
	from Gatherer,
	g Gathering,
	files []string,
	name string,
) (ModuleSource, error) {
	s, err := openSource(ctx, h, from, g, files, name)
	if err != nil {
		return s, err
	}

	var depends []string // in the driver's version
	for _, clause := range s.Depends {
		if !strings.Contains(clause, Own(s.Version)) {
			continue
		}
		if s.Folder == "" {
			dependency, _, _ := strings.Cut(clause, " ")
			other, err := openSource(ctx, h, from, g, files, dependency)
			if err != nil {
				return s, err
			}
			s.Folder = other.Folder
			if s.Folder != "" {
				continue // only building needs the source
			}
		}

		depends = append(depends, clause)
	}

	s.Depends = depends
	isItself := func(clause string) bool { return strings.Contains(clause, name) }
	s.Provides = slices.DeleteFunc(s.Provides, isItself)

	if s.Folder == "" {
		return s, fmt.Errorf("cannot build modules: package %s has no source for DKMS", name)
	}
	return s, nil
}

// openSource unpacks a package of the mirror below g.Work. Its Folder is "" if it has no source
// for DKMS.
func openSource(
	ctx context.Context,
	h host.Host,
	from Gatherer,
	g Gathering,
	files []string,
	name string,
) (ModuleSource, error) {
	i := slices.IndexFunc(files, func(file string) bool {
		rpm := path.Ext(file) == ".rpm" && strings.HasPrefix(file, name+"-")
		return rpm || strings.HasPrefix(file, name+"_")
	})
	if i < 0 {
		return ModuleSource{}, &trouble.Error{
			What: "cannot build modules: the mirror has no package " + name,
			Try:  []string{`write source = "nvidia" in [driver], which has modules for DKMS`},
		}
	}

	root := g.Work + "/source"
	text, err := from.Open(ctx, h, path.Join(g.Into, files[i]), root)
	fields := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.Join(strings.Fields(line), " ")
		key, value, _ := strings.Cut(line, ": ")
		if value != "" {
			fields[key] = append(fields[key], strings.Split(value, ", ")...)
		}
	}

	s := ModuleSource{
		Name:     name,
		File:     files[i],
		Version:  strings.Join(fields["Version"], ""),
		Depends:  fields["Depends"],
		Provides: fields["Provides"],
	}

	if err != nil {
		return s, err
	}
	s.Folder, err = dkmsFolder(h, root+"/usr/src", Own(s.Version))
	return s, err
}

// dkmsFolder returns the folder of a version's source for DKMS; "" if there is none.
func dkmsFolder(v host.View, in, version string) (string, error) {
	names, err := v.ReadDir(in)
	if err != nil && !host.NotExist(err) {
		return "", err
	}

	found := ""
	for _, name := range names {
		if !strings.HasSuffix(name, "-"+version) {
			continue
		}
		dir := path.Join(in, name)
		_, err := v.Stat(dir + "/dkms.conf")
		switch {
		case err == nil:
			found = dir
		case !host.NotExist(err) && !errors.Is(err, syscall.ENOTDIR):
			return "", err
		}
	}

	return found, nil
}
