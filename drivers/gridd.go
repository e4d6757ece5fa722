// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"

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

// griddKeys returns the keys of gridd.conf that a spec asks for, and those of the machine's cloud;
// "" removes a key. The token stays where the operator put it: gpuadm copies no secret.
func griddKeys(s spec.Grid, ofCloud map[string]string) map[string]string {
	keys := map[string]string{}
	maps.Copy(keys, ofCloud)

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
	keys := griddKeys(s, Load().guest(f.Cloud.Name).Gridd)
	edit := func(found []byte) ([]byte, error) { return setKeys(found, keys), nil }
	config := things.NewFile(griddConfig, TakeOutKeys).Formed(FormKeys)

	reads := []string{griddConfig}
	if s.TokenFile != "" {
		reads = append(reads, s.TokenFile)
	}
	restart := things.Restart(GriddUnit, reads, nil, "nvidia-gridd reads its files when it starts")
	restart.Breaks = nil // programs on the GPUs keep running

	return []converge.Want{
		griddInstalled(),
		things.Edited(config, edit, "nvidia-gridd finds its licence by these keys"),
		things.Running(GriddUnit, "has the licence without which CUDA fails on a vGPU"),
		restart,
		licensed(),
	}
}

// griddInstalled refuses an installer without the daemon: some of R550 have none. Source:
// https://github.com/Azure/AKS/issues/4880.
func griddInstalled() converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		state, err := ByInstaller(v)
		if err != nil || state == "" {
			return "", err // until it is installed
		}

		unit, err := v.Unit(ctx, GriddUnit)
		if errors.As(err, new(host.Later)) {
			return "", nil // systemd does not run
		}
		if err != nil || unit.Load != "not-found" {
			return "", err
		}
		return fmt.Sprintf("cannot license the GPUs: the installer of driver %s has brought no %s", versionIn(state), GriddUnit), nil
	}

	return things.Check("the licence's daemon is installed", look, "without a licence CUDA fails on a vGPU",
		"write the version of another guest driver in [driver]")
}

// licensed waits until NVML says that each GPU has a licence. It blocks no other want: the licence
// server may start after the node.
func licensed() converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		if !v.Live() {
			return "", nil
		}

		driver, err := v.Driver(ctx)
		var none *host.NoDriver
		switch {
		case errors.As(err, &none) && none.Again:
			return "", host.NewProcess
		case none != nil:
			return "", none.Awaited()
		case err != nil:
			return "", err
		}

		for _, gpu := range driver.GPUs {
			why := gpu.Unlicensed()
			if why == "" {
				continue
			}
			return "", trouble.Wait{
				For: fmt.Sprintf("GPU %s is licensed: it %s", gpu.Address, why),
				Try: []string{
					"journalctl -u " + GriddUnit + ", which says why",
					"nvidia-smi -q, block vGPU Software Licensed Product",
				},
			}
		}

		return "", nil
	}
	return things.Check("GPUs are licensed", look, "without a licence CUDA fails on a vGPU")
}
