// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// crowded is a machine with more processors than its memory has room for compilers.
type crowded struct{ *machine }

func (c crowded) ReadFile(name string) ([]byte, error) {
	switch name {
	case "/proc/cpuinfo":
		return []byte(strings.Repeat("processor\t: 0\n", 64)), nil
	case "/proc/meminfo":
		return []byte("MemAvailable:    1500000 kB\n"), nil
	}
	return c.machine.ReadFile(name)
}

// get runs apt-get as purge does.
func (a apt) get(ctx context.Context, h host.Host, args ...string) error {
	return a.again(ctx, h, packages.Quiet(h, slices.Concat([]string{"apt-get"}, a.options(), args)...)...)
}

// A package's script that builds modules learns from nproc(1) how many compilers to run, in an
// installation and in a repair: NVIDIA's dkms.conf asks that, and goes by the processors alone.
func TestScriptsRunFewCompilers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{
		name:    "module-dkms",
		version: "1",
		files:   map[string]string{"/DEBIAN/postinst": "#!/bin/sh\nnproc >>/opt/jobs\ntest -e /opt/fine\n"},
	})
	m.update()
	c := crowded{m}
	a := apt{wait: packages.LockWait, pins: pinFolder}
	must.That(t, a.get(t.Context(), c, "install", "module-dkms") != nil, "the script did not fail")
	m.write("/opt/fine", "")
	must.OK(t, a.Repair(t.Context(), c))
	jobs, err := os.ReadFile(m.dir + "/opt/jobs")
	check.That(t, err == nil && string(jobs) == "1\n1\n", "compilers at once: %q, %v", jobs, err)
}

func TestFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		usr, archives     uint64
		install, download int64
		ok                bool
	}{{5e6, 5e6, 2e6, 2e6, true}, {5e6, 5e6, 3e6, 3e6, false}, {5e6, 9e6, 3e6, 3e6, true}, {5e6, 9e6, 6e6, 1, false}, {9e6, 5e6, 1, 6e6, true}, {5e6, 5e6, -1e6, 5e6, true}} {
		err := needs{c.install, c.download}.fits(c.usr, c.archives)
		check.That(t, (err == nil) == c.ok, "%+v: %v", c, err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{
		name:    "huge",
		version: "1",
		fields:  "Installed-Size: 99999999999\n",
	})
	m.update()
	contains(t, m.refuse(func(s *packages.Set) []converge.Want {
		return []converge.Want{packages.Want(s, "huge", packages.State{Version: "1"}, "")}
	}), "the disk is full", "they need 102", "make room")
}

// TestReadingOutlivesSnapshot: another process changes dpkg's database between facts, which have
// read a part of it, and the first look. What the plan reads then is not taken for the new file's
// by the stages that follow.
func TestReadingOutlivesSnapshot(t *testing.T) {
	const text = "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\nPackage: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 9\n"
	n := must.Get(simhost.New([]byte("-- var/lib/dpkg/status --\n" + text + "-- etc/os-release --\nID=debian\n")))(t)
	r, plan := packages.NewReading(New()), view.Snapshot(n)
	must.Get(plan.ReadFile(facts.DpkgStatus))(t)
	must.OK(t, n.WriteFile(facts.DpkgStatus, []byte(strings.Replace(text, "Version: 1", "Version: 2.0", 1)), host.Attr{Mode: 0o644}))
	must.Get(r.Read(t.Context(), plan))(t)
	after, err := r.Read(t.Context(), n)
	check.That(t, err == nil && after["a"].Version == "2.0", "%+v, %v", after["a"], err)
}

func TestCompareLikeDpkg(t *testing.T) {
	t.Parallel()
	need(t, "dpkg")
	versions := []string{"1", "1.0", "1.0-1", "1.0-1~", "1.0~rc1-1", "1:0.5", "1.0+b1", "1.0a", "580.95.05-0ubuntu1", "580.95.05-1ubuntu1", "580.105.08-0ubuntu1", "580.9-1", "09", "9", "1.0-0", "1.0.0-1.el9", "1.A", "1.a"}
	for _, a := range versions {
		for _, b := range versions {
			want := 0
			if exec.Command("dpkg", "--compare-versions", a, "lt", b).Run() == nil {
				want = -1
			} else if exec.Command("dpkg", "--compare-versions", a, "gt", b).Run() == nil {
				want = 1
			}

			got := sign((apt{}).Compare(a, b))
			check.That(t, got == want, "%s and %s: %d, dpkg says %d", a, b, got, want)
		}
	}
}

func sign(n int) int { return min(1, max(-1, n)) }

func FuzzCompare(f *testing.F) {
	f.Add("1.0-1", "1.0~rc-1")
	f.Add("1:2", "")
	f.Add("\x00", "\x001") // no version, and no reason to hang
	f.Fuzz(func(t *testing.T, a, b string) {
		if sign((apt{}).Compare(a, b)) != -sign((apt{}).Compare(b, a)) || (apt{}).Compare(a, a) != 0 {
			t.Errorf("%q and %q", a, b)
		}
	})
}

// Apt reads its caches when it is asked, and never writes them: it is shown none that are older
// than what they are made of.
func TestCachesAreReadAndNotWritten(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.offers("580.1-1")
	times := func() string {
		return m.must("sh", "-c", "stat -c '%n %y %i' /var/cache/apt /var/cache/apt/*")
	}
	const lists, status = "Dir::Cache::srcpkgcache=", "Dir::Cache::pkgcache="
	for _, c := range []struct {
		change, without []string
	}{
		{[]string{"true"}, nil},
		{[]string{"apt-get", "-y", "install", "dkms-like"}, nil}, // apt reads dpkg's database again at its end
		{[]string{"dpkg", "-r", "dkms-like"}, []string{status}},
		{[]string{"touch", "/etc/apt/sources.list"}, []string{status, lists}},
		{[]string{"sh", "-c", "echo '// names' >/etc/apt/apt.conf.d/52gpuadm-hold"}, nil}, // gpuadm writes it after it has read the lists
		{[]string{"sh", "-c", "echo 'Acquire::Languages none;' >/etc/apt/apt.conf.d/99theirs"}, []string{status, lists}},
		{[]string{"sh", "-c", "touch /var/lib/apt/lists/*Packages"}, []string{status, lists}},
		{[]string{"apt-get", "clean"}, []string{status, lists}},
	} {
		m.must("apt-get", "clean")
		m.must("apt-cache", "gencaches")
		m.must(c.change...)
		before := times()
		m.packagers()
		offers, err := m.apt.Offers(t.Context(), m, []string{"nvidia-driver"})
		check.That(t, err == nil && len(offers["nvidia-driver"]) == 1, "%s: it has %v, %v", c.change, offers, err)
		asked := strings.Join(m.packagers(), "\n")
		for _, option := range []string{status, lists} {
			check.That(t, strings.Contains(asked, option) == slices.Contains(c.without, option), "%s: it asked %s", c.change, asked)
		}
		now := times()
		check.That(t, now == before, "%s: apt has written its caches:\n%swere:\n%s", c.change, now, before)
	}
}
