// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/must"
)

// Wire attaches a host to a network, which else has a loopback interface alone.
type Wire struct {
	// Namespace is the file of the network namespace with the bridge.
	Namespace, Bridge string
	// Address is the host's, with the length of the prefix: "10.200.0.11/24".
	Address, Gateway string
	// Pods are the addresses of the host's pods: "10.244.11.0/24".
	Pods string
}

// PauseImage and AgentImage are images that a host with Options.Kubelet gets by Host.ImportImages.
// The first keeps a pod's namespaces; the second has gpuadm with its C library, and busybox.
const (
	PauseImage = "lab.invalid/pause:1"
	AgentImage = "lab.invalid/gpuadm:1"
)

// kubeletLayer has what kubelet's pods need beside containerd: of Options.Kubelet.
func kubeletLayer() layer {
	return layer{"kubelet", "1", []string{"containernetworking-plugins"}, nil}
}

// Lock takes an exclusive lock on a file, which ends with the process at the latest. how is 0 or
// LOCK_NB.
func Lock(path string, how int) (*os.File, error) { return parts.Lock(path, syscall.LOCK_EX|how) }

// enterWire moves the calling thread into the network that the host is to be attached to. The
// thread must be locked, for good.
func (m *Machine) enterWire() error {
	if m.Options.Wire == nil {
		return nil
	}
	file, err := os.Open(m.Options.Wire.Namespace)
	if err != nil {
		return fmt.Errorf("cannot open the host's network: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot enter the host's network: %w", err)
	}
	// After a power loss the kernel takes the old boot's network apart in its own time, and its
	// interface is in the way. That there is none is as well.
	_ = exec.Command("ip", "link", "delete", "vb-"+m.nspawnName()).Run()
	return nil
}

// nspawnName is what systemd-nspawn knows the host by. It calls the interface on the bridge
// vb-NAME, of which no more than 15 characters would be left: IFNAMSIZ in linux/if.h.
func (m *Machine) nspawnName() string {
	if m.Options.Wire == nil {
		return m.Name
	}
	return "lab-" + m.Name[strings.LastIndex(m.Name, "-")+1:]
}

// hostname is what the host calls itself.
func (m *Machine) hostname() string {
	if m.Options.Name != "" {
		return m.Options.Name
	}
	return "node"
}

// spawnArgs are systemd-nspawn's arguments for what Options say of the network and of files of this
// machine.
func (m *Machine) spawnArgs() []string {
	args := []string{"--private-network"}
	if m.Options.Wire != nil {
		args = []string{"--network-bridge=" + m.Options.Wire.Bridge}
	}
	for inside, file := range m.Options.Files {
		args = append(args, "--bind-ro="+file+":"+inside)
	}
	return args
}

// furnishWire gives the host its address, by systemd-networkd.
func (m *Machine) furnishWire(put func(name, text string, mode os.FileMode) error) error {
	if m.Options.Wire == nil {
		return nil
	}
	w := m.Options.Wire
	err := put("/etc/systemd/network/10-host0.network", "[Match]\nName=host0\n[Network]\nAddress="+w.Address+"\nGateway="+w.Gateway+
		"\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n", 0o644)
	if err != nil {
		return err
	}
	// Kubelet asks for its own name's address at each of its reports, and a name server that does
	// not answer costs it 10 s.
	own, _, _ := strings.Cut(w.Address, "/")
	for name, text := range map[string]string{
		"/etc/hosts":       "127.0.0.1 localhost\n" + own + " " + m.hostname() + "\n",
		"/etc/resolv.conf": "# no name server\n",
	} {
		if err := put(name, text, 0o644); err != nil {
			return err
		}
	}
	for unit, target := range map[string]string{
		"systemd-networkd.service": "multi-user.target", "systemd-networkd.socket": "sockets.target",
		"systemd-networkd-wait-online.service": "network-online.target",
	} {
		link := m.path("upper") + "/etc/systemd/system/" + target + ".wants/" + unit
		err := os.MkdirAll(filepath.Dir(link), 0o755)
		if err == nil {
			err = os.Symlink("/usr/lib/systemd/system/"+unit, link)
		}
		if err != nil {
			return fmt.Errorf("cannot furnish the host's network: %w", err)
		}
	}
	return nil
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
	pause := must.Get(ociImage(PauseImage, busybox, nil, "/bin/sh", "-c", "trap exit TERM INT; while sleep 1; do :; done; exit"))(h.t)
	var files []tarFile
	for _, dir := range []string{"lib/", "lib64/", "usr/", "usr/lib/", "usr/local/", "usr/local/sbin/", "tmp/", "run/", "var/"} {
		files = append(files, tarFile{name: dir, mode: 0o755})
	}
	triple := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	files = append(files, tarFile{name: "lib/" + triple + "/", mode: 0o755})
	loader := map[string]string{"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}[runtime.GOARCH]
	names := []string{"usr/local/sbin/gpuadm", loader}
	for _, library := range []string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "librt.so.1"} { // the last two are libcuda's and nvidia-smi's
		names = append(names, "lib/"+triple+"/"+library)
	}
	for _, name := range names {
		text := []byte(h.Must("cat", "/"+name)) // by the host: its links lead elsewhere from here
		files = append(files, tarFile{name: name, mode: 0o755, data: text})
	}
	agent := must.Get(ociImage(AgentImage, busybox, files, "/usr/local/sbin/gpuadm"))(h.t)
	for _, image := range [][]byte{pause, agent} {
		r := h.ExecInput(bytes.NewReader(image), "ctr", "-n", "k8s.io", "images", "import", "-")
		must.That(h.t, r.Exit == 0, "cannot import an image: %s", r)
	}
}

// NodeadmUnits are the units of EKS's images by which a machine becomes a node, with their order
// and what they need.
// Source: https://github.com/awslabs/amazon-eks-ami (81fec2e8, 2026-07-23),
// templates/al2023/runtime/rootfs/etc/systemd/system.
func NodeadmUnits() map[string]string {
	const (
		run    = "[Service]\nType=oneshot\nExecStart=/usr/bin/nodeadm init "
		cache  = " --config-cache /run/eks/nodeadm/config.json\nStandardError=journal+console\n"
		wanted = "[Install]\nWantedBy=multi-user.target\n"
	)
	return map[string]string{
		"nodeadm-config.service": "[Unit]\nBefore=cloud-init.service\nAfter=systemd-networkd-wait-online.service\n" +
			run + "--skip run --config-source imds://user-data" + cache + wanted,
		"nodeadm-run.service": "[Unit]\nAfter=nodeadm-config.service cloud-final.service\nRequires=nodeadm-config.service\n" +
			run + "--skip config --config-source imds://user-data --config-source file:///etc/eks/nodeadm.d/" + cache + wanted,
		"kubelet.service": "[Unit]\nAfter=containerd.service\nWants=containerd.service\n[Service]\nSlice=runtime.slice\nEnvironmentFile=/etc/eks/kubelet/environment\n" +
			"ExecStart=/usr/bin/kubelet $NODEADM_KUBELET_ARGS\nRestart=on-failure\nRestartForceExitStatus=SIGPIPE\nRestartSec=5\nKillMode=process\n" + wanted,
		"containerd.service.d/00-runtime-slice.conf": "[Service]\nSlice=runtime.slice\n",
	}
}
