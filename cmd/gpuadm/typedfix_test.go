// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// A broken machine: how it is made of one that works, and what happens once it runs.
type broken struct {
	breaks func(w *incident.World)
	runs   func(t *testing.T, n *simhost.Node)
	server http.RoundTripper // in place of the API server
}

// stalling is an API server that begins each answer, and does not end it.
type stalling struct{}

func (stalling) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{},
		Body:       unended{r.Context()},
	}, nil
}

type unended struct{ ctx context.Context }

func (u unended) Read([]byte) (int, error) {
	<-u.ctx.Done()
	return 0, context.Cause(u.ctx)
}

func (unended) Close() error { return nil }

// whose are the words by which a report says who has to act where no command fixes the fault: a person, a
// reboot, the board's replacement, the cluster's administrator, or the owner of a file.
var whose = regexp.MustCompile(`operator|a person|reboot|no program can fix|change in the cluster|administrator|` +
	`another program|firmware|with \[\w+\] (there|in node.toml)|outside this machine|apply is the|log says|nowhere else|` +
	`gpuadm does not replace itself|which the message names`)

// TestTypedFixes types what doctor prints for each of its codes on a machine with that very fault. A
// command that changes something ends the fault, or leaves it with another command, which is typed then;
// one that only looks stands beside a sentence that says who has to act. The codes are those of doctor's
// table: a new one without a machine fails.
func TestTypedFixes(t *testing.T) {
	outsideBubble(t)
	reports := incident.All(t)
	made := brokenByHand()
	ends := map[string]int{}
	for _, c := range doctor.Checks() {
		machines := map[string]broken{}
		for name, report := range reports {
			if slices.Contains(strings.Fields(report.Want), c.Code) {
				machines[name] = broken{breaks: func(w *incident.World) { w.Do(report) }}
			}
		}

		for name, machine := range made[c.Code] {
			machines[name] = machine
		}
		check.That(t, len(machines) > 0, "%s has no machine with that fault", c.Code)
		for name, machine := range machines {
			t.Run(c.Code+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { ends[typesFix(t, c.Code, machine)]++ })
			})
		}
	}

	t.Logf("%v", ends)
}

// roomHost is a host some of whose file systems have little room.
type roomHost struct {
	*simhost.Node
	rooms  map[string]host.Room
	server http.RoundTripper

	started func(unit string) error
}

// SetUnit has a daemon do its work once it has started.
func (r roomHost) SetUnit(ctx context.Context, name string, to host.UnitChange) error {
	err := r.Node.SetUnit(ctx, name, to)
	if starts := to.Job == "start" || to.Job == "restart"; err == nil && starts {
		err = r.started(name)
	}
	return err
}

func (r roomHost) AskWeb(w host.Web) (http.RoundTripper, error) {
	if r.server != nil {
		return r.server, nil
	}
	return r.Node.AskWeb(w)
}

func (r roomHost) Room(name string) (host.Room, error) {
	if room, has := r.rooms[name]; has {
		return room, nil
	}
	return r.Node.Room(name)
}

// reportOn is what doctor says of a machine.
func reportOn(t *testing.T, h host.Host) (r doctor.Report) {
	t.Helper()
	var out bytes.Buffer
	e := envOn(h, &out)
	e.open = func(string, commands.Follow) (host.Host, error) { return h, nil }
	run(t.Context(), e, []string{"doctor", "-o", "json"})
	text := out.String()
	must.OK(t, json.NewDecoder(&out).Decode(&r))
	left := placeholder.FindString(text)
	check.That(t, left == "", "the report has the placeholder %q: %s", left, text)
	return r
}

// placeholder is a word in the place of one of this machine's.
var placeholder = regexp.MustCompile(`\b(NODE|KERNEL|VERSION|ADDRESS|FOLDER|MOUNT ?POINT|UNIT|FILE)\b|-i GPU\b|%!|\{[a-z ]+\}|\\u003c[a-z]`)

func causeOf(r doctor.Report, code string) (doctor.Cause, bool) {
	i := slices.IndexFunc(r.Causes, func(c doctor.Cause) bool { return c.Code == code })
	if i < 0 {
		return doctor.Cause{}, false
	}
	return r.Causes[i], true
}

// typesFix types the fix of one fault, and returns how that ended.
func typesFix(t *testing.T, code string, b broken) string {
	t.Helper()
	w := incident.Joined(t, true)
	w.Change("sim.toml", "[driver]\n", "[driver]\nmodule = \"/sys/module/nvidia/version\"\n")
	b.breaks(w)
	w.Answers()
	n := w.Node()
	ubuntu.Install(n)
	if b.runs != nil {
		b.runs(t, n)
	}
	var typist *incident.Typist
	h := roomHost{n, w.Rooms, b.server, func(unit string) error { return typist.Starts(unit) }}
	typist = w.Typist(n, func(words []string) error {
		var out bytes.Buffer
		e := envOn(h, &out)
		e.open = func(string, commands.Follow) (host.Host, error) { return h, nil }
		end := run(t.Context(), e, words)
		if end == exitReboot {
			return typist.Types("sudo reboot")
		}
		answers := end == exitPending && words[0] == "status"
		if end != 0 && !answers {
			return fmt.Errorf("gpuadm %v: exit %d: %s", words, end, &out)
		}
		return nil
	})

	before, is := causeOf(reportOn(t, h), code)
	if !is {
		isNote := func(f doctor.Found) bool { return f.Code == code }
		noted := slices.ContainsFunc(reportOn(t, h).Notes, isNote)
		must.That(t, noted, "doctor does not find it: %+v", reportOn(t, h).Causes)
		return "a note"
	}

	for range 3 {
		must.That(t, len(before.Commands) > 0, "nothing is typed")
		var failed []string
		typist.Changed = false
		for _, command := range before.Commands {
			if err := typist.Types(command); err != nil {
				failed = append(failed, command+": "+err.Error())
			}
		}

		if !typist.Changed {
			text := before.NoRepair + " " + before.Fix
			isAnswer := before.Code == "ADM-001" // validate says with its exit code what is wrong
			check.That(t, len(failed) == 0 || isAnswer, "%s", strings.Join(failed, "\n"))
			check.That(t, whose.MatchString(text), "%v changes nothing, and no sentence says who has to act: %s", before.Commands, text)
			return "by a person"
		}

		check.That(t, len(failed) == 0, "%s", strings.Join(failed, "\n"))

		typist.Settles()
		after, still := causeOf(reportOn(t, h), code)
		if !still {
			return "gone"
		}
		isSame := slices.Equal(after.Commands, before.Commands)
		must.That(t, !isSame, "%v leave the fault: %+v", before.Commands, after.Found)
		before = after
	}

	t.Errorf("three rounds of commands leave the fault")
	return "stays"
}

// unit is a unit of the machine.
func unitOf(name, active string) string {
	return fmt.Sprintf("\n[[unit]]\nname = %q\nenabled = \"enabled\"\nactive = %q\n", name, active)
}

// brokenByHand are machines with faults of which no public report is in test/incident, by code.
func brokenByHand() map[string]map[string]broken {
	const nodeTOML = "etc/gpuadm/node.toml"
	const journal = "var/lib/gpuadm/journal.jsonl mode=0600"
	put := func(section, text string) broken {
		return broken{breaks: func(w *incident.World) { w.Put(section, text) }}
	}
	settings := func(text string) broken {
		return broken{breaks: func(w *incident.World) { w.Settings(text) }}
	}
	writes := func(name, text string) broken {
		return broken{
			breaks: func(*incident.World) {},
			runs: func(t *testing.T, n *simhost.Node) {
				must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
			},
		}
	}

	full := func(folder string, room host.Room) broken {
		return broken{breaks: func(w *incident.World) { w.Rooms[folder] = room }}
	}
	return map[string]map[string]broken{
		"ADM-001": {"a bracket is missing": put(nodeTOML, "format = 1\n[runtime\n")},
		"ADM-002": {"the drift unit failed": {breaks: func(w *incident.World) {
			w.Put(nodeTOML, "format = 1\n[runtime]\n")
			w.Settings(unitOf("gpuadm.service", "inactive") + unitOf("gpuadm-drift.service", "failed"))
		}}},
		"ADM-003": {"no handler": {breaks: func(w *incident.World) {
			w.Put(nodeTOML, "format = 1\n[runtime]\nset_as_default = false\n")
			w.Put("usr/lib/systemd/system/kubelet.service.d/50-gpuadm.conf", "[Service]\nExecStartPre=/usr/bin/gpuadm gate\n")
			w.Loops("kubelet")
		}}},
		"ADM-004": {"an undo holds": {breaks: func(w *incident.World) {
			w.Do(incidentOf(w, "handler-not-configured"))
			w.Put(nodeTOML, "format = 1\n[runtime]\n")
			w.Put(journal, `{"format":1,"what":"hold","run":"20260102T030405Z","time":"2026-01-02T03:04:05Z"}`+"\n")
		}}},
		"ADM-005": {"another format": {breaks: func(w *incident.World) {
			w.Put(nodeTOML, "format = 1\n[runtime]\n")
			w.Put(journal, `{"format":2,"what":"begin","run":"x"}`+"\n")
		}}},
		"ADM-006": {"a damaged line": {breaks: func(w *incident.World) {
			w.Put(nodeTOML, "format = 1\n[runtime]\n")
			w.Put(journal, `{"format":1,"what":"junk"}}`+"\n")
		}}},

		"ADM-007": {"cut": {
			breaks: func(w *incident.World) {
				w.Do(incidentOf(w, "handler-not-configured"))
				w.Put(nodeTOML, "format = 1\n[runtime]\n")
			},
			runs: func(t *testing.T, n *simhost.Node) {
				whole := n.Clone()
				typedOn(t, whole, "apply")
				n.CutAt(whole.Touches() * 2 / 3)
				code, said := typedOn(t, n, "apply")
				must.That(t, code != 0, "the apply was not cut: %s", said)
				n.Boot(simhost.LoseNothing)
				must.OK(t, n.Put("/run/systemd/resolve/stub-resolv.conf", "nameserver 127.0.0.53\n", 0o644))
			},
		}},

		"SYS-001": {
			"/boot": full("/boot", host.Room{Files: 9000}),
			"/var":  full("/var", host.Room{Bytes: 4096, Files: 9000}),
			"/run":  full("/run", host.Room{Bytes: 4096, Files: 9000}),
		},
		"SYS-002": {"/": full("/", host.Room{Bytes: 1 << 40})},

		"SYS-010": {"the label of a program": {breaks: func(w *incident.World) {
			w.Put("sys/fs/selinux/enforce nonl", "1\n")
			w.Put("var/log/audit/audit.log", "type=AVC msg=audit(1767322800.683:927): avc:  denied  { execute } for  pid=99 comm=\"containerd-shim\" "+
				"path=\"/usr/bin/nvidia-container-runtime\" scontext=system_u:system_r:container_runtime_t:s0 tclass=file permissive=0\n")
		}}},

		"CDI-001": {"not written": settings(unitOf("nvidia-cdi-refresh.service", "inactive"))},
		"CDI-002": {"of an old driver": put("etc/cdi/nvidia.yaml",
			"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\ncontainerEdits:\n  mounts:\n"+
				"  - {hostPath: /usr/lib/libcuda.so.570.1.2, containerPath: /x}\n")},
		"CDI-003": {"two": put("var/run/cdi/other.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n")},
		"CDI-004": {"elsewhere": {breaks: func(w *incident.World) {
			w.Change("etc/containerd/config.toml", "  sandbox_image", "  enable_cdi = true\n  cdi_spec_dirs = [\"/etc/cdi\"]\n  sandbox_image")
			w.Put("var/run/cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n")
		}}},
		"CDI-005": {"given up": settings(unitOf("nvidia-cdi-refresh.service", "failed") +
			unitOf("nvidia-cdi-refresh.path", "failed"))},

		"FAB-004": {"B200": {breaks: func(w *incident.World) {
			for _, address := range w.NVSwitches() {
				w.Remove("sys/bus/pci/devices/" + address)
			}
			for _, address := range w.GPUs() {
				w.Change("sys/bus/pci/devices/"+address+"/uevent", "PCI_ID=10DE:2330", "PCI_ID=10DE:2901")
			}
		}}},
		"FAB-006": {"no switch": {breaks: func(w *incident.World) {
			w.Do(incidentOf(w, "fabric-manager-without-switches"))
		}}},
		"FAB-005": {"fatal": {breaks: func(w *incident.World) {
			w.Steps(`gpus recovery = "none"`)
			w.GPU(0, "lost = \"it has fallen off the bus\"")
			w.Says("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 32 LTSSM Fault Up")
		}}},
		"GPU-012": {"unlicensed": {breaks: func(w *incident.World) {
			w.GPU(0, `licence = "unlicensed"`)
			w.Put("sys/bus/pci/devices/"+w.GPUs()[0]+"/config base64", vgpuConfig+"\n")
		}}},
		"GPU-020": {"fatal": {breaks: func(w *incident.World) {
			w.Put("sys/bus/pci/devices/"+w.GPUs()[0]+"/aer_dev_fatal", "DLP 2\nTOTAL_ERR_FATAL 2\n")
		}}},
		"MIG-001": {"no instance": {breaks: func(w *incident.World) { w.GPU(0, "mode = true") }}},
		"MIG-002": {"waits": {breaks: func(w *incident.World) { w.GPU(0, "pending = true") }}},
		"MIG-003": {"others": {breaks: func(w *incident.World) {
			w.Put(nodeTOML, "format = 1\n[[mig.gpu]]\nlayout = { \"1g.10gb\" = 7 }\n")
		}}},

		"RUN-002": {"edited by hand": writes("/etc/containerd/config.toml", "version = 2\n")},
		"RUN-005": {"stopped": {breaks: func(w *incident.World) { w.Fails("containerd") }}},
		"RUN-006": {"other cgroups": {breaks: func(w *incident.World) {
			w.Change("var/lib/kubelet/config.yaml", "cgroupDriver: systemd", "cgroupDriver: cgroupfs")
			w.Settings(containerd17)
		}}},
		"RUN-007": {"no-cgroups": put("etc/nvidia-container-runtime/config.toml",
			"[nvidia-container-cli]\nno-cgroups = true\n[nvidia-container-runtime]\nmode = \"legacy\"\n")},
		"RUN-008": {"root": put("etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nroot = \"/run/nvidia/driver\"\nldconfig = \"@/run/nvidia/driver/sbin/ldconfig\"\n")},
		"RUN-011": {"two files": {breaks: func(w *incident.World) {
			w.Settings(containerd17)
			w.Change("etc/containerd/config.toml", "version = 2\n", "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n")
			w.Change("etc/containerd/config.toml", "  sandbox_image", "  enable_selinux = true\n  sandbox_image")
			w.Put("etc/containerd/conf.d/50-a.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n")
		}}},
		"RUN-013": {"deaf": {breaks: func(w *incident.World) { w.Steps("cri noruntime") }}},
		"RUN-015": {"RDMA": {breaks: func(w *incident.World) {
			w.Put("sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
		}, runs: func(t *testing.T, n *simhost.Node) {
			u := must.Get(n.Unit(t.Context(), "containerd.service"))(t)
			must.OK(t, n.Put(fmt.Sprintf("/proc/%d/limits", u.PID), "Max locked memory         8388608              8388608              bytes\n", 0o444))
		}}},

		"KUB-001": {"stopped": {breaks: func(w *incident.World) { w.Fails("kubelet") }}},
		"KUB-002": {"another engine": {breaks: func(w *incident.World) {
			w.Change("var/lib/kubelet/kubeadm-flags.env", "/containerd/containerd.sock", "/crio/crio.sock")
		}}},
		"KUB-003": {"two": {breaks: func(w *incident.World) {
			w.Put("proc/944/comm", "nvidia-device-p\n")
			w.Put("proc/944/status", "NSpid:\t944\t1\n")
		}}},
		"KUB-007": {"edited": writes("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\"\n")},
		"KUB-008": {"deleted": {breaks: func(w *incident.World) { w.Steps("node-deleted") }}},
		"KUB-016": {"pids": {breaks: func(w *incident.World) {
			w.Condition("PIDPressure", "True", "kubelet has no process ids left")
		}}},
		"KUB-011": {"cordoned": {breaks: func(w *incident.World) { w.Steps("cordoned") }}},
		"KUB-019": {"stalls": {breaks: func(*incident.World) {}, server: stalling{}}},
	}
}

// containerd17 has containerd be of version 1.7.
const containerd17 = `
[[command]]
argv = ["containerd", "--version"]
prefix = true
stdout = "containerd github.com/containerd/containerd 1.7.28 abc"
[[command]]
argv = ["/usr/bin/containerd", "--version"]
prefix = true
stdout = "containerd github.com/containerd/containerd 1.7.28 abc"
`

// vgpuConfig is the PCI configuration of a virtual GPU, in base64: TestVGPU of internal/facts.
const vgpuConfig = "3hAwIwAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAANAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAkAG1ZGABY1NTAuOTAAAAAAcjU1MF8wMAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="

func incidentOf(w *incident.World, name string) incident.Incident { return w.Named(name) }
