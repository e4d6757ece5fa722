// SPDX-License-Identifier: Apache-2.0

package drivers_test

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const runfileLib = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so."

//go:embed testdata/installer-node.txtar
var installerFiles string

// installerNode is a machine on which NVIDIA's installers run: calls records their arguments.
func installerNode(t *testing.T, calls *[]string) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte(installerFiles))
	must.OK(t, err)
	uninstall := func(f *files.Files) error {
		log, err := f.ReadFile("/var/lib/nvidia/log")
		if err != nil {
			return err
		}
		_, v, _ := strings.Cut(strings.TrimSuffix(strings.SplitN(string(log), "\n", 2)[0], ")"), "(")
		src := "/usr/src/nvidia-" + v
		var errs []error
		for _, name := range []string{runfileLib + v, runfileLib + "1", src + "/nvidia/nv.c", src + "/nvidia", src, "/usr/bin/nvidia-uninstall", "/var/lib/nvidia/log", "/var/lib/nvidia"} {
			errs = append(errs, f.Remove(name))
		}
		return errors.Join(errs...)
	}

	install := func(f *files.Files, argv []string) error {
		data, err := f.ReadFile(argv[1])
		if err != nil {
			return err
		}
		version, kind, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
		if slices.Contains(argv, "--uninstall") {
			return uninstall(f)
		}
		if _, err := f.Stat("/var/lib/nvidia/log"); err == nil {
			if err := uninstall(f); err != nil {
				return err
			}
		}

		license := "NVIDIA"
		if slices.Contains(argv, "--kernel-module-type=open") {
			license = "Dual MIT/GPL"
		}
		err = errors.Join(
			drivertest.Lay(f, runfileLib+version, nil), f.Symlink(runfileLib+"1", "libnvidia-ml.so."+version),
			drivertest.Lay(f, "/usr/src/nvidia-"+version+"/nvidia/nv.c", []byte("MODULE_LICENSE(\""+license+"\");\n")),
			drivertest.Lay(f, "/usr/bin/nvidia-uninstall", nil),
			drivertest.Lay(f, "/var/lib/nvidia/log", []byte("1.0-"+strings.ReplaceAll(version, ".", "")+" ("+version+")\nNVIDIA\n1: "+runfileLib+version+"\n123\n0: "+runfileLib+"1\n")),
		)
		if kind == "bad" {
			return errors.Join(err, drivertest.Lay(f, "/var/log/nvidia-installer.log", []byte("-> Building\nERROR: Unable to build the NVIDIA kernel module.\n-> Cleaning\nERROR: Installation has failed.\n")),
				&host.CommandError{
					Argv:   argv,
					Code:   1,
					Stderr: "said on the way out",
					Cause:  errors.New("exit status 1"),
				})
		}

		return err
	}

	n.Install("sh", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, argv []string) ([]byte, error) {
		*calls = append(*calls, strings.Join(argv[2:], " "))
		return nil, install(f, argv)
	}})
	n.Install("nvidia-uninstall", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, argv []string) ([]byte, error) {
		*calls = append(*calls, strings.Join(argv, " "))
		return nil, uninstall(f)
	}})
	return n
}

// runfileEngine wants one runfile; "" wants none.
func runfileEngine(version, flavour, file, content string) *converge.Engine {
	sum := sha256.Sum256([]byte(content))
	return &converge.Engine{ThingOf: thingOf, Prune: stages.Prune, Spec: spec.Spec{Sections: []string{"driver"}}, Stages: []converge.Stage{{
		Name: "driver",
		Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
			if version == "" {
				return nil, nil
			}
			c := drivers.Choice{
				Version: version,
				Flavour: flavour,
				Repo:    drivers.Repository{URL: "https://mirror.example/" + file},
			}
			return []converge.Want{drivers.RunfileWant(c, hex.EncodeToString(sum[:]), host.Via{})}, nil
		},
	}}}
}

func have(t *testing.T, n *simhost.Node, want converge.State) {
	t.Helper()
	is, err := drivers.ByInstaller(n)
	check.That(t, is == want && err == nil, "installed is %q, want %q, %v", is, want, err)
}

func TestRunfileThereAndBack(t *testing.T) {
	var calls []string
	n, ctx := installerNode(t, &calls), context.Background()
	first := n.Tree(converge.Home)
	old, new := runfileEngine("570.172.08", "open", "570.run", "570.172.08 fine\n"), runfileEngine("580.95.05", "open", "580.run", "580.95.05 fine\n")
	for _, e := range []*converge.Engine{old, new} {
		must.Get(e.Apply(ctx, n))(t)
	}
	have(t, n, "580.95.05 open")
	touches := n.Touches()
	res, err := new.Apply(ctx, n)
	check.That(t, err == nil && len(res.Made) == 0 && n.Touches() == touches && len(n.Violations()) == 0, "the second apply: %v, %v, %v", res.Made, err, n.Violations())
	// the other flavour of the same version, from the file that is kept, with the network gone
	must.OK(t, n.Remove("/simulated-net/mirror.example/580.run"))
	must.Get(runfileEngine("580.95.05", "proprietary", "580.run", "580.95.05 fine\n").Apply(ctx, n))(t)
	have(t, n, "580.95.05 proprietary")
	for _, want := range []converge.State{"580.95.05 open", "570.172.08 open", ""} {
		if want == "570.172.08 open" {
			must.OK(t, drivertest.Lay(n.Files, "/var/lib/gpuadm/runfiles/570.172.08-"+sumOf("570.172.08 fine\n")+".run", []byte("570.172.08 fine\n")))
		}
		must.Get(old.Undo(ctx, n, "", nil))(t)
		have(t, n, want)
	}

	d := cmp.Diff(first, n.Tree(converge.Home))
	check.That(t, strings.Count(d, "\n+") == 0, "after undo (-first +now)\n%s", d)
	if got := calls[0]; !strings.Contains(got, "--silent") || !strings.Contains(got, "--dkms") || !strings.Contains(got, "--kernel-name=6.8.0") || !strings.Contains(got, "--kernel-module-type=open") {
		t.Errorf("the installer's arguments are %s", got)
	}
}

// TestRunfileInAnImage: where programs run in the image, the installer does, for the image's
// kernel; in a root folder it is deferred.
func TestRunfileInAnImage(t *testing.T) {
	for _, off := range []func(*simhost.Node){(*simhost.Node).Image, (*simhost.Node).Bake} {
		var calls []string
		n, e := installerNode(t, &calls), runfileEngine("580.95.05", "open", "580.run", "580.95.05 fine\n")
		off(n)
		res := must.Get(e.Apply(context.Background(), n))(t)
		if !n.Runs() {
			if have(t, n, ""); len(calls) > 0 || len(res.Deferred) != 1 || res.Deferred[0].When != host.AtFirstBoot {
				t.Errorf("in a root folder: ran %v, deferred %v", calls, res.Deferred)
			}
			continue
		}

		if have(t, n, "580.95.05 open"); len(calls) != 1 || !strings.Contains(calls[0], "--kernel-name=6.8.0") || !strings.Contains(calls[0], "--skip-module-load") {
			t.Errorf("in an image: %v", calls)
		}
	}
}

func sumOf(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// TestRunfileOptions: an installer refuses to run with an option that it does not know.
func TestRunfileOptions(t *testing.T) {
	for _, test := range []struct{ version, has, hasNot string }{
		{
			"535.274.02", "--kernel-module-build-directory=kernel-open",
			"--skip-module-load --kernel-module-type --no-rebuild-initramfs --allow-installation-with-running-driver",
		},
		{
			"550.54.14",
			"--skip-module-load --no-rebuild-initramfs --kernel-module-build-directory=kernel-open",
			"--kernel-module-type",
		},
		{"555.42.02", "--skip-module-load --kernel-module-type=open", "--kernel-module-build-directory"},
	} {
		var calls []string
		n := installerNode(t, &calls)
		must.OK(t, n.WriteFile("/simulated-net/mirror.example/x.run", []byte(test.version+" fine"), host.Attr{Mode: 0o644}))
		_, _ = runfileEngine(test.version, "open", "x.run", test.version+" fine").Apply(context.Background(), n)
		must.That(t, len(calls) > 0, "it was not run")
		for _, o := range strings.Fields(test.has) {
			if !strings.Contains(calls[0], o) {
				t.Errorf("%s is not told %s: %s", test.version, o, calls[0])
			}
		}

		for _, o := range strings.Fields(test.hasNot) {
			if strings.Contains(calls[0], o) {
				t.Errorf("%s is called with %s: %s", test.version, o, calls[0])
			}
		}
	}
}

func TestRunfileRefused(t *testing.T) {
	apply := func(n *simhost.Node, e *converge.Engine, want ...string) {
		t.Helper()
		_, err := e.Apply(context.Background(), n)
		text := fmt.Sprint(err)
		if tr := (*trouble.Error)(nil); errors.As(err, &tr) {
			text += strings.Join(tr.Because, "\n") + strings.Join(tr.Try, "\n")
		}
		check.Says(t, text, want...)
	}

	good := runfileEngine("580.95.05", "open", "580.run", "580.95.05 fine\n")

	var calls []string
	n := installerNode(t, &calls)
	apply(n, runfileEngine("580.95.05", "open", "580.run", "another"), "SHA-256", "nothing of it was run", "[driver.runfile]")
	check.That(t, len(calls) == 0, "with a wrong digest this was run: %v", calls)
	have(t, n, "")

	before := n.Tree(converge.Home, "/var/log")
	apply(n, runfileEngine("580.95.05", "open", "bad.run", "580.95.05 bad\n"), "installer failed", "Unable to build", "Installation has failed", "said on the way out", "nvidia-installer.log")
	have(t, n, "")
	d := cmp.Diff(before, n.Tree(converge.Home, "/var/log"))
	check.That(t, strings.Count(d, "\n+") == 0, "a failed installer left\n%s", d)
	names, _ := n.ReadDir(drivers.Runfiles)
	check.That(t, len(names) == 0, "a failed installer is kept: %v", names)

	// an administrator's installation of another version cannot be rolled back
	must.OK(t, drivertest.Lay(n.Files, "/var/lib/nvidia/log", []byte("1.0-57086 (570.86)\nx\n")))
	calls = nil
	apply(n, good, "could not roll back to it", "nvidia-uninstall")
	check.That(t, len(calls) == 0, "this was run: %v", calls)

	// packages of a driver
	n = installerNode(t, &calls)
	must.OK(t, drivertest.Lay(n.Files, "/var/lib/dpkg/status", []byte("Package: nvidia-utils-580\n\n")))
	n.Install("dpkg-query", simhost.Program{Looks: func([]string) bool { return true }, Run: func(*files.Files, []string) ([]byte, error) {
		out := "half-configured nvidia-dkms-580\ninstalled nvidia-utils-580\n" +
			"config-files nvidia-utils-570\nnot-installed libnvidia-cfg1\ninstalled nvidia-container-toolkit\n"
		return []byte(out), &host.CommandError{
			Argv:  []string{"dpkg-query"},
			Code:  1,
			Cause: errors.New("exit status 1"),
		}
	}})
	apply(n, good, "packages of a driver are installed", "installed: nvidia-dkms-580, nvidia-utils-580", `source = "auto"`)
	check.That(t, len(calls) == 0, "this was run: %v", calls)

	// rpm ends with 1 where it cannot open its database, and with 0 where no package matches
	n = installerNode(t, &calls)
	must.OK(t, drivertest.Lay(n.Files, "/var/lib/rpm/rpmdb.sqlite", []byte("SQLite")))
	n.Install("rpm", simhost.Program{Looks: func([]string) bool { return true }, Run: func(*files.Files, []string) ([]byte, error) {
		return nil, &host.CommandError{
			Argv:   []string{"rpm"},
			Code:   1,
			Stderr: "error: cannot open Packages database in /var/lib/rpm",
			Cause:  errors.New("exit status 1"),
		}
	}})
	apply(n, good, "cannot open Packages database")
	check.That(t, len(calls) == 0, "this was run: %v", calls)

	// no headers
	n = installerNode(t, &calls)
	must.OK(t, n.Remove("/lib/modules/6.8.0/build/Makefile"))
	apply(n, good, "headers", "linux-headers-KERNEL")
}

// TestByInstaller: changes to the installer's files outside gpuadm are seen.
func TestByInstaller(t *testing.T) {
	for _, test := range []struct{ name, files, want string }{
		{"none", "", ""},
		{"unreadable", "-- var/lib/nvidia/log --\nnonsense\n", "unknown, /var/lib/nvidia/log does not say which"},
		{
			"library gone",
			"-- usr/bin/nvidia-uninstall --\n-- var/lib/nvidia/log --\n1.0-5809505 (580.95.05)\nx\n1: /usr/lib64/libnvidia-ml.so.580.95.05\n",
			"580.95.05, /usr/lib64/libnvidia-ml.so.580.95.05 is gone",
		},
		{
			"library replaced", "-- usr/bin/nvidia-uninstall --\n-- usr/lib64/libnvidia-ml.so.580.95.05 --\n-- usr/lib64/libnvidia-ml.so.570.1 --\n-- usr/lib64/libnvidia-ml.so.1 link=libnvidia-ml.so.570.1 --\n" +
				"-- var/lib/nvidia/log --\n1.0-5809505 (580.95.05)\nx\n1: /usr/lib64/libnvidia-ml.so.580.95.05\n",
			"580.95.05, /usr/lib64/libnvidia-ml.so.1 leads to libnvidia-ml.so.570.1",
		},
		{
			"link gone",
			"-- usr/lib64/libnvidia-ml.so.580.95.05 --\n-- var/lib/nvidia/log --\n580.95.05\nx\n1: /usr/lib64/libnvidia-ml.so.580.95.05\n",
			"580.95.05, /usr/lib64/libnvidia-ml.so.1 is gone",
		},
		{
			"uninstaller gone",
			"-- usr/lib64/libnvidia-ml.so.580.95.05 --\n-- usr/lib64/libnvidia-ml.so.1 link=libnvidia-ml.so.580.95.05 --\n-- var/lib/nvidia/log --\n580.95.05\nx\n1: /usr/lib64/libnvidia-ml.so.580.95.05\n",
			"580.95.05, /usr/bin/nvidia-uninstall is gone",
		},
		{
			"a version with 32, and the library of 32-bit programs first",
			"-- usr/bin/nvidia-uninstall --\n-- usr/lib64/libnvidia-ml.so.460.32.03 --\n-- usr/lib64/libnvidia-ml.so.1 link=libnvidia-ml.so.460.32.03 --\n" +
				"-- var/lib/nvidia/log --\n460.32.03\nx\n1: /usr/lib32/libnvidia-ml.so.460.32.03\n1: /usr/lib64/libnvidia-ml.so.460.32.03\n",
			"460.32.03",
		},
	} {
		n := must.Get(simhost.New([]byte(test.files + "-- etc/ --\n")))(t)
		is, err := drivers.ByInstaller(n)
		check.That(t, string(is) == test.want && err == nil, "%s: %q, want %q, %v", test.name, is, test.want, err)
	}
}

// noResolve is a machine on which links cannot be followed.
type noResolve struct{ host.View }

func (noResolve) Resolve(string) (string, error) { return "", syscall.EIO }

// A link that cannot be followed is not a link that is gone: gpuadm would install the driver again.
func TestUnreadableLink(t *testing.T) {
	const log = "580.95.05\nx\n1: /usr/lib64/libnvidia-ml.so.580.95.05\n"
	n := must.Get(simhost.New([]byte("-- usr/lib64/libnvidia-ml.so.580.95.05 --\n-- var/lib/nvidia/log --\n" + log)))(t)
	_, err := drivers.ByInstaller(noResolve{n})
	check.That(t, errors.Is(err, syscall.EIO), "%v", err)
}
