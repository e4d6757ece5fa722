// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// ourUnit runs apply at boot; kubelet is ordered after it.
const ourUnit = "gpuadm.service"

// node fills in what tells this machine and this boot from others.
func (g *gathering) node(ctx context.Context, f *Facts) {
	f.Hostname = g.hostname()
	f.MachineID = g.machineID()
	if !f.Live {
		return
	}

	f.BootID = g.attr("/proc/sys/kernel/random/boot_id")
	f.Booting = g.active(ctx, ourUnit) == "activating"
	f.Cgroup = g.cgroup()
	f.CPUs = countList(g.attr("/sys/devices/system/cpu/online"))
	f.Memory = memory(g.attr("/proc/meminfo"))
}

// hostname returns the running machine's name, or the one that it will have. Source: hostname(5).
func (g *gathering) hostname() string {
	if g.v.Live() {
		if name := g.attr("/proc/sys/kernel/hostname"); name != "" {
			return name
		}
	}

	for line := range strings.SplitSeq(g.attr("/etc/hostname"), "\n") {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' {
			return line
		}
	}

	return ""
}

// machineID returns 32 hex digits; "" if the machine has no id yet, like an image before its first
// boot.
// Source: machine-id(5).
func (g *gathering) machineID() string {
	id := g.attr("/etc/machine-id")
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// cgroup returns the version of cgroups that kubelet uses: version 1 if both are mounted.
// Source: IsCgroup2UnifiedMode in github.com/opencontainers/cgroups.
func (g *gathering) cgroup() int {
	if _, err := g.v.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return 2
	}
	for _, hierarchy := range [...]string{"memory", "systemd", "unified"} {
		if _, err := g.v.Stat("/sys/fs/cgroup/" + hierarchy); err == nil {
			return 1
		}
	}

	return 0
}

// countList counts the numbers in a list of the kernel's, such as 0-3,8,10-11; 0 if it is invalid.
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || last < first {
			return 0
		}
		n += int(last-first) + 1
	}

	return n
}

// memory reads the first line of /proc/meminfo, in bytes; 0 if that fails.
func memory(meminfo string) uint64 {
	var kb uint64
	_, _ = fmt.Sscanf(meminfo, "MemTotal: %d kB", &kb)
	return kb << 10
}

// active returns a unit's ActiveState; "" if it does not exist, or no systemd runs.
func (g *gathering) active(ctx context.Context, name string) string {
	if !g.unitThere(name) {
		return ""
	}
	u, err := g.v.Unit(ctx, name)
	var later host.Later
	if err != nil && !errors.As(err, &later) {
		g.fail("ask systemd about", name, err)
	}
	return u.Active
}

// machine returns the firmware's name of the machine, "unknown" if it has none.
func (g *gathering) machine() string {
	name, err := g.v.ReadFile("/sys/class/dmi/id/product_name")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(name))
}
