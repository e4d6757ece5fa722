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
func (apt) Open(ctx context.Context, h host.Host, file, into string) ([]byte, error) {
	said, err := h.Ask(ctx, "dpkg-deb", "--show", `--showformat=Version: ${Version}\nDepends: ${Depends}\nProvides: ${Provides}\n`, file)
	if err == nil {
		_, err = h.Do(ctx, "dpkg-deb", "-x", file, into)
	}
	return said, err
}

// Pack is dpkg-deb's work. gzip's output does not depend on how many processors there are, as that
// of xz does.
func (apt) Pack(ctx context.Context, h host.Host, g packages.Gathering, p packages.ModulePackage) (string, error) {
	image := []string{"linux-image-" + p.Kernel}
	out, err := (apart{h, g.Work + "/apt.conf"}).Ask(ctx, "apt-cache", "--no-all-names", "pkgnames", image[0])
	if err != nil {
		return "", err
	}
	if !slices.Contains(strings.Fields(string(out)), image[0]) { // a kernel of the operator's own has no package in a source
		image = nil
	}
	arch, depmod := architecture(h), p.Fill(modulesDepmod, nil)
	if _, err := h.Do(ctx, "mkdir", "-p", p.Root+"/DEBIAN"); err != nil {
		return "", err
	}
	for name, data := range map[string][]byte{
		"control": p.Fill(modulesControl, image, "@VERSION@", p.From.Version, "@ARCH@", arch), "postinst": depmod, "postrm": depmod,
	} {
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
