// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// units is a View that has units of its own.
type units struct {
	host.View
	*systemd.Manager
}

func (u units) Unit(ctx context.Context, name string) (host.Unit, error) {
	return u.Manager.Unit(ctx, name)
}

// TestSnapshot: what a snapshot has read stays what it was, missing or there; the machine beneath
// it, and the next snapshot, see what has changed. What one reader appends to an answer, or sorts
// in it, no other reader sees.
func TestSnapshot(t *testing.T) {
	root := t.TempDir()
	put := func(name, data string) {
		t.Helper()
		name = filepath.Join(root, name)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(data), 0o644)))
	}

	put("etc/systemd/system/y.service", "[Service]\nExecStart=/bin/true\n")
	put("etc/there", "old")
	must.OK(t, os.Symlink("there", filepath.Join(root, "etc/link")))
	folder := must.Get(local.Open(root))(t)
	disk := must.Get(files.OpenRoot(root))(t)
	machine := units{folder, systemd.New(files.New(disk))}
	then := Snapshot(machine)
	if Snapshot(then) != then || Machine(then) != host.View(machine) || Machine(machine) != host.View(machine) {
		t.Error("a snapshot of a snapshot is another one, or not of the machine")
	}
	check := func(v host.View, when string, old bool) {
		t.Helper()
		var want struct {
			data, link, resolved, load string
			size                       int64
			names                      []string
			missing                    bool
		}
		want.data, want.link, want.resolved, want.load, want.size = "new, longer", "x", "/etc/x", "loaded", 11
		want.names = []string{"link", "systemd", "there", "x"}
		if old {
			want.data, want.link, want.resolved, want.load, want.size, want.missing = "old", "there", "/etc/there", "not-found", 3, true
			want.names = []string{"link", "systemd", "there"}
		}
		data, _ := v.ReadFile("/etc/there")
		stat, _ := v.Stat("/etc/there")
		lstat, _ := v.Lstat("/etc/there")
		link, _ := v.Readlink("/etc/link")
		resolved, _ := v.Resolve("/etc/link")
		names, _ := v.ReadDir("/etc")
		unit, _ := v.Unit(t.Context(), "x.service")
		through, _ := v.Lstat("/etc/link")
		_, err := v.Stat("/etc/x")
		if string(data) != want.data || stat.Size != want.size || lstat.Size != want.size || link != want.link || resolved != want.resolved ||
			!slices.Equal(names, want.names) || unit.Load != want.load || errors.Is(err, fs.ErrNotExist) != want.missing ||
			through.Mode&fs.ModeSymlink == 0 {
			t.Errorf("%s: %q, %d, %d, %q, %q, %q, %+v, %v, %v", when, data, stat.Size, lstat.Size, link, resolved, names, unit, through, err)
		}

		if a, b := append(data, 'a'), append(data, 'b'); v != host.View(machine) && (a[len(data)] != 'a' || b[len(data)] != 'b') {
			t.Errorf("%s: two readers append to the same bytes", when)
		}
		slices.Reverse(names)
	}

	check(then, "before the change", true)
	put("etc/there", "new, longer")
	put("etc/x", "")
	put("etc/systemd/system/x.service", "[Service]\nExecStart=/bin/true\n")
	must.OK(t, errors.Join(os.Remove(filepath.Join(root, "etc/link")), os.Symlink("x", filepath.Join(root, "etc/link"))))
	check(then, "the snapshot after the change", true)
	check(machine, "the machine after the change", false)
	check(Snapshot(machine), "the next snapshot", false)
}

// TestSnapshotStat: a snapshot's Stat is the machine's, whatever was asked before.
func TestSnapshotStat(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(root, "f"), []byte("123"), 0o600), os.Symlink("f", filepath.Join(root, "l")),
		os.Symlink("none", filepath.Join(root, "dangling"))); err != nil {
		t.Fatal(err)
	}
	v := must.Get(local.Open(root))(t)
	s := Snapshot(v)
	for _, name := range []string{"/f", "/l", "/dangling", "/missing", "/f/below"} {
		_, _ = s.Lstat(name)
		a, err1 := v.Stat(name)
		b, err2 := s.Stat(name)
		check.That(t, a.Mode == b.Mode && a.Size == b.Size && (err1 == nil) == (err2 == nil) && errors.Is(err1, fs.ErrNotExist) == errors.Is(err2, fs.ErrNotExist),
			"%s: %+v, %v, and of the snapshot %+v, %v", name, a, err1, b, err2)
	}
}

// TestSnapshotOfKernel: what the kernel says is asked for each time. A module that was loaded
// between two reads of a plan would otherwise be loaded in one of its files and not in another.
func TestSnapshotOfKernel(t *testing.T) {
	root := t.TempDir()
	v := must.Get(local.Open(root))(t)
	then := Snapshot(v)
	for name, again := range map[string]bool{
		"/sys/module/nvidia/version": true, "/proc/driver/nvidia/version": true, "/dev/nvidiactl": true, "/run/nvidia/driver": true,
		"/run/systemd/system/x.service": false, "/etc/x": false, "/procedure": false,
	} {
		_, _ = then.ReadFile(name)
		_, _ = then.Stat(name)
		_, _ = then.Lstat(name)
		_, _ = then.ReadDir(filepath.Dir(name))
		at := filepath.Join(root, name)
		must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("x"), 0o644)))
		_, err1 := then.ReadFile(name)
		_, err2 := then.Stat(name)
		_, err3 := then.Lstat(name)
		check.That(t, (err1 == nil) == again && (err2 == nil) == again && (err3 == nil) == again, "%s: %v, %v, %v", name, err1, err2, err3)
	}
}

// asked counts how often its driver was asked, and fails once.
type asked struct {
	host.View
	times *int
}

func (a asked) Driver(context.Context) (host.Driver, error) {
	if *a.times++; *a.times == 1 {
		return host.Driver{}, errors.New("not yet")
	}
	return host.Driver{Version: "580.95.05"}, nil
}

// TestSnapshotDriver: the driver is asked until it answers, and then no more, by facts neither.
func TestSnapshotDriver(t *testing.T) {
	times := 0
	v := Snapshot(asked{must.Get(local.Open(t.TempDir()))(t), &times})
	_, err := v.Driver(t.Context())
	check.That(t, err != nil, "an error is kept from the caller")
	for _, v := range []host.View{v, Gathering(v), v} {
		d := must.Get(v.Driver(t.Context()))(t)
		check.That(t, d.Version == "580.95.05" && times == 2, "%s, asked %d times", d.Version, times)
	}
}
