// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

//go:embed modules.spec
var modulesSpec string

// Open installs the package's files, and runs none of its scripts, below a folder that has no other
// packages. dnf has verified the package.
func (dnf) Open(ctx context.Context, h host.Host, file, into string) ([]byte, error) {
	const format = `Version: %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n` +
		`[Depends: %{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]` +
		`[Provides: %{PROVIDENAME} %{PROVIDEFLAGS:depflags} %{PROVIDEVERSION}\n]`
	relations, err := h.Ask(ctx, "rpm", "-qp", "--nosignature", "--qf", format, file)
	if err != nil {
		return relations, err
	}
	if _, err := h.Do(ctx, "mkdir", "-p", into); err != nil {
		return relations, err
	}
	install := []string{
		"rpm", "-i", "--root", into, "--nodeps", "--noscripts", "--notriggers",
		"--nosignature", "--ignorearch", file,
	}
	_, err = h.Do(ctx, install...)
	return relations, err
}

// Pack has rpmbuild write the package. It depends on what kernels' packages provide by the name of
// their release, where a repository has such a one. Source: kernel_reqprovconf in kernel.spec of
// centos-stream-9 and of Fedora.
func (a dnf) Pack(
	ctx context.Context,
	h host.Host,
	g packages.Gathering,
	p packages.ModulePackage,
) (string, error) {
	a.root = rootOf(g)
	kernel := "kernel-uname-r = " + p.Kernel
	out, err := a.query(ctx, h, "--whatprovides", kernel, "--qf", "%{name}")
	if err != nil {
		return "", err
	}
	var needs []string
	if strings.TrimSpace(out) != "" {
		needs = []string{kernel}
	}

	epoch, versionRelease, _ := strings.Cut(p.From.Version, ":")
	version := packages.Own(versionRelease)
	release := strings.TrimPrefix(versionRelease, version+"-")
	spec := g.Work + "/modules.spec"
	text := p.Fill(modulesSpec, needs, "@EPOCH@", epoch, "@VERSION@", version, "@RELEASE@", release)
	if err := h.WriteFile(spec, text, host.Attr{Mode: 0o644}); err != nil {
		return "", err
	}

	name := fmt.Sprintf("%s-%s.%s.rpm", p.Name, versionRelease, nativeRPM())
	build := []string{"env", "SOURCE_DATE_EPOCH=" + packages.Built, "rpmbuild", "--quiet", "-bb"}
	for _, macro := range []string{
		"_topdir " + g.Work, "_rpmdir " + g.Work, "_rpmfilename " + name,
		"_buildhost localhost", "_binary_payload w6.gzdio",
		"use_source_date_epoch_as_buildtime 1", "clamp_mtime_to_source_date_epoch 1",
		"build_mtime_policy clamp_to_source_date_epoch",
	} {
		build = append(build, "--define="+macro)
	}

	if out, err := h.Do(ctx, append(build, spec)...); err != nil {
		return "", explain(h, string(out), err)
	}
	return path.Join(g.Work, name), nil
}
