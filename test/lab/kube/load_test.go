// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestBenchKubeLoad prints what it costs one API server that 5,000 nodes come up at once, each with a connection and an
// identity of its own that looks at its Node and patches labels and a condition. LOAD says how many else.
func TestBenchKubeLoad(t *testing.T) {
	c := cluster.Run(t)
	nodes := 5000
	if text := os.Getenv("LOAD"); text != "" {
		var err error
		if nodes, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	figures, err := c.Load(t.Context(), kube.Load{Nodes: nodes, Parallel: 64, Each: func(ctx context.Context, node string) error {
		kubelet, err := c.Node(node)
		if err != nil {
			return err
		}
		defer kubelet.Close()
		path := "/api/v1/nodes/" + node
		if _, err := kubelet.Get(ctx, path); err != nil {
			return err
		}
		labels := kube.Object{"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
		if _, err := kubelet.Merge(ctx, path, kube.Object{"metadata": kube.Object{"labels": labels}}); err != nil {
			return err
		}
		_, err = kubelet.Do(ctx, "PATCH", path+"/status", "application/strategic-merge-patch+json",
			[]byte(`{"status":{"conditions":[{"type":"GPUReady","status":"True","reason":"Stands"}]}}`))
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(figures)
	if figures.Errors > 0 || int(figures.Requests) != 3 {
		t.Errorf("%d errors, %.2f requests per node, want none and 3", figures.Errors, figures.Requests)
	}
	if left := kube.List(c.Get("/api/v1/nodes?labelSelector=lab.invalid%2Fload"), "items"); len(left) > 0 {
		t.Errorf("%d Nodes are left", len(left))
	}
}
