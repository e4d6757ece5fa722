// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
)

func TestCheckParameter(t *testing.T) {
	with := func(version string, parameters ...string) *facts.Modules {
		file := &modinfo.Module{Version: version, Parameters: parameters}
		return &facts.Modules{Kernels: []facts.KernelModules{{Kernel: "6.1", Nvidia: file}}}
	}

	const (
		fine    = ""
		unknown = "later"
	)
	for _, tt := range []struct {
		name    string
		modules *facts.Modules
		want    string // what the refusal says to try; unknown
	}{
		{"NVreg_EnableMSI", nil, fine},
		{"NvSwitchBlacklist", nil, fine},
		{"RestrictProfilingToAdminUsers", nil, "write NVreg_RestrictProfilingToAdminUsers"},
		{"NVreg_New", nil, unknown},
		{"NVreg_EnableMSII", nil, unknown},
		{
			"modeset", nil,
			"take it out of parameters in [driver], and write a line into a file of your own in /etc/modprobe.d: options nvidia_drm modeset=VALUE",
		},
		{"uvm_disable_hmm", nil, "take it out"},
		{"uvm", nil, unknown},
		{"peerdirect_support", with("580.95.05", "NVreg_New"), "take it out"},

		// The module of the wanted branch decides, whatever the catalog has.
		{"NVreg_New", with("580.95.05", "NVreg_New"), fine},
		{"NVreg_EnableMSI", with("580.95.05", "NVreg_New"), "modinfo -p nvidia"},
		{"NVreg_Nev", with("580.95.05", "NVreg_New"), "did you mean NVreg_New?"},
		{"New", with("580.95.05", "NVreg_New"), "write NVreg_New"},

		// A module of another branch, or one that says nothing, does not.
		{"NVreg_EnableMSI", with("535.1", "NVreg_New"), fine},
		{"NVreg_Other", with("535.1", "NVreg_New"), unknown},
		{"NVreg_EnableMSI", with("580.95.05"), fine},
	} {
		err := CheckParameter(tt.name, "580", tt.modules)
		var later host.Later
		var refused *trouble.Error
		switch {
		case tt.want == fine:
			check.That(t, err == nil, "%s: %v", tt.name, err)
		case tt.want == unknown:
			check.That(t, errors.As(err, &later), "%s: %v", tt.name, err)
		default:
			is := errors.As(err, &refused)
			check.That(t, is && strings.HasPrefix(refused.Try[0], tt.want), "%s: %v", tt.name, err)
		}
	}

	err := CheckParameter("NVreg_EnableMSII", "580", nil)
	check.That(t, strings.Contains(err.Error(), "did you mean NVreg_EnableMSI?"), "%v", err)
}

// TestCatalogHasItsParameters: gpuadm knows the parameters that it sets on its own.
func TestCatalogHasItsParameters(t *testing.T) {
	names := []string{imexChannel, coherentMode}
	for _, e := range Load().Exceptions {
		for name := range e.Parameters {
			names = append(names, name)
		}
	}

	check.That(t, len(names) >= 4, "%v", names)
	for _, name := range names {
		check.That(t, CheckParameter(name, "580", nil) == nil, "%s is not in the catalog", name)
	}
}
