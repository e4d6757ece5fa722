// SPDX-License-Identifier: Apache-2.0

package kmod_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// builder makes a machine with a DKMS that notes its calls; /built has the state of the version.
func builder(t *testing.T, archive string, run func(f *files.Files, argv []string) error) (*simhost.Node, *[]string) {
	t.Helper()
	n := must.Get(simhost.New([]byte(archive)))(t)
	var calls []string
	p := simhost.Program{Looks: func([]string) bool { return false }, Run: func(f *files.Files, argv []string) ([]byte, error) {
		calls = append(calls, strings.Join(argv, " "))
		return nil, run(f, argv)
	}}
	for _, name := range []string{"env", "dkms", "update-initramfs", "dracut"} {
		n.Install(name, p)
	}
	return n, &calls
}

func asBuilt(v host.View, _, _ string) (string, converge.State, error) {
	b, err := v.ReadFile("/built")
	if errors.Is(err, fs.ErrNotExist) {
		return "nvidia-open", "", nil
	}
	return "nvidia-open", converge.State(b), err
}

const eightCores = "-- proc/cpuinfo --\nprocessor\t: 0\nprocessor\t: 1\nprocessor\t: 2\nprocessor\t: 3\n-- proc/meminfo --\nMemTotal:       9999999 kB\nMemAvailable:    3500000 kB\n"

func TestDKMSBuilds(t *testing.T) {
	n, calls := builder(t, eightCores+"-- lib/modules/6.8.0/build/Makefile --\n", func(f *files.Files, argv []string) error {
		return f.WriteFile("/built", []byte("installed"), host.Attr{Mode: 0o644})
	})
	w := kmod.DKMS("580.95.05", "6.8.0", asBuilt, "")
	check.That(t, w.Ref().Name == "nvidia/580.95.05 6.8.0", "%v", w.Ref().Name)
	must.OK(t, w.Make(t.Context(), n, "installed"))
	// Three compilers: memory for three, cores for four.
	want := []string{"env OMP_NUM_THREADS=3 dkms install -j 3 -m nvidia-open -v 580.95.05 -k 6.8.0"}
	check.That(t, slices.Equal(*calls, want), "%q", *calls)
	must.OK(t, kmod.NewDKMS(w.Ref().Name, asBuilt).Make(t.Context(), n, "built"))
	check.Equal(t, (*calls)[1], "dkms uninstall -m nvidia-open -v 580.95.05 -k 6.8.0", "got")
}

// TestDKMSBuildsAgain: what is installed and no kernel would load is built again, not installed
// again.
func TestDKMSBuildsAgain(t *testing.T) {
	n, calls := builder(t, eightCores+"-- lib/modules/6.8.0/build/Makefile --\n-- built --\ninstalled, it is not signed", func(f *files.Files, argv []string) error {
		return f.WriteFile("/built", []byte("installed"), host.Attr{Mode: 0o644})
	})
	must.OK(t, kmod.DKMS("580.95.05", "6.8.0", asBuilt, "").Make(t.Context(), n, "installed"))
	const about = "env OMP_NUM_THREADS=3 dkms %s -j 3 -m nvidia-open -v 580.95.05 -k 6.8.0 --force"
	check.That(t, slices.Equal(*calls, []string{fmt.Sprintf(about, "build"), fmt.Sprintf(about, "install")}), "%q", *calls)
}

func TestDKMSRefusals(t *testing.T) {
	w := kmod.DKMS("580.95.05", "6.8.0", asBuilt, "")
	for _, c := range []struct {
		name, archive string
		run           func(f *files.Files, argv []string) error
		what, because string
	}{
		{"no headers", "-- lib/modules/6.8.0/modules.dep --\n-- lib/modules/6.5.0/build/Makefile --\n", nil, "its headers are not installed", "these kernels have headers: 6.5.0"},
		{
			"compiler", "-- lib/modules/6.8.0/build/Makefile --\n-- var/lib/dkms/nvidia-open/580.95.05/build/make.log --\nmake: go\nnv.c:7:2: error: too few arguments\nmake[2]: *** [nv.o] Error 1\n",
			func(*files.Files, []string) error {
				return &host.CommandError{Argv: []string{"dkms"}, Code: 10, Cause: errors.New("exit status 10")}
			}, "nv.c:7:2: error: too few arguments", "the first error in /var/lib/dkms/nvidia-open/580.95.05/build/make.log",
		},
		{"skipped with 0", "-- lib/modules/6.8.0/build/Makefile --\n", func(*files.Files, []string) error { return nil }, "dkms reported success, and there is no module", ""},
		{"wrong key", "-- lib/modules/6.8.0/build/Makefile --\n", func(f *files.Files, _ []string) error {
			return f.WriteFile("/built", []byte("installed, it is signed by X, which the kernel does not trust"), host.Attr{Mode: 0o644})
		}, "it is signed by X", ""},
	} {
		n, calls := builder(t, c.archive, c.run)
		err := w.Make(t.Context(), n, "installed")
		told := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &told) && strings.Contains(told.What, c.what) && strings.Contains(strings.Join(told.Because, "\n"), c.because),
			"%s: %v %+v", c.name, err, told)
		check.That(t, c.run != nil || len(*calls) == 0, "%s: %q", c.name, *calls)
	}
}

// TestDKMSWithoutSource: NVIDIA's packages call the source nvidia or nvidia-open, and the commands
// are complete.
func TestDKMSWithoutSource(t *testing.T) {
	unknown := func(host.View, string, string) (string, converge.State, error) { return "", "", nil }
	const source = "/usr/src/nvidia-580.95.05/dkms.conf /usr/src/nvidia-open-580.95.05/dkms.conf, "
	for archive, want := range map[string][]string{
		"-- var/lib/dpkg/status --\nx\n": {"dpkg -S " + source, "sudo apt-get install --reinstall PACKAGE"},
		"-- etc/os-release --\nID=rocky\nVERSION_ID=9.6\n-- var/lib/rpm/rpmdb.sqlite --\nx\n": {"rpm -qf " + source, "sudo dnf reinstall PACKAGE"},
	} {
		n, _ := builder(t, archive, nil)
		err := kmod.DKMS("580.95.05", "6.8.0", unknown, "").Make(t.Context(), n, "installed")
		var told *trouble.Error
		must.That(t, errors.As(err, &told), "%v", err)
		check.Has(t, told.What, "cannot build the modules nvidia 580.95.05 for 6.8.0: their source is not in /usr/src", "%s:", archive)
		for _, part := range want {
			check.Has(t, told.Try[0], part, "%s:", archive)
		}
	}
}

// blindTo is a machine that cannot read one name.
type blindTo struct {
	host.Host
	name string
}

func (b blindTo) Stat(name string) (host.Info, error) {
	if name == b.name {
		return host.Info{}, syscall.EIO
	}
	return b.Host.Stat(name)
}

// TestDKMSRemoveReadsTheSource: DKMS forgets a version with its last kernel. Whether a package still
// has the source must be known, not guessed.
func TestDKMSRemoveReadsTheSource(t *testing.T) {
	const source = "/usr/src/nvidia-open-580.95.05/dkms.conf"
	n, calls := builder(t, "-- built --\nbuilt\n-- "+source[1:]+" --\n", func(*files.Files, []string) error { return nil })
	thing := kmod.NewDKMS("nvidia/580.95.05 6.8.0", asBuilt)
	must.OK(t, thing.Make(t.Context(), n, ""))
	check.Equal(t, strings.Join(*calls, "\n"), "dkms remove -m nvidia-open -v 580.95.05 -k 6.8.0\ndkms add -m nvidia-open -v 580.95.05", "calls")

	err := thing.Make(t.Context(), blindTo{n, source}, "")
	check.That(t, errors.Is(err, syscall.EIO), "a source that cannot be read: %v", err)
}

func TestDKMSInAFolder(t *testing.T) {
	n, _ := builder(t, "-- sim.toml --\nlive = false\n", nil)
	w := kmod.DKMS("580.95.05", "6.8.0", asBuilt, "")
	_, err := w.Look(t.Context(), n)
	check.That(t, errors.As(err, new(host.Later)), "%v", err)
	m := kmod.Module("", nil, onDisk, false, "")
	_, err = m.Look(t.Context(), n)
	check.That(t, errors.As(err, new(host.Later)), "%v", err)
}

func TestInitramfs(t *testing.T) {
	const made, old, young = " ctime=2026-01-01T12:00:00Z", " ctime=2026-01-01T11:00:00Z", " ctime=2026-01-01T13:00:00Z"
	for _, c := range []struct {
		name, archive string
		state         converge.State
		call          string
	}{
		{"none", "-- etc/modprobe.d/gpuadm.conf --\n", "none", ""},
		{"no nouveau", "-- boot/initrd.img-6.8.0" + made + " --\n-- etc/modprobe.d/gpuadm.conf" + young + " --\n", "silent", ""},
		{"made later", "-- boot/initrd.img-6.8.0" + made + " --\n-- etc/modprobe.d/gpuadm.conf" + old + " --\n-- lib/modules/6.8.0/kernel/drivers/gpu/drm/nouveau/nouveau.ko --\n", things.UpToDate, ""},
		{"debian", "-- boot/initrd.img-6.8.0" + made + " --\n-- etc/modprobe.d/gpuadm.conf" + young + " --\n-- lib/modules/6.8.0/kernel/drivers/gpu/drm/nouveau/nouveau.ko --\n-- usr/sbin/update-initramfs --\n", "older than the settings that it contains", "update-initramfs -u -k 6.8.0"},
		{"rhel", "-- boot/initramfs-6.8.0.img" + made + " --\n-- etc/modprobe.d/gpuadm.conf" + young + " --\n-- etc/dracut.conf.d/x.conf --\nadd_drivers+=\" nvidia \"\n-- usr/bin/dracut --\n", "older than the settings that it contains", "dracut --force --kver 6.8.0 /boot/initramfs-6.8.0.img"},
		{"removed", "-- boot/initrd.img-6.8.0" + made + " --\n-- etc/modprobe.d/" + young + " --\n-- lib/modules/6.8.0/kernel/drivers/gpu/drm/nouveau/nouveau.ko --\n-- usr/sbin/update-initramfs --\n", "older than the settings that it contains", "update-initramfs -u -k 6.8.0"},
	} {
		n, calls := builder(t, c.archive, func(*files.Files, []string) error { return nil })
		w := kmod.Initramfs("6.8.0", []string{modprobeFile}, "")
		thing := kmod.NewInitramfs(w.Ref().Name, w.Ref().Reads)
		state, err := thing.Look(t.Context(), n)
		check.That(t, err == nil && state == c.state, "%s: %q, %v", c.name, state, err)
		if to, _ := w.To(state); to != state {
			err := thing.Make(t.Context(), n, to)
			check.That(t, err == nil, "%s: %v", c.name, err)
		}
		check.Equal(t, strings.Join(*calls, "\n"), c.call, "%s:", c.name)
	}
}

// TestInitramfsUnread: without the files that say what is in an image, the image is not known to
// need no settings.
func TestInitramfsUnread(t *testing.T) {
	const config = "/etc/dracut.conf.d/x.conf"
	archive := "-- boot/initrd.img-6.8.0 --\n-- " + config[1:] + " --\nadd_drivers+=\" nvidia \"\n"
	n, _ := builder(t, archive, nil)
	thing := kmod.NewInitramfs("6.8.0", []string{modprobeFile})
	state, err := thing.Look(t.Context(), unreadable{n, config})
	check.That(t, errors.Is(err, syscall.EIO), "without %s: %q, %v", config, state, err)
}

// TestInitramfsOfAPackage: dracut also reads the folder of packages, except a file that one of the
// same name in /etc replaces.
func TestInitramfsOfAPackage(t *testing.T) {
	const image = "-- boot/initramfs-6.8.0.img ctime=2026-01-01T12:00:00Z --\n" +
		"-- etc/modprobe.d/gpuadm.conf ctime=2026-01-01T13:00:00Z --\n"
	const ofPackage = "-- usr/lib/dracut/dracut.conf.d/99-nvidia.conf --\nforce_drivers+=\" nvidia \"\n"
	for archive, want := range map[string]converge.State{
		image + ofPackage: "older than the settings that it contains",
		image + ofPackage + "-- etc/dracut.conf.d/99-nvidia.conf --\n": "silent",
	} {
		n, _ := builder(t, archive, nil)
		state := must.Get(kmod.NewInitramfs("6.8.0", []string{modprobeFile}).Look(t.Context(), n))(t)
		check.Equal(t, state, want, "with %q", archive)
	}
}

// TestDKMSBeside: a module that is built against the driver's is removed and rebuilt, by as many
// compilers as there is memory for; a module that fits stays, and a missing one is not built.
func TestDKMSBeside(t *testing.T) {
	state := converge.State("of another driver")
	look := func(host.View, string, string) (string, converge.State, error) {
		return "2.26.6", state, nil
	}
	const tree = "/var/lib/dkms/nvidia-fs/2.26.6"
	n, calls := builder(t, eightCores+"-- lib/modules/6.8.0/build/Makefile --\n-- var/lib/dkms/nvidia-fs/2.26.6/6.8.0/x86_64/module/nvidia-fs.ko --\n", func(f *files.Files, argv []string) error {
		switch {
		case argv[0] == "dkms" && argv[1] == "remove":
			for _, name := range []string{"/6.8.0/x86_64/module/nvidia-fs.ko", "/6.8.0/x86_64/module", "/6.8.0/x86_64", "/6.8.0", ""} {
				if err := f.Remove(tree + name); err != nil {
					return err
				}
			}
		case argv[0] == "env":
			state = "fits"
		}
		return nil
	})
	w := kmod.DKMSAddOn("nvidia-fs", "6.8.0", look, "")
	again := kmod.NewDKMSAddOn(w.Ref().Name, look)
	must.That(t, again.Ref().Name == "nvidia-fs for 6.8.0", "%s", w.Ref().Name)
	for range 2 {
		must.OK(t, again.Make(t.Context(), n, "fits"))
	}
	want := []string{
		"dkms remove -m nvidia-fs -v 2.26.6 -k 6.8.0", "dkms add -m nvidia-fs -v 2.26.6",
		"env OMP_NUM_THREADS=3 dkms install -j 3 -m nvidia-fs -v 2.26.6 -k 6.8.0",
	}
	check.That(t, slices.Equal(*calls, want), "%q", *calls)
	s := again.(converge.Follower)
	for _, c := range []struct {
		found, then converge.State
		by          converge.Change
	}{
		{"fits", "of another driver", converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia/580.95.05 6.8.0"}, After: "installed"}},
		{"fits", "of another driver", converge.Change{Ref: converge.Ref{Kind: "package", Name: "x"}, Brings: []string{"nvidia"}}},
		{"fits", "fits", converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia/580.95.05 6.9.0"}, After: "installed"}},
		{"of another driver", "fits", converge.Change{Ref: converge.Ref{Kind: "package", Name: "x"}, Brings: []string{"nvidia-fs"}, Before: "2.26.6-1 auto"}},
		{"fits", "fits", converge.Change{Ref: converge.Ref{Kind: "package", Name: "nvidia-fs"}, Before: "2.26.6-1 auto"}},
		{"", "", converge.Change{Ref: converge.Ref{Kind: "file", Name: "/etc/other"}}},
		{"not built", "not built", converge.Change{Ref: converge.Ref{Kind: "file", Name: "/etc/other"}}},
	} {
		if got := s.Affected(c.found, c.by); got != c.then || s.Current(got) != "fits" {
			t.Errorf("%q by %s: %q, %q", c.found, c.by, got, s.Current(got))
		}
	}
}
