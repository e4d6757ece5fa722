// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// expired is a client certificate of a node that ended yesterday, with its key, in the file that kubelet writes.
func expired(t *testing.T, node string) string {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore: time.Now().AddDate(-1, 0, -1), NotAfter: time.Now().AddDate(0, 0, -1), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key))(t)
	secret := must.Get(x509.MarshalECPrivateKey(key))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}))
}

func blindFaults() []blindFault {
	const (
		open  = "Open Kernel Module for x86_64"
		pki   = "/var/lib/kubelet/pki/"
		built = "/lib/modules/6.1.0-40-amd64/updates/dkms/nvidia.ko"
		cni   = "/etc/cni/net.d/10-pods.conflist"
	)
	unloaded := func(n gpuHost) {
		n.blindModules("")
		n.Must("fakenvml", "driver", "--init", "DRIVER_NOT_LOADED")
		n.Must("systemctl", "stop", "devplug.service")
	}
	loaded := func(n gpuHost) {
		n.blindModules(open)
		n.Must("fakenvml", "driver", "--init", "SUCCESS")
		n.whole()
	}
	return []blindFault{
		{"1 CRI disabled", "RUN-003", func(n gpuHost) {
			n.blindContainerd("disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n", "nvidia")
			n.kubeletSays("unknown service runtime.v1.RuntimeService")
		}, func(n gpuHost) {
			n.blindContainerd("", "nvidia")
			n.whole()
		}},
		{"2 no module for the kernel", "DRV-003", func(n gpuHost) {
			unloaded(n)
			n.blindModule("6.1.0-40-amd64")
			n.Must("rm", "-r", "/lib/modules/"+n.kernel()+"/updates", "/var/lib/dkms/nvidia/"+blindDriver+"/"+n.kernel())
			n.Put("/lib/modules/"+n.kernel()+"/modules.dep", "", 0o644)
		}, func(n gpuHost) {
			n.blindModule(n.kernel())
			loaded(n)
		}},
		{"3 default runtime", "RUN-009", func(n gpuHost) {
			n.blindContainerd("", "runc")
			n.Must("systemctl", "stop", "devplug.service")
			n.plugin()
		}, func(n gpuHost) {
			n.c.Delete(pluginPod + "?gracePeriodSeconds=0")
			n.blindContainerd("", "nvidia")
			n.whole()
		}},
		{"4 no-cgroups", "RUN-007", func(n gpuHost) { n.edit("s/^#no-cgroups = .*/no-cgroups = true/", blindToolkit) }, func(n gpuHost) { n.unedit(blindToolkit) }},
		{"5 toolkit root", "RUN-008", func(n gpuHost) {
			n.edit("s/^#root = /root = /; s#^ldconfig = .*#ldconfig = \"@/run/nvidia/driver/sbin/ldconfig\"#", blindToolkit)
			n.Must("mkdir", "-p", "/run/nvidia/driver")
		}, func(n gpuHost) {
			n.unedit(blindToolkit)
			n.Must("rmdir", "/run/nvidia/driver")
		}},
		{"6 swap", "KUB-006", func(n gpuHost) {
			n.Put("/run/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/swapfile                               file\t\t3991548\t\t0\t\t-2\n", 0o444)
			n.Put("/etc/fstab", "/swapfile none swap sw 0 0\n", 0o644)
			n.Must("mount", "--bind", "/run/swaps", "/proc/swaps")
			n.kubeletSays("running with swap on is not supported")
		}, func(n gpuHost) {
			n.Must("umount", "/proc/swaps")
			n.Put("/etc/fstab", "", 0o644)
			n.whole()
		}},
		{"7 certificate", "KUB-005", func(n gpuHost) {
			n.Must("cp", "-P", pki+"kubelet-client-current.pem", pki+"whole")
			n.Put(pki+"kubelet-client-2025-11-20-08-00-00.pem", expired(n.t, n.Name), 0o600)
			n.Must("ln", "-sfn", pki+"kubelet-client-2025-11-20-08-00-00.pem", pki+"kubelet-client-current.pem")
			n.kubeletSays("bootstrap-kubelet.conf")
		}, func(n gpuHost) {
			n.Must("mv", pki+"whole", pki+"kubelet-client-current.pem")
			n.Must("rm", pki+"kubelet-client-2025-11-20-08-00-00.pem")
			n.whole()
		}},
		{"8 CPU manager", "KUB-012", func(n gpuHost) {
			n.edit("$ a cpuManagerPolicy: static\\nreservedSystemCPUs: \"0\"", blindKubelet)
			n.kubeletSays("differs from state checkpoint policy")
		}, func(n gpuHost) {
			n.unedit(blindKubelet)
			n.whole()
		}},
		{"9 no CNI", "KUB-013", func(n gpuHost) {
			n.Must("mv", cni, "/etc/cni/whole")
			n.Until("the node is not ready", func() string {
				if is := kube.Condition(n.Object(), "Ready"); is["status"] == "True" {
					return fmt.Sprint(is)
				}
				return ""
			})
		}, func(n gpuHost) {
			n.Must("mv", "/etc/cni/whole", cni)
			n.Must("systemctl", "restart", "containerd.service") // containerd 1.6 does not see the file come again: containerd#8419
			n.whole()
		}},
		{"10 open module", "DRV-008", func(n gpuHost) {
			n.SetGPUs("V100", 2)
			unloaded(n)
			n.kernelSays(noGSP)
		}, func(n gpuHost) {
			n.SetGPUs("", 2)
			n.kernelSays("")
			loaded(n)
		}},
	}
}
