// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
)

// withoutDBus is a machine, or a container, in which no systemd answers.
type withoutDBus struct{ fullView }

func (withoutDBus) Unit(_ context.Context, name string) (host.Unit, error) {
	cause := errors.New("dial unix /run/systemd/private: connect: no such file or directory")
	return host.Unit{}, &host.UnitError{Verb: "check", Unit: name, Cause: cause}
}

// TestHealthyEdges: machines at an edge that work: none has a root cause.
func TestHealthyEdges(t *testing.T) {
	const partition = `gpus instance = [{ profile = "1g.10gb" }]`
	const twoClients = "gpus clients = [4711, 4712]"
	for name, steps := range map[string][]string{
		"as it is":                 nil,
		"drained":                  {"cordoned", "taint node.kubernetes.io/unschedulable NoSchedule"},
		"busy":                     {twoClients},
		"one GPU to itself":        {"cuda 46 CUDA_ERROR_DEVICE_UNAVAILABLE", twoClients},
		"MIG without pods":         {"gpus mode = true", "gpus pending = true", partition, "node-offers 0 0", "kubelet-offers 0", "label nvidia.com/mig.strategy mixed"},
		"MIG manager done":         {"label nvidia.com/mig.config all-1g.10gb", "label nvidia.com/mig.config.state success"},
		"a plugin's own taint":     {"taint nvidia.com/gpu NoSchedule"},
		"nvidia-drm loaded":        {"nvidia-drm"},
		"no persistence":           {"no-persistenced"},
		"no server of the time":    {"no-time"},
		"another vendor's GPU too": {"amd"},
		"DRA after the plugin": {
			"remove proc/4711",
			"remove var/lib/kubelet/device-plugins/nvidia-gpu.sock",
			"kubelet-offers 0",
			"node-offers 0 0",
			"pod-deleted nvidia-device-plugin-daemonset-csjxw",
			"pod-waits nvidia-dra-driver-gpu-kubelet-plugin-x2x4k ContainerCreating",
		},
		"no EFA for its plugin": {"pod-waits aws-efa-k8s-device-plugin-abcde CrashLoopBackOff"},
	} {
		t.Run(name, func(t *testing.T) {
			w := incident.Joined(t, true)
			for _, step := range steps {
				switch step {
				case "nvidia-drm":
					w.Put("sys/module/nvidia_drm/refcnt", "0\n")
				case "no-time": // an air-gapped machine whose operator keeps no time daemon
					w.Change("sim.toml", "NTP=yes\nNTPSynchronized=yes", "NTP=no\nNTPSynchronized=no")
				case "no-persistenced":
					from := "name = \"nvidia-persistenced.service\"\nenabled = \"enabled\"\nactive = \"active\""
					w.Change("sim.toml", from, "name = \"nvidia-persistenced.service\"\nenabled = \"disabled\"\nactive = \"inactive\"")
				case "amd":
					const device = "sys/bus/pci/devices/0000:e1:00.0/"
					w.Put(device+"uevent", "DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_ID=1002:740F\nPCI_SLOT_NAME=0000:e1:00.0\n")
					w.Put(device+"vendor", "0x1002\n")
					w.Put(device+"device", "0x740f\n")
					w.Put(device+"class", "0x038000\n")
				default:
					w.Steps(step)
				}
			}

			n := w.Node()
			for _, cause := range examine(t, fullView{n, w.Rooms}).Causes {
				t.Errorf("%s: %v", cause.Code, cause.Found)
			}
		})
	}

	w := incident.Joined(t, true)
	report := examine(t, withoutDBus{fullView{w.Node(), w.Rooms}})
	check.That(t, len(report.Causes) == 0, "without D-Bus: %v", report.Causes)
	check.Equal(t, report.State, Unknown, "without D-Bus:")
}
