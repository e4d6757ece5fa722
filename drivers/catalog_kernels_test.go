// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestTooOldFor: Frogging-Family/nvidia-all issue 379, void-linux/void-packages issue 61087,
// Frogging-Family/linux-tkg issue 1186 and NVIDIA/open-gpu-kernel-modules issue 1143 report drivers
// that do not build. The drivers that build are those that the distributions of these kernels ship.
func TestTooOldFor(t *testing.T) {
	for _, x := range []struct {
		version, kernel string
		bad             bool
	}{
		{"580.119.02", "7.0.0-12-generic", true},
		{"580.95.05", "7.0.0-27-generic", true},
		{"580.142", "7.1.0-5-generic", true},
		{"580.159.04", "7.1.0-5-generic", false},
		{"590.48.01", "7.0.0-27-generic", true},
		{"590.48.01", "6.19.0-3-generic", true},
		{"590.48.01", "6.18.0-3-generic", false},
		{"580.126.09", "6.19.0-3-generic", false},
		{"595.71.05", "7.0.0-27-generic", false},
		{"550.163.01", "6.17.0-19-generic", true},
		{"580.95.05", "6.17.0-1004-aws", false},
		{"535.288.01", "6.17.0-19-generic", false},
		{"580.178.04", "6.1.0-50-amd64", false},
		{"580.95.05", "5.14.0-687.54.1.el9_8.x86_64", false},
		{"580.95.05", "my-very-own-kernel", false},
		{"", "7.0.0-27-generic", false},
	} {
		why := tooOldFor(x.version, x.kernel)
		check.That(t, (why != "") == x.bad, "%s on %s: %q", x.version, x.kernel, why)
	}
}

// TestTooOldIsSaid: a plan that builds NVIDIA's modules says it before it builds; one whose modules
// the distribution patches, or that are there, does not.
func TestTooOldIsSaid(t *testing.T) {
	const kernel = "7.0.0-27-generic"
	for _, x := range []struct {
		name string
		spec spec.Driver
		disk hardware.Module
		says bool
	}{
		{"NVIDIA's", driver("580.95.05"), hardware.Module{}, true},
		{"a newer one", driver("580.178.04"), hardware.Module{}, false},
		{"of a branch", driver("580"), hardware.Module{}, false},
		{"the distribution's", with(driver("580.95.05"), "source", "distro"), hardware.Module{}, false},
		{"built already", driver("580.95.05"), hardware.Module{Version: "580.95.05", Flavour: "open", DKMS: true}, false},
	} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Kernels, m.Running = []string{kernel}, kernel
		m.OnDisk = map[string]hardware.Module{kernel: x.disk}
		said := strings.Join(choose(t, m, x.spec).Warnings, "\n")
		const text = "driver 580.95.05 on kernel 7.0.0-27-generic: its modules do not compile against Linux 7.0"
		check.Equal(t, strings.Contains(said, text), x.says, "%s: it is said: ", x.name)
	}
}
