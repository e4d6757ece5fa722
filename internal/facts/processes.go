// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"errors"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/sorting"
)

// processes returns the numbers of root's processes with a name. The kernel keeps 15 letters:
// proc(5), comm.
func (g *gathering) processes(comm string) []string {
	if g.comms == nil {
		g.comms = map[string][]string{}
		for _, pid := range g.pids() {
			comm := g.attr("/proc/" + pid + "/comm")
			g.comms[comm] = append(g.comms[comm], pid)
		}
	}

	var ofRoot []string
	for _, pid := range g.comms[comm] {
		if g.roots(pid) {
			ofRoot = append(ofRoot, pid)
		}
	}

	return ofRoot
}

// roots says whether root started a process: any user can give a process the name and the arguments
// of another program, and root would use what those name. The first number is the real user's: a
// set-user-ID program has its caller's arguments. Source: proc_pid_status(5), Uid.
func (g *gathering) roots(pid string) bool {
	_, ids, found := strings.Cut(g.attr("/proc/"+pid+"/status"), "\nUid:\t")
	ended := !found // it has no arguments any more
	return ended || strings.HasPrefix(ids, "0\t")
}

// inPod says whether a process belongs to a pod, whose processes may be root's too.
func (g *gathering) inPod(pid string) bool {
	return strings.Contains(g.attr("/proc/"+pid+"/cgroup"), "kubepods")
}

// processEnviron returns the variables of a process, "NAME=VALUE"; none if it has ended. Only root
// may read those of root's processes: proc_pid_environ(5).
func (g *gathering) processEnviron(pid string) []string {
	name := "/proc/" + pid + "/environ"
	data, err := g.v.ReadFile(name)
	hasEnded := missing(err) || errors.Is(err, syscall.ESRCH)
	if err != nil && !hasEnded {
		g.fail("read", name, err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\x00")
}

// pids returns the numbers of all processes, the lowest first.
func (g *gathering) pids() (all []string) {
	for _, name := range g.list("/proc") {
		if name[0] >= '1' && name[0] <= '9' {
			all = append(all, name)
		}
	}

	sorting.By(all, func(a, b string) int { // 987 before 10500, which is listed first
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	return all
}

// commandOf returns a process's command line, and the unit that it runs in; "" if it runs in none.
// Sources: proc(5); "Unit to cgroup" in https://systemd.io/CONTROL_GROUP_INTERFACE/, and
// cg_path_get_unit in src/basic/cgroup-util.c of https://github.com/systemd/systemd.
func (g *gathering) commandOf(pid string) (argv []string, unit string) {
	line := strings.TrimRight(g.attr("/proc/"+pid+"/cmdline"), "\x00")
	if line != "" {
		argv = strings.Split(line, "\x00")
	}

	for line := range strings.Lines(g.attr("/proc/" + pid + "/cgroup")) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			if strings.HasSuffix(part, ".scope") {
				break // what is below it are the units of a container
			}
			if strings.HasSuffix(part, ".service") && unit == "" {
				unit = part
			}
		}
	}

	return argv, unit
}
