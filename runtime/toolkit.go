// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// toolkitKey is the fingerprint of the key that signs the NVIDIA Container Toolkit's repositories; many projects pin
// the same, among them https://github.com/GoogleCloudDataproc/initialization-actions.
const toolkitKey = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"

// ToolkitRepository is where the NVIDIA Container Toolkit comes from: its own repository, or the mirror that the spec
// names. manager is apt or dnf, arch as facts say it.
// Source: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html.
func ToolkitRepository(t spec.Toolkit, manager, arch string) packages.Repository {
	const base = "https://nvidia.github.io/libnvidia-container/"
	r := packages.Repository{
		ID: "toolkit", About: "NVIDIA Container Toolkit",
		URL: t.Repo.URL, Key: t.Repo.Key, Fingerprint: t.Repo.Fingerprint,
	}
	if manager == "dnf" { // as the .repo file that NVIDIA publishes says: the packages are not, and a mirror's are the same
		r.Signed = packages.SignedMetadata
	}
	r.Signed = packages.SignedAs(t.Repo.Signature, r.Signed)
	if r.URL == "" {
		r.URL = base + "stable/deb/" + arch
		if manager == "dnf" {
			r.URL = base + "stable/rpm/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
		}
	}
	if r.Key == "" {
		r.Key = base + "gpgkey"
	}
	if r.Fingerprint == "" {
		r.Fingerprint = toolkitKey
	}
	if t.Version != "" {
		r.Pins = []packages.Pin{packages.KeepAt(pattern(t.Version), toolkitPackages()...)}
	}
	return r
}

// ToolkitPackages wants the toolkit's packages, all in one version, and held there.
func ToolkitPackages(t spec.Toolkit) map[string]packages.State {
	version := "*"
	if t.Version != "" {
		version = pattern(t.Version)
	}
	want := map[string]packages.State{}
	for _, name := range toolkitPackages() {
		want[name] = packages.State{Version: "toolkit=" + version, Held: t.Version != ""}
	}
	return want
}

// toolkitPackages depend on each other in exactly one version, and are called alike for apt and dnf.
func toolkitPackages() []string {
	return []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}
}

// pattern matches a version, or all of a branch: 1.18.0, 1.18.*.
func pattern(version string) string {
	if strings.Count(version, ".") < 2 {
		return version + ".*"
	}
	return version
}

// keepsCDI notes that a configuration switches CDI off and that this stays so: only a spec that says cdi = true overrides it.
func keepsCDI(s spec.Spec, f facts.Facts) []string {
	e, err := engine(s.Runtime, f)
	if !s.Has("runtime") || err != nil || e.Name != "containerd" {
		return nil
	}
	if h := handlerOf(s, f, e); !h.CDI || h.Overrides {
		return nil
	}
	c, err := asRead(e)
	if err != nil || c.reader.cdi == cdiFixed {
		return nil
	}
	if _, v := toml.Field(c.cri, "enable_cdi"); v != false {
		return nil
	}
	return []string{fmt.Sprintf("%s says enable_cdi = false, which stays: device plugins and DRA drivers that use CDI do not work here; cdi = true in [runtime] overrides it", e.Config)}
}

// lacksToolkit notes that the handler's program is not there and that nothing in the spec brings it.
func lacksToolkit(v host.View, s spec.Spec, f facts.Facts) []string {
	if !s.Has("runtime") || s.Has("toolkit") || s.Runtime.Inject == "cdi" || !v.Live() || len(f.Programs) > 0 {
		return nil
	}
	e, err := engine(s.Runtime, f)
	if err != nil {
		return nil // the stage says so
	}
	h := handlerOf(s, f, e)
	switch {
	case h.Name == "":
		return nil
	case e.Owner == "k3s" || e.Owner == "rke2":
		return []string{fmt.Sprintf("%s is not installed: %s has no handler %s until it is; [toolkit] in node.toml installs it, and "+trouble.Command("apply")+" restarts %s then", path.Base(Binary), e.Owner, h.Name, e.Unit)}
	}
	return []string{fmt.Sprintf("%s is not installed: containers of the handler %s do not start until it is; [toolkit] in node.toml installs it", path.Base(Binary), h.Name)}
}
