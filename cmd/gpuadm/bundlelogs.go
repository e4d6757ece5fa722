// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

// newestKernelLines is how many of the kernel's lines a bundle has of a journal that is too long.
const newestKernelLines = "20000"

// bundledLines is how many lines of the journal a bundle has of each unit.
const bundledLines = "2000"

// services are those whose state and journal the bundle has: gpuadm's own, those that the facts,
// plan, status and doctor have asked for on this machine, and the last of cloud-init's, which runs
// user data.
func (b *bundle) services() []string {
	all := append(b.seen.Services(), "cloud-final.service")
	for _, file := range stages.Units() {
		if path.Ext(file) == ".service" {
			all = append(all, path.Base(file))
		}
	}

	slices.Sort(all)
	return slices.Compact(all)
}

// logs adds the machine's logs, units, packages and versions.
func (b *bundle) logs(ctx context.Context) {
	var loaded []string
	units := func(ctx context.Context) (text []byte, err error) {
		loaded, text, err = b.units(ctx)
		return text, err
	}

	b.text(ctx, "units.txt", "units: loaded, enabled, running since when", units)
	b.text(ctx, "journal/gpuadm.txt", "gpuadm's own lines of this boot, runs by hand too",
		b.journal("--lines="+bundledLines, "SYSLOG_IDENTIFIER=gpuadm"))
	for _, unit := range loaded {
		b.text(ctx, "journal/"+unit+".txt", "the unit's lines of this boot",
			b.journal("--lines="+bundledLines, "--unit="+unit))
	}

	b.text(ctx, "kernel.txt", "the kernel's lines of this boot about GPUs, modules and PCI", b.kernel)
	b.text(ctx, "packages.txt", "packages of the driver, the toolkit, engines, kubelet and kernels", b.packages)
	b.text(ctx, "versions.txt", "gpuadm, kernel, engine, kubelet, toolkit, driver", b.versions)
}

// units returns the services that are loaded, and a line for each of them, and for each that
// systemd says nothing about.
func (b *bundle) units(ctx context.Context) (loaded []string, text []byte, err error) {
	var rows []string
	for _, name := range b.services() {
		u, unitErr := b.h.Unit(ctx, name)
		if errors.As(unitErr, new(host.Later)) {
			unitErr = errors.New("systemd does not run here")
		}
		err = cmp.Or(err, unitErr)
		if unitErr != nil {
			rows = append(rows, fmt.Sprintf("%-30s unknown: %s", name, trouble.OneLine(unitErr.Error())))
			continue
		}
		if u.Load == "not-found" {
			continue
		}

		loaded = append(loaded, name)
		since := ""
		if !u.Started.IsZero() {
			since = "since " + u.Started.UTC().Format(time.RFC3339)
		}
		rows = append(rows, fmt.Sprintf("%-30s %-10s %-10s %-10s %s %s",
			name, u.Load, u.Enabled, u.Active, since, strings.Join(u.Files, " ")))
	}

	if len(loaded) > 0 {
		err = nil
	}
	return loaded, []byte(strings.Join(rows, "\n") + "\n"), err
}

// journal reads lines of this boot. journalctl(1): --boot alone is the current boot, --dmesg the
// kernel's lines.
func (b *bundle) journal(filter ...string) partReader {
	argv := append([]string{"journalctl", "--boot", "--no-pager", "--output=short-iso"}, filter...)
	return func(ctx context.Context) ([]byte, error) { return b.h.Ask(ctx, argv...) }
}

// kernel reads the kernel's lines about GPUs.
func (b *bundle) kernel(ctx context.Context) ([]byte, error) {
	lines, err := b.journal("--dmesg")(ctx)
	switch {
	case err != nil && len(lines) == 0:
		lines, err = b.h.Ask(ctx, "dmesg", "--ctime")
	case err != nil: // more than gpuadm reads at a time: the driver's errors, then the newest lines
		lines, _ = b.journal("--dmesg", "--grep="+faults.InJournal)(ctx)
		var newest []byte
		newest, err = b.journal("--dmesg", "--lines="+newestKernelLines)(ctx)
		lines = append(lines, newest...)
	}

	return linesWith(lines,
		"nvrm", "nvidia", "nouveau", "nova", "xid",
		"aer:", "pcieport", "vfio",
		"lockdown", "module verification", "oom-kill"), err
}

// packages lists the packages that matter to a node with GPUs.
func (b *bundle) packages(ctx context.Context) ([]byte, error) {
	const format = "${db:Status-Abbrev} ${Package} ${Architecture} ${Version}\n"
	lines, err := b.h.Ask(ctx, "dpkg-query", "--show", "--showformat", format)
	if err != nil {
		lines, err = b.h.Ask(ctx, "rpm", "-qa")
	}
	return linesWith(lines,
		"nvidia", "cuda", "datacenter-gpu", "dkms",
		"containerd", "docker", "cri-", "kube", "runc", "crun",
		"linux-image", "linux-headers", "kernel"), err
}

// versions asks all programs for their versions. A missing program is not a fault.
func (b *bundle) versions(ctx context.Context) ([]byte, error) {
	lines := []string{"gpuadm " + version()}
	for _, name := range []string{"/proc/version", "/proc/driver/nvidia/version"} {
		data, err := b.h.ReadFile(name)
		if err == nil {
			lines = append(lines, strings.TrimSpace(string(data)))
		}
	}

	for _, argv := range [][]string{
		{"containerd", "--version"},
		{"crio", "--version"},
		{"docker", "--version"},
		{"runc", "--version"},
		{"kubelet", "--version"},
		{"nvidia-container-runtime", "--version"},
		{"nvidia-ctk", "--version"},
		{"nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"},
		{"systemctl", "--version"},
	} {
		out, err := b.h.Ask(ctx, argv...)
		if err == nil {
			lines = append(lines, strings.Join(argv, " ")+": "+strings.TrimSpace(string(out)))
		}
	}

	return []byte(strings.Join(lines, "\n") + "\n"), nil
}

// linesWith keeps the lines that have one of the words.
func linesWith(text []byte, words ...string) []byte {
	var kept []byte
	for line := range bytes.Lines(text) {
		lower := strings.ToLower(string(line))
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(lower, word) }) {
			kept = append(kept, line...)
		}
	}

	return kept
}
