// SPDX-License-Identifier: Apache-2.0

package kmod_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const modprobeFile, loadFile = "/etc/modprobe.d/gpuadm.conf", "/etc/modules-load.d/gpuadm.conf"

// simulated makes a machine whose modules load and unload; /disk says what lies on disk.
func simulated(t *testing.T, more string) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte(`
-- sim.toml --
[[unit]]
name = "nvidia-persistenced.service"
enabled = "enabled"
active = "active"
` + more + `
-- proc/sys/kernel/osrelease --
6.8.0
-- disk --
580.95.05 open
-- etc/modprobe.d/gpuadm.conf --
options nvidia NVreg_X=0x10
options nvidia NVreg_Dwords="a=1; b=2"
-- etc/modules-load.d/gpuadm.conf --
# ours
nvidia
nvidia-uvm
-- sys/bus/pci/devices/0000:17:00.0/uevent --
PCI_CLASS=30200
PCI_ID=10DE:2330
`))
	must.OK(t, err)
	touches := func([]string) bool { return false }
	n.Install("rmmod", simhost.Program{Looks: touches, Run: func(f *files.Files, argv []string) ([]byte, error) {
		dir := "/sys/module/" + argv[1]
		for _, file := range []string{"refcnt", "version", "holders/nvidia_uvm"} {
			if err := f.Remove(dir + "/" + file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}

		if argv[1] != "nvidia" {
			if err := f.Remove("/sys/module/nvidia/holders/" + argv[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			return nil, f.WriteFile("/sys/module/nvidia/refcnt", []byte("0\n"), host.Attr{Mode: 0o644})
		}

		return nil, nil
	}})
	n.Install("modprobe", simhost.Program{Looks: touches, Run: func(f *files.Files, argv []string) ([]byte, error) {
		disk, err := f.ReadFile("/disk")
		if err != nil {
			return nil, err
		}
		version, flavour, _ := strings.Cut(strings.TrimSpace(string(disk)), " ")
		if flavour == "rejected" {
			return nil, &host.CommandError{
				Argv:   argv,
				Code:   1,
				Stderr: "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
				Cause:  errors.New("exit status 1"),
			}
		}

		if flavour == "useless" { // in the words of Debian 12, whose packages have modprobe run a modprobe
			return nil, &host.CommandError{Argv: argv, Code: 1, Stderr: "modprobe: ERROR: could not insert 'nvidia_current_open': No such device\n" +
				"modprobe: ERROR: ../libkmod/libkmod-module.c:1047 command_do() Error running install command 'modprobe -i nvidia-current-open ' for module nvidia: retcode 1\n" +
				"modprobe: ERROR: could not insert 'nvidia': Invalid argument", Cause: errors.New("exit status 1")}
		}

		refused, _ := f.ReadFile("/refused") // a module, and the kernel's error for it
		if module, why, _ := strings.Cut(strings.TrimSpace(string(refused)), " "); module == argv[1] {
			return nil, &host.CommandError{
				Argv:   argv,
				Code:   1,
				Stderr: "modprobe: ERROR: could not insert '" + argv[1] + "': " + why,
				Cause:  errors.New("exit status 1"),
			}
		}

		name := strings.ReplaceAll(argv[1], "-", "_")
		write := map[string]string{"/sys/module/" + name + "/refcnt": "0\n"}
		if name == "nvidia" {
			said := "NVIDIA UNIX x86_64 Kernel Module  "
			if flavour == "open" {
				said = "NVIDIA UNIX Open Kernel Module for x86_64  "
			}
			write["/sys/module/nvidia/version"] = version + "\n"
			write["/proc/driver/nvidia/version"] = said + version + "\n"
			write["/proc/driver/nvidia/params"] = "X: 16\nDwords: \"a=1; b=2\"\nOther: 0\n"
		}

		for file, text := range write {
			if err := folders(f, file); err != nil {
				return nil, err
			}
			if err := f.WriteFile(file, []byte(text), host.Attr{Mode: 0o644}); err != nil {
				return nil, err
			}
		}

		if name == "nvidia" {
			return nil, f.WriteFile("/sys/bus/pci/devices/0000:17:00.0/uevent", []byte("DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n"), host.Attr{Mode: 0o444})
		}
		return nil, nil
	}})
	return n
}

func folders(f *files.Files, file string) error {
	parts := strings.Split(strings.TrimPrefix(file, "/"), "/")
	dir := ""
	for _, p := range parts[:len(parts)-1] {
		dir += "/" + p
		if err := f.Mkdir(dir, host.Attr{Mode: 0o755}); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}

	return nil
}

func onDisk(v host.View, kernel string) (string, error) {
	if kernel != "6.8.0" {
		return "", errors.New("another kernel was asked about")
	}
	b, err := v.ReadFile("/disk")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// settle looks, makes what is not as it shall be, and looks again.
func settle(t *testing.T, n *simhost.Node) (before, after converge.State, err error) {
	t.Helper()
	w := kmod.Module("6.8.0", []string{modprobeFile, loadFile}, onDisk, false, "")
	before, err = w.Look(t.Context(), n.View())
	must.OK(t, err)
	to, err := w.To(before)
	must.OK(t, err)
	again, _ := w.To(to)
	check.That(t, again == to, "To(To(%q)) is %q", before, again)
	if to != before {
		err = w.Make(t.Context(), n, to)
	}
	after, lookErr := w.Look(t.Context(), n.View())
	must.OK(t, lookErr)
	return before, after, err
}

//go:embed testdata/loaded570.txtar
var loaded570 string

func TestModuleLoads(t *testing.T) {
	before, after, err := settle(t, simulated(t, ""))
	check.That(t, before == "nothing, on disk 580.95.05 open" && after == "as on disk" && err == nil, "%q, %q, %v", before, after, err)
}

func TestModuleIsSwapped(t *testing.T) {
	n := simulated(t, loaded570)
	before, after, err := settle(t, n)
	check.That(t, before == "570.1 proprietary, on disk 580.95.05 open" && after == "as on disk" && err == nil, "%q, %q, %v", before, after, err)
	u, _ := n.Unit(t.Context(), "nvidia-persistenced.service")
	check.That(t, u.Active == "active", "a daemon that was stopped for it does not run again")
	touches := n.Touches()
	if _, _, err := settle(t, n); err != nil || n.Touches() != touches {
		t.Error("it is not settled", err)
	}
	if err := n.Remove("/disk"); err != nil { // the packages are undone
		t.Fatal(err)
	}
	before, after, err = settle(t, n)
	check.That(t, before == "580.95.05 open, on disk nothing" && after == "as on disk" && err == nil, "%q, %q, %v", before, after, err)
}

func TestModuleParametersAndCompanions(t *testing.T) {
	n := simulated(t, "")
	_, _, err := settle(t, n)
	must.That(t, err == nil, "%v", err)
	must.OK(t, n.WriteFile(loadFile, []byte("nvidia\nnvidia-uvm\nnvidia-modeset\n"), host.Attr{Mode: 0o644}))
	before, after, err := settle(t, n)
	check.That(t, before == "580.95.05 open without nvidia-modeset" && after == "as on disk" && err == nil, "%q, %q, %v", before, after, err)
	must.OK(t, n.WriteFile(modprobeFile, []byte("options nvidia NVreg_X=17 NVreg_Unknown=1\n"), host.Attr{Mode: 0o644}))
	s, _ := kmod.NewModule([]string{modprobeFile, loadFile}, onDisk).Look(t.Context(), n)
	check.That(t, s == "580.95.05 open without NVreg_X=17", "%q", s)
}

//go:embed testdata/pod.txtar
var podFiles string

func TestModuleInUse(t *testing.T) {
	for _, c := range []struct{ name, more, why string }{
		{"pod", loaded570 + podFiles, "process 4711 (python3) of pod ml/train-0, container aaaabbbbcccc, has /dev/nvidia0, /dev/nvidiactl open"},
		{"foreign module", strings.Replace(loaded570, "holders/nvidia_uvm", "holders/efa_nv_peermem", 1), "module nvidia is used by the module efa_nv_peermem"},
		{"console", strings.Replace(loaded570, "refcnt --\n1", "refcnt --\n3", 1), "used 2 times by no process"},
		{"nouveau", "-- sys/module/nouveau/refcnt --\n1\n", "nouveau has the GPUs and is in use"},
	} {
		n := simulated(t, c.more)
		before, after, err := settle(t, n)
		reboot := (host.Reboot{})
		check.That(t, errors.As(err, &reboot) && strings.Contains(reboot.Why, c.why) && before == after, "%s: %q, %q, %v", c.name, before, after, err)
		u, _ := n.Unit(t.Context(), "nvidia-persistenced.service")
		check.That(t, u.Active == "active", "%s: persistenced was stopped for nothing", c.name)
	}
}

func TestModuleRejected(t *testing.T) {
	n := simulated(t, "")
	must.OK(t, n.WriteFile("/disk", []byte("580.95.05 rejected"), host.Attr{Mode: 0o644}))
	_, _, err := settle(t, n)
	told := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &told) && strings.Contains(told.What, "does not trust the key") && len(told.Try) > 0, "%v", err)
	check.Has(t, told.Try[0], "mokutil --import FILE", "the command lacks its file")
	check.Has(t, told.Try[0], "then reboot", "the console asks at the next boot")
}

func TestModuleServesNotAll(t *testing.T) {
	n := simulated(t, "-- sys/bus/pci/devices/0000:2a:00.0/uevent --\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n")
	n.Install("journalctl", simhost.Program{Looks: func([]string) bool { return true }, Run: func(*files.Files, []string) ([]byte, error) {
		return []byte("usb 1-1: new device\nNVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus.\n"), nil
	}})
	_, _, err := settle(t, n)
	told := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &told) && len(told.Because) == 2 && strings.Contains(told.Because[0], "Xid 79 of GPU 0000:2a:00"), "it does not say what the kernel said: %v", err)
	check.That(t, err != nil && strings.Contains(err.Error(), "serves 1 of 2 GPUs, and not 0000:2a:00.0"), "%v", err)
}

func TestModuleForesees(t *testing.T) {
	m := kmod.Module("6.8.0", []string{modprobeFile}, onDisk, false, "").Thing.(converge.Follower)
	for _, c := range []struct {
		found, then converge.State
		by          converge.Change
	}{
		{"as on disk", "the one before, on disk 580.95.05", converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia/580.95.05 6.8.0"}, After: "installed"}},
		{"570.1 open, on disk 575.1 open", "570.1 open, on disk 580.95.05 open", converge.Change{Ref: converge.Ref{Kind: "module-file", Name: "nvidia for 6.8.0"}, After: "580.95.05 open"}},
		{"as on disk", "as on disk", converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia/580.95.05 6.9.0"}, After: "installed"}},
		{"as on disk", "the one before, on disk nothing", converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia/580.95.05 6.8.0"}}},
		{"as on disk", "the one before without " + modprobeFile, converge.Change{Ref: converge.Ref{Kind: "file", Name: modprobeFile}}},
		{"as on disk", "as on disk", converge.Change{Ref: converge.Ref{Kind: "file", Name: "/etc/other"}}},
		{"580.95.05 open, on disk 575.1 open", "580.95.05 open, on disk what that leaves", converge.Change{Ref: converge.Ref{Kind: "package", Name: "x"}, Brings: []string{"nvidia"}, Before: "580.95.05-1 held", After: "575.1-1 held"}},
		{"as on disk", "the one before, on disk what that leaves", converge.Change{Ref: converge.Ref{Kind: "runfile", Name: "nvidia"}, Brings: []string{"nvidia"}, Before: "580.95.05 open", After: "570.1 open"}},
		{"as on disk", "as on disk", converge.Change{Ref: converge.Ref{Kind: "package", Name: "nvidia-settings"}, Before: "580.95.05-1", After: "575.1-1"}},
		{"as on disk", "as on disk", converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia-fs for 6.8.0", Form: kmod.FormAddOn}, Before: kmod.AddOnNotBuilt, After: kmod.AddOnFits}},
		{"580.95.05 open without nvidia-fs", "580.95.05 open without nvidia-fs", converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia-fs for 6.8.0", Form: kmod.FormAddOn}, After: kmod.AddOnFits}},
		{"as on disk", "as on disk", converge.Change{Ref: converge.Ref{Kind: "package", Name: "nvidia-fs-dkms"}, Brings: []string{"nvidia-fs"}, Before: "2.26-1"}},
	} {
		if got := m.Affected(c.found, c.by); got != c.then || m.Current(got) != "as on disk" {
			t.Errorf("%q by %s: %q, %q", c.found, c.by, got, m.Current(got))
		}
	}
}

// stopping is a machine on which a run ends while it unloads a module. As on a real one, nothing
// begins once the context has ended.
type stopping struct {
	*simhost.Node
	end context.CancelFunc
}

func (s stopping) Do(ctx context.Context, argv ...string) ([]byte, error) {
	if argv[0] == "rmmod" {
		s.end()
		return nil, context.Canceled
	}
	return s.Node.Do(ctx, argv...)
}

func (s stopping) SetUnit(ctx context.Context, name string, to host.UnitChange) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.Node.SetUnit(ctx, name, to)
}

// TestModuleResumes: a run that is ended while it unloads the module starts the daemons again that
// it has stopped.
func TestModuleResumes(t *testing.T) {
	n := simulated(t, loaded570)
	ctx, end := context.WithCancel(t.Context())
	err := kmod.Module("6.8.0", nil, onDisk, false, "").Make(ctx, stopping{n, end}, "as on disk")
	check.That(t, errors.Is(err, context.Canceled), "%v", err)

	u := must.Get(n.Unit(t.Context(), "nvidia-persistenced.service"))(t)
	check.That(t, u.Active == "active", "persistenced is %s", u.Active)
}

// unreadable is a machine with one file that cannot be read.
type unreadable struct {
	host.View
	file string
}

func (u unreadable) ReadFile(name string) ([]byte, error) {
	if name == u.file {
		return nil, &host.FileError{Verb: "read", Path: name, Cause: syscall.EIO}
	}
	return u.View.ReadFile(name)
}

// TestModuleUnknown: a loaded module of which a file cannot be read is unknown. It is neither another
// module nor one with all its parameters.
func TestModuleUnknown(t *testing.T) {
	n := simulated(t, "")
	_, _, err := settle(t, n)
	must.OK(t, err)
	m := kmod.NewModule([]string{modprobeFile, loadFile}, onDisk)
	for _, file := range []string{
		"/sys/module/nvidia/version",
		"/proc/driver/nvidia/version",
		"/proc/driver/nvidia/params",
	} {
		found, err := m.Look(t.Context(), unreadable{n, file})
		check.That(t, errors.Is(err, syscall.EIO), "%s: %q, %v", file, found, err)
	}
}

// TestModuleValues: the kernel ignores a parameter that the module does not have, and refuses a value
// that one does not take. Those of other modules are not in node.toml.
func TestModuleValues(t *testing.T) {
	for _, c := range []struct{ refused, try, not string }{
		{"nvidia", "parameters in [driver]", "nvidia-uvm"},
		{"nvidia-uvm", "modinfo -p nvidia-uvm", "[driver]"},
	} {
		n := simulated(t, "-- refused --\n"+c.refused+" Invalid argument")
		_, _, err := settle(t, n)
		told := (*trouble.Error)(nil)
		must.That(t, errors.As(err, &told) && len(told.Try) == 1, "%s: %v", c.refused, err)
		check.Has(t, told.What, "it does not take the value of a parameter", "%s", c.refused)
		check.Has(t, told.Try[0], c.try, "%s", c.refused)
		check.That(t, !strings.Contains(told.Try[0], c.not), "%s: %s", c.refused, told.Try[0])
	}
}

// TestModulesDisabled: the kernel's error is the same under lockdown and once an operator has ended
// the loading of modules, for which no signature helps.
func TestModulesDisabled(t *testing.T) {
	_, _, err := settle(t, simulated(t, "-- refused --\nnvidia Operation not permitted"))
	told := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &told) && len(told.Try) == 1, "%v", err)
	check.Has(t, told.What, "takes no modules until the next boot", "what it says")
	check.Has(t, told.Try[0], "if sysctl kernel.modules_disabled shows 1: reboot", "what it advises")
	check.Has(t, told.Try[0], "mokutil --import", "what it advises")
}

// TestModuleFirstAnswer: the kernel's answer comes before what modprobe makes of a command that
// failed.
func TestModuleFirstAnswer(t *testing.T) {
	n := simulated(t, "")
	must.OK(t, n.WriteFile("/disk", []byte("580.95.05 useless"), host.Attr{Mode: 0o644}))
	_, _, err := settle(t, n)
	told := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &told) && strings.Contains(told.What, "it finds no GPU that it supports"), "not loaded because: %v", err)
}

// TestManyClients: of thousands of processes, and of many devices, a few are named, and the others
// counted.
func TestManyClients(t *testing.T) {
	var crowd strings.Builder
	crowd.WriteString(loaded570 + "-- proc/devices --\nCharacter devices:\n195 nvidia\n")
	for minor := range 16 {
		fmt.Fprintf(&crowd, "-- dev/nvidia%d device=195:%d --\n", minor, minor)
		fmt.Fprintf(&crowd, "-- proc/9999/fd/%d link=/dev/nvidia%d --\n", minor, minor)
	}

	const processes, first = 3000, 1 << 22 // above all process ids, so none is this test's: proc(5), pid_max
	for i := range processes - 1 {
		fmt.Fprintf(&crowd, "-- proc/%d/fd/3 link=/dev/nvidia0 --\n-- proc/%[1]d/comm --\npython3\n", first+i)
	}
	n := simulated(t, crowd.String())
	clients, err := devices.Clients(t.Context(), n.View())
	if err != nil || len(clients) != processes || !strings.HasSuffix(clients[processes-1], "/dev/nvidia3, and 12 more open") {
		t.Fatalf("%d: %q, %v", len(clients), clients[len(clients)-1], err)
	}
	_, _, err = settle(t, n)
	reboot := host.Reboot{}
	check.That(t, errors.As(err, &reboot) && len(reboot.Why) <= 1024 && strings.Contains(reboot.Why, fmt.Sprintf("; and %d more", processes-4)), "%v", err)
}
