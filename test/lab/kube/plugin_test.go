// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	pluginUnit    = "nvidia-plugin.service"
	pluginFile    = "/etc/nvidia-plugin.yaml"
	pluginOptions = "/etc/default/nvidia-plugin"
	mpsUnit       = "nvidia-mps.service"
	mpsProgram    = "/usr/local/bin/mps-control-daemon"
)

// Layouts for two H100.
const (
	noPartitions = "[[mig.gpu]]\ndevices = \"all\"\nenabled = false\n"
	oneKind      = "[[mig.gpu]]\ndevices = \"all\"\nlayout = { \"1g.10gb\" = 7 }\n"
	twoKinds     = "[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.40gb\" = 2 }\n" +
		"[[mig.gpu]]\ndevices = [1]\nlayout = { \"1g.10gb\" = 7 }\n"
)

// capabilities makes the driver's list of its capability devices, without which the plugin finds no
// partition. Source: mig-minors in
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
const capabilities = `mkdir -p /run/driver/nvidia-caps
minor=1
for gpu in 0 1; do for gi in $(seq 0 14); do
  for access in access ci0/access; do
    echo "gpu$gpu/gi$gi/$access $minor"
    minor=$((minor+1))
  done
done; done >/run/driver/nvidia-caps/mig-minors
mount --bind /run/driver /proc/driver`

// TestLabKubePlugin: NVIDIA's own device plugin, unmodified, offers on the fake GPUs what gpuadm
// says that pods can ask for, if it has the configuration that gpuadm prints: whole GPUs, partitions,
// and both shared in turns, or by MPS with NVIDIA's own MPS control daemon. With a setting of its
// own it offers other names or nothing; then the node is not ready, and gpuadm names the setting.
func TestLabKubePlugin(t *testing.T) {
	t.Parallel()
	n := pluginHost(t, cluster.Run(t))

	for _, c := range []struct {
		name, spec string
		offers     []string
	}{
		{"whole GPUs", noPartitions, []string{"2 nvidia.com/gpu"}},
		{"one kind", oneKind, []string{"14 nvidia.com/gpu"}},
		{"one kind, mixed", oneKind + "[sharing]\nstrategy = \"mixed\"\n", []string{"14 nvidia.com/mig-1g.10gb"}},
		{"two kinds", twoKinds, []string{"7 nvidia.com/mig-1g.10gb", "2 nvidia.com/mig-3g.40gb"}},
		{
			"two kinds, shared", twoKinds + "[sharing]\ntime_slicing = 3\n",
			[]string{"21 nvidia.com/mig-1g.10gb", "6 nvidia.com/mig-3g.40gb"},
		},
		{"one kind, shared", oneKind + "[sharing]\ntime_slicing = 2\n", []string{"28 nvidia.com/gpu"}},
		{"whole GPUs, shared", noPartitions + "[sharing]\ntime_slicing = 4\n", []string{"8 nvidia.com/gpu"}},
	} {
		t.Log(c.name)
		n.wants("[node]\n", c.spec)
		n.partitioned()
		n.nvidiaPlugin("CONFIG_FILE=" + pluginFile)
		n.offers(c.offers...)
		n.announces(c.offers)
		n.settled()
		n.condition("True")
	}

	n.sharesByMPS()

	for _, c := range []struct {
		name, spec, options string
		offers              []string
		cause               string
	}{
		{"the plugin's default", oneKind, "", []string{"2 nvidia.com/gpu"}, "migStrategy is none"},
		{"mixed for single", oneKind, "MIG_STRATEGY=mixed", []string{"14 nvidia.com/mig-1g.10gb"}, "MIG_STRATEGY=mixed"},
		{"single for two kinds", twoKinds, "MIG_STRATEGY=single", nil, "MIG_STRATEGY=single"},
	} {
		t.Log(c.name)
		n.wants("[node]\n", c.spec)
		n.partitioned()
		n.nvidiaPlugin(c.options)
		n.offers(c.offers...)
		r := n.Exec("gpuadm", "apply")
		check.That(t, r.Exit == 75, "%s: want exit 75: %s", c.name, r)
		check.That(t, strings.Contains(r.String(), c.cause), "%s: gpuadm does not name the cause %q: %s", c.name, c.cause, r)
		n.condition("False")
	}
}

// sharesByMPS: the plugin offers nothing before NVIDIA's MPS control daemon answers it, which gpuadm
// names as the cause; then it offers what gpuadm says.
func (n gpuHost) sharesByMPS() {
	n.t.Helper()
	n.t.Log("whole GPUs, shared by MPS")
	n.wants("[node]\n", noPartitions+"[sharing]\nmps = 4\n")
	n.partitioned()
	n.nvidiaPlugin("CONFIG_FILE=" + pluginFile)
	n.offers()
	r := n.Exec("gpuadm", "apply")
	check.That(n.t, r.Exit == 75, "without MPS: want exit 75: %s", r)
	check.That(n.t, strings.Contains(r.String(), "no MPS control daemon runs here"), "without MPS: the cause is not named: %s", r)
	n.condition("False")

	n.Must("systemctl", "start", mpsUnit)
	n.Must("systemctl", "restart", pluginUnit) // it asks each 30 seconds
	offers := []string{"8 nvidia.com/gpu"}
	n.offers(offers...)
	n.announces(offers)
	n.settled()
	n.condition("True")
	n.Must("systemctl", "stop", mpsUnit)
}

// pluginHost has joined the cluster and runs NVIDIA's device plugin as a service.
func pluginHost(t *testing.T, c *kube.T) gpuHost {
	t.Helper()
	n := bootGPU(t, c, "plugin", "trixie")
	n.hasPlugin()
	n.prepared("[node]\n")
	n.Ready()
	return n
}

// hasPlugin installs NVIDIA's device plugin as a service that does not run yet.
func (n gpuHost) hasPlugin() {
	n.t.Helper()
	parts := must.Get(kube.Find())(n.t)
	n.Put(devicePlugin, string(must.Get(os.ReadFile(parts.Path(kube.NvidiaPlugin)))(n.t)), 0o755)
	n.Put("/etc/systemd/system/"+pluginUnit, "[Unit]\nAfter=kubelet.service\nStartLimitIntervalSec=0\n"+
		"[Service]\nEnvironmentFile="+pluginOptions+"\nExecStart="+devicePlugin+"\n"+
		"Restart=always\nRestartSec=1\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	n.hasMPS(parts)
	n.Must("systemctl", "daemon-reload")
	n.Must("sh", "-ec", capabilities)
}

// hasMPS installs NVIDIA's program that starts MPS control daemons, as a service that does not run
// yet, and a stand-in for those daemons.
func (n gpuHost) hasMPS(parts kube.Parts) {
	n.t.Helper()
	n.Put(mpsProgram, string(must.Get(os.ReadFile(parts.Path(kube.MPSControl)))(n.t)), 0o755)
	n.Put("/usr/bin/nvidia-cuda-mps-control", must.Get(kube.MPSProgram())(n.t), 0o755)
	n.Must("mkdir", "-p", "/mps")
	n.Put("/etc/systemd/system/"+mpsUnit, "[Service]\nEnvironment=CONFIG_FILE="+pluginFile+"\nExecStart="+mpsProgram+"\n", 0o644)
}

// partitioned has gpuadm make the partitions of the spec while no plugin runs.
func (n gpuHost) partitioned() {
	n.t.Helper()
	n.Exec("systemctl", "stop", pluginUnit)
	r := n.Exec("gpuadm", "apply", "mig")
	must.That(n.t, r.Exit == 0, "apply mig: %s", r)
}

// nvidiaPlugin starts the device plugin with these lines in its environment, and with gpuadm's
// configuration in its file.
func (n gpuHost) nvidiaPlugin(options string) {
	n.t.Helper()
	var object struct{ Data map[string]string }
	must.OK(n.t, yaml.Unmarshal([]byte(n.Must("gpuadm", "manifest", "device-plugin")), &object))
	must.That(n.t, len(object.Data) == 1, "manifest has %d entries", len(object.Data))
	for _, text := range object.Data {
		n.Put(pluginFile, text, 0o644)
	}
	n.Put(pluginOptions, options+"\n", 0o644)
	n.Must("systemctl", "enable", "--quiet", pluginUnit)
	n.Must("systemctl", "restart", pluginUnit)
}

// offers waits until the Node offers these resources, and no other GPU.
func (n gpuHost) offers(want ...string) {
	n.t.Helper()
	n.c.Until(n.Name+" offers the GPUs", func() string {
		var found []string
		allocatable, _ := kube.At(n.Object(), "status", "allocatable").(map[string]any)
		for name, count := range allocatable {
			if strings.HasPrefix(name, "nvidia.com/") && count != "0" {
				found = append(found, fmt.Sprint(count)+" "+name)
			}
		}

		slices.SortFunc(found, byResource)
		if slices.Equal(found, want) {
			return ""
		}
		return fmt.Sprintf("%q, not %q; the plugin says: %s", found, want,
			n.Exec("journalctl", "--no-pager", "--lines=5", "--output=cat", "--unit="+pluginUnit).Stdout)
	})
}

func byResource(a, b string) int {
	_, a, _ = strings.Cut(a, " ")
	_, b, _ = strings.Cut(b, " ")
	return strings.Compare(a, b)
}

// announces wants plan and validate to say what pods can ask for.
func (n gpuHost) announces(offers []string) {
	n.t.Helper()
	const ask = "pods can ask for "
	want := ask + strings.Join(offers, ", ") + ", "
	isPlain := len(offers) == 1 && offers[0] == strconv.Itoa(count)+" nvidia.com/gpu"

	var plan struct{ Notes []string }
	must.OK(n.t, json.Unmarshal([]byte(n.Exec("gpuadm", "plan", "-o", "json").Stdout), &plan))
	says := slices.ContainsFunc(plan.Notes, func(note string) bool {
		return strings.HasPrefix(note, want)
	})
	check.That(n.t, says || isPlain, "plan does not say %q: %q", want, plan.Notes)

	text := n.Must("gpuadm", "validate", "--gpu", "H100-80GB", specFile)
	check.That(n.t, strings.Contains(text, ask), "validate does not say what pods can ask for: %s", text)
}
