// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
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

// gate holds back kernels that would come without a module: each until apt's lists have what it gets its module with, and
// all for some days at most from when it was first written for the kernel that runs. Then it lapses: security fixes must not
// be kept away for ever. The lapsed file stays, with comments alone, so that the days do not begin anew until another kernel
// runs.
type gate struct {
	days   int
	kernel facts.Kernel
	with   string // what a kernel gets its module with, but for its release: linux-headers-; "" if nobody knows
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
	g := gate{kernel: f.Kernel, with: c.comesWith()}
	if _, err := fmt.Sscanf(d.KernelGate, "%dd", &g.days); err != nil {
		return nil, fmt.Errorf("internal error: %q is no number of days", d.KernelGate)
	}
	why := "a new kernel would come without a module: it waits, " + d.KernelGate + " at most"
	if g.with != "" {
		why = fmt.Sprintf("a new kernel would come without a module: it waits until there is %sKERNEL, %s at most", g.with, d.KernelGate)
	}
	now := new(sight)
	w := things.Edited(things.NewFile(GateFile, nil), func(found []byte) ([]byte, error) { return g.file(found, *now), nil }, why)
	w.Thing = sighted{w.Thing.(*things.FileThing), g, now}
	w.AsFound = true // its days are counted from what it said before
	return append(things.Folders("/etc/apt/preferences.d", "holds apt's preferences"), w), nil
}

// comesWith is the package that a kernel gets its module with, but for the kernel's release: the distribution's signed
// modules, or the headers that DKMS builds against.
func (c Choice) comesWith() string {
	role := "headers"
	if c.Precompiled {
		role = "module"
	}
	for _, m := range c.Members {
		if with, ok := strings.CutSuffix(m.Name, m.PerKernel); ok && m.Role == role && m.PerKernel != "" {
			return with
		}
	}
	return ""
}

// sighted is a file whose content depends on the day it is looked at, and on what apt's lists have then.
type sighted struct {
	*things.FileThing
	gate gate
	now  *sight
}

// sight is what a look sees beside the file.
type sight struct {
	day   time.Time
	names []string  // packages named linux-… of the lists that came since the file was decided
	lists time.Time // when the last of those came
}

// Look reads the lists that the file does not know yet. A gate that has lapsed asks nobody.
func (s sighted) Look(ctx context.Context, v host.View) (converge.State, error) {
	*s.now = sight{day: v.Now()}
	found, _ := v.ReadFile(GateFile) // what is wrong with it the thing says
	r := s.gate.record(found)
	if s.now.day.Before(s.gate.until(r.since, s.now.day)) {
		var err error
		if s.now.names, s.now.lists, err = packages.Listed(ctx, v, "linux-", r.lists); err != nil {
			return "", err
		}
	}
	return s.FileThing.Look(ctx, v)
}

// record is what a gate's file says of the kernels that it is about.
type record struct {
	since         time.Time // the zero time where it is about another running kernel
	through, held []string  // newer ones
	lists         time.Time // they are known from lists up to this time
}

var (
	gateLine    = pattern.Of(`(?m)^# kernel (\S+) since (\d{4}-\d{2}-\d{2}), until (\d{4}-\d{2}-\d{2})$`)
	throughLine = pattern.Of(`(?m)^# let through, with (\S*)KERNEL:(.*)$`)
	heldLine    = pattern.Of(`(?m)^# held back:(.*)$`)
	listsLine   = pattern.Of(`(?m)^# by lists up to (\S+)$`)
)

// record reads the file as it is. What it says of another running kernel, or of another driver's packages, is forgotten.
func (g gate) record(found []byte) (r record) {
	m := gateLine().FindSubmatch(found)
	if m == nil || string(m[1]) != g.kernel.Running {
		return record{}
	}
	r.since, _ = time.Parse(day, string(m[2]))
	through, held, lists := throughLine().FindSubmatch(found), heldLine().FindSubmatch(found), listsLine().FindSubmatch(found)
	if through == nil || held == nil || lists == nil || string(through[1]) != g.with {
		return r
	}
	r.through, r.held = strings.Fields(string(through[2])), strings.Fields(string(held[1]))
	r.lists, _ = time.Parse(time.RFC3339Nano, string(lists[1]))
	return r
}

// began is the day from which the days are counted, today if none is known; until is the day on which they are over.
func began(since, now time.Time) time.Time {
	today := now.UTC().Truncate(24 * time.Hour)
	if since.IsZero() || since.After(today) {
		return today
	}
	return since
}

func (g gate) until(since, now time.Time) time.Time { return began(since, now).AddDate(0, 0, g.days) }

// file returns what the file shall be, from what it is. Its own date is kept for the kernel that it is about, and it is
// decided anew only where that changes a kernel's fate: else each new list would be a change.
func (g gate) file(found []byte, now sight) []byte {
	r := g.record(found)
	r.since = began(r.since, now.day)
	r.through, r.held = g.fates(r, now.names)
	out := g.text(r, now.day)
	if bytes.Equal(out, found) {
		return out
	}
	if now.lists.After(r.lists) {
		r.lists = now.lists
	}
	return g.text(r, now.day)
}

// fates sorts the newer kernels of the flavour that runs: those let through, and those held back. One that was let through
// stays so.
func (g gate) fates(r record, names []string) (through, held []string) {
	through, held = slices.Clone(r.through), slices.Clone(r.held)
	for _, name := range names {
		if kernel, ok := strings.CutPrefix(name, g.with); ok && g.with != "" {
			through = append(through, kernel)
		} else if image, ok := strings.CutPrefix(name, "linux-image-"); ok {
			held = append(held, strings.TrimPrefix(image, "unsigned-"))
		}
	}
	through = slices.DeleteFunc(through, func(k string) bool { return !g.comes(k) })
	held = slices.DeleteFunc(held, func(k string) bool { return !g.comes(k) || slices.Contains(through, k) })
	slices.Sort(through)
	slices.Sort(held)
	return slices.Compact(through), slices.Compact(held)
}

// comes says whether a kernel is one that the machine would be given next.
func (g gate) comes(kernel string) bool {
	return kernelBuild().MatchString(kernel) && flavour(kernel) == flavour(g.kernel.Running) && g.kernel.Newer(kernel) && !slices.Contains(g.kernel.Installed, kernel)
}

// text writes the file.
func (g gate) text(r record, now time.Time) []byte {
	until := g.until(r.since, now)
	out := fmt.Appendf(nil, "# Written by gpuadm; it is put back to this at the next apply.\n# kernel %s since %s, until %s\n", g.kernel.Running, r.since.Format(day), until.Format(day))
	if !now.Before(until) {
		return append(out, "# It has lapsed: kernels come as they do, whether there is a module for them or not.\n"...)
	}
	list := func(kernels []string) string { return strings.Join(append([]string{""}, kernels...), " ") }
	out = fmt.Appendf(out, "# let through, with %sKERNEL:%s\n# held back:%s\n# by lists up to %s\n", g.with, list(r.through), list(r.held), r.lists.UTC().Format(time.RFC3339Nano))
	// The first record that fits counts: apt_preferences(5). Installed kernels get their fixes, and their headers.
	for _, k := range slices.Concat(g.kernel.Installed, r.through) {
		build := kernelBuild().FindString(k)
		if build == "" {
			build = k
		}
		record := fmt.Sprintf("\nPackage: linux-*-%s linux-*-%s-*\nPin: release *\nPin-Priority: 500\n", build, build)
		if !strings.Contains(string(out), record) {
			out = append(out, record...)
		}
	}
	// Metapackages are left free: apt keeps back those that depend on a kernel which it may not install.
	return append(out, "\nPackage: linux-image-[0-9]* linux-image-unsigned-[0-9]* linux-headers-[0-9]* linux-modules-[0-9]* linux-modules-extra-[0-9]*\nPin: release *\nPin-Priority: -1\n"...)
}

// gateNotes says which kernels are held back, why and until when, and that they no longer are.
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
	case !v.Now().Before(until):
		return []string{fmt.Sprintf("kernel_gate has lapsed on %s: new kernels come, and the GPUs are gone with the first that has no module", m[3])}
	}
	lift := fmt.Sprintf("kernel_gate = \"\" in [driver] lifts that (%s)", GateFile)
	through, held := throughLine().FindSubmatch(text), heldLine().FindSubmatch(text)
	if through == nil || len(through[1]) == 0 || held == nil {
		return []string{fmt.Sprintf("kernels newer than those installed are held back until %s, their security fixes too; %s", m[3], lift)}
	}
	var notes []string
	for kernel := range strings.FieldsSeq(string(held[1])) {
		notes = append(notes, fmt.Sprintf("kernel %s is held back until %s, its security fixes too: no source had %s%s at the last apply; %s", kernel, m[3], through[1], kernel, lift))
	}
	if notes == nil {
		notes = []string{fmt.Sprintf("newer kernels are held back until %s where no source has %sKERNEL for them; %s", m[3], through[1], lift)}
	}
	return notes
}
