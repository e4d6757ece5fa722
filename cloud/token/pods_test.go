// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/test/joins"
)

const podsSocket = "/run/containerd/containerd.sock"

// protoBytes is one field of a message.
func protoBytes[T ~string | ~[]byte](n protowire.Number, value T) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), []byte(value))
}

// testSandbox is a PodSandbox with a label or annotation.
func testSandbox(name string, field protowire.Number, key, value string) []byte {
	created := protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 7)
	item := append(protoBytes(1, "id-of-"+name), protoBytes(2, string(protoBytes(1, name))+string(protoBytes(3, "default")))...)
	return protoBytes(1, string(item)+string(created)+string(protoBytes(field, string(protoBytes(1, key))+string(protoBytes(2, value)))))
}

// TestUndoRefusesPods: pods that a drain would end are named, and nothing is touched; those that it leaves do not count.
func TestUndoRefusesPods(t *testing.T) {
	daemons := string(testSandbox("plugin", 5, "pod-template-generation", "1")) + string(testSandbox("static", 6, "kubernetes.io/config.source", "file"))
	seven := daemons
	for i := range 7 {
		seven += string(testSandbox(fmt.Sprintf("work-%d", i), 6, "kubernetes.io/config.source", "api"))
	}
	for name, c := range map[string]struct {
		answer string
		err    error
		folder bool
		says   []string // nil: undo goes through
	}{
		"none":            {},
		"daemons":         {answer: daemons, folder: true},
		"one":             {answer: string(testSandbox("work", 5, "app", "x")), says: []string{": 1 pod runs here: default/work\n"}},
		"seven":           {answer: seven, says: []string{": 7 pods run here: default/work-0, default/work-1, default/work-2, default/work-3, default/work-4 and 2 more\n"}},
		"engine is down":  {err: syscall.ECONNREFUSED, folder: true, says: []string{"the pod with UID 8e5a", "does not answer at " + podsSocket + ": connection refused"}},
		"nothing was run": {err: syscall.ECONNREFUSED},
		"broken answer":   {answer: "\x0a\xff", folder: true, says: []string{"cannot read the answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := startJoin(t, joins.Machine, "")
			j.apply(t)
			j.n.Daemon(podsSocket, func(method string, _ []byte) ([]byte, error) {
				if method != "/runtime.v1.RuntimeService/ListPodSandbox" {
					t.Errorf("called %s", method)
				}
				return []byte(c.answer), c.err
			})
			if c.folder {
				joins.Must(t, joins.Mkdirs(j.n, "/var/lib/kubelet/pods"+"/8e5a"))
			}
			before := j.n.Touches()
			e := j.engine()
			e.Allow = []string{"all"} // it is no matter of consent
			_, err := e.Undo(context.Background(), j.n, "all", nil)
			if c.says == nil {
				if err != nil {
					t.Fatal(err, joins.Because(err))
				}
				return
			}
			if err == nil {
				t.Fatal("not refused")
			}
			all := err.Error() + "\n" + joins.Because(err)
			for _, want := range append(c.says, "cannot take this machine out of its cluster: ", "kubectl drain gpu-1 --ignore-daemonsets --delete-emptydir-data", "crictl -r unix://"+podsSocket) {
				if !strings.Contains(all, want) {
					t.Errorf("%q is not said:\n%s", want, all)
				}
			}
			if j.n.Touches() != before || !strings.Contains(j.n.Units(), "kubelet.service enabled active") {
				t.Errorf("refused, and yet touched: %s", j.n.Units())
			}
		})
	}
}
