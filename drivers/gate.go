// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

const (
	// GateFile has apt hold new kernels back.
	GateFile = "/etc/apt/preferences.d/00-gpuadm-kernel"

	dpkgStatus = "/var/lib/dpkg/status"
	day        = "2006-01-02"
)

// gate holds back kernels that would come without a module, for some days from when it was first written for the kernel
// that runs. Then it lapses: security fixes must not be kept away for ever. The lapsed file stays, with comments alone, so
// that the days do not begin anew until another kernel runs.
type gate struct {
	days   int
	kernel string   // that runs
	keep   []string // installed kernels, whose packages may change
}

// gateWants are the gate, where one is asked for and a new kernel would come without a module.
func gateWants(c Choice, d spec.Driver, f facts.Facts) ([]converge.Want, error) {
	if d.KernelGate == "" || !f.Live || f.Kernel.Running == "" || !comesWithout(c, f) {
		return nil, nil
	}
	if f.Files[dpkgStatus] == nil {
		return nil, &converge.Trouble{
			What: "cannot hold back kernels: that is done with apt, and apt does not manage this machine",
			Try:  []string{`write kernel_gate = "" in [driver]`, "or hold them yourself: dnf versionlock add 'kernel*', until modules for the new one are there"},
		}
	}
	g := gate{kernel: f.Kernel.Running, keep: f.Kernel.Installed}
	if _, err := fmt.Sscanf(d.KernelGate, "%dd", &g.days); err != nil {
		return nil, fmt.Errorf("internal error: %q is no number of days", d.KernelGate)
	}
	now := new(time.Time)
	w := things.Edited(things.NewFile(GateFile, nil), func(found []byte) ([]byte, error) { return g.file(found, *now), nil },
		"a new kernel would come without a module: it waits until there is one, "+d.KernelGate+" at most")
	w.Thing = clocked{w.Thing.(*things.FileThing), now}
	return append(things.Folders("/etc/apt/preferences.d", "holds apt's preferences"), w), nil
}

// clocked is a file whose content depends on the day it is looked at.
type clocked struct {
	*things.FileThing
	now *time.Time
}

func (c clocked) Look(ctx context.Context, v host.View) (converge.State, error) {
	*c.now = v.Now()
	return c.FileThing.Look(ctx, v)
}

var gateLine = pattern.Of(`(?m)^# kernel (\S+) since (\d{4}-\d{2}-\d{2}), until (\d{4}-\d{2}-\d{2})$`)

// file returns what the file shall be, from what it is. Its own date is kept for the kernel that it is about.
func (g gate) file(found []byte, now time.Time) []byte {
	since := now.UTC().Truncate(24 * time.Hour)
	if m := gateLine().FindSubmatch(found); m != nil && string(m[1]) == g.kernel {
		if then, err := time.Parse(day, string(m[2])); err == nil && !then.After(since) {
			since = then
		}
	}
	until := since.AddDate(0, 0, g.days)
	out := fmt.Appendf(nil, "# Written by gpuadm; it is put back to this at the next apply.\n# kernel %s since %s, until %s\n", g.kernel, since.Format(day), until.Format(day))
	if !now.Before(until) {
		return append(out, "# It has lapsed: kernels come as they do, whether there is a module for them or not.\n"...)
	}
	// The first record that fits counts: apt_preferences(5). Installed kernels get their fixes, and their headers.
	for _, k := range g.keep {
		build := kernelBuild().FindString(k)
		if build == "" {
			build = k
		}
		record := fmt.Sprintf("\nPackage: linux-*-%s linux-*-%s-*\nPin: release *\nPin-Priority: 500\n", build, build)
		if !strings.Contains(string(out), record) {
			out = append(out, record...)
		}
	}
	return append(out, "\nPackage: linux-image-* linux-headers-* linux-modules-[0-9]* linux-modules-extra-*\nPin: release *\nPin-Priority: -1\n"...)
}

// gateNotes says until when kernels are held back, and that they no longer are.
func gateNotes(v host.View) []string {
	text, err := v.ReadFile(GateFile)
	if err != nil {
		return nil
	}
	m := gateLine().FindSubmatch(text)
	if m == nil {
		return nil
	}
	until, err := time.Parse(day, string(m[3]))
	switch {
	case err != nil:
		return nil
	case v.Now().Before(until):
		return []string{fmt.Sprintf("kernels newer than those installed are held back until %s, their security fixes too; kernel_gate = \"\" in [driver] lifts that (%s)", m[3], GateFile)}
	}
	return []string{fmt.Sprintf("kernel_gate has lapsed on %s: new kernels come, and the GPUs are gone with the first that has no module", m[3])}
}
