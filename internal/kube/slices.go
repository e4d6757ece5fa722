// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
)

// slice is what counts of a ResourceSlice. The versions differ in how a device is described, not in this.
type slice struct {
	Spec struct {
		Driver string
		Pool   struct {
			Name               string
			Generation         int64
			ResourceSliceCount int64
		}
		Devices []struct{}
	}
}

// Slices counts the devices that DRA drivers offer on a node: driver name to devices of complete pools, 0 for a driver whose
// pools are not complete yet. nil where the server has no such API. (v1 is in Kubernetes 1.34 and later, the others from 1.32.)
func (c *Client) Slices(ctx context.Context, node string) (devices map[string]int, err error) {
	for _, version := range []string{"v1", "v1beta2", "v1beta1"} {
		var list struct{ Items []slice }
		r := call{what: "the ResourceSlices of node " + node, right: "list resourceslices.resource.k8s.io", into: &list, path: "/apis/resource.k8s.io/" + version + "/resourceslices"}
		if err := c.do(ctx, ofNode(r, node)); errors.Is(err, Missing) {
			continue
		} else if err != nil {
			return nil, err
		}
		return count(list.Items), nil
	}
	return nil, nil
}

// count counts the devices of complete pools: those of which all slices of the newest generation are there.
func count(slices []slice) map[string]int {
	type key struct{ driver, pool string }
	type pool struct{ generation, slices, of, devices int64 }
	pools, devices := map[key]*pool{}, map[string]int{}
	for _, s := range slices {
		k, at := key{s.Spec.Driver, s.Spec.Pool.Name}, s.Spec.Pool
		p := pools[k]
		if p == nil || at.Generation > p.generation {
			p = &pool{generation: at.Generation, of: at.ResourceSliceCount}
			pools[k] = p
		}
		if at.Generation == p.generation {
			p.slices++
			p.devices += int64(len(s.Spec.Devices))
		}
	}
	for k, p := range pools {
		devices[k.driver] += 0
		if p.slices == p.of {
			devices[k.driver] += int(p.devices)
		}
	}
	return devices
}
