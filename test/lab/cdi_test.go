// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	cdiUnit = "nvidia-cdi-refresh.service"
	cdiSpec = "/var/run/cdi/nvidia.yaml"
	toolkit = "/etc/nvidia-container-runtime/config.toml"
)

// The toolkit's units, as deployments/systemd of https://github.com/NVIDIA/nvidia-container-toolkit
// has them at these versions.
const (
	cdiPathUnit = "[Unit]\nDescription=Trigger CDI refresh on NVIDIA driver or toolkit install / upgrade events\n\n[Path]\n" +
		"PathChanged=/lib/modules/%v/modules.dep\nPathChanged=/lib/modules/%v/modules.dep.bin\nPathChanged=/usr/bin/nvidia-ctk\n\n[Install]\nWantedBy=multi-user.target\n"
	cdi1201Engines = "[Unit]\nBefore=docker.service containerd.service crio.service\n\n[Service]\nTimeoutStartSec=90s\n"
)

//go:embed testdata/nvidia-cdi-refresh-1190.service
var cdi1190 string

//go:embed testdata/nvidia-cdi-refresh-1201.service
var cdi1201 string

// fakeDevices makes at each boot what the kernel modules and nvidia-modprobe make: device nodes,
// those of MIG included, and the file that says which node is of which instance (15 GPU instances
// with 8 compute instances each, from 3 on).
// Source:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
//
//go:embed testdata/devices.sh
var fakeDevices string

// bootCDI boots a host with two fake A100, NVIDIA's own container toolkit, and the toolkit's units
// of a version.
func bootCDI(t *testing.T, units map[string]string) gpuNode {
	t.Helper()
	return bootGPUs(t).withToolkit(t, units).with(t, "A100-40:2")
}

// withToolkit gives a host NVIDIA's own container toolkit and its units, and the driver's nodes.
func (n gpuNode) withToolkit(t *testing.T, units map[string]string) gpuNode {
	t.Helper()
	p := parts.Get(t, parts.CTK, parts.Runtime, parts.Hook)
	library := fakenvml.Build(t).Library
	const lib = "/usr/lib/x86_64-linux-gnu/"
	for to, from := range map[string]string{
		"/usr/bin/nvidia-ctk": p.CTK.Path, "/usr/bin/nvidia-container-runtime": p.Runtime.Path, "/usr/bin/nvidia-cdi-hook": p.Hook.Path,
		lib + "libnvidia-ml.so.580.95.05": library, lib + "libcuda.so.580.95.05": library,
	} {
		data := must.Get(os.ReadFile(from))(t)
		n.Put(to, string(data), 0o755)
	}

	n.Must("ln", "-sf", "libnvidia-ml.so.580.95.05", lib+"libnvidia-ml.so.1")
	n.Must("ln", "-sf", "libcuda.so.580.95.05", lib+"libcuda.so.1")
	n.Must("ldconfig")
	kernel := strings.TrimSpace(n.Must("uname", "-r"))
	n.Put("/lib/modules/"+kernel+"/modules.dep", "updates/dkms/nvidia.ko:\n", 0o644)
	n.Put("/usr/local/sbin/fake-devices", fakeDevices, 0o755)
	n.Put("/etc/systemd/system/fake-devices.service", "[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\n[Service]\nType=oneshot\nExecStart=/usr/local/sbin/fake-devices\n[Install]\nWantedBy=sysinit.target\n", 0o644)
	for name, text := range units {
		n.Put("/usr/lib/systemd/system/"+name, text, 0o644)
	}
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", "--quiet", "fake-devices.service")
	n.Must("sh", "-c", "nvidia-ctk --quiet config --config-file="+toolkit+" --in-place && sed -i 's/^mode = .*/mode = \"cdi\"/' "+toolkit)
	return n
}

// inside runs a container with the program of the handler that containerd has loaded, and says what
// it sees of a GPU.
func (n gpuNode) inside(name, devices string) lab.Result {
	n.t.Helper()
	options, _ := n.effect().Runtimes["nvidia"]["options"].(map[string]any)
	program, _ := options["BinaryName"].(string)
	const look = "cd /dev && busybox ls -d nvidia* nvidia-caps/* 2>/dev/null; busybox find / -xdev -name 'libcuda.so*' -o -name 'libnvidia-ml.so*'; busybox grep -o ' /usr/lib[^ ]*so[^ ]*' /proc/self/mounts"
	n.Must("mkdir", "-p", "/run/inside")
	r := n.Exec("ctr", "-n", "lab", "run", "--rm", "--runc-binary", program, "--env", "NVIDIA_VISIBLE_DEVICES="+devices,
		"--mount", "type=bind,src=/run/inside,dst=/inside,options=rbind:rw", "lab.invalid/busybox:1", name, "/bin/sh", "-c", "exec >/inside/"+name+"; "+look)
	// containerd's pipes may lose what a container says just before it ends: containerd issue 770,
	// concourse issue 6775.
	r.Stdout += n.Exec("cat", "/run/inside/"+name).Stdout
	return r
}

// TestLabCDI: a real container, started through the handler that gpuadm configured, by NVIDIA's own
// runtime in CDI mode: the device nodes and the driver's libraries are inside; the same of
// partitions that gpuadm made a moment ago; a machine without nvidia-cdi-hook, or without the
// program that is to be the default, is refused before containerd is configured.
func TestLabCDI(t *testing.T) {
	t.Parallel()
	n := bootCDI(t, map[string]string{cdiUnit: cdi1201, cdiUnit + ".d/10-container-engines.conf": cdi1201Engines, "nvidia-cdi-refresh.path": cdiPathUnit})
	const runtime = "[runtime]\n"
	before := n.Get(config)
	n.Must("mv", "/usr/bin/nvidia-container-runtime", "/root/program")
	says(t, n.wants(1, runtime+"set_as_default = true\n", "apply"), "/usr/bin/nvidia-container-runtime is not there, and without it no container starts")
	check.That(t, n.Get(config) == before && n.Property(cdiUnit, "UnitFileState") != "enabled", "something was changed for a default that starts no container")
	n.Must("mv", "/root/program", "/usr/bin/nvidia-container-runtime")
	n.Must("mv", "/usr/bin/nvidia-cdi-hook", "/root/hook")
	says(t, n.wants(1, runtime, "apply"), "/usr/bin/nvidia-cdi-hook, which is not there")
	check.That(t, n.Get(config) == before, "containerd was configured for a runtime that starts no container")
	n.Must("mv", "/root/hook", "/usr/bin/nvidia-cdi-hook")
	n.Must("rm", "-f", cdiSpec)

	n.wants(0, runtime, "apply")
	says(t, n.wants(0, runtime, "apply"), "Nothing to do.")
	n.ContainerRun("imported")
	for _, unit := range []string{cdiUnit, "nvidia-cdi-refresh.path"} {
		check.Equal(t, n.Property(unit, "UnitFileState"), "enabled", "%s is", unit)
	}
	check.Equal(t, n.Must("readlink", "-f", "/dev/char/195:1"), "/dev/nvidia1\n", "/dev/char/195:1 leads to")
	r := n.inside("whole", "1")
	says(t, r, "nvidia1\n", "nvidiactl\n", "libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05")
	check.That(t, r.Exit == 0 && !strings.Contains(r.Stdout, "nvidia0") && !strings.Contains(r.Stdout, "nvidia-cap"), "a container with GPU 1: %s", r)

	with := runtime + "[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 2 }\n"
	n.wants(0, with, "apply")
	says(t, n.wants(0, with, "apply"), "Nothing to do.")
	g := n.dump().GPUs[0]
	for i, in := range g.Instances {
		cap := 3 + 9*in.ID
		r := n.inside(fmt.Sprint("part", i), in.Compute[0].UUID)
		says(t, r, "nvidia0\n", fmt.Sprintf("nvidia-caps/nvidia-cap%d\n", cap), fmt.Sprintf("nvidia-caps/nvidia-cap%d\n", cap+1+in.Compute[0].ID), "libcuda.so.580.95.05")
		check.That(t, r.Exit == 0 && !strings.Contains(r.Stdout, "nvidia1\n") && strings.Count(r.Stdout, "nvidia-caps/nvidia-cap") == 2, "a container with partition %d: %s", i, r)
	}

	part := g.Instances[0].Compute[0].UUID
	n.wants(0, with, "undo", "--yes")
	text := n.Get(cdiSpec)
	check.That(t, !strings.Contains(text, part) && strings.Contains(text, g.UUID), "after undo of the partitions the spec is of the partitions:\n%s", text)
	n.Put("/etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia7\n", 0o644)
	says(t, n.wants(0, runtime, "plan", "-v"), "/etc/cdi/nvidia.yaml is a CDI spec for nvidia.com/gpu too", "/dev/nvidia7, which is not there")
}

// TestLabCDIGenerated: a toolkit without a service for the spec, as before 1.18, writes it when gpuadm
// tells it to: at apply, after partitions change, and at boot. Undo removes it.
func TestLabCDIGenerated(t *testing.T) {
	t.Parallel()
	n := bootCDI(t, nil)
	const runtime = "[runtime]\n"
	const with = runtime + "[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 2 }\n"
	offers := func(when string, devices ...string) {
		t.Helper()
		text := n.Exec("cat", cdiSpec).Stdout
		for _, device := range devices {
			check.Has(t, text, device, "%s:", when)
		}
	}

	idle := func(spec string) {
		t.Helper()
		says(t, n.wants(0, spec, "apply"), "Nothing to do.")
	}

	n.wants(0, runtime, "apply")
	idle(runtime)
	gpus := n.dump().GPUs
	offers("applied", gpus[0].UUID, gpus[1].UUID)
	n.ContainerRun("imported")
	r := n.inside("whole", "1")
	says(t, r, "nvidia1\n", "nvidiactl\n", "libcuda.so.580.95.05")
	check.That(t, r.Exit == 0 && !strings.Contains(r.Stdout, "nvidia0"), "a container with GPU 1: %s", r)

	n.wants(0, with, "apply")
	idle(with)
	part := n.dump().GPUs[0].Instances[0].Compute[0].UUID
	offers("partitioned", part, gpus[1].UUID)
	n.Must("gpuadm", "undo", "--yes")
	offers("without partitions", gpus[0].UUID, gpus[1].UUID)

	n.Must("rm", cdiSpec)
	n.Must("sh", "-c", "mkdir -p /etc/cdi && nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
	idle(runtime)
	check.That(t, n.Exec("test", "-e", cdiSpec).Exit != 0, "two specs for the same devices")
	n.Must("rm", "/etc/cdi/nvidia.yaml")

	n.wants(0, runtime, "apply", "--install")
	n.Reboot()
	n.active(bootUnit, "active")
	offers("at boot", gpus[0].UUID, gpus[1].UUID)
	n.Must("gpuadm", "undo", "--yes", "--to", "all")
	check.That(t, n.Exec("test", "-e", cdiSpec).Exit != 0, "undone, and there is a spec")
}

// TestLabCDIBoot: at boot the spec is that of the partitions which gpuadm makes again, whichever
// order the toolkit's units ask for, before kubelet starts where they can; no unit waits for
// itself.
func TestLabCDIBoot(t *testing.T) {
	t.Parallel()
	for name, units := range map[string]map[string]string{
		"1.20.1": {cdiUnit: cdi1201, cdiUnit + ".d/10-container-engines.conf": cdi1201Engines, "nvidia-cdi-refresh.path": cdiPathUnit},
		"1.19.0": {cdiUnit: cdi1190, "nvidia-cdi-refresh.path": cdiPathUnit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "1.20.1" {
				lab.Nightly(t)
			}
			n := bootCDI(t, units)
			n.Put("/etc/systemd/system/kubelet.service", kubelet, 0o644)
			n.Must("systemctl", "daemon-reload")
			n.Must("systemctl", "enable", "--quiet", "kubelet.service")
			const spec = "[runtime]\n[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.20gb\" = 2 }\n"
			n.wants(0, spec, "apply", "--install")
			r := n.Exec("systemd-analyze", "verify", "multi-user.target", cdiUnit, bootUnit, "kubelet.service")
			check.That(t, !strings.Contains(r.Stdout+r.Stderr, "cycle"), "systemd-analyze verify: %s", r)
			for range 2 {
				n.Reboot()
				n.active("kubelet.service", "active")
				is := n.Exec("journalctl", "--boot", "--no-pager", "--grep", "ordering cycle")
				check.That(t, is.Exit != 0, "units wait for each other:\n%s", is.Stdout)
				parts := n.dump().GPUs[0].Instances
				if len(parts) != 2 {
					t.Fatalf("%d partitions after a boot: %s", len(parts), n.Journal(bootUnit))
				}
				current := func() bool {
					r := n.Exec("cat", cdiSpec)
					return strings.Contains(r.Stdout, parts[0].Compute[0].UUID) && strings.Contains(r.Stdout, parts[1].Compute[0].UUID)
				}

				if name == "1.19.0" && !eventually(current) || name != "1.19.0" && !current() {
					t.Errorf("the spec after a boot is not of the partitions:\n%s\n%s%s", n.Exec("cat", cdiSpec).Stdout, n.Journal(cdiUnit), n.Journal(bootUnit))
				}
				if !eventually(func() bool { return n.Exec("gpuadm", "status").Exit == 0 }) {
					t.Errorf("%s", n.Exec("gpuadm", "status"))
				}
			}
		})
	}
}
