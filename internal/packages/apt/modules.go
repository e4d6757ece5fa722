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

// Open has dpkg-deb unpack the file.
func (apt) Open(ctx context.Context, h host.Host, file, into string) ([]byte, error) {
	const format = `Version: ${Version}\nDepends: ${Depends}\nProvides: ${Provides}\n`
	relations, err := h.Ask(ctx, "dpkg-deb", "--show", "--showformat="+format, file)
	if err == nil {
		_, err = h.Do(ctx, "dpkg-deb", "-x", file, into)
	}
	return relations, err
}

// Pack has dpkg-deb write the package. gzip's output does not depend on how many processors there
// are, as that of xz does.
func (apt) Pack(
	ctx context.Context,
	h host.Host,
	g packages.Gathering,
	p packages.ModulePackage,
) (file string, err error) {
	image := "linux-image-" + p.Kernel
	out, err := isolated{h, confOf(g)}.Ask(ctx, "apt-cache", "--no-all-names", "pkgnames", image)
	if err != nil {
		return "", err
	}
	var needs []string
	if slices.Contains(strings.Fields(string(out)), image) { // no source has an operator's own kernel
		needs = []string{image}
	}

	folder := p.Root + "/DEBIAN"
	if _, err := h.Do(ctx, "mkdir", "-p", folder); err != nil {
		return "", err
	}
	arch := architecture(h)
	depmod := p.Fill(modulesDepmod, nil)
	files := map[string][]byte{
		"control":  p.Fill(modulesControl, needs, "@VERSION@", p.From.Version, "@ARCH@", arch),
		"postinst": depmod,
		"postrm":   depmod,
	}
	for name, data := range files {
		if err := h.WriteFile(folder+"/"+name, data, host.Attr{Mode: 0o755}); err != nil {
			return "", err
		}
	}

	version := packages.Unepoched(p.From.Version)
	file = path.Join(g.Work, fmt.Sprintf("%s_%s_%s.deb", p.Name, version, arch))
	build := []string{
		"env", "SOURCE_DATE_EPOCH=" + packages.Built,
		"dpkg-deb", "--root-owner-group", "-Zgzip", "--build", p.Root, file,
	}
	out, err = h.Do(ctx, build...)
	if err != nil {
		err = explain(h, string(out), err)
	}
	return file, err
}
