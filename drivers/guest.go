// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// guest refuses a data-centre driver for a GPU that only a guest driver of NVIDIA vGPU serves, and
// a guest driver that does not match the host's. A guest driver must be of the host's vGPU release
// or of the release before it.
// Sources: https://github.com/awslabs/amazon-eks-ami/issues/2808; Azure/AgentBaker
// pkg/agent/datamodel/gpu_components.go;
// https://docs.nvidia.com/vgpu/latest/grid-vgpu-release-notes-generic-linux-kvm/, "Requirements for
// using vGPU".
func (p *plan) guest() error {
	if err := p.licence(); err != nil {
		return err
	}
	p.choice.Guest = p.d.Grid != spec.Grid{}
	exceptions := p.exceptions("9999")
	i := slices.IndexFunc(exceptions, func(e exceptionRow) bool { return e.Guest })
	if p.m.VGPU == nil && i < 0 || len(p.limits) == 0 {
		return nil
	}
	host := 0
	why := "its hypervisor cut it out of a whole one"
	if v := p.m.VGPU; v != nil && v.Version != "" {
		branch, _, _ := strings.Cut(v.Version, ".")
		if host = p.c.vgpuRelease(branch); host > 0 {
			why += fmt.Sprintf(" with driver %s, of vGPU %d", v.Version, host)
		}
	} else if i >= 0 {
		why = exceptions[i].Why
	}
	if p.d.Source != SourceRunfile || p.d.Runfile.URL == "" {
		return refuse(fmt.Sprintf("cannot install a data-centre driver: %s is for a vGPU guest driver: %s", p.limits[0], why),
			`write source = "runfile" and the exact version in [driver], and url and sha256 of the guest driver in [driver.runfile]: `+guestFiles(p.m.Cloud))
	}
	p.choice.Guest = true
	branch, _, _ := strings.Cut(p.d.Version, ".")
	asked := p.c.vgpuRelease(branch)
	switch {
	case asked == 0 || host == 0:
	case asked > host:
		return refuse(fmt.Sprintf("cannot install driver %s: it is of vGPU %d, and the host's is of vGPU %d (%s), which serves no newer guests", p.d.Version, asked, host, p.m.VGPU.Version),
			fmt.Sprintf("write the version of a guest driver of vGPU %d or %d in [driver]", host, host-1))
	case asked < host-1:
		p.warn("driver %s is of vGPU %d, and the host's of vGPU %d (%s): guests that are more than one release behind may not work", p.d.Version, asked, host, p.m.VGPU.Version)
	}
	return nil
}

// vgpuRelease returns the release of NVIDIA vGPU whose guest drivers are of a branch, 0 if unknown.
func (c Catalog) vgpuRelease(branch string) int {
	for _, b := range c.Branches {
		if strconv.Itoa(b.Branch) == branch {
			return b.VGPU
		}
	}
	return 0
}

// guestFiles says where a cloud publishes its guest drivers, which may not be redistributed.
// Sources: GoogleCloudPlatform/compute-gpu-installation linux/sync_drivers.py;
// Azure/azhpc-extensions NvidiaGPU/resources.json; awslabs/amazon-eks-ami install-nvidia-driver.sh.
func guestFiles(cloud string) string {
	switch cloud {
	case "aws":
		return "aws s3 ls --recursive s3://ec2-linux-nvidia-drivers lists them, with names that end in -grid-aws.run"
	case "azure":
		return "NvidiaGPU/resources.json of https://github.com/Azure/azhpc-extensions lists them, with names that end in -grid-azure.run"
	case "gce":
		return "gcloud storage ls gs://gce-nvidia-vgpu-drivers/G4_VGPU lists them, with names that end in -grid-gcp.run"
	}
	return "NVIDIA's licensing portal has them, with names that end in -grid.run"
}
