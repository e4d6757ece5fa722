// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Machine is what was read of the machine. Each domain is read once, when the first check asks for
// it; checks run side by side.
type Machine struct {
	ctx  context.Context // of the one examination that the Machine is for
	View host.View
	spec spec.Spec // what node.toml asks for

	facts      domain[facts.Facts]
	log        domain[[]string]
	packages   domain[inventory]
	joined     domain[string] // what joins the GPUs over NVLink
	registered domain[registration]
	times      domain[times]
	units      sync.Map // of domain[host.Unit], by name

	mu     sync.Mutex
	unread []Unread
}

// domain is one part of a machine.
type domain[T any] struct {
	mu    sync.Mutex    // of known
	known chan struct{} // closed when value and ok are known; nil before the first check asks

	value T
	ok    bool
}

// read reads a domain when the first check asks for it. ok is false where it cannot be read, which
// is noted under its name.
func (d *domain[T]) read(m *Machine, name string, read func() (T, error)) (value T, ok bool) {
	d.mu.Lock()
	first := d.known == nil
	if first {
		d.known = make(chan struct{})
	}
	d.mu.Unlock()

	if !first {
		<-d.known
		return d.value, d.ok
	}
	defer close(d.known)
	var err error
	d.value, err = read()
	d.ok = err == nil
	if err != nil {
		m.cannotRead(name, err)
	}
	return d.value, d.ok
}

// cannotRead notes what could not be read, and why.
func (m *Machine) cannotRead(what string, err error) {
	why := err.Error()
	if errors.Is(err, fs.ErrPermission) {
		why = "only root may read it"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := (Unread{what, why}); !slices.Contains(m.unread, u) {
		m.unread = append(m.unread, u)
	}
}

func (m *Machine) notRead() []Unread {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(slices.Values(m.unread), func(a, b Unread) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why)) })
}

// Facts are what machine this is, with its modules and what its driver says. What of them could not
// be read is empty.
func (m *Machine) Facts() facts.Facts {
	f, _ := m.facts.read(m, "facts", func() (facts.Facts, error) {
		f, err := facts.Gather(m.ctx, m.View, facts.Everything)
		if err != nil {
			m.cannotRead("some facts", err)
		}
		return f, nil
	})
	return f
}

// GPUs are the functions on the PCI bus that are GPUs.
func (m *Machine) GPUs() []facts.PCI {
	return slices.DeleteFunc(slices.Clone(m.Facts().GPUs), func(p facts.PCI) bool { return !p.Display() })
}

// text reads a small file; "" where it is not there. ok is false where it cannot be read.
func (m *Machine) text(name string) (text string, ok bool) {
	data, err := m.View.ReadFile(name)
	switch {
	case err == nil:
		return strings.TrimSpace(string(data)), true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", true
	}
	m.cannotRead(name, err)
	return "", false
}

// has says whether something is there under a name, links followed.
func (m *Machine) has(name string) bool {
	_, err := m.View.Stat(name)
	return err == nil
}

// settled is how long a daemon that systemd has restarted must run before it counts as running:
// kubelet and containerd are active until they refuse their configuration; kubelet took less than
// 2.2 seconds at a load of 20. NRestarts: org.freedesktop.systemd1(5).
const settled = 5 * time.Second

// Unit describes a unit; ok is false where no systemd answers, and for an engine that no unit runs.
// A daemon that systemd has restarted is watched until it ends again or has settled.
func (m *Machine) Unit(name string) (host.Unit, bool) {
	if name == "" {
		return host.Unit{}, false
	}
	d, _ := m.units.LoadOrStore(name, new(domain[host.Unit]))
	return d.(*domain[host.Unit]).read(m, "units of systemd", func() (host.Unit, error) {
		u, err := m.View.Unit(m.ctx, name)
		for n := u.Ended; err == nil && n > 0 && u.Uptime-u.Since < settled && host.Pause(m.ctx, settled/50) == nil; {
			if u, err = m.View.Unit(m.ctx, name); u.Ended > n { // it has ended since the first look, and runs again
				u.Active, u.Sub, u.PID = "activating", "auto-restart", 0
				return u, nil
			}
		}
		return u, err
	})
}

// note records something that is no fault, and that an operator should know.
func (m *Machine) note() string {
	f := m.Facts()
	switch {
	case len(m.GPUs()) == 0 || f.Modules == nil || f.Driver != nil || f.Modules.Version != "" || len(f.Modules.Libraries) > 0:
	case slices.ContainsFunc(f.Modules.Kernels, func(k facts.KernelModules) bool { return k.Nvidia != nil }):
	case slices.ContainsFunc(m.GPUs(), func(p facts.PCI) bool { return p.Driver != "" }):
	case !m.spec.Has("driver"):
		return "no NVIDIA driver is installed, and no node.toml asks for one: " + trouble.Command("init") + " writes one that does"
	default:
		return "no NVIDIA driver is installed: " + trouble.Command("plan") + " shows how to get one"
	}
	if c, asked, err := drivers.New().Choose(m.spec, f); err == nil && asked && f.Modules != nil && len(f.Modules.Libraries) > 0 {
		return drivers.NextKernel(c.Version, *f.Modules, c)
	}
	return ""
}

// NVML are the GPUs that the driver answers for, by PCI address; ok is false where no driver
// answers.
func (m *Machine) NVML() (gpus map[string]host.GPU, ok bool) {
	d := m.Facts().Driver
	if d == nil {
		return nil, false
	}
	gpus = map[string]host.GPU{}
	for _, g := range d.GPUs {
		gpus[g.Address] = g
	}
	return gpus, true
}

// ownDriver says whether the driver is the machine's, not a container's.
func (m *Machine) ownDriver() bool {
	o := m.Facts().DriverOwner
	return o == nil || o.Name != facts.GPUOperator
}

// driverInstalled says whether the machine has parts of a driver of its own, and a GPU for it.
func (m *Machine) driverInstalled() bool {
	mod := m.Facts().Modules
	return m.ownDriver() && len(m.GPUs()) > 0 && mod != nil && (len(mod.Libraries) > 0 || len(m.dkmsVersions()) > 0 ||
		slices.ContainsFunc(mod.Kernels, func(k facts.KernelModules) bool { return len(k.Files) > 0 }))
}

// loaded says whether any sign shows that the module nvidia is loaded.
func (m *Machine) loaded() bool {
	f := m.Facts()
	return f.Driver != nil || f.Modules != nil && f.Modules.Version != "" ||
		slices.ContainsFunc(m.GPUs(), func(p facts.PCI) bool { return p.Driver == "nvidia" })
}

// running is what the running kernel has of NVIDIA's modules.
func (m *Machine) running() (facts.KernelModules, bool) {
	f := m.Facts()
	if f.Modules == nil {
		return facts.KernelModules{}, false
	}
	return f.Modules.Of(f.Kernel.Running)
}

// dkmsVersions are the versions of NVIDIA's modules that DKMS is to build: the folders of
// /var/lib/dkms/nvidia, dkms(8).
func (m *Machine) dkmsVersions() []string {
	names, err := m.View.ReadDir("/var/lib/dkms/nvidia")
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.Contains(n, ".") || !m.has("/var/lib/dkms/nvidia/"+n+"/source") })
}

// daemons are the driver's own daemons that hold a GPU, the last to stop first.
func (m *Machine) daemons() (units []string) {
	holders, _ := devices.Holders(m.ctx, m.View)
	for _, unit := range slices.Backward(devices.Daemons()) {
		if slices.ContainsFunc(holders, func(h devices.Holder) bool { return h.Unit == unit }) {
			units = append(units, unit)
		}
	}
	return units
}

// drainFirst puts the drain of the Node before commands that end what runs on a GPU.
func (m *Machine) drainFirst(causes []Cause) {
	k, r := m.Facts().Kubelet, registration{}
	if k.Joined {
		r, _ = m.Registration()
	}
	name := cmp.Or(r.name, k.NodeName)
	for i, c := range causes {
		resets := slices.ContainsFunc(c.Commands, func(command string) bool { return strings.Contains(command, "--gpu-reset") })
		interrupts := resets || slices.ContainsFunc(c.Commands, func(command string) bool {
			return strings.HasSuffix(command, "reboot") || strings.Contains(command, "poweroff")
		})
		if resets { // the driver's own daemons hold the GPUs: nvidia-smi(1), --gpu-reset
			for _, unit := range m.daemons() {
				c.Commands = slices.Concat([]string{"sudo systemctl stop " + unit}, c.Commands, []string{"sudo systemctl start " + unit})
			}
			// A drain leaves the pods of DaemonSets, and the device plugin holds the GPUs, too. It
			// tolerates no NoExecute: see repellingTaints.
			if space, pod, there := strings.Cut(r.pluginPod(), "/"); there && m.ownDriver() {
				taint := "kubectl taint node " + name + " gpu-reset"
				gone := "kubectl -n " + space + " wait --for=delete pod/" + pod + " --timeout=2m"
				c.Commands = slices.Concat([]string{taint + "=:NoExecute", gone}, c.Commands, []string{taint + "-"})
			}
			causes[i].Commands = c.Commands
		}
		if k.Joined && interrupts {
			causes[i].Commands = append([]string{"kubectl drain " + name + " --ignore-daemonsets --delete-emptydir-data"}, c.Commands...)
		}
	}
}
