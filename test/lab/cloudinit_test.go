// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

//go:embed testdata/kubeadm.sh
var kubeadm string

//go:embed testdata/kubelet-kubeadm.service
var kubeletOfKubeadm string

//go:embed testdata/fake-driver.service
var fakeDriver string

// putDriver puts a driver onto the host that is loaded at each boot: hosts share their kernel.
func (n node) putDriver() {
	n.t.Helper()
	parts := fakenvml.Build(n.t)
	for from, to := range map[string]string{
		parts.Library: "/usr/local/lib/" + fakenvml.Soname,
		parts.CUDA:    "/usr/local/lib/" + fakenvml.CUDASoname,
		parts.Tool:    "/usr/local/bin/fakenvml",
	} {
		n.Put(to, string(must.Get(os.ReadFile(from))(n.t)), 0o755)
	}

	n.Put("/opt/driver.sh", readmeDriver, 0o755)
	n.Put("/etc/systemd/system/fake-driver.service", fakeDriver, 0o644)
	n.Must("systemctl", "enable", "--quiet", "fake-driver.service")
}

// TestLabCloudInit: the user data that docs/examples/terraform makes goes through the real cloud-init.
// It writes the files, gpuadm converges the machine, kubeadm joins it, and the token is gone. At the
// next boot the boot unit alone is at work.
func TestLabCloudInit(t *testing.T) {
	t.Parallel()
	deb := repos.Deb(t, repos.Recipe{})
	n := boot(t, lab.Options{
		Dist:      "trixie",
		GPUs:      8,
		CloudInit: true,
		Repos:     deb,
	})
	repos.Show(n.Host, repos.Good)
	n.Must("rm", specFile, "/usr/bin/nvidia-container-runtime") // the toolkit's package has it
	n.putDriver()
	toolkit := repos.Mirror + "/" + repos.Toolkit + "/deb/amd64"
	ofLab := fmt.Sprintf(readmeMachine, toolkit, repos.Key, repos.Fingerprint(t, deb))
	n.Put("/etc/gpuadm/node.d/lab.toml", ofLab, 0o644)
	n.Put("/etc/systemd/system/kubelet.service", kubeletOfKubeadm, 0o644)
	n.Put("/usr/bin/kubelet", kubeletProgram, 0o755)
	config := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailSwapOn: false\n"
	n.Put("/var/lib/kubelet/config.yaml", config, 0o644)
	n.Put("/usr/local/bin/kubeadm", kubeadm, 0o755)
	n.Put(lab.SeedDir+"/meta-data", "instance-id: gpu-01\n", 0o644)
	data := string(must.Get(os.ReadFile("../../docs/examples/terraform/user-data.yaml"))(t))
	n.Put(lab.SeedDir+"/user-data", data, 0o600)
	n.Reboot()

	status := ""
	isOver := func() bool {
		status = n.Exec("cloud-init", "status", "--long").Stdout
		return strings.Contains(status, "status: done") || strings.Contains(status, "status: error")
	}

	over := lab.Until(4*time.Minute, isOver)
	log := n.Exec("cat", "/var/log/cloud-init-output.log").Stdout
	must.That(t, over && strings.Contains(status, "status: done"), "cloud-init: %s\n%s", status, log)
	t.Logf("%s", log)

	check.Has(t, log, "file /etc/containerd/config.toml", "what cloud-init's commands printed:")
	check.Has(t, n.Get("/root/joined.yaml"), "10.0.0.1:6443", "kubeadm's file:")
	check.That(t, n.Exec("test", "-e", "/etc/gpuadm/join.yaml").Exit != 0, "the token is still there")
	mode := strings.TrimSpace(n.Must("stat", "-c", "%a", specFile))
	check.Equal(t, mode, "600", "the mode of node.toml:")
	n.active("kubelet.service", "active")
	n.gpuadm(0, "status")

	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	check.Has(t, n.Journal(bootUnit), "Nothing to do", "the boot unit's log:")
}
