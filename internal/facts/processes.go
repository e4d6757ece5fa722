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

// processes returns the numbers of root's processes with a name. The kernel keeps 15 letters:
// proc(5), comm.
func (l *look) processes(comm string) []string {
	if l.comms == nil {
		l.comms = map[string][]string{}
		for _, pid := range l.pids() {
			comm := l.attr("/proc/" + pid + "/comm")
			l.comms[comm] = append(l.comms[comm], pid)
		}
	}
	return slices.DeleteFunc(slices.Clone(l.comms[comm]), func(pid string) bool { return !l.roots(pid) })
}

// roots says whether root started a process: any user can give a process the name and the arguments
// of another program, and root would use what those name. The first number is the real user's: a
// set-user-ID program has its caller's arguments. Source: proc_pid_status(5), Uid.
func (l *look) roots(pid string) bool {
	_, ids, stated := strings.Cut(l.attr("/proc/"+pid+"/status"), "\nUid:\t") // not there: it has ended, and has no arguments
	return !stated || strings.HasPrefix(ids, "0\t")
}

// inPod says whether a process is a pod's, which may be root's too.
func (l *look) inPod(pid string) bool {
	return strings.Contains(l.attr("/proc/"+pid+"/cgroup"), "kubepods")
}

func (l *look) pids() (all []string) {
	for _, name := range l.names("/proc") {
		if name[0] >= '1' && name[0] <= '9' {
			all = append(all, name)
		}
	}
	return all
}

// commandOf is a process's command line, and the unit that it runs in; "" outside of any. Sources:
// proc(5); "Unit to cgroup" in https://systemd.io/CONTROL_GROUP_INTERFACE/, and cg_path_get_unit in
// src/basic/cgroup-util.c of https://github.com/systemd/systemd.
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

// socketPath is the path of a CRI endpoint. /var/run is a link to /run, and kubeadm writes the old
// name.
func socketPath(endpoint string) string {
	name := strings.TrimPrefix(endpoint, "unix://")
	if rest, ok := strings.CutPrefix(name, "/var/run/"); ok {
		return "/run/" + rest
	}
	return name
}

// atEndpoint has the engine at kubelet's endpoint among those that were found: the endpoint may be
// a link to its socket, and its unit may have any name.
func (l *look) atEndpoint(ctx context.Context, f *Facts) {
	k := &f.Kubelet
	uses := func() bool { return k.Endpoint == "" || slices.ContainsFunc(f.Engines, k.Uses) }
	if uses() {
		return
	}
	name := socketPath(k.Endpoint)
	if at, err := l.v.Resolve(name); err == nil {
		k.Endpoint = "unix://" + at
	} else if to, err := l.v.Readlink(name); err == nil { // the engine is not running, as in an image, and has made no socket
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(name), to)
		}
		k.Endpoint = "unix://" + to
	}
	if uses() {
		return
	}
	e := l.listener(ctx, k.Endpoint)
	if e == nil {
		e = l.startedBy(ctx, func(argv []string, _ string) bool {
			e := &Engine{Name: engineName(argv[0])}
			if !slices.Contains(known(), e.Name) {
				return false
			}
			l.started(ctx, e, argv)
			return k.Uses(*e)
		})
	}
	if e != nil {
		f.Engines = append([]Engine{*e}, f.Engines...)
	}
}

// listener finds the engine that listens on kubelet's socket, by the process that holds the
// listening socket and is not systemd, which may have made it. What that process was started with
// says which file it reads. nil where none is found; reading the descriptors of other users'
// processes takes root. Source: proc(5), fd.
func (l *look) listener(ctx context.Context, endpoint string) *Engine {
	if !l.v.Live() {
		return nil
	}
	var links []string
	for _, s := range listening(l.v) {
		if socketPath(s.name) == socketPath(endpoint) {
			links = append(links, "socket:["+s.inode+"]")
		}
	}
	for _, pid := range l.pids() {
		fds := "/proc/" + pid + "/fd"
		names, _ := l.v.ReadDir(fds) // it may have ended, or be another user's
		if pid != "1" && links != nil && slices.ContainsFunc(names, func(fd string) bool {
			to, err := l.v.Readlink(fds + "/" + fd)
			return err == nil && slices.Contains(links, to)
		}) && l.roots(pid) && !l.inPod(pid) {
			return l.engineOf(ctx, pid, socketPath(endpoint))
		}
	}
	return nil
}

// A socket is a Unix socket on which a process listens: its inode, and the name that the process
// bound, in whatever root folder.
type socket struct{ inode, name string }

// listening are all such sockets. Source: unix_seq_show in net/unix/af_unix.c of Linux.
func listening(v host.View) (found []socket) {
	const listens, number = "00010000", 6 // __SO_ACCEPTCON; the column of the inode
	all, _ := v.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(all)) {
		if f := strings.Fields(line); len(f) == number+2 && f[3] == listens {
			found = append(found, socket{f[number], f[number+1]})
		}
	}
	return found
}

// PodResources is where kubelet's socket is in its folder. Sources:
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins
// ("Monitoring device plugin resources"); kubernetes,
// staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
const PodResources = "/pod-resources/kubelet.sock"

// KubeletFolder is where the kubelet that runs keeps its state: its --root-dir, by the socket of
// its pod resources; "" where none listens. Kubelet binds a temporary name in that folder and
// renames it, and the kernel keeps the first name. Sources: kubernetes/website pull 55430;
// getPodResourcesDir in kubernetes, pkg/kubelet/kubelet_getters.go, and CreateListener in
// k8s.io/cri-client, pkg/util, at v1.35.4. A folder in which another user may write, or that only a
// container has, is none of kubelet's: its answers would hide pods, or make them up.
func KubeletFolder(v host.View) (folder string) {
	for _, s := range listening(v) {
		at, is := strings.CutSuffix(path.Dir(s.name), "/pod-resources")
		if !is || !path.IsAbs(s.name) {
			continue // anyone binds an abstract name, @…
		}
		if _, err := v.Stat(at + PodResources); err == nil && v.Trusted(path.Dir(s.name)) == nil {
			folder = at
		}
	}
	return folder
}

// engineOf is the engine that a process is.
func (l *look) engineOf(ctx context.Context, pid, socket string) *Engine {
	argv, unit := l.commandOf(pid)
	if len(argv) == 0 {
		return nil
	}
	e := &Engine{Name: engineName(argv[0]), Unit: unit, Args: argv}
	e.Binary, _ = l.v.Readlink("/proc/" + pid + "/exe")
	l.started(ctx, e, argv)
	e.Socket, e.Texts = cmp.Or(socket, e.Socket), l.texts
	if u, err := l.v.Unit(ctx, unit); unit == "" || err != nil || strconv.Itoa(u.PID) != pid {
		e.Owner, e.Why = cmp.Or(unit, "another program"), "process "+pid
	}
	return e
}

// engineName is an engine's name by its program's.
func engineName(program string) string {
	if name := path.Base(program); name != "dockerd" {
		return name
	}
	return "docker"
}

// known are the engines that gpuadm configures.
func known() []string { return []string{"containerd", "crio", "docker"} }

// A Stated engine is named by the spec, through the file that it reads. All but Config may be
// empty.
type Stated struct{ Name, Config, Binary, Unit string }

// stated has the engine that a spec names among those that were found: a process that reads the
// file or runs the program, what a unit starts so, or the engine whose options are not known, or
// whose data folder is not.
func (l *look) stated(ctx context.Context, s Stated, found []Engine) []Engine {
	if s.Config == "" || slices.ContainsFunc(found, func(e Engine) bool {
		return bare(e) == 0 && e.Config == s.Config && e.Binary != "" && e.Wrapper == "" && (s.Unit == "" || s.Unit == e.Unit)
	}) {
		return found
	}
	at, err := l.v.Resolve(s.Binary)
	if err != nil {
		at = s.Binary
	}
	reads := func(argv []string, exe string) bool {
		if len(argv) == 0 || s.Binary != "" && exe == at {
			return len(argv) > 0
		}
		usual := map[string]string{"containerd": containerdDefault, "crio": crioDefault, "docker": dockerDefault}[engineName(argv[0])]
		return usual != "" && cmp.Or(option(argv, "config", "c", "config-file"), usual) == s.Config
	}
	e := l.running(ctx, s.Unit, reads)
	if e == nil {
		e = l.startedBy(ctx, reads)
	}
	if i := slices.IndexFunc(found, func(e Engine) bool { return e.Config == s.Config || e.Wrapper != "" || isRancher(e, s.Config) }); e == nil && i >= 0 {
		e = &found[i]
	}
	if e == nil {
		return found
	}
	stated := *e
	switch {
	case slices.Contains(known(), s.Name):
		stated.Name = s.Name
	case !slices.Contains(known(), e.Name):
		stated.Name = "containerd"
	}
	stated.Config, stated.Binary = s.Config, cmp.Or(e.Binary, s.Binary)
	l.started(ctx, &stated, e.Args)
	stated.Wrapper = ""
	if isRancher(*e, s.Config) {
		stated.Socket = e.Socket
	} else if stated.Unit != "" {
		stated.Owner, stated.Why = "", ""
	}
	stated.Texts = l.texts
	return append([]Engine{stated}, found...)
}

// isRancher says whether a file is what an engine of K3s or RKE2 would read in another data folder.
func isRancher(e Engine, config string) bool {
	return (e.Owner == "k3s" || e.Owner == "rke2") && strings.HasSuffix(config, "/agent/etc/containerd/config.toml")
}

// running is the engine that a process is.
func (l *look) running(ctx context.Context, unit string, reads func(argv []string, exe string) bool) *Engine {
	if !l.v.Live() {
		return nil
	}
	for _, pid := range l.pids() {
		argv, in := l.commandOf(pid)
		exe, _ := l.v.Readlink("/proc/" + pid + "/exe")
		if (unit == "" || unit == in) && reads(argv, exe) && l.roots(pid) && !l.inPod(pid) {
			return l.engineOf(ctx, pid, "")
		}
	}
	return nil
}

// startedBy is the engine that a unit starts, of whatever name.
func (l *look) startedBy(ctx context.Context, reads func(argv []string, exe string) bool) *Engine {
	for _, name := range append(slices.Concat(l.unitNames()...), l.names("/usr/lib/systemd/system")...) {
		if !strings.HasSuffix(name, ".service") || strings.HasSuffix(name, "@.service") { // a template is no unit
			continue
		}
		s := l.service(ctx, name)
		if argv := l.argv(s); len(argv) > 0 && reads(argv, argv[0]) {
			e := &Engine{Name: engineName(argv[0]), Binary: l.first(argv[0]), Unit: s.name, Args: argv}
			l.started(ctx, e, argv)
			e.Texts = l.texts
			return e
		}
	}
	return nil
}
