// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// atEndpoint puts the engine at kubelet's endpoint first: the process that listens there, whatever
// its unit's name. The endpoint may be a link to its socket.
func (g *gathering) atEndpoint(ctx context.Context, f *Facts) {
	k := &f.Kubelet
	if k.Endpoint == "" {
		return
	}
	if !slices.ContainsFunc(f.Engines, k.Uses) {
		k.Endpoint = g.resolvedEndpoint(k.Endpoint)
	}

	var claims []Engine // the engines whose settings name the endpoint
	for _, e := range f.Engines {
		if k.Uses(e) && !e.onlyConfig() {
			claims = append(claims, e)
		}
	}

	if len(claims) == 1 && claims[0].Wrapper == "" && g.servesAt(ctx, claims[0], k.Endpoint) {
		return
	}

	e := g.listener(ctx, k.Endpoint)
	switch {
	case e != nil:
		inUnit := func(claim Engine) bool { return claim.Unit == e.Unit }
		if i := slices.IndexFunc(claims, inUnit); i >= 0 {
			e = unwrapped(&claims[i], e)
		}
	case len(claims) == 0:
		e = g.startedAt(ctx, *k)
	}

	if e == nil {
		return
	}
	isSame := func(other Engine) bool { return other.Unit == e.Unit && k.Uses(other) }
	others := slices.DeleteFunc(slices.Clone(f.Engines), isSame)
	f.Engines = withoutBare(append([]Engine{*e}, others...))
}

// unwrapped is the engine of a unit whose process listens. The unit says more of it, such as its
// owner and its folder. Where the unit starts it by another program, which has become the engine's
// process, the command line of that process says which file it reads.
func unwrapped(ofUnit, process *Engine) *Engine {
	isKnown := ofUnit.Wrapper == "" || ofUnit.Owner != ""
	if isKnown || process.Child || process.Wrapper != "" {
		return ofUnit
	}

	process.Env = ofUnit.Env
	process.Started = ofUnit.Started
	if path.IsAbs(ofUnit.Wrapper) {
		process.Started = append(slices.Clone(ofUnit.Started), ofUnit.Wrapper)
	}
	return process
}

// resolvedEndpoint follows an endpoint that is a link.
func (g *gathering) resolvedEndpoint(endpoint string) string {
	name := socketPath(endpoint)
	at, err := g.v.Resolve(name)
	if err != nil { // the engine is not running, as in an image, and has made no socket
		at, err = g.v.Readlink(name)
		if !path.IsAbs(at) {
			at = path.Join(path.Dir(name), at)
		}
	}

	if err != nil {
		return endpoint
	}
	return "unix://" + at
}

// socketPatience is how long an engine may take to make its socket.
const socketPatience = time.Minute

// servesAt says whether an engine serves the endpoint that its settings name, as far as its unit
// and the age of the socket show: a socket that is much younger than the unit's process may belong
// to another process.
func (g *gathering) servesAt(ctx context.Context, e Engine, endpoint string) bool {
	byShim := socketPath(endpoint) == socketPath(e.CRI) // cri-dockerd listens for Docker
	if !g.v.Live() || byShim {
		return true
	}
	if e.Unit == "" {
		return false
	}

	unit, err := g.v.Unit(ctx, e.Unit)
	if err != nil || unit.Active != "active" {
		return false
	}
	socket, err := g.v.Stat(socketPath(endpoint))
	if err != nil || unit.Started.IsZero() {
		return true
	}
	return socket.Ctime.Sub(unit.Started) < socketPatience
}

// startedAt is the engine that some unit would start at kubelet's endpoint; nil if none does.
func (g *gathering) startedAt(ctx context.Context, k Kubelet) *Engine {
	return g.startedBy(ctx, func(argv []string, _ string) bool {
		candidate := &Engine{Name: engineName(argv[0])}
		if !slices.Contains(engineNames(), candidate.Name) {
			return false
		}
		g.filesAndSocket(ctx, candidate, argv)
		return k.Uses(*candidate)
	})
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

// Listens says whether a process listens at a Unix socket.
func Listens(v host.View, name string) bool {
	at := func(s socket) bool { return socketPath(s.name) == socketPath(name) }
	return slices.ContainsFunc(listening(v), at)
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

	e := &Engine{Unit: unit, Args: argv}
	e.Binary, _ = g.v.Readlink("/proc/" + pid + "/exe")
	e.Name = g.nameOf(argv[0], e.Binary)
	g.filesAndSocket(ctx, e, argv)
	e.Socket = cmp.Or(socket, e.Socket)
	e.Texts = g.texts

	if !g.isMain(ctx, pid, unit) {
		e.Child = true
		e.Owner = cmp.Or(unit, "another program")
		e.Why = "process " + pid
	}

	if e.Owner == "" && e.Name == "containerd" && e.Config == containerdDefault {
		e.Owner, e.Why = g.owner(g.os())
	}
	return e
}

// isMain says whether a process is the main process of its unit.
func (g *gathering) isMain(ctx context.Context, pid, unit string) bool {
	if unit == "" {
		return false
	}
	u, err := g.v.Unit(ctx, unit)
	var later host.Later
	if err != nil && !errors.As(err, &later) {
		g.fail("ask systemd about", unit, err)
	}
	return err == nil && strconv.Itoa(u.PID) == pid
}

// nameOf is the name of the engine that a process is: by the name that it was started with, its
// program's, or what the program was built from.
func (g *gathering) nameOf(word, program string) string {
	for _, name := range []string{engineName(word), engineName(program)} {
		if slices.Contains(engineNames(), name) {
			return name
		}
	}

	info, err := buildinfo.Read(host.Part{View: g.v, Name: program})
	if err == nil {
		for _, name := range engineNames() {
			if strings.HasPrefix(info.Path, engineModule(name)+"/") {
				return name
			}
		}
	}

	return engineName(word)
}
