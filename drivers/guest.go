// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// checkGuest refuses a data-centre driver for a GPU that only a guest driver of NVIDIA vGPU serves,
// and a guest driver that does not match the host's. A guest driver must be of the host's vGPU
// release or of the release before it.
// Sources: https://github.com/awslabs/amazon-eks-ami/issues/2808; Azure/AgentBaker
// pkg/agent/datamodel/gpu_components.go;
// https://docs.nvidia.com/vgpu/latest/grid-vgpu-release-notes-generic-linux-kvm/, "Requirements for
// using vGPU".
func (p *plan) checkGuest() error {
	if err := p.checkLicence(); err != nil {
		return trouble.WithKeys(err, "driver.grid.token_file", "driver.grid.feature_type")
	}
	p.choice.Guest = p.spec.Grid != spec.Grid{}

	why, isGuest := p.whyGuest()
	if !isGuest || len(p.limits) == 0 {
		return nil
	}
	if !p.installerFromURL() {
		return refuse(
			fmt.Sprintf("cannot install a data-centre driver: %s is for a vGPU guest driver: %s", p.limits[0], why),
			`write source = "runfile" and the exact version in [driver], and url and sha256 of the guest driver in [driver.runfile]: `+p.guestFiles())
	}

	p.choice.Guest = true
	return p.checkGuestRelease()
}

// installerFromURL says whether the spec names the URL of an installer, as it must for a guest
// driver.
func (p *plan) installerFromURL() bool {
	return p.spec.Source == SourceRunfile && p.spec.Runfile.URL != ""
}

// whyGuest says whether the machine's GPUs need a guest driver, and why. What the host's driver says
// comes before the catalog's exceptions, and these before a virtual GPU whose host says nothing.
func (p *plan) whyGuest() (why string, isGuest bool) {
	const isCut = "its hypervisor cut it out of a whole one"
	if p.machine.VGPU != nil && p.machine.VGPU.Version != "" {
		why := isCut
		if release := p.hostRelease(); release > 0 {
			why += fmt.Sprintf(" with driver %s, of vGPU %d", p.machine.VGPU.Version, release)
		}
		return why, true
	}

	for _, e := range p.exceptions("9999") { // whatever the version
		if e.Guest {
			return e.Why, true
		}
	}

	return isCut, p.machine.VGPU != nil
}

// hostRelease returns the release of NVIDIA vGPU that the host's driver belongs to, 0 if unknown.
func (p *plan) hostRelease() int {
	if p.machine.VGPU == nil {
		return 0
	}
	return p.catalog.vgpuRelease(p.machine.VGPU.Version)
}

// checkGuestRelease refuses a guest driver that is newer than the host's, and warns of a driver
// that is more than one release older.
func (p *plan) checkGuestRelease() error {
	asked := p.catalog.vgpuRelease(p.spec.Version)
	host := p.hostRelease()
	if asked == 0 || host == 0 {
		return nil
	}

	if asked > host {
		return refuse(
			fmt.Sprintf(
				"cannot install driver %s: it is of vGPU %d, and the host's is of vGPU %d (%s), which serves no newer guests",
				p.spec.Version, asked, host, p.machine.VGPU.Version,
			),
			fmt.Sprintf("write the version of a guest driver of vGPU %d or %d in [driver]", host, host-1))
	}

	if asked < host-1 {
		p.warn("driver %s is of vGPU %d, and the host's of vGPU %d (%s): guests that are more than one release behind may not work", p.spec.Version, asked, host, p.machine.VGPU.Version)
	}
	return nil
}

// vgpuRelease returns the release of NVIDIA vGPU that a guest or host driver belongs to, 0 if
// unknown.
func (c Catalog) vgpuRelease(version string) int {
	major, _, _ := strings.Cut(version, ".")
	number, _ := strconv.Atoi(major)
	if row := c.branch(number); row != nil {
		return row.VGPU
	}
	return 0
}

// checkLicence refuses settings that nvidia-gridd would not read.
func (p *plan) checkLicence() error {
	grid := p.spec.Grid
	if grid == (spec.Grid{}) {
		return nil
	}

	if !p.installerFromURL() {
		return refuse(
			"cannot license a driver: [driver.grid] is for the guest driver of NVIDIA vGPU, which is an installer",
			`write source = "runfile" in [driver], and url and sha256 of the guest driver in [driver.runfile]: `+p.guestFiles(),
			"or remove [driver.grid]")
	}

	switch grid.FeatureType {
	case 0, 1, 2, 4:
	default:
		return refuse(
			fmt.Sprintf("cannot license a driver: nvidia-gridd has no feature type %d", grid.FeatureType),
			"write feature_type = 1 (vGPU), 2 (RTX workstation) or 4 (compute server) in [driver.grid]")
	}

	if grid.TokenFile != "" && !strings.HasSuffix(grid.TokenFile, ".tok") {
		return refuse(
			"cannot license a driver: nvidia-gridd reads tokens whose names end in .tok, and not "+grid.TokenFile,
			"rename the file, and write its name as token_file in [driver.grid]")
	}

	return nil
}

// guest returns what a cloud gives its guests of NVIDIA vGPU, the zero row if it is not known.
func (c Catalog) guest(cloud string) guestRow {
	for _, row := range c.Guests {
		if row.Cloud == cloud {
			return row
		}
	}
	return guestRow{}
}

// guestFiles says where the machine's cloud publishes its guest drivers, or who else has them.
func (p *plan) guestFiles() string {
	const elsewhere = "NVIDIA's licensing portal has them, with names that end in -grid.run"
	return cmp.Or(p.catalog.guest(p.machine.Cloud).Files, elsewhere)
}
