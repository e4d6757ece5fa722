// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// cdiNode is a machine of two A100, the first one with MIG and two compute instances, and the
// toolkit's service.
//
//go:embed testdata/node.txtar
var cdiNode string

// cdiSpec is a spec in the form in which nvidia-ctk 1.20.1 writes it.
func cdiSpec(t *testing.T, n *simhost.Node) string {
	t.Helper()
	d := must.Get(n.Driver(t.Context()))(t)
	var s strings.Builder
	s.WriteString("---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n")
	add := func(name, node string) {
		s.WriteString("    - name: \"" + name + "\"\n      containerEdits:\n        deviceNodes:\n            - path: " + node + "\n")
	}
	for i, in := range d.GPUs[0].Instances {
		add("0:"+string('0'+rune(i)), "/dev/nvidia0")
		add(in.Compute[0].UUID, "/dev/nvidia0")
	}

	add("1", "/dev/nvidia1")
	add(d.GPUs[1].UUID, "/dev/nvidia1")
	add("all", "/dev/nvidia1")
	s.WriteString(`containerEdits:
    deviceNodes:
        - path: /dev/nvidiactl
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
    mounts:
        - hostPath: /usr/lib/libcuda.so.580.95.05
          containerPath: /usr/lib/libcuda.so.580.95.05
        - hostPath: /usr/lib/libnvidia-ml.so.580.95.05
          containerPath: /usr/lib/libnvidia-ml.so.580.95.05
`)
	return s.String()
}

// unfinished is a valid spec without the machine's devices.
const unfinished = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- {name: all, containerEdits: {env: [A=b]}}\n"

// TestUnusableCDI: what engines leave out is said by file, as CNCF's own library has it.
func TestUnusableCDI(t *testing.T) {
	vendor := strings.Replace(unfinished, "nvidia.com/gpu", "example.com/net", 1)
	for _, x := range []struct{ spec, other, says string }{
		{vendor, "", ""},
		{"kind: [\n", "", "it is not a CDI spec"},
		{vendor + "unknown: 1\n", "", "it is not a CDI spec"},
		{strings.Replace(vendor, "cdiVersion: 0.5.0\n", "", 1), "", "it has no cdiVersion"},
		{vendor + "- {name: all, containerEdits: {env: [A=b]}}\n", "", "it has the device all twice"},
		{
			strings.Replace(vendor, "env: [A=b]", "intelRdt: {closID: x, schemata: [y]}", 1),
			"",
			"it says cdiVersion 0.5.0, and what it has came with",
		},
		{strings.Replace(vendor, "example.com", "-x", 1), "", "invalid vendor"},
		{strings.Replace(vendor, "A=b", "b", 1), "", "invalid environment variable"},
		{strings.Replace(vendor, "0.5.0", "9.0.0", 1), "", "it says cdiVersion 9.0.0, which engines of today do not read"},
		{
			strings.Replace(vendor, "0.5.0", "1.0.0", 1), "",
			"it says cdiVersion 1.0.0, and the container engine here reads none after 0.8.0",
		},
		{vendor, vendor, "/etc/cdi/a.yaml names example.com/net=all as well, so engines use neither"},
	} {
		n := withSpec(t, cdiNode+"-- etc/cdi/b.json --\n"+x.other, "etc/cdi/a.yaml", x.spec)
		if x.other == "" {
			n = withSpec(t, cdiNode, "etc/cdi/a.yaml", x.spec)
		}
		notes := strings.Join(cdi.ReadOtherSpecs(n, "0.8.0").Notes(n), "\n")
		check.That(t, (x.says == "") == (notes == "") && strings.Contains(notes, x.says), "%q: %q, want %q", x.spec, notes, x.says)
	}

	own := withSpec(t, cdiNode, "var/run/cdi/nvidia.yaml", strings.NewReplacer("0.5.0", "1.0.0", "example.com/net", "nvidia.com/gpu").Replace(vendor))
	notes := cdi.ReadOtherSpecs(own, "0.8.0").Notes(own)
	check.List(t, notes, []string{"/var/run/cdi/nvidia.yaml: it says cdiVersion 1.0.0, and the container engine here reads none after 0.8.0"}, "the toolkit's own:")
	check.List(t, cdi.ReadOtherSpecs(own, "1.0.0").Notes(own), nil, "the toolkit's own, for a newer engine:")
}

// TestUnusedSpecConflictsWithNone: engines leave out a spec of a newer version, so it takes no device
// away from another spec in its folder.
func TestUnusedSpecConflictsWithNone(t *testing.T) {
	good := strings.Replace(unfinished, "nvidia.com/gpu", "example.com/net", 1)
	newer := strings.Replace(good, "0.5.0", "9.0.0", 1)
	n := withSpec(t, cdiNode+"-- etc/cdi/b.yaml --\n"+good, "etc/cdi/a.yaml", newer)
	want := []string{"/etc/cdi/a.yaml: it says cdiVersion 9.0.0, which engines of today do not read"}
	check.List(t, cdi.ReadOtherSpecs(n, "").Notes(n), want, "notes")
}

// A spec with device numbers, as the toolkit writes them from 1.19 on, has to have those of /dev:
// in the toolkit's own spec and in another's.
func TestDeviceNumbers(t *testing.T) {
	const at = "var/run/cdi/nvidia.yaml"
	archive := strings.Replace(cdiNode, "dev/nvidiactl", "dev/nvidia-uvm device=510:0 --\n-- dev/nvidiactl", 1)
	must.That(t, archive != cdiNode, "the machine has no /dev/nvidiactl")
	good := cdiSpec(t, must.Get(simhost.New([]byte(archive)))(t))
	const control = "        - path: /dev/nvidiactl\n"

	for numbers, says := range map[string]string{
		"major: 510":                        "",
		"major: 510\n          minor: 0":    "",
		"major: 509":                        "/dev/nvidia-uvm as device 509:0, and the machine has it as 510:0",
		"major: 510\n          minor: 1":    "/dev/nvidia-uvm as device 510:1, and the machine has it as 510:0",
		"permissions: rw":                   "",
		"hostPath: /dev/nvidia-uvm":         "",
		"major: 0\n          minor: 7":      "",
		"type: c\n          major: 510":     "",
		"fileMode: 438\n          major: 1": "/dev/nvidia-uvm as device 1:0, and the machine has it as 510:0",
	} {
		node := control + "        - path: /dev/nvidia-uvm\n          " + numbers + "\n"
		spec := strings.Replace(good, control, node, 1)
		n := withSpec(t, archive, at, spec)
		problem := cdi.Problem(must.Get(cdi.Spec().Look(t.Context(), n))(t))
		check.That(t, (says == "") == (problem == "") && strings.Contains(problem, says),
			"%q: %q, want %q", numbers, problem, says)

		other := withSpec(t, archive, "etc/cdi/a.yaml", spec)
		notes := strings.Join(cdi.ReadOtherSpecs(other, "").Notes(other), "\n")
		check.That(t, strings.Contains(notes, says), "%q in another spec: %q, want %q", numbers, notes, says)
	}
}

func withSpec(t *testing.T, archive, file, text string) *simhost.Node {
	t.Helper()
	n := must.Get(simhost.New([]byte(archive + "-- " + file + " --\n" + text)))(t)
	return n
}

// The spec is current if it has what the driver has, whatever its age; what it differs in is said.
func TestCDISpecJudged(t *testing.T) {
	const at = "var/run/cdi/nvidia.yaml"
	plain := must.Get(simhost.New([]byte(cdiNode)))(t)
	good := cdiSpec(t, plain)
	d := must.Get(plain.Driver(t.Context()))(t)
	gpu, part := d.GPUs[1].UUID, d.GPUs[0].Instances[1].Compute[0].UUID
	must.That(t, gpu != "" && part != "", "the simulated GPUs have no UUIDs")
	swap := func(from, to string) string { return strings.ReplaceAll(good, from, to) }
	var noUUIDs []string
	for block := range strings.SplitSeq(good, "    - name: ") {
		if !strings.HasPrefix(block, `"GPU-`) && !strings.HasPrefix(block, `"MIG-`) {
			noUUIDs = append(noUUIDs, block)
		}
	}

	indexes := strings.Join(noUUIDs, "    - name: ")
	for _, x := range []struct{ name, archive, spec, says string }{
		{"current", cdiNode, good, ""},
		{"named by index alone", cdiNode, indexes, ""},
		{
			"too few, named by index alone", cdiNode,
			strings.Replace(indexes, `- name: "0:1"`, `- name: all`, 1),
			"it has the device all twice",
		},
		{"no spec", cdiNode, "kind: ''\n", "it is not a CDI spec"},
		{"no YAML", cdiNode, "\t[", "it is not a CDI spec"},
		{"a partition is not in it", cdiNode, swap(part, part+"0"), part + " is not in it"},
		{
			"a partition that is gone", cdiNode,
			strings.Replace(good, `- name: "1"`, `- name: "MIG-gone"`, 1),
			"it names MIG-gone, which is not there",
		},
		{
			"a GPU that has another node now", cdiNode, swap("/dev/nvidia1", "/dev/nvidia0"),
			"it gives " + gpu + " without /dev/nvidia1",
		},
		{"the driver before", cdiNode, swap("580.95.05", "570.1.2"), "it mounts the driver 570.1.2, and 580.95.05 is loaded"},
		{
			"a library that is gone",
			strings.Replace(cdiNode, "-- usr/lib/libcuda.so.580.95.05 --\n", "", 1),
			good,
			"it names /usr/lib/libcuda.so.580.95.05, which is not there",
		},
		{
			"no nvidia-cdi-hook",
			strings.Replace(cdiNode, "-- usr/bin/nvidia-cdi-hook mode=0755 --\n", "", 1),
			good,
			"it names /usr/bin/nvidia-cdi-hook, which is not there",
		},
		{
			"no node",
			strings.Replace(cdiNode, "-- dev/nvidiactl device=195:255 --\n", "", 1),
			good,
			"it names /dev/nvidiactl, which is not there",
		},
	} {
		state, err := cdi.Spec().Look(t.Context(), withSpec(t, x.archive, at, x.spec))
		want := converge.State("current")
		if x.says != "" {
			want = converge.State("outdated: /" + at + ": " + x.says)
		}
		check.That(t, state == want && err == nil, "%s: %q, %v; want %q", x.name, state, err, want)
	}

	elsewhere := withSpec(t, cdiNode+"-- etc/nvidia-container-toolkit/nvidia-cdi-refresh.env --\n# NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/x\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=\"/etc/cdi/gpus.yaml\"\n", "etc/cdi/gpus.yaml", good)
	state, err := cdi.Spec().Look(t.Context(), elsewhere)
	check.That(t, state == "current" && err == nil, "where the service's environment says: %q, %v", state, err)
}

// A silent driver of the machine's own leaves the spec unknown, and a driver container's comes later.
func TestCDISpecOfASilentDriver(t *testing.T) {
	silent := strings.Replace(cdiNode, "580.95.05\"", "580.95.05\"\nwhy = \"not loaded\"", 1)
	n := withSpec(t, silent, "etc/cdi/nvidia.yaml", "")
	for want, says := range map[*converge.Want]string{
		new(cdi.SpecOfOwnDriver()): "the driver does not answer: not loaded",
		new(cdi.Spec()):            "",
	} {
		_, err := want.Look(t.Context(), n)
		var later host.Later
		check.That(t, errors.As(err, &later) && later.Silent == says, "%v: %q, want %q", err, later.Silent, says)
	}
}

// Where nothing writes a spec nothing is wanted, and what cannot be judged or made yet waits.
func TestCDISpecElsewhere(t *testing.T) {
	late := "-- usr/lib/systemd/system/nvidia-cdi-refresh.service --\n[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\n[Install]\nWantedBy=multi-user.target\n"
	reached := strings.Replace(cdiNode, "[[unit]]\n", "[[unit]]\nname = \"multi-user.target\"\nactive = \"active\"\n[[unit]]\n", 1)
	for _, x := range []struct {
		name, archive string
		state         converge.State
		later         string
	}{
		{
			"no toolkit",
			strings.Replace(cdiNode, "[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\n", "", 1),
			"none",
			"",
		},
		{"masked", strings.Replace(cdiNode, "enabled = \"enabled\"", "enabled = \"masked\"", 1), "none", ""},
		{"an image", strings.Replace(cdiNode, "[driver]", "live = false\n[driver]", 1), "", "first boot"},
		{"no driver", strings.Replace(cdiNode, "580.95.05\"", "580.95.05\"\nwhy = \"not loaded\"", 1), "", "the driver answers"},
		{
			"MIG without partitions",
			"-- sim.toml --\n[[gpu]]\nmodel = \"A100-40\"\nmode = true\n[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\n",
			"none",
			"",
		},
		{
			"being written",
			strings.Replace(cdiNode, "enabled = \"enabled\"", "enabled = \"enabled\"\nactive = \"activating\"", 1),
			"outdated: /var/run/cdi/nvidia.yaml: it is being written",
			"",
		},
		{"missing", cdiNode, "outdated: /var/run/cdi/nvidia.yaml: it is not there", ""},
		{"1.19.0 at boot", cdiNode + late, "", "multi-user.target is reached"},
		{"1.19.0 later", reached + late, "outdated: /var/run/cdi/nvidia.yaml: it is not there", ""},
	} {
		n := must.Get(simhost.New([]byte(x.archive)))(t)
		state, err := cdi.Spec().Look(t.Context(), n)
		if state != x.state || (x.later == "") != (err == nil) || x.later != "" && (!errors.As(err, new(host.Later)) || !strings.Contains(err.Error(), x.later)) {
			t.Errorf("%s: %q, %v; want %q, later %q", x.name, state, err, x.state, x.later)
		}
	}
}

// TestCDISpecBetweenTries: while systemd waits to start the failed service again, no program writes
// the spec, and gpuadm judges the present spec.
func TestCDISpecBetweenTries(t *testing.T) {
	waiting := strings.Replace(cdiNode, "enabled = \"enabled\"",
		"enabled = \"enabled\"\nactive = \"activating\"\nsub = \"auto-restart\"", 1)
	const name = "/var/run/cdi/nvidia.yaml"
	missing := must.Get(simhost.New([]byte(waiting)))(t)
	for want, n := range map[converge.State]*simhost.Node{
		"outdated: " + name + ": it is not there": missing,
		"current": withSpec(t, waiting, name[1:], cdiSpec(t, missing)),
	} {
		state, err := cdi.Spec().Look(t.Context(), n)
		check.That(t, state == want && err == nil, "%q, %v; want %q", state, err, want)
	}
}

// targetUnknown is a machine whose systemd does not answer about multi-user.target.
type targetUnknown struct{ *simhost.Node }

func (n targetUnknown) Unit(ctx context.Context, name string) (host.Unit, error) {
	if name == "multi-user.target" {
		return host.Unit{}, errors.New("systemd does not answer")
	}
	return n.Node.Unit(ctx, name)
}

// TestCDITargetUnknown: where systemd does not say whether multi-user.target is reached, the spec's
// state is unknown, and does not wait for the target.
func TestCDITargetUnknown(t *testing.T) {
	const late = "-- usr/lib/systemd/system/nvidia-cdi-refresh.service --\n[Unit]\nAfter=multi-user.target\n[Install]\nWantedBy=multi-user.target\n"
	n := must.Get(simhost.New([]byte(cdiNode + late)))(t)
	_, err := cdi.Spec().Look(t.Context(), targetUnknown{n})
	isUnknown := err != nil && !errors.As(err, new(host.Later))
	check.That(t, isUnknown && strings.Contains(err.Error(), "does not answer"), "%v", err)
}

// refreshing is a node with a service that writes a spec when it is started, or fails.
type refreshing struct {
	*simhost.Node
	writes string
	fails  bool
	gone   bool // the driver
	jobs   []string
}

func (r *refreshing) Driver(ctx context.Context) (host.Driver, error) {
	if r.gone {
		return host.Driver{}, &host.NoDriver{Why: "its module is not loaded"}
	}
	return r.Node.Driver(ctx)
}

func (r *refreshing) SetUnit(_ context.Context, name string, c host.UnitChange) error {
	r.jobs = append(r.jobs, name+" "+c.Job)
	if r.fails {
		return errors.New("it died")
	}
	if r.writes == "" {
		return nil
	}
	return r.WriteFile("/var/run/cdi/nvidia.yaml", []byte(r.writes), host.Attr{Mode: 0o644})
}

// The service's result is not believed: the spec that it leaves is.
func TestCDISpecMade(t *testing.T) {
	for _, works := range []bool{true, false} {
		n := withSpec(t, cdiNode, "var/run/cdi/nvidia.yaml", unfinished)
		r := &refreshing{Node: n}
		if works {
			r.writes = cdiSpec(t, n)
		}
		err := cdi.Spec().Make(t.Context(), r, "current")
		told := (*trouble.Error)(nil)
		switch {
		case strings.Join(r.jobs, ",") != "nvidia-cdi-refresh.service restart":
			t.Errorf("jobs: %q", r.jobs)
		case works && err != nil:
			t.Error(err)
		case !works && (!errors.As(err, &told) || !strings.Contains(told.What, "it has 0 devices, the driver has 3") || len(told.Try) == 0):
			t.Errorf("a service that wrote nothing: %v", err)
		}
	}
}

// Partitions that change make the spec outdated, where there is one. A service that fails then
// takes no partitions back.
func TestCDIRun(t *testing.T) {
	run := cdi.New("nvidia-cdi-refresh.service").(converge.Follower)
	for found, want := range map[converge.State]converge.State{"": "current", "current": "current", "none": "none"} {
		check.Equal(t, run.Current(run.Affected(found, converge.Change{Ref: converge.Ref{Kind: "mig"}})), want, "%q:", found)
		check.Equal(t, run.Affected(found, converge.Change{Ref: converge.Ref{Kind: "file"}}), found, "%q after a file:", found)
	}

	for _, fails := range []bool{false, true} {
		r := &refreshing{
			Node:  withSpec(t, cdiNode, "var/run/cdi/nvidia.yaml", unfinished),
			fails: fails,
		}
		r.writes = cdiSpec(t, r.Node)
		found, err := run.Look(t.Context(), r)
		must.That(t, strings.HasPrefix(string(found), "outdated: ") && err == nil, "%q, %v", found, err)
		err = run.Make(t.Context(), r, run.Current(found))
		check.That(t, fails == errors.As(err, new(converge.Stays)) && (fails || err == nil), "fails %v: %v", fails, err)
	}
	// What can only be made later, and what a run is interrupted in, pass through.
	later := &refreshing{
		Node: withSpec(t, cdiNode, "var/run/cdi/nvidia.yaml", unfinished),
		gone: true,
	}
	err := run.Make(t.Context(), later, "current")
	check.That(t, errors.As(err, new(host.Later)) && !errors.As(err, new(converge.Stays)), "the driver does not answer: %v", err)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	r := &refreshing{
		Node:  withSpec(t, cdiNode, "var/run/cdi/nvidia.yaml", unfinished),
		fails: true,
	}
	err = run.Make(stopped, r, "current")
	check.That(t, err != nil && !errors.As(err, new(converge.Stays)), "interrupted: %v", err)
}

// Specs of others for the same devices are named, with what is wrong with them.
func TestForeignCDI(t *testing.T) {
	dp := strings.Replace(unfinished, "nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu", 1)
	n := must.Get(simhost.New([]byte(cdiNode)))(t)
	good := cdiSpec(t, n)
	n = withSpec(t, cdiNode+"-- var/run/cdi/nvidia.yaml --\n"+good+"-- var/run/cdi/plugin.json --\n"+dp+"-- etc/cdi/readme.txt --\n"+good, "etc/cdi/nvidia.yaml", strings.ReplaceAll(good, "/usr/lib/libcuda.so.580.95.05", "/usr/lib/libcuda.so.570.1.2"))
	notes := cdi.ReadOtherSpecs(n, "").Notes(n)
	if len(notes) != 1 || !strings.Contains(notes[0], "/etc/cdi/nvidia.yaml is a CDI spec for nvidia.com/gpu too") || !strings.Contains(notes[0], "names /usr/lib/libcuda.so.570.1.2, which is not there") {
		t.Errorf("%q", notes)
	}
	check.List(t, cdi.ReadOtherSpecs(n, "").Injectors(), []string{"a device plugin"}, "a device plugin by CDI:")
	both := withSpec(t, cdiNode+"-- var/run/cdi/plugin.json --\n"+dp, "var/run/cdi/claim.yaml", strings.Replace(dp, "k8s.device-plugin.nvidia.com/gpu", "k8s.gpu.nvidia.com/claim", 1))
	who := cdi.ReadOtherSpecs(both, "").Injectors()
	check.That(t, len(who) == 2, "and the DRA driver: %q", who)
	n = withSpec(t, cdiNode+"-- var/run/cdi/nvidia.yaml --\n"+good, "var/run/cdi/other.yaml", good)
	who = cdi.ReadOtherSpecs(n, "").Injectors()
	check.That(t, who == nil, "the toolkit's own spec alone: %q", who)
	notes = cdi.ReadOtherSpecs(n, "").Notes(n)
	check.That(t, len(notes) == 1 && strings.Contains(notes[0], "remove one of the two"), "%q", notes)
}

// Each device node that is there has a link by its numbers; a wrong one is replaced.
func TestDeviceLinks(t *testing.T) {
	const nodes = "-- proc/devices --\nCharacter devices:\n195 nvidia\n235 nvidia-caps\n511 nvidia-uvm\n" +
		"-- dev/nvidia0 device=195:0 --\n-- dev/nvidia11 device=195:11 --\n-- dev/nvidiactl device=195:255 --\n-- dev/nvidia-uvm device=511:0 --\n" +
		"-- dev/nvidia-caps/nvidia-cap12 device=235:12 --\n-- dev/nvidia2 --\nno device\n-- dev/nvidia-modeset device=195:254 --\n"
	n := must.Get(simhost.New([]byte(nodes + "-- dev/char/195:11 link=../nvidia0 --\n-- dev/char/195:254 link=/dev/nvidia-modeset --\n")))(t)
	l := cdi.DeviceLinks()
	state, err := l.Look(t.Context(), n)
	check.That(t, state == "missing nvidia0 nvidia11 nvidiactl nvidia-cap12 nvidia-uvm" && err == nil, "%q, %v", state, err)
	to, err := l.To(state)
	must.That(t, err == nil && l.Make(t.Context(), n, to) == nil, "%v: %v", to, err)
	if state, err = l.Look(t.Context(), n); state != "linked" || err != nil {
		t.Errorf("made: %q, %v", state, err)
	}
	is, err := n.Readlink("/dev/char/235:12")
	check.That(t, is == "../nvidia-caps/nvidia-cap12" && err == nil, "%q, %v", is, err)
	bare := must.Get(simhost.New([]byte("-- dev/null device=1:3 --\n")))(t)
	state, err = l.Look(t.Context(), bare)
	check.That(t, state == "none" && err == nil, "no GPU: %q, %v", state, err)
}

// Partitions that change need other nodes, where the driver's tool can make them. One that fails
// takes no partitions back.
func TestPartitionNodes(t *testing.T) {
	nodes := cdi.NewDeviceLinks("/dev/nvidia-caps").(converge.Follower)
	for found, want := range map[converge.State]converge.State{"": "linked", "linked": "linked", "missing nvidia-cap21": "linked", "none": "none"} {
		check.Equal(t, nodes.Current(nodes.Affected(found, converge.Change{Ref: converge.Ref{Kind: "mig"}})), want, "%q:", found)
		check.Equal(t, nodes.Affected(found, converge.Change{Ref: converge.Ref{Kind: "file"}}), found, "%q after a file:", found)
	}

	check.That(t, nodes.Affected("linked", converge.Change{Ref: converge.Ref{Kind: "mig"}}) != "linked", "partitions that change need no nodes")
	const access = "-- proc/driver/nvidia/capabilities/gpu0/mig/gi1/access --\nDeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
	for archive, want := range map[string]converge.State{
		access: "none", "-- usr/bin/nvidia-modprobe mode=0755 --\n": "linked", "-- usr/bin/nvidia-modprobe mode=0755 --\n" + access: "missing nvidia-cap21",
	} {
		n := must.Get(simhost.New([]byte(archive)))(t)
		state, err := nodes.Look(t.Context(), n)
		check.That(t, state == want && err == nil, "%q, %v; want %q", state, err, want)
		n.Install("nvidia-modprobe", simhost.Program{Run: func(*files.Files, []string) ([]byte, error) {
			return nil, errors.New("it died")
		}})
		err = nodes.Make(t.Context(), n, "linked")
		check.That(t, (want != "linked" && want != "none") == errors.As(err, new(converge.Stays)), "%q: %v", want, err)
	}
}
