// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
)

// slice has the fields of a ResourceSlice that gpuadm reads.
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

// Slices counts the devices that DRA drivers offer on a node: driver name to devices of complete
// pools, 0 for a driver whose pools are not complete yet. nil if the server has no such API, which
// is in Kubernetes 1.34 and newer; NVIDIA's driver needs 1.34.2.
func (c *Client) Slices(ctx context.Context, node string) (devices map[string]int, err error) {
	var list struct{ Items []slice }
	r := call{
		what:  "the ResourceSlices of node " + node,
		right: "list resourceslices.resource.k8s.io",
		path:  "/apis/resource.k8s.io/v1/resourceslices",
		into:  &list,
	}
	err = c.do(ctx, ofNode(r, node))
	switch {
	case errors.Is(err, Missing):
		return nil, nil
	case err != nil:
		return nil, err
	}

	return countDevices(list.Items), nil
}

// countDevices counts the devices of complete pools: pools with all slices of the newest
// generation.
func countDevices(slices []slice) map[string]int {
	type key struct{ driver, pool string }
	type pool struct {
		generation int64
		slices     int64 // found
		expected   int64 // slices of a complete pool
		devices    int64
	}

	pools := map[key]*pool{}
	for _, s := range slices {
		id := key{s.Spec.Driver, s.Spec.Pool.Name}
		published := s.Spec.Pool
		p := pools[id]
		if p == nil || published.Generation > p.generation {
			p = &pool{generation: published.Generation, expected: published.ResourceSliceCount}
			pools[id] = p
		}
		if published.Generation == p.generation {
			p.slices++
			p.devices += int64(len(s.Spec.Devices))
		}
	}

	devices := map[string]int{}
	for id, p := range pools {
		devices[id.driver] += 0
		if p.slices == p.expected {
			devices[id.driver] += int(p.devices)
		}
	}

	return devices
}
