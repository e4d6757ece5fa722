// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"errors"
	"io/fs"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// field is one field of a message that holds bytes.
func field(n protowire.Number, parts ...string) string {
	b := protowire.AppendTag(nil, n, protowire.BytesType)
	return string(protowire.AppendString(b, strings.Join(parts, "")))
}

// given is kubelet's entry of a pod with one container and devices, as api.proto of podresources/v1
// has it; cpu_ids (3) are numbers.
func given(namespace, name, resource string, ids ...string) string {
	devices := field(1, resource)
	for _, id := range ids {
		devices += field(2, id)
	}
	return field(1, field(1, name), field(2, namespace), field(3, field(1, "main"), field(2, devices), "\x18\x07"))
}

// TestPodDevices: pods that have a device count also without a process; those that kubelet lists
// without a device, as it lists ended ones before Kubernetes 1.34, do not; other vendors' devices
// never do, nor do NVIDIA's network cards.
func TestPodDevices(t *testing.T) {
	kubelet := given("ml", "train-0", "nvidia.com/gpu", "GPU-1::0", "GPU-1::3") + given("ml", "pulls", "nvidia.com/mig-1g.10gb", "MIG-2") +
		field(1, field(1, "done"), field(2, "ml"), field(3, field(1, "main"), "\x18\x07")) + given("net", "nic", "example.com/nic", "NIC-1") +
		given("net", "vf", "nvidia.com/hostdev", "0000:3b:02.1")
	resources := "/var/lib/kubelet" + facts.PodResources
	boot := func(files string) *simhost.Node {
		n := must.Get(simhost.New([]byte("-- sim.toml --\n" + files)))(t)
		n.Daemon(resources, func(method string, _ []byte) ([]byte, error) {
			check.That(t, method == "/v1.PodResourcesLister/List", "kubelet is asked for %s", method)
			return []byte(kubelet), nil
		})
		return n
	}

	const socket = "-- var/lib/kubelet/pod-resources/kubelet.sock --\n"
	n, want := boot(socket), []PodDevice{{"ml/train-0", "GPU-1"}, {"ml/train-0", "GPU-1"}, {"ml/pulls", "MIG-2"}}
	got, err := OfPods(t.Context(), n)
	check.That(t, err == nil && reflect.DeepEqual(got, want), "%v, %v", got, err)
	got, err = OfPods(t.Context(), boot(""))
	check.That(t, got == nil && err == nil, "without a socket: %v, %v", got, err)
	// A kubelet with --root-dir=/data/kubelet, as the kernel shows its socket.
	resources = "/data/kubelet" + facts.PodResources
	got, err = OfPods(t.Context(), boot("-- data/kubelet/pod-resources/kubelet.sock --\n-- proc/net/unix --\nNum RefCount Protocol Flags Type St Inode Path\n"+
		"0: 00000002 00000000 00010000 0001 01 20000 /data/kubelet/pod-resources/2468013579\n"))
	check.That(t, err == nil && reflect.DeepEqual(got, want), "with --root-dir: %v, %v", got, err)
	for _, name := range []string{"@/x", "/only/in/a/container"} { // before kubelet's, and behind it
		line := "0: 00000002 00000000 00010000 0001 01 20001 " + name + "/pod-resources/kubelet.sock\n"
		got, err = OfPods(t.Context(), boot("-- data/kubelet/pod-resources/kubelet.sock --\n-- proc/net/unix --\nNum RefCount Protocol Flags Type St Inode Path\n"+
			line+"0: 00000002 00000000 00010000 0001 01 20000 /data/kubelet/pod-resources/2468013579\n"+line))
		check.That(t, err == nil && reflect.DeepEqual(got, want), "beside a socket %s: %v, %v", name, got, err)
	}
	// Any user can listen in a folder of their own, and answer that no pod has a device.
	resources = "/tmp/k" + facts.PodResources
	got, err = OfPods(t.Context(), boot("-- tmp/k/pod-resources/kubelet.sock --\n-- proc/net/unix --\nNum RefCount Protocol Flags Type St Inode Path\n"+
		"0: 00000002 00000000 00010000 0001 01 20000 /tmp/k/pod-resources/kubelet.sock\n"))
	check.That(t, err == nil && got == nil, "another user's socket: %v, %v", got, err)
	resources = "/var/lib/kubelet" + facts.PodResources
	n.Daemon(resources, func(string, []byte) ([]byte, error) {
		return []byte{0x0a, 0x7f}, nil
	})
	_, err = OfPods(t.Context(), n)
	check.That(t, err != nil, "a torn answer is taken")
	n.Daemon(resources, func(string, []byte) ([]byte, error) {
		return nil, host.Later{Until: "never"}
	})
	_, err = OfPods(t.Context(), n)
	check.That(t, err != nil, "a kubelet that fails counts as one with no pods")
}

// closed is a machine on which no file can be looked at.
type closed struct{ *simhost.Node }

func (closed) Stat(name string) (host.Info, error) {
	return host.Info{}, &host.FileError{Verb: "read", Path: name, Cause: syscall.EACCES}
}

// TestSocketThatCannotBeLookedAt: where gpuadm cannot see whether kubelet has a socket, it does not
// know that no pod has a GPU.
func TestSocketThatCannotBeLookedAt(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- sim.toml --\n")))(t)
	got, err := OfPods(t.Context(), closed{n})
	check.That(t, errors.Is(err, fs.ErrPermission), "%v, %v", got, err)
}

func TestHolderGroups(t *testing.T) {
	pods := map[string]string{"01234567-89ab-cdef-0123-456789abcdef": "ml/train-0"}
	for group, want := range map[string]Holder{
		"0::/system.slice/nvidia-persistenced.service\n":                                                                          {Unit: "nvidia-persistenced.service"},
		"11:devices:/kubepods/burstable/pod01234567-89ab-cdef-0123-456789abcdef/" + strings.Repeat("ab", 32) + "\n":               {Pod: "ml/train-0", Container: "abababababab"},
		"0::/kubepods.slice/kubepods-podffffffff_89ab_cdef_0123_456789abcdef.slice/crio-" + strings.Repeat("cd", 32) + ".scope\n": {Pod: "uid ffffffff-89ab-cdef-0123-456789abcdef", Container: "cdcdcdcdcdcd"},
		"0::/system.slice/docker-" + strings.Repeat("ef", 32) + ".scope\n":                                                        {Container: "efefefefefef"},
		// kubelet names groups for systemd, and containerd does not.
		"0::/system.slice/containerd.service/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice:cri-containerd:" + strings.Repeat("12", 32) + "\n": {Pod: "ml/train-0", Unit: "containerd.service", Container: "121212121212"},
		"0::/user.slice/user-1000.slice/session-3.scope\n": {},
		"0::/podman.slice\n": {},
	} {
		var h Holder
		h.readCgroup(group, pods)
		check.That(t, h.Pod == want.Pod && h.Unit == want.Unit && h.Container == want.Container, "%s: %+v", group, h)
	}

	check.That(t, (Holder{Unit: "nvidia-persistenced.service"}).Daemon() && !(Holder{Unit: "x.service"}).Daemon(), "daemons are not told from others")
}
