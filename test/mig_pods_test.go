// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestPodWithoutProcess: a pod that kubelet has given a partition keeps it though no process of it runs yet; it is named, and only a
// drain ends it. The answer is podresources/v1's, of one pod with one device.
func TestPodWithoutProcess(t *testing.T) {
	const socket = "/var/lib/kubelet/pod-resources/kubelet.sock"
	field := func(n protowire.Number, text string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), text))
	}
	n := gpus(t, "[[gpu]]\nmodel = \"H100-80\"\n")
	apply(t, n, engine(t, wantsMIG(`"3g.40gb" = 2`)))
	d := must.Get(n.Driver(context.Background()))(t)
	id := d.GPUs[0].Instances[0].Compute[0].UUID
	must.OK(t, n.Mkdir("/var/lib/kubelet", host.Attr{Mode: 0o755}))
	must.OK(t, n.Mkdir("/var/lib/kubelet/pod-resources", host.Attr{Mode: 0o755}))
	must.OK(t, n.WriteFile(socket, nil, host.Attr{Mode: 0o600}))
	n.Daemon(socket, func(string, []byte) ([]byte, error) {
		return []byte(field(1, field(1, "pulls")+field(2, "ml")+field(3, field(2, field(1, "nvidia.com/gpu")+field(2, id))))), nil
	})
	e := engine(t, wantsMIG(`"1g.10gb" = 7`))
	before := ids(t, n)
	for _, allow := range [][]string{nil, {"stop-clients"}} {
		e.Allow = allow
		_, err := e.Apply(context.Background(), n)
		if err == nil || !strings.Contains(strings.Join(because(err), " "), "pod ml/pulls has 3g.40gb@") {
			t.Errorf("allowed %v: %v %v", allow, err, because(err))
		}
		compare(t, "nothing is destroyed", before, ids(t, n))
	}
	apply(t, n, engine(t, wantsMIG(`"3g.40gb" = 2`))) // what stays is not disturbed
	n.Daemon(socket, func(string, []byte) ([]byte, error) { return nil, nil })
	e.Allow = nil
	apply(t, n, e)
}
