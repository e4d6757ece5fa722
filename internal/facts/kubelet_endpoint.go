// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// atEndpoint adds the engine at kubelet's endpoint, if it was not found yet: the endpoint may be a
// link to its socket, and its unit may have any name.
func (g *gathering) atEndpoint(ctx context.Context, f *Facts) {
	k := &f.Kubelet
	known := func() bool { return k.Endpoint == "" || slices.ContainsFunc(f.Engines, k.Uses) }
	if known() {
		return
	}

	name := socketPath(k.Endpoint)
	at, err := g.v.Resolve(name)
	if err != nil { // the engine is not running, as in an image, and has made no socket
		at, err = g.v.Readlink(name)
		if !path.IsAbs(at) {
			at = path.Join(path.Dir(name), at)
		}
	}
	if err == nil {
		k.Endpoint = "unix://" + at
	}
	if known() {
		return
	}

	e := g.listener(ctx, k.Endpoint)
	if e == nil {
		e = g.startedBy(ctx, func(argv []string, _ string) bool {
			candidate := &Engine{Name: engineName(argv[0])}
			if !slices.Contains(engineNames(), candidate.Name) {
				return false
			}
			g.filesAndSocket(ctx, candidate, argv)
			return k.Uses(*candidate)
		})
	}
	if e != nil {
		f.Engines = append([]Engine{*e}, f.Engines...)
	}
}

// listener finds the engine that listens on kubelet's socket: the process that holds the listening
// socket and is not systemd, which may have made it. The command line of that process says which
// file it reads. nil if none is found; only root can read the descriptors of other users'
// processes.
// Source: proc(5), fd.
func (g *gathering) listener(ctx context.Context, endpoint string) *Engine {
	if !g.v.Live() {
		return nil
	}
	var sockets []string // as the links in /proc/PID/fd name them
	for _, s := range listening(g.v) {
		if socketPath(s.name) == socketPath(endpoint) {
			sockets = append(sockets, "socket:["+s.inode+"]")
		}
	}
	if sockets == nil {
		return nil
	}

	for _, pid := range g.pids() {
		const systemd = "1"
		if pid == systemd || !g.holds(pid, sockets) {
			continue
		}
		if g.roots(pid) && !g.inPod(pid) {
			return g.engineOf(ctx, pid, socketPath(endpoint))
		}
	}
	return nil
}

// holds says whether a process has one of the sockets among its descriptors.
func (g *gathering) holds(pid string, sockets []string) bool {
	dir := "/proc/" + pid + "/fd"
	descriptors, _ := g.v.ReadDir(dir) // it may have ended, or be another user's
	for _, descriptor := range descriptors {
		to, err := g.v.Readlink(dir + "/" + descriptor)
		if err == nil && slices.Contains(sockets, to) {
			return true
		}
	}
	return false
}

// A socket is a Unix socket on which a process listens.
type socket struct {
	inode string
	name  string // that the process bound, in its own root folder
}

// listening returns all such sockets. Source: unix_seq_show in net/unix/af_unix.c of Linux.
func listening(v host.View) (found []socket) {
	const (
		accepts = "00010000" // __SO_ACCEPTCON
		flags   = 3          // the columns
		inode   = 6
		name    = 7
	)
	all, _ := v.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(all)) {
		columns := strings.Fields(line)
		if len(columns) == name+1 && columns[flags] == accepts {
			found = append(found, socket{columns[inode], columns[name]})
		}
	}
	return found
}

// socketPath returns the path of a CRI endpoint. /var/run is a link to /run, and kubeadm writes the
// old name.
func socketPath(endpoint string) string {
	name := strings.TrimPrefix(endpoint, "unix://")
	if rest, ok := strings.CutPrefix(name, "/var/run/"); ok {
		return "/run/" + rest
	}
	return name
}

// engineOf returns the engine that a process runs.
func (g *gathering) engineOf(ctx context.Context, pid, socket string) *Engine {
	argv, unit := g.commandOf(pid)
	if len(argv) == 0 {
		return nil
	}

	e := &Engine{Name: engineName(argv[0]), Unit: unit, Args: argv}
	e.Binary, _ = g.v.Readlink("/proc/" + pid + "/exe")
	g.filesAndSocket(ctx, e, argv)
	e.Socket = cmp.Or(socket, e.Socket)
	e.Texts = g.texts

	u, err := g.v.Unit(ctx, unit)
	if unit == "" || err != nil || strconv.Itoa(u.PID) != pid {
		e.Owner = cmp.Or(unit, "another program")
		e.Why = "process " + pid
	}
	return e
}
