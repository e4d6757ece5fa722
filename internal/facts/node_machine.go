// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// ourUnit runs apply at boot; kubelet is ordered after it.
const ourUnit = "gpuadm.service"

// node fills in what tells this machine and this boot from others.
func (l *look) node(ctx context.Context, f *Facts) {
	f.Hostname, f.MachineID = l.hostname(), l.machineID()
	if !f.Live {
		return
	}
	f.BootID, f.Booting = l.attr("/proc/sys/kernel/random/boot_id"), l.active(ctx, ourUnit) == "activating"
	f.Cgroup, f.CPUs, f.Memory = l.cgroup(), l.cpus(), memory(l.attr("/proc/meminfo"))
}

// hostname is the running machine's name, or the one it will have. Source: hostname(5).
func (l *look) hostname() string {
	if l.v.Live() {
		if name := l.attr("/proc/sys/kernel/hostname"); name != "" {
			return name
		}
	}
	for line := range strings.SplitSeq(l.attr("/etc/hostname"), "\n") {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return line
		}
	}
	return ""
}

// machineID is 32 hex digits; "" if the machine has none yet, as an image before its first boot. Source: machine-id(5).
func (l *look) machineID() string {
	id := l.attr("/etc/machine-id")
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// cgroup tells version 2 as kubelet does, by what is mounted on the whole: with both, it works with version 1.
// Source: IsCgroup2UnifiedMode in github.com/opencontainers/cgroups.
func (l *look) cgroup() int {
	if _, err := l.v.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return 2
	}
	for _, name := range [...]string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"} {
		if _, err := l.v.Stat(name); err == nil {
			return 1
		}
	}
	return 0
}

// cpus counts the CPUs that are online.
func (l *look) cpus() int {
	if n := countList(l.attr("/sys/devices/system/cpu/online")); n > 0 {
		return n
	}
	n := 0
	for line := range strings.SplitSeq(l.attr("/proc/cpuinfo"), "\n") {
		if key, _, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "processor" {
			n++
		}
	}
	return n
}

// countList counts what the kernel lists as 0-3,8,10-11; 0 if it makes no sense.
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, found := strings.Cut(part, "-")
		if !found {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || b < a {
			return 0
		}
		n += int(b-a) + 1
	}
	return n
}

// memory reads the first line of /proc/meminfo, in bytes; 0 if it is not there.
func memory(meminfo string) uint64 {
	for line := range strings.SplitSeq(meminfo, "\n") {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kb, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 53)
			if err != nil {
				return 0
			}
			return kb << 10
		}
	}
	return 0
}

// active is a unit's ActiveState; "" if it is not there or no systemd runs.
func (l *look) active(ctx context.Context, name string) string {
	if !l.unitThere(name) {
		return ""
	}
	u, err := l.v.Unit(ctx, name)
	var later host.Later
	if err != nil && !errors.As(err, &later) {
		l.fail("ask systemd about", name, err)
	}
	return u.Active
}
