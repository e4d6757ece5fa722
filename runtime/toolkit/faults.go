// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"cmp"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/toml"
)

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

	if err != nil {
		return []string{Config + ": " + err.Error()}
	}
	if fault := faultIn(text, v, f); fault != "" {
		return []string{Config + ": " + fault}
	}
	return nil
}

// faultIn says why the runtime can start no container with this text, "" if it can.
func faultIn(text []byte, v host.View, f facts.Facts) string {
	var config runtimeConfig
	if err := toml.Decode(text, &config); err != nil {
		line, _ := toml.ErrorPlace(err)
		return fmt.Sprintf("line %d: %v", line, err)
	}

	mode := "auto"
	if config.Runtime.Mode != nil {
		mode = *config.Runtime.Mode
	}
	switch mode {
	case "auto", "cdi", "csv", "jit-cdi", "legacy":
	default:
		return fmt.Sprintf("mode = %q is none of auto, cdi, csv, jit-cdi and legacy", mode)
	}

	var folders []string // engines that bring runc have it there
	for _, e := range f.Engines {
		folders = append(folders, path.Dir(e.Binary))
	}
	isInstalled := func(program string) bool { return facts.Runs(v, program, folders...) }
	runtimes := config.Runtime.Runtimes
	if runtimes != nil && !slices.ContainsFunc(runtimes, isInstalled) {
		return fmt.Sprintf("none of runtimes = %q is there", runtimes)
	}

	switch mode {
	case "cdi":
		settings := config.Runtime.Modes.CDI
		kind := cmp.Or(settings.Kind, cdi.Kind)
		offered, err := cdi.Offers(v, kind, settings.Folders)
		if err != nil {
			return fmt.Sprintf("mode = \"cdi\" needs a CDI spec for %s: %v", kind, err)
		}
		if !offered {
			return fmt.Sprintf("mode = \"cdi\" needs a CDI spec for %s, and there is none", kind)
		}
	case "legacy":
		programs := []string{"nvidia-container-runtime-hook", cmp.Or(config.CLI.Path, "nvidia-container-cli")}
		for _, program := range programs {
			if !isInstalled(program) {
				return fmt.Sprintf("mode = \"legacy\" needs %s, which is not there", program)
			}
		}
	}

	return ""
}
