// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
)

// process returns the number of a process with a name, "" if there is none. The kernel keeps 15 letters: proc(5), comm.
func (l *look) process(comm string) string {
	if l.comms == nil {
		l.comms = map[string]string{}
		for _, pid := range l.pids() {
			l.comms[l.attr("/proc/"+pid+"/comm")] = pid
		}
	}
	return l.comms[comm]
}

func (l *look) pids() (all []string) {
	for _, name := range l.names("/proc") {
		if name[0] >= '1' && name[0] <= '9' {
			all = append(all, name)
		}
	}
	return all
}

// commandOf is a process's command line, and the unit that it runs in; "" outside of any. Sources: proc(5); "Unit to cgroup" in
// https://systemd.io/CONTROL_GROUP_INTERFACE/, and cg_path_get_unit in src/basic/cgroup-util.c of https://github.com/systemd/systemd.
func (l *look) commandOf(pid string) (argv []string, unit string) {
	if line := strings.TrimRight(l.attr("/proc/"+pid+"/cmdline"), "\x00"); line != "" {
		argv = strings.Split(line, "\x00")
	}
	for line := range strings.Lines(l.attr("/proc/" + pid + "/cgroup")) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			if strings.HasSuffix(part, ".service") && unit == "" {
				unit = part
			}
		}
	}
	return argv, unit
}

// socketPath is the path of a CRI endpoint. /var/run is a link to /run, and kubeadm writes the old name.
func socketPath(endpoint string) string {
	name := strings.TrimPrefix(endpoint, "unix://")
	if rest, ok := strings.CutPrefix(name, "/var/run/"); ok {
		return "/run/" + rest
	}
	return name
}

// listener finds the engine that listens on kubelet's socket, by its process: the one that holds the listening socket and is not
// systemd, which may have made it. What that process was started with says which file it reads. nil where none is found; reading the
// descriptors of other users' processes takes root. Source: unix_seq_show in net/unix/af_unix.c of Linux; proc(5), fd.
func (l *look) listener(ctx context.Context, endpoint string) *Engine {
	const listens, number = "00010000", 6 // __SO_ACCEPTCON; the column of the inode
	inode := ""
	for line := range strings.Lines(l.attr("/proc/net/unix")) {
		if f := strings.Fields(line); len(f) == number+2 && f[3] == listens && socketPath(f[number+1]) == socketPath(endpoint) {
			inode = "socket:[" + f[number] + "]"
		}
	}
	if inode == "" {
		return nil
	}
	for _, pid := range l.pids() {
		fds := "/proc/" + pid + "/fd"
		names, _ := l.v.ReadDir(fds) // it may have ended, or be another user's
		if pid != "1" && slices.ContainsFunc(names, func(fd string) bool {
			to, err := l.v.Readlink(fds + "/" + fd)
			return err == nil && to == inode
		}) {
			return l.engineOf(ctx, pid, socketPath(endpoint))
		}
	}
	return nil
}

// engineOf is the engine that a process is.
func (l *look) engineOf(ctx context.Context, pid, socket string) *Engine {
	argv, unit := l.commandOf(pid)
	if len(argv) == 0 {
		return nil
	}
	e := &Engine{Name: path.Base(argv[0]), Socket: socket, Unit: unit}
	e.Binary, _ = l.v.Readlink("/proc/" + pid + "/exe")
	switch e.Name {
	case "containerd":
		e.Config = cmp.Or(option(argv, "config", "c"), containerdDefault)
		l.engineVersion(ctx, e)
		e.Files, _ = l.containerdFiles(e.Config, Globs(e.Version))
	case "crio":
		e.Config = cmp.Or(option(argv, "config", "c"), crioDefault)
		e.Folder = cmp.Or(option(argv, "config-dir", "d"), crioFolder)
		l.engineVersion(ctx, e)
		l.crioFiles(e)
	}
	if u, err := l.v.Unit(ctx, unit); unit == "" || err != nil || strconv.Itoa(u.PID) != pid {
		e.Owner, e.Why = cmp.Or(unit, "another program"), "process "+pid
	}
	e.Texts = l.texts
	return e
}
