// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeRotated: kubelet rotates its certificate twice while the DaemonSet's pod applies each
// second, and the first one runs out. No apply fails, and the node stays ready. Kubelet rotates
// after 70 to 90 % of a certificate's life, and replaces the link to it. Sources:
// https://kubernetes.io/docs/tasks/tls/certificate-rotation/; kubernetes, client-go,
// util/certificate/certificate_manager.go (nextRotationDeadline).
func TestLabKubeRotated(t *testing.T) {
	t.Parallel()
	plane := &kube.Shared{Signed: 3 * time.Minute}
	c := plane.Run(t)
	t.Cleanup(func() {
		check.OK(t, plane.Close())
	})
	n := bootGPU(t, c, "rotated", "trixie")
	n.Kubeadm(kube.Kubeadm{Token: c.Token()})
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	c.Apply(policyObjects(t, labKeys)...)
	n.agent("[runtime]\n[node]\n")
	n.condition("True")
	n.untainted()

	certificate := func() string {
		return n.Must("readlink", "-f",
			"/var/lib/kubelet/pki/kubelet-client-current.pem")
	}

	seen := []string{certificate()}
	first := n.Must("cat", strings.TrimSpace(seen[0]))
	n.c.Until("kubelet has rotated its certificate twice", func() string {
		if is := certificate(); is != seen[len(seen)-1] {
			seen = append(seen, is)
			t.Log(is)
		}
		if len(seen) < 3 {
			return seen[len(seen)-1]
		}
		return ""
	})
	block, _ := pem.Decode([]byte(first))
	until := must.Get(x509.ParseCertificate(block.Bytes))(t).NotAfter
	n.c.Until("the first certificate has run out", func() string {
		if time.Now().Before(until) {
			return "it is good until " + until.String()
		}
		return ""
	})

	n.c.Until("an apply by hand has nothing to do",
		func() string { // exit code 75: the pod's apply is at work
			r := n.Exec("/var/lib/gpuadm/daemonset", "apply", "--unattended", "-f", "/run/gpuadm/node.toml")
			if r.Exit != 0 {
				return r.String()
			}
			return ""
		})
	n.condition("True")
	n.untainted()
	log := n.Must("sh", "-c", "cat /var/log/pods/gpuadm*/*/*.log")
	for line := range strings.Lines(log) {
		refused := strings.Contains(line, "certificate") || strings.Contains(line, "nauthorized")
		check.That(t, !refused, "the pod says: %s", line)
	}

	for _, e := range kube.List(c.Get("/api/v1/namespaces/default/events"), "items") {
		if kube.Text(e, "involvedObject", "name") == n.Name && e["type"] == "Warning" {
			check.That(t, !strings.Contains(kube.Text(e, "source", "component"), "gpuadm"),
				"an Event: %v: %v", e["reason"], e["message"])
		}
	}

	r := n.Exec("/var/lib/gpuadm/daemonset", "status", "-f", "/run/gpuadm/node.toml")
	check.That(t, r.Exit == 0 && !strings.Contains(r.Stdout, "outside gpuadm"), "status: %s", r)
}
