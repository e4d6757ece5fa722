// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A suspect is an event of the machine that could have changed a thing. It is for people: nothing is decided by it.
type suspect struct {
	Time time.Time `json:"time"`
	What string    `json:"what"`
}

// mostSuspects is how many are named: those closest to the change.
const mostSuspects = 5

// suspects lists what happened after gpuadm left a thing and before it was changed, and when a file was changed.
func suspects(ctx context.Context, v host.View, m converge.Mark) (changed time.Time, all []suspect) {
	until := v.Now()
	if i, err := v.Stat(m.Name); err == nil && strings.HasPrefix(m.Name, "/") && i.Ctime.After(m.Left) {
		changed, until = i.Ctime, i.Ctime.Add(time.Minute) // a log is written a little later, and names the second
	}
	all = append(all, dpkgEvents(v, m)...)
	all = append(all, rpmEvents(v, m)...)
	all = append(all, cloudInitEvents(v, m)...)
	all = append(all, starts(ctx, v)...)
	all = slices.DeleteFunc(all, func(s suspect) bool { return !s.Time.After(m.Left) || s.Time.After(until) })
	near := changed
	if near.IsZero() {
		near = v.Now()
	}
	slices.SortStableFunc(all, func(a, b suspect) int { return int(near.Sub(a.Time).Abs() - near.Sub(b.Time).Abs()) })
	all = all[:min(len(all), mostSuspects)]
	slices.SortStableFunc(all, func(a, b suspect) int { return a.Time.Compare(b.Time) })
	return changed, all
}

// lines reads logs, the rotated one too.
func lines(v host.View, names ...string) (all []string) {
	for _, name := range names {
		data, err := v.ReadFile(name)
		if err == nil {
			all = append(all, strings.Split(string(data), "\n")...)
		}
	}
	return all
}

// dpkgEvents are packages that came, were upgraded or went: "2026-11-20 06:12:33 upgrade containerd:amd64 1.7.1 1.7.2", in local time.
// Sources: dpkg(1), "--log"; dpkg's lib/dpkg/log.c, which uses localtime.
func dpkgEvents(v host.View, m converge.Mark) (all []suspect) {
	for _, line := range lines(v, "/var/log/dpkg.log.1", "/var/log/dpkg.log") {
		f := strings.Fields(line)
		if len(f) < 5 || !slices.Contains([]string{"install", "upgrade", "remove", "purge"}, f[2]) {
			continue
		}
		name, _, _ := strings.Cut(f[3], ":")
		at, err := time.ParseInLocation(time.DateTime, f[0]+" "+f[1], v.Now().Location())
		if err == nil && aboutPackage(m, name) {
			all = append(all, suspect{at, "dpkg: " + strings.Join(f[2:], " ")})
		}
	}
	return all
}

// rpmEvents are the same of dnf: "2026-11-20T06:12:33+0000 SUBDEBUG Upgrade: containerd.io-1.7.2-3.1.el9.x86_64"; older ones end the
// time in Z. What is replaced is a line of its own, with Upgraded. Sources: https://github.com/rpm-software-management/dnf,
// dnf/yum/rpmtrans.py, LoggingTransactionDisplay; the logs that ci-dnf-stack expects of it (bz1802074).
func rpmEvents(v host.View, m converge.Mark) (all []suspect) {
	for _, line := range lines(v, "/var/log/dnf.rpm.log.1", "/var/log/dnf.rpm.log") {
		f := strings.Fields(line)
		if len(f) != 4 || f[1] != "SUBDEBUG" || !slices.Contains([]string{"Installed:", "Upgrade:", "Erase:", "Downgrade:", "Reinstall:"}, f[2]) {
			continue
		}
		at, err := time.Parse("2006-01-02T15:04:05Z0700", f[0])
		if err == nil && aboutPackage(m, f[3]) {
			all = append(all, suspect{at, "dnf: " + strings.Join(f[2:], " ")})
		}
	}
	return all
}

// aboutPackage says whether an event of a package can have to do with a thing: any with a file, those of a package with that package.
func aboutPackage(m converge.Mark, name string) bool {
	return m.Kind != "package" || strings.HasPrefix(name, m.Name)
}

// cloudInitEvents are writes of the file by cloud-init: "2026-11-20 06:12:33,123 - util.py[DEBUG]: Writing to /etc/x - wb: [644] 9
// bytes", in UTC. Sources: cloud-init's cloudinit/util.py, write_file, and loggers.py, whose formatter has gmtime; a log in
// https://github.com/canonical/cloud-init/pull/479.
func cloudInitEvents(v host.View, m converge.Mark) (all []suspect) {
	if !strings.HasPrefix(m.Name, "/") {
		return nil
	}
	for _, line := range lines(v, "/var/log/cloud-init.log") {
		if len(line) < len(time.DateTime) || !strings.Contains(line, "Writing to "+m.Name+" ") {
			continue
		}
		if at, err := time.Parse(time.DateTime, line[:len(time.DateTime)]); err == nil {
			all = append(all, suspect{at, "cloud-init: wrote " + path.Base(m.Name)})
		}
	}
	return all
}

// starts are the last starts of what configures machines, or makes files when it starts.
func starts(ctx context.Context, v host.View) (all []suspect) {
	others := []string{
		"cloud-final.service", "unattended-upgrades.service", "apt-daily-upgrade.service", "dnf-automatic.service", "nvidia-cdi-refresh.service",
		"puppet.service", "salt-minion.service", "chef-client.service", "amazon-ssm-agent.service", "google-osconfig-agent.service", "walinuxagent.service",
	}
	for _, name := range append(bundledUnits(), others...) {
		if u, err := v.Unit(ctx, name); err == nil && !u.Started.IsZero() {
			all = append(all, suspect{u.Started, "systemd: " + name + " was started"})
		}
	}
	slices.SortFunc(all, func(a, b suspect) int { return strings.Compare(a.What, b.What) })
	return slices.Compact(all)
}
