// SPDX-License-Identifier: Apache-2.0

// Package kmod holds the kinds for NVIDIA's kernel modules: a DKMS build (dkms.go, addon.go), a
// module on disk (modulefile.go) and the loaded one (module.go), the initramfs, and the GPUs'
// registration with NVLink's fabric manager (fabric.go).
package kmod

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// module is NVIDIA's loaded kernel module, with its parameters and companions. Its state compares
// the loaded module with the file on disk, so that an upgrade, its undo and a roll-back are the
// same change: gpuadm loads whatever module the packages have left on disk. Its states:
//
//	"as on disk"                           the same version and flavour, or none in both places
//	"580.95.05 open without NVreg_X=1"     without a parameter, or a companion to be loaded
//	"570.1 open, on disk 580.95.05 open"   another than on disk; "nouveau", "nova_core" or
//	                                       "nothing" in place of the loaded one
type module struct {
	kernel string   // the running one; "" when built again for undo
	files  []string // with its parameters (modprobe.d), and the modules to load at boot (modules-load.d)
	onDisk OnDiskFunc
	remade bool // the run makes the partitions again that a reload of the module loses
}

// An OnDiskFunc returns version and flavour, "580.95.05 open", of the module nvidia that modprobe
// would load for a kernel; "" if there is none.
type OnDiskFunc func(v host.View, kernel string) (string, error)

// Module wants the module nvidia that is on disk to be loaded, with the parameters and companions
// that the files name. gpuadm unloads the old module only if no process but the driver's own
// daemons holds it; else a reboot loads the new one. remade says that the spec partitions the GPUs,
// so that a reload loses no partition for good.
func Module(kernel string, files []string, onDisk OnDiskFunc, remade bool, why string) converge.Want {
	return converge.Following(module{
		kernel: kernel,
		files:  files,
		onDisk: onDisk,
		remade: remade,
	}, why)
}

// NewModule builds the thing again.
func NewModule(files []string, onDisk OnDiskFunc) converge.Thing {
	return module{files: files, onDisk: onDisk}
}

func (m module) Ref() converge.Ref {
	return converge.Ref{Kind: "module", Name: "nvidia", Reads: m.files}
}

const (
	moduleOnDisk  = ", on disk "
	moduleWithout = " without "
	moduleSettled = "as on disk"
)

// moduleState is a state's parts.
type moduleState struct {
	loaded string   // "580.95.05 open", "nouveau", "nova_core", "" if none
	disk   string   // "" if none
	lacks  []string // parameters and companions; only where loaded is as on disk
}

func (s moduleState) State() converge.State {
	switch {
	case s.loaded == s.disk && len(s.lacks) > 0:
		return converge.State(s.loaded + moduleWithout + strings.Join(s.lacks, " "))
	case s.loaded == s.disk:
		return moduleSettled
	}
	return converge.State(cmp.Or(s.loaded, "nothing") + moduleOnDisk + cmp.Or(s.disk, "nothing"))
}

// Look compares what is loaded with what modprobe would load.
func (m module) Look(_ context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", host.FirstBoot
	}
	s, err := m.look(v)
	return s.State(), err
}

func (m module) look(v host.View) (moduleState, error) {
	var s moduleState
	disk, err := m.onDisk(v, runningKernel(v))
	if err != nil {
		return s, err
	}
	s.disk = disk

	use, err := loadedModule(v, "nvidia")
	if err != nil {
		return s, err
	}
	if use == nil {
		s.loaded, err = otherDriver(v)
		if s.disk == "" { // without NVIDIA's driver on disk another one may keep the GPUs
			s.loaded = ""
		}
		return s, err
	}

	version, err := moduleLine(v, "/sys/module/nvidia/version")
	if err != nil {
		return s, err
	}
	banner, err := moduleLine(v, "/proc/driver/nvidia/version")
	if err != nil {
		return s, err
	}

	flavour := "proprietary"
	if strings.Contains(banner, "Open Kernel Module") {
		flavour = "open"
	}
	s.loaded = version + " " + flavour
	if s.loaded == s.disk {
		s.lacks, err = m.lacks(v)
	}

	return s, err
}

// kernelsOwn are the kernel's own modules that take NVIDIA's GPUs.
func kernelsOwn() []string { return []string{"nouveau", "nova_core"} }

// otherDriver returns the first of them that is loaded; "" if none is.
func otherDriver(v host.View) (name string, err error) {
	for _, name := range kernelsOwn() {
		if loaded, err := loadedModule(v, name); err != nil || loaded != nil {
			return name, err
		}
	}
	return "", nil
}

// Affected says that a new build or package puts another module on disk, and that changed files set
// other parameters. A build for a kernel that does not run affects nothing.
func (m module) Affected(found converge.State, by converge.Change) converge.State {
	isSettled := found == moduleSettled || found == ""
	if by.Kind == "file" && slices.Contains(m.files, by.Name) {
		if !isSettled {
			return found
		}
		return converge.State("the one before" + moduleWithout + by.Name)
	}

	disk := m.onDiskAfter(by)
	if disk == "" {
		return found
	}
	loaded, _, _ := strings.Cut(string(found), moduleOnDisk)
	if isSettled || strings.Contains(loaded, moduleWithout) {
		loaded = "the one before"
	}
	return converge.State(loaded + moduleOnDisk + disk)
}

// onDiskAfter says which module is on disk after a change: its version, or words; "" if the change
// leaves the module alone.
func (m module) onDiskAfter(by converge.Change) string {
	anyKernel := m.kernel == ""
	buildsDriver := by.Kind == "dkms" && strings.HasPrefix(by.Name, "nvidia/") // and no add-on
	switch {
	case buildsDriver && (anyKernel || strings.HasSuffix(by.Name, " "+m.kernel)):
		if by.After != installed {
			return "nothing"
		}
		build, _, _ := strings.Cut(by.Name, " ")
		_, version, _ := strings.Cut(build, "/")
		return cmp.Or(version, "nothing")

	case by.Kind == "module-file" && (anyKernel || by.Name == moduleFile{kernel: m.kernel}.Ref().Name):
		return cmp.Or(moduleIn(by.After), "nothing")

	case slices.Contains(by.Brings, m.Ref().Name):
		// Packages' scripts, or NVIDIA's installer, bring it: undo then loads the module that it
		// restores.
		return "what that leaves"
	}

	return ""
}

// Current is always "as on disk": which module that is, is known only when the Follower's turn
// comes.
func (m module) Current(converge.State) converge.State { return moduleSettled }

// Make unloads the loaded module if it differs from the one on disk, and loads that one. It starts
// the daemons again that it has stopped, also in a run that ends meanwhile.
func (m module) Make(ctx context.Context, h host.Host, _ converge.State) error {
	s, err := m.look(h)
	if err != nil {
		return err
	}
	if s.loaded != "" && s.loaded == s.disk && !reloads(s.State()) {
		return m.load(ctx, h, s)
	}

	lasting := context.WithoutCancel(ctx)
	if err := unload(ctx, h, s); err != nil {
		return host.Join(err, things.Resume(lasting, h))
	}
	if s.disk == "" {
		return nil
	}

	return host.Join(m.load(ctx, h, s), things.Resume(lasting, h))
}

// Sweep loads the module that a killed Make had unloaded, and starts the daemons that it
// had stopped.
func (m module) Sweep(ctx context.Context, h host.Host, before converge.State) (found bool, err error) {
	if !h.Live() {
		return false, nil
	}
	stopped, err := things.IsPaused(h)
	if err != nil {
		return false, err
	}
	s, err := m.look(h)
	if err != nil {
		return false, err
	}

	wasLoaded := !strings.HasPrefix(string(before), "nothing"+moduleOnDisk)
	unloaded := wasLoaded && s.loaded == "" && s.disk != ""
	if unloaded {
		err = m.load(ctx, h, s)
	}
	if stopped {
		err = host.Join(err, things.Resume(ctx, h))
	}
	return stopped || unloaded, err
}

// reloads reports whether Make unloads the module and loads it again: not if only companions are
// missing.
func reloads(found converge.State) bool {
	_, lacks, without := strings.Cut(string(found), moduleWithout)
	if !without {
		return true
	}

	return slices.ContainsFunc(strings.Fields(lacks), func(name string) bool {
		isParameter := strings.Contains(name, "=")
		isFile := strings.HasPrefix(name, "/")
		return isParameter || isFile && !strings.Contains(name, "/modules-load.d/")
	})
}

// Breaks says that the GPUs' clients stop and, unless the run makes the partitions again, that
// partitions are lost: an unloaded driver forgets all MIG instances, and GPUs newer than Ampere
// also forget their MIG mode.
// Source: MIG user guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/.
func (m module) Breaks(
	ctx context.Context, v host.View, found, to converge.State,
) ([]string, map[string][]string, error) {
	return m.BreaksBeside(ctx, v, found, to, nil)
}

// BreaksBeside counts no partition of a GPU whose partitions the run changes too: it destroys them
// before the reload, or restores the earlier ones after it.
func (m module) BreaksBeside(
	ctx context.Context, v host.View, found, _ converge.State, others []converge.Change,
) ([]string, map[string][]string, error) {
	breaks := []string{"stop-clients"}
	if m.remade || !reloads(found) {
		return breaks, nil, nil
	}
	var spared []string
	for _, c := range others {
		if c.Kind == "mig" {
			spared = append(spared, c.Name)
		}
	}

	lost := partitioned(ctx, v, spared)
	if len(lost) == 0 {
		return breaks, nil, nil
	}

	return append(breaks, "lose-partitions"), map[string][]string{"lose-partitions": lost}, nil
}

// partitioned counts the MIG instances of each GPU that has some, but for those in without. If
// packages have replaced the driver's library, it no longer answers: then partitioned counts the
// capabilities in /proc, which are the loaded module's and name no address.
// Source:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
func partitioned(ctx context.Context, v host.View, without []string) []string {
	var list []string
	count := func(gpu string, n int) {
		if n > 0 && !slices.Contains(without, gpu) {
			list = append(list, "GPU "+gpu+": "+trouble.Count(n, "MIG instance"))
		}
	}

	if d, err := v.Driver(ctx); err == nil {
		for _, g := range d.GPUs {
			count(g.Address, len(g.Instances))
		}
		return list
	}

	for _, gpu := range devices.Below(v, devices.CapabilitiesFolder, "gpu") {
		number := strings.TrimPrefix(path.Base(gpu), "gpu")
		count(number, len(devices.Below(v, gpu+"/mig", "gi")))
	}

	return list
}
