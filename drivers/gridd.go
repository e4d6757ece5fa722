// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// nvidia-gridd gets the licence of a guest of NVIDIA vGPU; without a licence CUDA fails after a
// day, or at once. NVIDIA's License System issues it for a token; the installers of Azure and AWS
// include it. Sources: NVIDIA/cloud-native-docs gpu-operator/install-gpu-operator-vgpu.rst;
// NVIDIA/gpu-driver-container; https://github.com/awslabs/amazon-eks-ami/issues/2450.
const (
	GriddUnit   = "nvidia-gridd.service"
	griddConfig = "/etc/nvidia/gridd.conf"
)

// griddSets returns the keys of gridd.conf that a spec and a cloud ask for; "" removes a key. The
// token stays where the operator put it: gpuadm copies no secret. Azure's keys:
// MicrosoftDocs/azure-compute-docs linux/n-series-driver-setup.md; Azure/azhpc-images
// install_nvidiagriddriver.sh.
func griddSets(s spec.Grid, cloud string) (keys map[string]string) {
	keys = map[string]string{}
	if cloud == "azure" {
		keys = map[string]string{"IgnoreSP": "FALSE", "EnableUI": "FALSE", "FeatureType": ""}
	}
	if s.FeatureType > 0 {
		keys["FeatureType"] = strconv.Itoa(s.FeatureType)
	}
	if s.TokenFile != "" {
		keys["ClientConfigTokenPath"] = path.Dir(s.TokenFile)
	}
	return keys
}

// griddWants returns the wants for the guest's licence.
func griddWants(s spec.Grid, f facts.Facts) []converge.Want {
	const why = "has the licence without which CUDA fails on a vGPU"
	keys, reads := griddSets(s, f.Cloud.Name), []string{griddConfig}
	if s.TokenFile != "" {
		reads = append(reads, s.TokenFile)
	}
	fresh := things.Restart(GriddUnit, reads, nil, "nvidia-gridd reads its files when it starts")
	fresh.Breaks = nil // programs on the GPUs go on
	edited := func(found []byte) ([]byte, error) { return setKeys(found, keys), nil }
	return []converge.Want{
		griddThere(),
		things.Edited(things.NewFile(griddConfig, TakeOutKeys).Formed(FormKeys), edited, "nvidia-gridd finds its licence by these keys"),
		things.Running(GriddUnit, why), fresh, licensed(f),
	}
}

// griddThere refuses an installer without the daemon: some of R550 have none. Source:
// https://github.com/Azure/AKS/issues/4880.
func griddThere() converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		is, err := ByInstaller(v)
		if u, unitErr := v.Unit(ctx, GriddUnit); err != nil || is == "" || unitErr != nil || u.Load != "not-found" {
			return "", err // until it is installed, and where systemd does not run
		}
		return fmt.Sprintf("cannot license the GPUs: the installer of driver %s has brought no %s", versionIn(is), GriddUnit), nil
	}
	return things.Check("the licence's daemon is installed", look, "without a licence CUDA fails on a vGPU", "write the version of another guest driver in [driver]")
}

// licensed waits until NVML says that each GPU has a licence. It blocks no other want: the licence
// server may start after the node.
func licensed(f facts.Facts) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		d, err := v.Driver(ctx)
		if err != nil || !v.Live() {
			return "", nil // the stage of the modules reports it
		}
		for _, g := range d.GPUs {
			if why := g.Unlicensed(); why != "" {
				return "", trouble.Wait{For: fmt.Sprintf("GPU %s is licensed: it %s", g.Address, why), Try: []string{"journalctl -u " + GriddUnit + ", which says why", "nvidia-smi -q, block vGPU Software Licensed Product"}}
			}
		}
		return "", nil
	}
	return things.Check("GPUs are licensed", look, "without a licence CUDA fails on a vGPU")
}

// licence refuses settings that nvidia-gridd would not read.
func (p *plan) licence() error {
	switch g := p.d.Grid; {
	case g == spec.Grid{}:
	case p.d.Source != SourceRunfile || p.d.Runfile.URL == "":
		return refuse("cannot license a driver: [driver.grid] is for the guest driver of NVIDIA vGPU, which is an installer",
			`write source = "runfile" in [driver], and url and sha256 of the guest driver in [driver.runfile]: `+guestFiles(p.m.Cloud), "or remove [driver.grid]")
	case g.FeatureType != 0 && g.FeatureType != 1 && g.FeatureType != 2 && g.FeatureType != 4:
		return refuse(fmt.Sprintf("cannot license a driver: nvidia-gridd has no feature type %d", g.FeatureType), "write feature_type = 1 (vGPU), 2 (RTX workstation) or 4 (compute server) in [driver.grid]")
	case g.TokenFile != "" && !strings.HasSuffix(g.TokenFile, ".tok"):
		return refuse("cannot license a driver: nvidia-gridd reads tokens whose names end in .tok, and not "+g.TokenFile, "rename the file, and write its name as token_file in [driver.grid]")
	}
	return nil
}
