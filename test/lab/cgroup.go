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
	secondHasAll := hasControllers(unified)

	g := cgroups{First: map[string]string{}}
	for line := range strings.Lines(string(own)) {
		// hierarchy:controllers:path, without controllers for the second version: cgroups(7).
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		controllers, path := part[1], part[2]
		if controllers == "" {
			// At the top: a group that holds processes, as this process's may, cannot give
			// controllers to groups below it.
			g.Unified, err = makeGroup(unified, name)
		} else if !secondHasAll {
			hierarchy := filepath.Join(cgroupRoot, strings.TrimPrefix(controllers, "name="))
			err = g.makeFirst(controllers, hierarchy, filepath.Join(path, name))
		}

		if err != nil {
			return g, err
		}
	}

	return g, nil
}

// makeGroup makes a group in a hierarchy, and returns its folder; "" if the hierarchy is not
// mounted.
func makeGroup(hierarchy, path string) (string, error) {
	if _, err := os.Stat(hierarchy); err != nil {
		return "", nil
	}
	group := filepath.Join(hierarchy, path)
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("cannot make a cgroup: %w", err)
	}
	return group, nil
}

// makeFirst makes the host's group in a hierarchy of the first version.
func (g cgroups) makeFirst(controllers, hierarchy, path string) error {
	group, err := makeGroup(hierarchy, path)
	if err != nil || group == "" {
		return err
	}
	g.First[controllers] = group
	if controllers == "cpuset" {
		return fillCpuset(group)
	}
	return nil
}

// hasControllers says whether a second-version hierarchy has the controllers that containers need.
func hasControllers(unified string) bool {
	text, _ := os.ReadFile(unified + "/cgroup.controllers") // missing: it has none
	controllers := strings.Fields(string(text))
	for _, needed := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(controllers, needed) {
			return false
		}
	}

	return true
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
func (g cgroups) pids() []int {
	var list []int
	for _, top := range g.all() {
		_ = filepath.WalkDir(top, func(dir string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				list = append(list, pidsIn(dir)...)
			}
			return nil // groups come and go
		})
	}

	slices.Sort(list)
	return slices.Compact(list)
}

// pidsIn lists the processes in one group, without this process, which is in it while one of its
// threads is in spawn.
func pidsIn(group string) []int {
	var list []int
	text, _ := os.ReadFile(group + "/cgroup.procs")
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err == nil && pid > 1 && pid != os.Getpid() {
			list = append(list, pid)
		}
	}

	return list
}

// kill ends all processes of the host. A killed process leaves its groups a moment later.
func (g cgroups) kill() error {
	ended := Until(time.Minute, func() bool {
		g.thaw()
		left := g.pids()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	})
	if !ended {
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
	emptied := Until(time.Minute, func() bool {
		left := false
		for _, top := range g.all() {
			left = removeGroups(top) || left
		}
		return !left
	})
	if !emptied {
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
		removed := Until(time.Minute, func() bool {
			err := syscall.Rmdir(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
		if !removed {
			return fmt.Errorf("cannot remove the cgroup %s: it is in use", dir)
		}
	}

	return nil
}
