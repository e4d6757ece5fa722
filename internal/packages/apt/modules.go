// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

//go:embed modules.control
var modulesControl string

//go:embed modules.depmod
var modulesDepmod string

// Source unpacks the package, and where it has no source those that it depends on in its version: Ubuntu's has it in another one.
func (a apt) Source(ctx context.Context, h host.Host, g packages.Gathering, files []string, name, pattern string) (s packages.ModuleSource, err error) {
	root := g.Work + "/source"
	if _, err := h.Do(ctx, "mkdir", "-p", root); err != nil {
		return s, err
	}
	open := func(name string) (string, error) {
		found := packages.OfVersion(files, name+"_", pattern)
		if len(found) == 0 {
			return "", &trouble.Error{What: "cannot build modules: the mirror has no package " + name, Try: []string{`write source = "nvidia" in [driver], which has modules for DKMS`}}
		}
		_, err := h.Do(ctx, "dpkg-deb", "-x", path.Join(g.Into, found[0]), root)
		return found[0], err
	}
	if s.File, err = open(name); err != nil {
		return s, err
	}
	out, err := h.Ask(ctx, "dpkg-deb", "-f", path.Join(g.Into, s.File))
	if err != nil {
		return s, err
	}
	said := map[string]string{}
	for key, value := range fields(out) {
		said[string(key)] = string(value)
	}
	s.Name, s.Version = name, said["Version"]
	for _, clause := range split(said["Depends"]) {
		if !strings.Contains(clause, packages.Own(s.Version)) {
			continue
		}
		if packages.SourceIn(h, root, s.Version) == "" {
			of, _, _ := strings.Cut(clause, " ")
			if _, err := open(of); err != nil {
				return s, err
			}
			if packages.SourceIn(h, root, s.Version) != "" {
				continue // of the source alone
			}
		}
		s.Depends = append(s.Depends, clause)
	}
	s.Provides, s.Folder = split(said["Provides"]), packages.SourceIn(h, root, s.Version)
	return s, nil
}

// split takes a relation apart: deb-control(5).
func split(text string) (list []string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// Pack is dpkg-deb's work. gzip's output does not depend on how many processors there are, as that of xz does.
func (a apt) Pack(ctx context.Context, h host.Host, g packages.Gathering, p packages.ModulePackage) (string, error) {
	needs, image := slices.Clone(p.From.Depends), "linux-image-"+p.Kernel
	if out, err := (apart{h, g.Work + "/apt.conf"}).Ask(ctx, "apt-cache", "search", "--names-only", "^"+strings.ReplaceAll(image, "+", `\+`)+"$"); err != nil {
		return "", err
	} else if len(out) > 0 { // a kernel of the operator's own has no package in a source
		needs = append([]string{image}, needs...)
	}
	arch := architecture(h)
	control := p.Fill(modulesControl, "@VERSION@", p.From.Version, "@ARCH@", arch, "@DEPENDS@", strings.Join(needs, ", "), "@PROVIDES@", strings.Join(p.From.Provides, ", "))
	for _, empty := range []string{"Depends: \n", "Provides: \n"} {
		control = bytes.ReplaceAll(control, []byte(empty), nil)
	}
	if _, err := h.Do(ctx, "mkdir", "-p", p.Root+"/DEBIAN"); err != nil {
		return "", err
	}
	for name, data := range map[string][]byte{"control": control, "postinst": p.Fill(modulesDepmod), "postrm": p.Fill(modulesDepmod)} {
		if err := h.WriteFile(p.Root+"/DEBIAN/"+name, data, host.Attr{Mode: 0o755}); err != nil {
			return "", err
		}
	}
	made := g.Work + "/modules.deb"
	if out, err := h.Do(ctx, "env", "SOURCE_DATE_EPOCH="+packages.Built, "dpkg-deb", "--root-owner-group", "-Zgzip", "--build", p.Root, made); err != nil {
		return "", explain(h, string(out), err)
	}
	own := p.From.Version[strings.IndexByte(p.From.Version, ':')+1:]
	file := fmt.Sprintf("%s_%s_%s.deb", p.Name, own, arch)
	_, err := h.Do(ctx, "mv", "-fT", "--", made, path.Join(g.Into, file))
	return file, err
}

// Index adds to the list what dpkg-deb says of the files.
func (a apt) Index(ctx context.Context, h host.Host, g packages.Gathering, files, own []string) ([]string, error) {
	list := path.Join(g.Into, aptIndex)
	old, err := h.ReadFile(list)
	if err != nil {
		return nil, err
	}
	var index []byte
	for p := range paragraphs(old) {
		if !slices.Contains(own, archiveOf(p).Name) { // of an earlier run, which --keep has kept
			index = append(append(index, p...), "\n\n"...)
		}
	}
	for _, file := range own {
		is, err := packages.Digest(h, path.Join(g.Into, file))
		if err != nil {
			return nil, err
		}
		said, err := h.Ask(ctx, "dpkg-deb", "-f", path.Join(g.Into, file))
		if err != nil {
			return nil, err
		}
		index = fmt.Appendf(index, "%s\nSize: %d\nSHA256: %s\nFilename: ./%s\n\n", bytes.TrimSpace(said), is.Size, is.SHA256, file)
	}
	return append(files, own...), h.WriteFile(list, index, host.Attr{Mode: 0o644})
}
