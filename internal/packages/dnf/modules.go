// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

//go:embed modules.spec
var modulesSpec string

const builder = "/usr/bin/rpmbuild"

// Source installs the package's files, and runs none of its scripts, below a folder that has no other packages.
func (a dnf) Source(ctx context.Context, h host.Host, g packages.Gathering, files []string, name, pattern string) (s packages.ModuleSource, err error) {
	if _, err := h.Stat(builder); errors.Is(err, fs.ErrNotExist) {
		return s, &trouble.Error{What: "cannot write packages of modules: rpmbuild is not installed", Try: []string{"dnf install rpm-build, then run the same command again"}}
	}
	found := packages.OfVersion(files, name+"-", pattern)
	if len(found) == 0 {
		return s, &trouble.Error{What: "cannot build modules: the mirror has no package " + name, Try: []string{`write source = "nvidia" in [driver], which has modules for DKMS`}}
	}
	root, file := g.Work+"/source", path.Join(g.Into, found[len(found)-1])
	const format = `V\t%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n[Requires\t%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n][Provides\t%{PROVIDENAME} %{PROVIDEFLAGS:depflags} %{PROVIDEVERSION}\n]`
	out, err := h.Ask(ctx, "rpm", "-qp", "--nosignature", "--qf", format, file) // dnf has verified it
	if err != nil {
		return s, explain(h, string(out), err)
	}
	s.Name, s.File = name, found[len(found)-1]
	for _, f := range rows(string(out), 2) {
		of, _, _ := strings.Cut(f[1], " ")
		switch {
		case f[0] == "V":
			s.Version = f[1]
		case !strings.Contains(f[1], packages.Own(s.Version)):
		case f[0] == "Requires":
			s.Depends = append(s.Depends, strings.Join(strings.Fields(f[1]), " "))
		case !strings.HasPrefix(of, name): // its own name, and that with an architecture
			s.Provides = append(s.Provides, strings.Join(strings.Fields(f[1]), " "))
		}
	}
	for _, argv := range [][]string{
		{"mkdir", "-p", root},
		{"rpm", "-i", "--root", root, "--nodeps", "--noscripts", "--notriggers", "--nosignature", "--ignorearch", file},
	} {
		if out, err := h.Do(ctx, argv...); err != nil {
			return s, explain(h, string(out), err)
		}
	}
	s.Folder = packages.SourceIn(h, root, s.Version)
	return s, nil
}

// Pack is rpmbuild's work. It depends on what kernels' packages provide by the name of their release, where a repository has such a one.
func (a dnf) Pack(ctx context.Context, h host.Host, g packages.Gathering, p packages.ModulePackage) (string, error) {
	a.root = g.Work + "/root"
	var relations strings.Builder
	for _, name := range []string{"kernel-core-uname-r", "kernel-uname-r"} {
		of := name + " = " + p.Kernel
		if out, err := a.query(ctx, h, "--whatprovides", of, "--qf", "%{name}"); err != nil {
			return "", err
		} else if strings.TrimSpace(out) != "" {
			fmt.Fprintf(&relations, "Requires: %s\n", of)
			break
		}
	}
	for _, r := range p.From.Depends {
		fmt.Fprintf(&relations, "Requires: %s\n", r)
	}
	for _, r := range p.From.Provides {
		fmt.Fprintf(&relations, "Provides: %s\n", r)
	}
	epoch, rest, is := strings.Cut(p.From.Version, ":")
	if epoch = "Epoch: " + epoch + "\n"; !is {
		epoch, rest = "", p.From.Version
	}
	own := packages.Own(rest)
	text := p.Fill(modulesSpec, "@EPOCH@", epoch, "@VERSION@", own, "@RELEASE@", strings.TrimPrefix(rest, own+"-"), "@RELATIONS@", relations.String())
	spec, top := g.Work+"/modules.spec", g.Work+"/top"
	if err := h.WriteFile(spec, text, host.Attr{Mode: 0o644}); err != nil {
		return "", err
	}
	argv := []string{"env", "SOURCE_DATE_EPOCH=" + packages.Built, "rpmbuild", "--quiet", "-bb"}
	for _, macro := range []string{
		"_topdir " + top, "_rpmdir " + top, "_rpmfilename modules.rpm", "_buildhost localhost", "_binary_payload w6.gzdio",
		"use_source_date_epoch_as_buildtime 1", "clamp_mtime_to_source_date_epoch 1", "build_mtime_policy clamp_to_source_date_epoch",
	} {
		argv = append(argv, "--define="+macro)
	}
	if out, err := h.Do(ctx, append(argv, spec)...); err != nil {
		return "", explain(h, string(out), err)
	}
	arch, err := h.Ask(ctx, "rpm", "-qp", "--nosignature", "--qf", "%{arch}", top+"/modules.rpm")
	if err != nil {
		return "", err
	}
	file := fmt.Sprintf("%s-%s.%s.rpm", p.Name, rest, arch)
	_, err = h.Do(ctx, "mv", "-fT", "--", top+"/modules.rpm", path.Join(g.Into, file))
	return file, err
}

// Index describes all packages once more.
func (a dnf) Index(ctx context.Context, h host.Host, g packages.Gathering, files, own []string) ([]string, error) {
	names := slices.DeleteFunc(slices.Concat(files, own), func(name string) bool { return !strings.HasSuffix(name, ".rpm") })
	slices.Sort(names)
	return a.index(ctx, h, g, slices.Compact(names))
}
