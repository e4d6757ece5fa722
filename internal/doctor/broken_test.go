// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
)

func codes(r Report) string {
	var all []string
	for _, c := range r.Causes {
		all = append(all, c.Code)
	}
	return strings.Join(all, " ")
}

// stuckView is a machine on which a file's server is gone.
type stuckView struct {
	host.View
	asked, gone chan struct{}
}

func (s stuckView) Room(string) (host.Room, error) {
	s.asked <- struct{}{}
	<-s.gone
	return host.Room{}, nil
}

// TestStuck: what hangs is named as not checked, and all else is reported.
func TestStuck(t *testing.T) {
	n, _ := joined(t, func(r *incident.Machine) { r.Fails("nvidia-persistenced") })
	stuck, over := stuckView{n, make(chan struct{}), make(chan struct{})}, make(chan time.Time)
	defer close(stuck.gone)
	go func() {
		<-stuck.asked
		<-stuck.asked
		close(over)
	}()
	m := &Machine{ctx: t.Context(), View: stuck}
	report := m.examineUntil(over)
	late := fmt.Sprint(report.Unread) // on a slow machine more than the two
	check.That(t, strings.Contains(late, "SYS-001, SYS-002"), "%v", late)
	check.That(t, codes(report) == "GPU-010" || strings.Contains(late, "GPU-010"), "%v", report.Causes)
}

// TestWorking: the machine that the broken ones are made of is not broken, and all of it can be
// read.
func TestWorking(t *testing.T) {
	n, _ := joined(t, nil)
	r := examine(t, n)
	check.That(t, codes(r) == "" && len(r.Unread) == 0 && len(r.Notes) == 0, "%v %v %v", r.Causes, r.Unread, r.Notes)
}

// fullView is a machine with file systems that are full.
type fullView struct {
	host.View
	of map[string]host.Room
}

func (f fullView) Room(name string) (host.Room, error) {
	if r, ok := f.of[name]; ok {
		return r, nil
	}
	return f.View.Room(name)
}

// TestSealed: a root that is read-only by design is as full as its image, on Container-Optimized OS
// and Bottlerocket.
// Sources: https://cloud.google.com/container-optimized-os/docs/concepts/disks-and-filesystem;
// https://github.com/bottlerocket-os/bottlerocket, SECURITY_FEATURES.md (dm-verity).
func TestSealed(t *testing.T) {
	r := incident.Working(t)
	r.Change("proc/self/mounts", "/dev/vda1 / ext4 rw,", "/dev/dm-0 / ext4 ro,")
	r.Put("etc/fstab", "")
	report := examine(t, fullView{r.Node(), map[string]host.Room{"/": {}}})
	check.That(t, codes(report) == "", "%v", report.Causes)
}

// TestReadOnlyByDesign: a CD, and the root of an image, are read-only though fstab does not say so.
func TestReadOnlyByDesign(t *testing.T) {
	for name, mounts := range map[string]struct{ from, to string }{
		"CD":        {"tmpfs /run ", "/dev/sr0 /media/cdrom0 iso9660 ro,nosuid,relatime 0 0\ntmpfs /run "},
		"composefs": {"/dev/vda1 / ext4 rw,", "composefs / overlay ro,"},
	} {
		r := incident.Working(t)
		r.Change("etc/fstab", "LABEL=root ", "/dev/sr0 /media/cdrom0 udf,iso9660 user,noauto 0 0\nLABEL=root ")
		r.Change("proc/self/mounts", mounts.from, mounts.to)
		check.Equal(t, codes(examine(t, r.Node())), "", "%s:", name)
	}
}

// TestFull: a full disk is the root of a package that could not be installed; one file system is
// named once.
func TestFull(t *testing.T) {
	for _, c := range []struct {
		name string
		of   map[string]host.Room
		want string
	}{
		{"/var full", map[string]host.Room{"/var": {Bytes: 4096, Files: 1000}}, "SYS-001 [/var]"},
		{"all on one", map[string]host.Room{"/": {Bytes: 0, Files: 1000}, "/var": {Bytes: 0, Files: 1000}}, "SYS-001 [/]"},
		{"inodes", map[string]host.Room{"/": {Bytes: 1 << 40, Files: 0}}, "SYS-002 [/]"},
		{"/run", map[string]host.Room{"/run": {Bytes: 100, Files: 1000}}, "SYS-001 [/run]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := incident.Working(t)
			r.Package("nvidia-utils-580-server", "install ok half-configured")
			var got []string
			for _, cause := range examine(t, fullView{r.Node(), c.of}).Causes {
				var objects []string
				for _, f := range cause.Found {
					objects = append(objects, f.Object)
				}
				got = append(got, fmt.Sprintf("%s %v", cause.Code, objects))
			}

			if s := strings.Join(got, ", "); s != c.want {
				t.Errorf("got %s, want %s", s, c.want)
			}
		})
	}
}

// TestNoInodesStopDaemons: a disk without inodes is why neither the engine nor kubelet runs, as a
// full one is.
func TestNoInodesStopDaemons(t *testing.T) {
	n, _ := joined(t, func(r *incident.Machine) {
		r.Fails("containerd")
		r.Fails("kubelet")
	})
	report := examine(t, fullView{n, map[string]host.Room{"/var": {Bytes: 1 << 40, Files: 0}}})
	check.Equal(t, codes(report), "SYS-002", "root causes")
}

// TestFullBootStopsNoDaemon: a full /boot is why a package could not be installed, and not why
// kubelet does not run.
func TestFullBootStopsNoDaemon(t *testing.T) {
	n, _ := joined(t, func(r *incident.Machine) {
		r.Package("nvidia-utils-580-server", "install ok half-configured")
		r.Fails("kubelet")
	})
	report := examine(t, fullView{n, map[string]host.Room{"/boot": {Bytes: 4096, Files: 1000}}})
	check.Equal(t, codes(report), "SYS-001 KUB-001", "root causes")
}

// TestFullBoot: old kernels are removed by the machine's own packager.
func TestFullBoot(t *testing.T) {
	r := incident.Working(t)
	r.Put("etc/os-release", "ID=sles\nVERSION_ID=15.6\nID_LIKE=suse\n")
	r.Remove("var/lib/dpkg/status")
	r.Put("usr/lib/sysimage/rpm/rpmdb.sqlite", "x")
	report := examine(t, fullView{r.Node(), map[string]host.Room{"/boot": {Bytes: 4096, Files: 1000}}})
	check.Equal(t, codes(report), "SYS-001", "root causes")
	for _, cause := range report.Causes {
		check.Has(t, cause.Fix, "sudo zypper purge-kernels", "its fix")
	}
}

// TestTornPackage: dpkg --configure -a does nothing about a package whose files were not all
// unpacked; its archive finishes it.
func TestTornPackage(t *testing.T) {
	r := incident.Working(t)
	r.Package("nvidia-utils-580-server", "install reinstreq half-installed")
	report := examine(t, r.Node())
	check.Equal(t, codes(report), "PKG-001", "root causes")
	const again = "sudo apt-get install --reinstall nvidia-utils-580-server"
	check.List(t, report.Causes[0].Commands, []string{again}, "its commands:")
}

// TestLostDependency: a held package of the driver lacks what it depends on, which an operator's dpkg
// has removed by force: apt refuses all later work.
func TestLostDependency(t *testing.T) {
	r := incident.Working(t)
	r.Package("nvidia-utils-580-server", "hold ok installed")
	check.Equal(t, codes(examine(t, r.Node())), "", "with a hold:")

	r.Change("var/lib/dpkg/status", "Package: nvidia-utils-580-server\n", "Package: nvidia-utils-580-server\nDepends: libnvidia-compute-580-server, libgone (>= 2)\n")
	report := examine(t, r.Node())
	check.Equal(t, codes(report), "PKG-001", "with a lost dependency:")
	found := report.Causes[0].Found[0]
	check.Says(t, found.What, "nvidia-utils-580-server", "lacks a package that it depends on")
	check.List(t, report.Causes[0].Commands, []string{"sudo apt-get --fix-broken install"}, "its commands:")
}
