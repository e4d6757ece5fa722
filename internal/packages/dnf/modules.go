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

// Open installs the package's files, and runs none of its scripts, below a folder that has no other packages.
func (dnf) Open(ctx context.Context, h host.Host, file, into string) (s packages.ModuleSource, err error) {
	const format = `V\t%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n[R\t%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n][P\t%{PROVIDENAME} %{PROVIDEFLAGS:depflags} %{PROVIDEVERSION}\n]`
	out, err := h.Ask(ctx, "rpm", "-qp", "--nosignature", "--qf", format, file) // dnf has verified it
	if err != nil {
		return s, explain(h, string(out), err)
	}
	for _, f := range rows(string(out), 2) {
		switch text := strings.Join(strings.Fields(f[1]), " "); f[0] {
		case "V":
			s.Version = text
		case "R":
			s.Depends = append(s.Depends, text)
		case "P":
			s.Provides = append(s.Provides, text)
		}
	}
	if _, err := h.Do(ctx, "mkdir", "-p", into); err != nil {
		return s, err
	}
	if out, err := h.Do(ctx, "rpm", "-i", "--root", into, "--nodeps", "--noscripts", "--notriggers", "--nosignature", "--ignorearch", file); err != nil {
		return s, explain(h, string(out), err)
	}
	return s, nil
}

// Pack is rpmbuild's work. The package depends on what kernels' packages provide by the name of their release, where a repository has such
// a one. Source: kernel_reqprovconf in kernel.spec of centos-stream-9 and of Fedora.
func (a dnf) Pack(ctx context.Context, h host.Host, g packages.Gathering, p packages.ModulePackage) (string, error) {
	a.root = g.Work + "/root"
	kernel, relations := "kernel-uname-r = "+p.Kernel, ""
	out, err := a.query(ctx, h, "--whatprovides", kernel, "--qf", "%{name}")
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(out) != "" {
		relations = "Requires: " + kernel + "\n"
	}
	for i, list := range [][]string{p.From.Depends, p.From.Provides} {
		for _, r := range list {
			relations += []string{"Requires", "Provides"}[i] + ": " + r + "\n"
		}
	}
	epoch, rest, is := strings.Cut(p.From.Version, ":")
	if epoch = "Epoch: " + epoch + "\n"; !is {
		epoch, rest = "", p.From.Version
	}
	own := packages.Own(rest)
	text := p.Fill(modulesSpec, "@EPOCH@", epoch, "@VERSION@", own, "@RELEASE@", strings.TrimPrefix(rest, own+"-"), "@RELATIONS@", relations)
	spec := g.Work + "/modules.spec"
	if err := h.WriteFile(spec, text, host.Attr{Mode: 0o644}); err != nil {
		return "", err
	}
	argv := []string{"env", "SOURCE_DATE_EPOCH=" + packages.Built, "rpmbuild", "--quiet", "-bb"}
	name := fmt.Sprintf("%s-%s.%s.rpm", p.Name, rest, nativeRPM())
	for _, macro := range []string{
		"_topdir " + g.Work, "_rpmdir " + g.Work, "_rpmfilename " + name, "_buildhost localhost", "_binary_payload w6.gzdio",
		"use_source_date_epoch_as_buildtime 1", "clamp_mtime_to_source_date_epoch 1", "build_mtime_policy clamp_to_source_date_epoch",
	} {
		argv = append(argv, "--define="+macro)
	}
	if out, err := h.Do(ctx, append(argv, spec)...); err != nil {
		return "", explain(h, string(out), err)
	}
	return path.Join(g.Work, name), nil
}
