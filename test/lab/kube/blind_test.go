// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/pem"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	blindDriver  = "580.95.05"
	blindKubelet = "/var/lib/kubelet/config.yaml"
	blindToolkit = "/etc/nvidia-container-runtime/config.toml"
	blindEngine  = "/etc/containerd/config.toml"
)

// blindBoot is what a GPU machine shows after each boot and a container does not: NVIDIA's module
// in /proc and /sys, its device nodes, the driver of each GPU. $1 is the kind of module, "" for
// none.
// Sources: kernel-open/nvidia/nv-procfs.c in NVIDIA/open-gpu-kernel-modules; chapter 6 of the
// driver's README.
//
//go:embed testdata/blind-boot.sh
var blindBoot string

// blindPackages are a driver from NVIDIA's repository, by dkms, and the container toolkit, as dpkg
// knows them.
func (n gpuHost) blindPackages() {
	n.t.Helper()
	list := &strings.Builder{}
	for _, p := range []string{
		"nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libnvidia-ml1", "libcuda1", "nvidia-modprobe",
		"nvidia-container-toolkit 1.17.8-1", "nvidia-container-toolkit-base 1.17.8-1", "libnvidia-container1 1.17.8-1", "libnvidia-container-tools 1.17.8-1",
	} {
		name, version, own := strings.Cut(p, " ")
		if !own {
			version = blindDriver + "-1"
		}
		fmt.Fprintf(list, "\nPackage: %s\nStatus: install ok installed\nArchitecture: amd64\nVersion: %s\nMaintainer: NVIDIA\nDescription: %s\n", name, version, name)
	}

	r := n.ExecInput(strings.NewReader(list.String()), "sh", "-c", "cat >>/var/lib/dpkg/status")
	must.That(n.t, r.Exit == 0, "cannot add packages: %s", r)
}

// blindModule is a module that dkms has built for a kernel.
func (n gpuHost) blindModule(kernel string) {
	n.t.Helper()
	n.Put("/lib/modules/"+kernel+"/updates/dkms/nvidia.ko", "", 0o644)
	n.Put("/lib/modules/"+kernel+"/modules.dep", "updates/dkms/nvidia.ko:\n", 0o644)
	n.Put("/var/lib/dkms/nvidia/"+blindDriver+"/"+kernel+"/x86_64/module/nvidia.ko", "", 0o644)
	n.Must("ln", "-sfn", "/usr/src/nvidia-"+blindDriver, "/var/lib/dkms/nvidia/"+blindDriver+"/source")
	n.Put("/usr/src/nvidia-"+blindDriver+"/dkms.conf", "PACKAGE_NAME=\"nvidia\"\nPACKAGE_VERSION=\""+blindDriver+"\"\nAUTOINSTALL=\"yes\"\n", 0o644)
}

func (n gpuHost) blindContainerd(head, first string) {
	n.t.Helper()
	n.Put(blindEngine, head+`version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "`+lab.PauseImage+`"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "`+first+`"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
      SystemdCgroup = true
`, 0o644)
	n.Must("systemctl", "restart", "containerd.service")
}

// blindToolkitText is what nvidia-ctk config prints.
//
//go:embed testdata/blind-toolkit.toml
var blindToolkitText string

// blindFault is one broken machine. roots are the root causes that doctor names, with spaces
// between.
type blindFault struct {
	name, roots   string
	broken, whole func(n gpuHost)
}

// TestLabKubeBlind breaks one node in eleven ways that people report often.
func TestLabKubeBlind(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "blind", "bookworm")
	n.Put("/usr/local/sbin/blind-boot", blindBoot, 0o755)
	n.blindModules("Open Kernel Module for x86_64")
	n.kernelSays("")
	n.Put("/etc/resolv.conf", "nameserver 127.0.0.1\n", 0o644)
	n.blindPackages()
	n.blindModule(n.kernel())
	n.Put(blindToolkit, blindToolkitText, 0o644)
	n.blindContainerd("", "nvidia")
	n.Kubeadm(kube.Kubeadm{Token: c.Token(), Config: kube.Object{"failSwapOn": true}})
	// As in kubelet's package. Source: cmd/krel/templates/latest/kubelet/kubelet.service in
	// https://github.com/kubernetes/release.
	n.Put("/etc/systemd/system/kubelet.service.d/20-restart.conf", "[Service]\nRestartSec=10\n", 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "start", "kubelet.service")
	n.Ready()
	n.Devices(2)
	n.Allocatable("nvidia.com/gpu", 2)
	n.Must("rm", "/etc/kubernetes/bootstrap-kubelet.conf")
	n.doctor("healthy", "")
	for _, f := range blindFaults() {
		n.Exec("sh", "-c", "journalctl --rotate; journalctl --vacuum-size=1")
		f.broken(n)
		n.doctor(f.name, f.roots)
		f.whole(n)
		n.Until("after "+f.name+" the node is whole", func() string {
			if r := n.Exec("gpuadm", "doctor"); r.Exit != 0 {
				return r.String()
			}
			return ""
		})
	}
}

func (n gpuHost) kernel() string {
	n.t.Helper()
	return strings.TrimSpace(n.Must("uname", "-r"))
}

func (n gpuHost) Until(what string, ask func() string) {
	n.t.Helper()
	wrong := ""
	check.That(n.t, lab.Until(3*time.Minute, func() bool {
		wrong = ask()
		return wrong == ""
	}), "%s: %s", what, wrong)
}

// blindModules loads a kind of NVIDIA's modules, "" for none.
func (n gpuHost) blindModules(kind string) {
	n.t.Helper()
	n.Must("sh", "/usr/local/sbin/blind-boot", kind)
}

// kernelSays is the kernel's log. All hosts share one kernel, so dmesg is not the real one.
func (n gpuHost) kernelSays(text string) {
	n.t.Helper()
	n.Put("/usr/local/bin/dmesg", "#!/bin/sh\ncat <<'E'\n[    0.000000] Linux version "+n.kernel()+"\n"+text+"E\n", 0o755)
	n.Must("ln", "-sf", "/usr/local/bin/dmesg", "/usr/bin/dmesg")
}

// noGSP is what the open modules say of a GPU before Turing: negativo17/nvidia-driver#158, and
// kernel-open/nvidia/nv-pci.c in NVIDIA/open-gpu-kernel-modules.
//
//go:embed testdata/no-gsp.log
var noGSP string

// kubeletSays restarts kubelet and waits until it says a text.
func (n gpuHost) kubeletSays(text string) {
	n.t.Helper()
	n.Exec("systemctl", "restart", "kubelet.service")
	n.Until("kubelet says "+text, func() string {
		if said := n.Exec("journalctl", "--no-pager", "--output=cat", "--unit=kubelet.service").Stdout; !strings.Contains(said, text) {
			return said
		}
		if is := n.Property("kubelet.service", "ActiveState"); is != "activating" { // systemd waits before it starts kubelet again
			return is
		}
		return ""
	})
}

// says waits until the Node has a condition with a status.
func (n gpuHost) says(kind, status string) {
	n.t.Helper()
	n.Until("the Node says "+kind+"="+status, func() string {
		if is := kube.Condition(n.Object(), kind); is["status"] != status {
			return fmt.Sprint(is)
		}
		return ""
	})
}

// whole waits until kubelet is ready after a fault.
func (n gpuHost) whole() {
	n.t.Helper()
	n.Must("systemctl", "restart", "kubelet.service")
	n.Must("systemctl", "reset-failed")
	n.Must("systemctl", "restart", "devplug.service")
	n.Ready()
	n.Allocatable("nvidia.com/gpu", 2)
}

func (n gpuHost) edit(expression, file string) {
	n.t.Helper()
	n.Must("cp", "-n", file, file+".whole")
	n.Must("sed", "-i", expression, file)
}

func (n gpuHost) unedit(file string) {
	n.t.Helper()
	n.Must("mv", file+".whole", file)
}

// pluginSays is what the device plugin prints in a container without NVIDIA's libraries:
// NVIDIA/k8s-device-plugin#406 and #478.
//
//go:embed testdata/plugin.log
var pluginSays string

const (
	pluginImage = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"
	pluginPod   = "/api/v1/namespaces/kube-system/pods/nvidia-device-plugin-daemonset-7xk2p"
)

func (n gpuHost) plugin() {
	n.t.Helper()
	n.Must("ctr", "-n", "k8s.io", "images", "tag", "--force", lab.AgentImage, pluginImage)
	n.c.Apply(kube.Object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": kube.Object{"name": "nvidia-device-plugin-daemonset-7xk2p", "namespace": "kube-system", "labels": kube.Object{"name": "nvidia-device-plugin-ds"}},
		"spec": kube.Object{
			"nodeName": n.Name, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
			"tolerations": []kube.Object{{"operator": "Exists"}},
			"containers": []kube.Object{{
				"name": "nvidia-device-plugin-ctr", "image": pluginImage, "imagePullPolicy": "Never",
				"command": []string{"/bin/sh", "-c", "cat >&2 <<'E'\n" + pluginSays + "E\nexit 1"},
			}},
		},
	})
	n.Until("the plugin ended", func() string {
		return n.Exec("sh", "-c", "grep -q 'Incompatible platform' /var/log/pods/kube-system_nvidia-device-plugin*/*/*.log || ls -R /var/log/pods").Stdout
	})
}

// rootCause is how doctor's answer names one.
var rootCause = regexp.MustCompile(`(?m)^! ([A-Z]+-\d+) `)

// doctor wants root causes, and none else.
func (n gpuHost) doctor(name, roots string) {
	n.t.Helper()
	r := n.Exec("gpuadm", "doctor")
	var said []string
	for _, m := range rootCause.FindAllStringSubmatch(r.Stdout, -1) {
		said = append(said, m[1])
	}
	got := strings.Join(said, " ")
	check.That(n.t, got == roots && r.Exit == map[bool]int{
		true:  0,
		false: 3,
	}[roots == ""], "%s: doctor names %q, want %q: %s", name, got, roots, r)
}

// expired is a client certificate of a node that ended yesterday, with its key, in the file that
// kubelet writes.
func expired(t *testing.T, node string) string {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{
			CommonName:   "system:node:" + node,
			Organization: []string{"system:nodes"},
		},
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
			n.says("Ready", "False")
		}, func(n gpuHost) {
			n.gpuadm(3, []string{"doctor", "-v"}, "has the condition Ready=False")
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
		// A soft threshold: the condition is there at once, and kubelet removes no image and evicts
		// no pod for an hour. Source: synchronize in pkg/kubelet/eviction/eviction_manager.go of
		// Kubernetes;
		// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/.
		{"11 disk pressure", "KUB-016", func(n gpuHost) {
			n.edit("$ a evictionSoft: {nodefs.available: 99.9%}\\nevictionSoftGracePeriod: {nodefs.available: 1h}", blindKubelet)
			n.Must("systemctl", "restart", "kubelet.service")
			n.says("DiskPressure", "True")
		}, func(n gpuHost) {
			n.unedit(blindKubelet)
			n.whole()
			n.says("DiskPressure", "False")
		}},
	}
}
