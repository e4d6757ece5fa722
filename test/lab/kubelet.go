// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"runtime"

	"github.com/gpuadm/gpuadm/test/must"
)

// PauseImage and AgentImage are images that a host with Options.Kubelet gets by Host.ImportImages.
// The first keeps a pod's namespaces; the second has gpuadm with its C library, and busybox.
const (
	PauseImage = "lab.invalid/pause:1"
	AgentImage = "lab.invalid/gpuadm:1"
)

// kubeletLayer has what kubelet's pods need in addition to containerd: of Options.Kubelet.
func kubeletLayer() layer {
	return layer{
		name:     "kubelet",
		recipe:   "1",
		packages: []string{"containernetworking-plugins"},
	}
}

// furnishKubelet gives the host what kubelet needs of its container engine: a network for pods, an
// image for their namespaces, and no wish for what this machine does not let its root do: to lower
// a process's out-of-memory score.
func (m *Machine) furnishKubelet(put func(name, text string, mode os.FileMode) error) error {
	if !m.Options.Kubelet {
		return nil
	}
	const engine = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
`
	// In cgroups of the first version systemd, when it is itself in a container, is not told that a
	// container's scope is empty, and a shutdown waits for it until the time is up: 90 s, as
	// systemd ships. Source: "release agent" in cgroups(7), which is the machine's, not the
	// container's.
	err := put("/etc/systemd/system.conf.d/10-lab.conf", "[Manager]\nDefaultTimeoutStopSec=4s\n", 0o644)
	if err == nil {
		err = put("/etc/containerd/config.toml", engine, 0o644)
	}
	if err != nil || m.Options.Wire == nil {
		return err
	}
	return put("/etc/cni/net.d/10-pods.conflist", fmt.Sprintf(`{
  "cniVersion": "0.4.0", "name": "pods",
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, m.Options.Wire.Pods), 0o644)
}

// kubeletBoot are commands of the unit that makes a machine of the container. systemd-nspawn gives
// no /dev/kmsg, without which kubelet does not start; and a mount of a pod that is to be seen by
// others needs a root that is shared.
func (m *Machine) kubeletBoot() string {
	if !m.Options.Kubelet {
		return ""
	}
	return "ExecStart=-/usr/bin/mknod /dev/kmsg c 1 11\nExecStart=/usr/bin/mount --make-rshared /\n"
}

// ImportImages imports PauseImage and AgentImage into the host's containerd, where kubelet finds
// them. They stay over reboots.
func (h *Host) ImportImages() {
	h.t.Helper()
	busybox, err := os.ReadFile(h.path("root") + "/bin/busybox")
	must.That(h.t, err == nil, "cannot read busybox: %v", err)

	const untilEnded = "trap exit TERM INT; while sleep 1; do :; done; exit"
	pause := must.Get(ociImage(PauseImage, busybox, nil, "/bin/sh", "-c", untilEnded))(h.t)
	agent := must.Get(ociImage(AgentImage, busybox, h.agentFiles(), "/usr/local/sbin/gpuadm"))(h.t)
	for _, image := range [][]byte{pause, agent} {
		r := h.ExecInput(bytes.NewReader(image), "ctr", "-n", "k8s.io", "images", "import", "-")
		must.That(h.t, r.Exit == 0, "cannot import an image: %s", r)
	}
}

// agentFiles are the files of AgentImage: gpuadm, its C library, and folders.
func (h *Host) agentFiles() []tarFile {
	h.t.Helper()
	triple := "x86_64-linux-gnu"
	loader := "lib64/ld-linux-x86-64.so.2"
	if runtime.GOARCH == "arm64" {
		triple = "aarch64-linux-gnu"
		loader = "lib/ld-linux-aarch64.so.1"
	}
	libraries := "lib/" + triple + "/"

	var files []tarFile
	for _, dir := range []string{
		"lib/", "lib64/", libraries,
		"usr/", "usr/lib/", "usr/local/", "usr/local/sbin/",
		"tmp/", "run/", "var/",
	} {
		files = append(files, tarFile{name: dir, mode: 0o755})
	}

	for _, name := range []string{
		"usr/local/sbin/gpuadm", loader,
		libraries + "libc.so.6", libraries + "libdl.so.2", libraries + "libpthread.so.0",
		libraries + "libm.so.6", libraries + "librt.so.1", // libcuda's and nvidia-smi's
	} {
		text := h.Must("cat", "/"+name) // by the host: its links lead elsewhere from here
		files = append(files, tarFile{
			name: name,
			mode: 0o755,
			data: []byte(text),
		})
	}

	return files
}
