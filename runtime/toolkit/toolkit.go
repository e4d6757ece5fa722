// SPDX-License-Identifier: Apache-2.0

// Package toolkit has what containers get the GPUs by: the packages of the NVIDIA Container Toolkit
// and their repository, its configuration, its CDI spec, and links to the device nodes.
package toolkit

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Stage keeps what containers get the GPUs by: the toolkit's configuration and CDI spec, and links
// to the device nodes. It comes after stage mig, since the CDI spec names the partitions and
// nothing updates it when they change.
var Stage = converge.Stage{
	Name:  "toolkit",
	About: "configures the container toolkit, keeps its CDI spec current, and links to the device nodes",
	Wants: func(s spec.Spec, _ facts.Facts) ([]converge.Want, error) {
		return append(configWants(s), cdiWants(s)...), nil
	},
	Notes: func(v host.View, s spec.Spec, f facts.Facts) []string {
		notes := append(configNotes(s), cdiNotes(v, s, f)...)
		if s.Has("runtime") || s.Has("toolkit") {
			notes = append(notes, Faults(v, f)...)
		}
		return notes
	},
}

// signingKey is the fingerprint of the key that signs the NVIDIA Container Toolkit's repositories;
// many projects pin the same, among them
// https://github.com/GoogleCloudDataproc/initialization-actions.
const signingKey = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"

// Repository is where the NVIDIA Container Toolkit comes from: its own repository, or the mirror
// that the spec names. manager is apt or dnf, arch as facts say it.
// Source:
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html.
func Repository(t spec.Toolkit, manager, arch string) packages.Repository {
	const base = "https://nvidia.github.io/libnvidia-container/"
	r := packages.Repository{
		ID: "toolkit", About: "NVIDIA Container Toolkit",
		URL: cmp.Or(t.Repo.URL, base+"stable/deb/"+arch), Key: cmp.Or(t.Repo.Key, base+"gpgkey"), Fingerprint: cmp.Or(t.Repo.Fingerprint, signingKey),
	}
	if manager == "dnf" { // NVIDIA's own .repo file says so: the packages are not signed, nor are a mirror's
		r.Signed = packages.SignedMetadata
		r.URL = cmp.Or(t.Repo.URL, base+"stable/rpm/"+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch])
	}
	r.Signed = packages.SignedAs(t.Repo.Signature, r.Signed)
	if t.Version != "" {
		r.Pins = []packages.Pin{packages.KeepAt(pattern(t.Version), packageNames()...)}
	}
	return r
}

// Packages wants the toolkit's packages, all in one version, and held there.
func Packages(t spec.Toolkit) map[string]packages.State {
	version := "*"
	if t.Version != "" {
		version = pattern(t.Version)
	}
	want := map[string]packages.State{}
	for _, name := range packageNames() {
		want[name] = packages.State{Version: "toolkit=" + version, Held: t.Version != ""}
	}
	return want
}

// packageNames are the same for apt and dnf. The packages depend on each other in exactly one
// version.
func packageNames() []string {
	return []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"}
}

// pattern matches a version, or all of a branch: 1.18.0, 1.18.*.
func pattern(version string) string {
	if strings.Count(version, ".") < 2 {
		return version + ".*"
	}
	return version
}

// Config is the file that nvidia-container-runtime reads whenever it starts a container, so nothing
// is restarted for it. A missing key has its default. The toolkit's packages make the file after
// they are unpacked, and leave what is set in it.
// Sources: api/config/v1/config.go and toml.go, and nvidia-container-toolkit-base.postinst, of
// https://github.com/NVIDIA/nvidia-container-toolkit (v1.20.1);
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html.
const Config = "/etc/nvidia-container-runtime/config.toml"

// Keys of that file. With the first one true, which is the default, any pod takes all GPUs by
// NVIDIA_VISIBLE_DEVICES=all in its image. Bottlerocket sets both as gpuadm does. Sources: README
// of https://github.com/NVIDIA/k8s-device-plugin on deviceListStrategy;
// https://bottlerocket.dev/en/os/1.57.x/api/settings/nvidia-container-runtime.
const (
	acceptEnvvar = "accept-nvidia-visible-devices-envvar-when-unprivileged"
	acceptMounts = "accept-nvidia-visible-devices-as-volume-mounts"
)

// configWants wants the keys that [toolkit] sets in the toolkit's file. Other keys, such as mode
// and no-cgroups, belong to its owner.
func configWants(s spec.Spec) []converge.Want {
	set := keys(s.Toolkit)
	if !s.Has("toolkit") || len(set) == 0 {
		return nil
	}
	edit := func(found []byte) ([]byte, error) { return editConfig(found, set) }
	var why []string
	if !s.Toolkit.AcceptEnvvarUnprivileged {
		why = append(why, "pods get GPUs from the device plugin alone")
	}
	if len(s.Toolkit.Runtimes) > 0 {
		why = append(why, "the runtime runs "+strings.Join(s.Toolkit.Runtimes, " or "))
	}
	wants := things.Folders(path.Dir(Config), "holds the toolkit's configuration")
	return append(wants, things.Edited(things.NewFile(Config, engine.TakeOut).Formed(engine.FormTOML), edit, strings.Join(why, ", and ")))
}

// keys are the keys that a spec sets.
func keys(t spec.Toolkit) (set []toml.Op) {
	if !t.AcceptEnvvarUnprivileged {
		set = append(set, toml.Set([]string{acceptEnvvar}, false), toml.Set([]string{acceptMounts}, true))
	}
	if len(t.Runtimes) > 0 {
		var list []any
		for _, name := range t.Runtimes {
			list = append(list, name)
		}
		set = append(set, toml.Set([]string{"nvidia-container-runtime", "runtimes"}, list))
	}
	return set
}

// editConfig sets those keys that have another value.
func editConfig(found []byte, set []toml.Op) ([]byte, error) {
	tree, err := toml.Values(found)
	if err != nil {
		line, _ := toml.ErrorPlace(err)
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot edit %s:%d: it is not valid TOML: %s", Config, line, strings.TrimPrefix(err.Error(), "toml: ")),
			Try:  []string{"correct that line: nvidia-container-runtime cannot read the file either", "or move the file away: nvidia-ctk config --in-place makes another"},
		}
	}
	var ops []toml.Op
	var names []string
	for _, op := range set {
		if !toml.Equal(toml.ValueAt(tree, op.Path), op.Value) {
			ops, names = append(ops, op), append(names, toml.ShowPath(op.Path))
		}
	}
	if len(ops) == 0 {
		return found, nil
	}
	out, err := toml.Edit(found, ops)
	if err != nil {
		return nil, &trouble.Error{What: fmt.Sprintf("cannot edit %s: %v", Config, err), Err: err, Try: []string{"write the keys into it by hand: " + strings.Join(names, ", ")}}
	}
	return out, nil
}

// configNotes says what the device plugin has to do differently.
func configNotes(s spec.Spec) []string {
	if !s.Has("toolkit") || s.Toolkit.AcceptEnvvarUnprivileged {
		return nil
	}
	return []string{"accept_envvar_unprivileged = false: a device plugin with deviceListStrategy envvar, which is its default, gives pods without privileges no GPUs; set it to volume-mounts or cdi-cri"}
}

// runtimeConfig has the types of the settings as nvidia-container-runtime reads them.
type runtimeConfig struct {
	DisableRequire bool   `toml:"disable-require"`
	Capabilities   string `toml:"supported-driver-capabilities"`
	AcceptEnvvar   bool   `toml:"accept-nvidia-visible-devices-envvar-when-unprivileged"`
	AcceptMounts   bool   `toml:"accept-nvidia-visible-devices-as-volume-mounts"`
	CLI            struct {
		Path        string
		Root        string
		Environment []string
		NoCgroups   bool `toml:"no-cgroups"`
	} `toml:"nvidia-container-cli"`
	Runtime struct {
		Debug    string
		LogLevel string  `toml:"log-level"`
		Mode     *string // nil: auto
		Runtimes []string
		Modes    struct {
			CDI struct {
				Kind    string   `toml:"default-kind"`
				Folders []string `toml:"spec-dirs"`
			}
		}
	} `toml:"nvidia-container-runtime"`
}

// Faults say why nvidia-container-runtime can start no container with its file. The program itself
// reports this only when it starts one; measured on 1.20.1. Sources: internal/info/resolver.go,
// internal/runtime/runtime_factory.go and internal/oci/runtime_low_level.go of
// https://github.com/NVIDIA/nvidia-container-toolkit;
// https://github.com/NVIDIA/k8s-device-plugin/issues/1400 on mode = "cdi".
func Faults(v host.View, f facts.Facts) []string {
	text, err := v.ReadFile(Config)
	if host.NotExist(err) || !v.Live() || len(f.Programs) == 0 {
		return nil
	}
	fault := func(format string, args ...any) []string {
		return []string{Config + ": " + fmt.Sprintf(format, args...)}
	}
	c := runtimeConfig{}
	if err != nil {
		return fault("%v", err)
	} else if err := toml.Decode(text, &c); err != nil {
		line, _ := toml.ErrorPlace(err)
		return fault("line %d: %v", line, err)
	}
	r := c.Runtime
	mode, kind := "auto", cmp.Or(r.Modes.CDI.Kind, cdi.Kind)
	if r.Mode != nil {
		mode = *r.Mode
	}
	var folders []string // engines that bring runc find it there
	for _, e := range f.Engines {
		folders = append(folders, path.Dir(e.Binary))
	}
	there := func(program string) bool { return facts.Runs(v, program, folders...) }
	switch {
	case !slices.Contains([]string{"auto", "cdi", "csv", "jit-cdi", "legacy"}, mode):
		return fault("mode = %q is none of auto, cdi, csv, jit-cdi and legacy", mode)
	case r.Runtimes != nil && !slices.ContainsFunc(r.Runtimes, there):
		return fault("none of runtimes = %q is there", r.Runtimes)
	case mode == "cdi" && !cdi.Offers(v, kind, r.Modes.CDI.Folders):
		return fault("mode = \"cdi\" needs a CDI spec for %s, and there is none", kind)
	case mode == "legacy":
		for _, program := range []string{"nvidia-container-runtime-hook", cmp.Or(c.CLI.Path, "nvidia-container-cli")} {
			if !there(program) {
				return fault("mode = \"legacy\" needs %s, which is not there", program)
			}
		}
	}
	return nil
}
