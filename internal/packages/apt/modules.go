// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

//go:embed modules.control
var modulesControl string

//go:embed modules.depmod
var modulesDepmod string

// Open is dpkg-deb's work.
func (apt) Open(ctx context.Context, h host.Host, file, into string) (s packages.ModuleSource, err error) {
	said, err := h.Ask(ctx, "dpkg-deb", "-f", file)
	if err != nil {
		return s, err
	}
	for key, value := range fields(said) {
		list := strings.FieldsFunc(string(value), func(r rune) bool { return r == ',' }) // deb-control(5)
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		switch string(key) {
		case "Version":
			s.Version = string(value)
		case "Depends":
			s.Depends = list
		case "Provides":
			s.Provides = list
		}
	}
	_, err = h.Do(ctx, "dpkg-deb", "-x", file, into)
	return s, err
}

// Pack is dpkg-deb's work. gzip's output does not depend on how many processors there are, as that of xz does.
func (apt) Pack(ctx context.Context, h host.Host, g packages.Gathering, p packages.ModulePackage) (string, error) {
	needs, image := p.From.Depends, "linux-image-"+p.Kernel
	out, err := (apart{h, g.Work + "/apt.conf"}).Ask(ctx, "apt-cache", "--no-all-names", "pkgnames", image)
	if err != nil {
		return "", err
	}
	if slices.Contains(strings.Fields(string(out)), image) { // a kernel of the operator's own has no package in a source
		needs = append([]string{image}, needs...)
	}
	relations := ""
	for i, list := range [][]string{needs, p.From.Provides} {
		if len(list) > 0 { // apt refuses an empty one
			relations += []string{"Depends", "Provides"}[i] + ": " + strings.Join(list, ", ") + "\n"
		}
	}
	arch, depmod := architecture(h), p.Fill(modulesDepmod)
	control := p.Fill(modulesControl, "@VERSION@", p.From.Version, "@ARCH@", arch, "@RELATIONS@", relations)
	if _, err := h.Do(ctx, "mkdir", "-p", p.Root+"/DEBIAN"); err != nil {
		return "", err
	}
	for name, data := range map[string][]byte{"control": control, "postinst": depmod, "postrm": depmod} {
		if err := h.WriteFile(p.Root+"/DEBIAN/"+name, data, host.Attr{Mode: 0o755}); err != nil {
			return "", err
		}
	}
	file := path.Join(g.Work, fmt.Sprintf("%s_%s_%s.deb", p.Name, packages.Unepoched(p.From.Version), arch))
	out, err = h.Do(ctx, "env", "SOURCE_DATE_EPOCH="+packages.Built, "dpkg-deb", "--root-owner-group", "-Zgzip", "--build", p.Root, file)
	if err != nil {
		err = explain(h, string(out), err)
	}
	return file, err
}
