// SPDX-License-Identifier: Apache-2.0

// Package boottime says where the time of a boot went, from the firmware to the first container: by
// systemd's time stamps, gpuadm's journal and kubelet's folder of logs.
package boottime

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// Boot is where the time of a boot went, in the order of time.
type Boot struct {
	From  string `json:"from"` // what the times begin with: power-on, kernel, container
	Steps []Step `json:"steps"`
}

// A Step is a part of a boot, or a moment.
type Step struct {
	Name   string `json:"name"`
	At     int64  `json:"at_ms"`             // when it began
	Took   int64  `json:"took_ms,omitempty"` // 0: a moment
	Detail string `json:"detail,omitempty"`
}

// Units are those whose time stamps tell of a boot.
type Units struct {
	Boot, Kubelet, Ready string
}

// A Run is a run of gpuadm in the journal.
type Run struct {
	ID   string
	Time time.Time
	Took string // "packages 40.1 s, runtime 1.2 s"
}

// managerStamps are systemd's own time stamps, in microseconds. Firmware and boot loader are before
// the kernel starts, and count backwards from there; the others are on the monotonic clock.
// Sources: org.freedesktop.systemd1(5), "Properties"; systemd, src/analyze/analyze-time-data.c.
var managerStamps = []string{
	"FirmwareTimestampMonotonic", "LoaderTimestampMonotonic", "InitRDTimestampMonotonic",
	"UserspaceTimestampMonotonic", "FinishTimestampMonotonic", "SecurityStartTimestampMonotonic",
}

// unitStamps are those of a unit (org.freedesktop.systemd1(5), "Unit Objects").
var unitStamps = []string{
	"Id", "ActiveState", "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic",
	"InactiveEnterTimestampMonotonic", "ExecMainStartTimestampMonotonic",
}

// Read reads where the time of this boot went. runs are those of the journal.
func Read(ctx context.Context, v host.View, units Units, runs []Run) (*Boot, error) {
	manager, err := show(ctx, v, managerStamps)
	if err != nil {
		return nil, err
	}
	isEmpty := func(name string) bool { return name == "" }
	names := slices.DeleteFunc([]string{units.Boot, units.Kubelet, units.Ready}, isEmpty)
	of, err := show(ctx, v, unitStamps, names...)
	if err != nil {
		return nil, err
	}
	uptime, err := v.ReadFile("/proc/uptime")
	if err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseFloat(strings.Fields(string(uptime) + " -")[0], 64)
	if err != nil {
		return nil, fmt.Errorf("cannot read /proc/uptime: %w", err)
	}

	m := machine{
		clock:  clockOf(manager[0]),
		booted: v.Now().Add(-time.Duration(seconds * float64(time.Second))),
		units:  map[string]stamps{},
	}
	for _, u := range of {
		m.units[u["Id"]] = u
	}
	b := m.before(manager[0])
	b.Steps = append(b.Steps, m.bootUnit(units.Boot, runs)...)
	b.Steps = append(b.Steps, m.kubelet(units.Kubelet)...)
	b.Steps = append(b.Steps, m.firstContainer(v, units.Kubelet)...)
	b.Steps = append(b.Steps, m.ready(units.Ready)...)
	sorting.By(b.Steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return &b, nil
}

// stamps are the properties of a unit, or of systemd itself.
type stamps map[string]string

// micros is a time stamp in microseconds; 0 if there is none.
func (s stamps) micros(name string) int64 {
	n, err := strconv.ParseInt(s[name], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// show asks systemd for properties of units, or of itself: a block for each, with blank lines
// between (systemctl(1)).
func show(ctx context.Context, v host.View, properties []string, units ...string) (list []stamps, err error) {
	argv := append([]string{"systemctl", "show", "--property=" + strings.Join(properties, ",")}, units...)
	out, err := v.Ask(ctx, argv...)
	if err != nil {
		return nil, err
	}

	for block := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n\n") {
		s := stamps{}
		for line := range strings.Lines(block) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			s[name] = value
		}

		list = append(list, s)
	}

	return list, nil
}

// A clock turns a time on the monotonic clock into one of the answer.
type clock struct {
	from  string
	start int64 // what the answer counts from, in microseconds on the monotonic clock
}

// clockOf counts from power-on, where the firmware says when that was. In a container the monotonic
// clock is its host's, and systemd knows no time of SELinux and the like (systemd#12740).
func clockOf(manager stamps) clock {
	firmware := max(manager.micros("FirmwareTimestampMonotonic"), manager.micros("LoaderTimestampMonotonic"))
	switch {
	case manager.micros("SecurityStartTimestampMonotonic") == 0:
		return clock{"container", manager.micros("UserspaceTimestampMonotonic")}
	case firmware > 0:
		return clock{"power-on", -firmware}
	}

	return clock{"kernel", 0}
}

// step is a step between two times on the monotonic clock; to 0: it has not ended.
func (c clock) step(name string, from, to int64) Step {
	s := Step{Name: name, At: (from - c.start) / 1000}
	if to > from {
		s.Took = (to - from) / 1000
	}
	return s
}

// machine is what a boot's steps are made of.
type machine struct {
	clock
	booted time.Time // where the monotonic clock began, by the wall clock
	units  map[string]stamps
}

// before are the steps before any unit.
func (m machine) before(manager stamps) Boot {
	firmware := -manager.micros("FirmwareTimestampMonotonic")
	loader := -manager.micros("LoaderTimestampMonotonic")
	initrd := manager.micros("InitRDTimestampMonotonic")
	userspace := manager.micros("UserspaceTimestampMonotonic")
	finish := manager.micros("FinishTimestampMonotonic")

	b := Boot{From: m.from}
	if m.from == "power-on" && firmware < loader {
		b.Steps = append(b.Steps, m.step("firmware", firmware, loader))
	}
	if m.from == "power-on" && loader < 0 {
		b.Steps = append(b.Steps, m.step("boot loader", loader, 0))
	}
	if m.from != "container" {
		b.Steps = append(b.Steps, m.step("kernel", 0, cmp.Or(initrd, userspace)))
	}
	if m.from != "container" && initrd > 0 {
		b.Steps = append(b.Steps, m.step("initrd", initrd, userspace))
	}
	b.Steps = append(b.Steps, m.step("systemd", userspace, finish))
	return b
}

// bootUnit is gpuadm's boot unit, with what its run did, and the gate.
func (m machine) bootUnit(name string, runs []Run) []Step {
	u := m.units[name]
	begins := u.micros("InactiveExitTimestampMonotonic")
	if begins == 0 {
		return nil
	}

	opened := u.micros("ActiveEnterTimestampMonotonic")
	failed := u.micros("InactiveEnterTimestampMonotonic")
	isOpen := u["ActiveState"] == "active"
	ended := opened
	if opened < begins { // of an earlier start, or never
		ended = failed
	}

	s := m.step(name, begins, ended)
	for _, r := range runs {
		at := r.Time.Sub(m.booted).Microseconds()
		inside := at >= begins-1e6 && (ended < begins || at <= ended)
		if inside && r.Took != "" {
			s.Detail = "run " + r.ID + ": " + r.Took
		}
	}

	switch {
	case isOpen:
		return []Step{s, m.step("gate opens", opened, 0)}
	case u["ActiveState"] == "failed":
		return []Step{s, m.step(name+" has failed: the gate stays closed", failed, 0)}
	}

	return []Step{s}
}

func (m machine) kubelet(name string) []Step {
	started := m.units[name].micros("ExecMainStartTimestampMonotonic")
	if started == 0 {
		return nil
	}
	return []Step{m.step(name+" starts", started, 0)}
}

// firstContainer is the first container since kubelet started. kubelet makes a folder for each
// container in that of its pod, and a file in it for each start
// (https://kubernetes.io/docs/concepts/cluster-administration/logging/, kubernetes
// pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory).
func (m machine) firstContainer(v host.View, kubelet string) []Step {
	const logs = "/var/log/pods"
	started := m.units[kubelet].micros("ExecMainStartTimestampMonotonic")
	if started == 0 {
		return nil
	}

	first := int64(0)
	pod := ""
	pods, _ := v.ReadDir(logs) // missing where no pod has run yet
	for _, name := range pods {
		containers, _ := v.ReadDir(path.Join(logs, name)) // a pod that ends now
		for _, c := range containers {
			info, err := v.Stat(path.Join(logs, name, c))
			if err != nil {
				continue
			}
			at := info.Mtime.Sub(m.booted).Microseconds()
			isEarlier := first == 0 || at < first
			if at >= started && isEarlier {
				first = at
				pod = name
			}
		}
	}

	if first == 0 {
		return nil
	}
	words := strings.Split(pod, "_") // NAMESPACE_NAME_UID
	s := m.step("first container", first, 0)
	s.Detail = strings.Join(words[:min(2, len(words))], "/")
	return []Step{s}
}

// ready is the unit that waits for the node, and lets pods onto it.
func (m machine) ready(name string) []Step {
	u := m.units[name]
	begins := u.micros("InactiveExitTimestampMonotonic")
	if begins == 0 {
		return nil
	}
	done := u.micros("ActiveEnterTimestampMonotonic")
	s := m.step(name, begins, done)
	if u["ActiveState"] != "active" {
		s.Detail = "is " + u["ActiveState"]
		return []Step{s}
	}
	return []Step{s, m.step("node is ready for pods", done, 0)}
}
