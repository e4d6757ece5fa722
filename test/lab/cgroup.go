// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups are the control groups of one host, one folder in every hierarchy of this machine.
// Containers need the controllers. Where the machine holds them in hierarchies of the first
// version, a host gets these: a second-version hierarchy without controllers boots, but runc starts
// nothing in it ("cpu.weight: no such file").
type cgroups struct {
	// Unified is the folder in the second version's hierarchy, "" if this machine has none.
	Unified string
	// First are the folders in the first version's hierarchies by controllers; empty if the second
	// has all that counts.
	First map[string]string
}

const cgroupRoot = "/sys/fs/cgroup"

// newCgroups makes the folders. The name is unique on this machine.
func newCgroups(name string) (cgroups, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return cgroups{}, fmt.Errorf("cannot read this process's cgroups: %w", err)
	}
	unified := cgroupRoot
	if _, err := os.Stat(unified + "/cgroup.controllers"); err != nil {
		unified += "/unified"
	}
	g := cgroups{First: map[string]string{}}
	pure := hasControllers(unified)
	for line := range strings.Lines(string(own)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		dir, at := filepath.Join(cgroupRoot, strings.TrimPrefix(part[1], "name=")), part[2]
		switch {
		case part[1] == "":
			// At the top: a group that holds processes, as ours may, cannot give controllers to
			// groups below it.
			dir, at = unified, ""
		case pure:
			continue
		}
		if _, err := os.Stat(dir); err != nil {
			continue // not mounted
		}
		group := filepath.Join(dir, at, name)
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return g, fmt.Errorf("cannot make a cgroup: %w", err)
		}
		if part[1] == "" {
			g.Unified = group
			continue
		}
		g.First[part[1]] = group
		if part[1] == "cpuset" {
			if err := fillCpuset(group); err != nil {
				return g, err
			}
		}
	}
	return g, nil
}

// hasControllers says whether a second-version hierarchy has the controllers that containers need.
func hasControllers(unified string) bool {
	text, err := os.ReadFile(unified + "/cgroup.controllers")
	has := strings.Fields(string(text))
	return err == nil && slices.Contains(has, "cpu") && slices.Contains(has, "memory") && slices.Contains(has, "pids")
}

// fillCpuset gives a new group its parent's processors: it starts without any, and then takes no
// process.
func fillCpuset(group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(group), file))
		if err == nil {
			err = os.WriteFile(filepath.Join(group, file), bytes.TrimSpace(text), 0)
		}
		if err != nil {
			return fmt.Errorf("cannot fill a cpuset: %w", err)
		}
	}
	if err := os.WriteFile(group+"/cgroup.clone_children", []byte("1"), 0); err != nil {
		return fmt.Errorf("cannot fill a cpuset: %w", err)
	}
	return nil
}

func (g cgroups) all() []string {
	var list []string
	if g.Unified != "" {
		list = append(list, g.Unified)
	}
	for _, dir := range g.First {
		list = append(list, dir)
	}
	return list
}

// enter moves the calling thread, and with it what it starts, into the groups of the first version;
// leave moves it back. The thread must be locked meanwhile.
func (g cgroups) enter() error { return g.move(func(dir string) string { return dir }) }

func (g cgroups) leave() error { return g.move(filepath.Dir) }

func (g cgroups) move(where func(dir string) string) error {
	for _, dir := range g.First {
		if err := os.WriteFile(where(dir)+"/tasks", []byte(strconv.Itoa(unix.Gettid())), 0); err != nil {
			return fmt.Errorf("cannot move to another cgroup: %w", err)
		}
	}
	return nil
}

// pids lists the processes in the host's groups: all of them were started for it.
func (g cgroups) pids() (list []int) {
	for _, top := range g.all() {
		_ = filepath.WalkDir(top, func(dir string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil // groups come and go
			}
			text, _ := os.ReadFile(dir + "/cgroup.procs")
			for _, word := range strings.Fields(string(text)) {
				if pid, err := strconv.Atoi(word); err == nil && pid > 1 && pid != os.Getpid() { // ours while a thread of it is in spawn
					list = append(list, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// kill ends all processes of the host. A killed process leaves its groups a moment later.
func (g cgroups) kill() error {
	if !Until(time.Minute, func() bool {
		g.thaw()
		left := g.pids()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	}) {
		return fmt.Errorf("cannot end the host's processes: %v are left", g.pids())
	}
	return nil
}

// thaw thaws all processes: a runc that is killed while it sets up a container leaves that frozen,
// and a frozen process of the first version's hierarchy does not die. Source: Linux,
// Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst.
func (g cgroups) thaw() {
	if g.First["freezer"] == "" {
		return
	}
	_ = filepath.WalkDir(g.First["freezer"], func(name string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Base(name) == "freezer.state" {
			_ = os.WriteFile(name, []byte("THAWED"), 0)
		}
		return nil // groups come and go
	})
}

// empty removes the groups below the host's own, as a machine's reboot does: a kubelet that finds
// the groups of containers that are gone waits for each of them.
func (g cgroups) empty() error {
	if !Until(time.Minute, func() bool {
		left := false
		for _, top := range g.all() {
			left = removeGroups(top) || left
		}
		return !left
	}) {
		return errors.New("cannot empty the host's cgroups: some are still in use")
	}
	if g.Unified == "" {
		return nil
	}
	// A group that gives controllers to groups below it takes no process: the next boot needs a
	// fresh one. Source: cgroups(7).
	err := syscall.Rmdir(g.Unified)
	if err == nil {
		err = os.Mkdir(g.Unified, 0o755)
	}
	if err != nil {
		return fmt.Errorf("cannot empty the host's cgroup: %w", err)
	}
	return nil
}

// removeGroups removes all groups below a group and says whether any is left.
func removeGroups(top string) (left bool) {
	entries, _ := os.ReadDir(top)
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(top, e.Name())
		removeGroups(dir)
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = true
		}
	}
	return left
}

// remove removes the host's own groups too.
func (g cgroups) remove() error {
	if err := g.empty(); err != nil {
		return err
	}
	for _, dir := range g.all() {
		if !Until(time.Minute, func() bool {
			err := syscall.Rmdir(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		}) {
			return fmt.Errorf("cannot remove the cgroup %s: it is in use", dir)
		}
	}
	return nil
}

// Each host's daemons have 7 to 12 inotify instances, and all hosts run as the same user of one
// kernel, which allows 128. Beyond that containerd starts without its CRI plugin, and kubelet
// without its watches. Sources: inotify(7);
// https://kind.sigs.k8s.io/docs/user/known-issues/#pod-errors-due-to-too-many-open-files.
const (
	inotifyFile = "/proc/sys/fs/inotify/max_user_instances"
	inotifyNeed = 1024
)

// moreWatches raises the limit, once in a process. The kernel has it until the next boot.
var moreWatches = sync.OnceValue(func() error {
	text, err := os.ReadFile(inotifyFile)
	if err != nil {
		return fmt.Errorf("cannot read the limit of inotify instances: %w", err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n >= inotifyNeed {
		return nil
	}
	if err := os.WriteFile(inotifyFile, []byte(strconv.Itoa(inotifyNeed)), 0o644); err != nil {
		return fmt.Errorf("cannot raise the limit of inotify instances for many hosts: %w", err)
	}
	return nil
})
