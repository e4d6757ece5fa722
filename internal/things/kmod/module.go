// SPDX-License-Identifier: Apache-2.0

// Package kmod holds the things that make NVIDIA's kernel modules run: built by DKMS or brought by a package, in the initramfs, loaded as
// they lie on disk, and, where there is an NVSwitch, registered with its fabric.
package kmod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// module is NVIDIA's kernel module as it runs: loaded as it lies on disk, with the parameters and the companions that its
// files ask for. The state is the loaded module against the file on disk, so that an upgrade, its undo and a roll-back are the same change: whatever the packages have left on
// disk is what shall run. Its states:
//
//	"as on disk"                              the same version and flavour, or neither loaded nor on disk
//	"580.95.05 open without NVreg_X=1"        without a parameter, or a companion that is to be loaded
//	"570.1 open, on disk 580.95.05 open"      another than on disk; "nouveau" or "nothing" in place of the loaded one
type module struct {
	kernel string   // that runs; "" when built again for undo
	files  []string // its parameters (modprobe.d), and what is loaded at boot (modules-load.d)
	onDisk OnDiskFunc
	remade bool // the run makes the partitions again that the module forgets when it is loaded again
}

// An OnDiskFunc returns version and flavour, "580.95.05 open", of the module nvidia that modprobe would load for a
// kernel; "" if there is none.
type OnDiskFunc func(v host.View, kernel string) (string, error)

// Module wants the module nvidia loaded as it lies on disk, where there is one, with the parameters and companions that
// the files say. It is taken out only when nothing but the driver's own daemons hold it; else it is for a reboot. remade says
// that the spec has the GPUs partitioned, so that no partition is lost with it.
func Module(kernel string, files []string, onDisk OnDiskFunc, remade bool, why string) converge.Want {
	return converge.Following(module{kernel, files, onDisk, remade}, why)
}

// NewModule builds the thing again.
func NewModule(files []string, onDisk OnDiskFunc) converge.Thing {
	return module{"", files, onDisk, false}
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
	loaded string   // "580.95.05 open", "nouveau", "" if none
	disk   string   // "" if none
	lacks  []string // where loaded is as on disk
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

func (m module) look(v host.View) (s moduleState, err error) {
	if s.disk, err = m.onDisk(v, oneLine(v, "/proc/sys/kernel/osrelease")); err != nil {
		return s, err
	}
	use, err := loadedModule(v, "nvidia")
	if err != nil {
		return s, err
	}
	if use == nil {
		nouveau, err := loadedModule(v, "nouveau")
		if nouveau != nil && s.disk != "" { // without a driver on disk it may have the GPUs
			s.loaded = "nouveau"
		}
		return s, err
	}
	flavour := "proprietary"
	if strings.Contains(oneLine(v, "/proc/driver/nvidia/version"), "Open Kernel Module") {
		flavour = "open"
	}
	s.loaded = oneLine(v, "/sys/module/nvidia/version") + " " + flavour
	if s.loaded == s.disk {
		s.lacks, err = m.lacks(v)
	}
	return s, err
}

// lacks lists the parameters that are not as the files say, and the modules they name that are not loaded.
func (m module) lacks(v host.View) (lacks []string, err error) {
	told, companions, err := m.configured(v)
	if err != nil {
		return nil, err
	}
	are := parameters(oneLine(v, "/proc/driver/nvidia/params"))
	for _, p := range told {
		name, value, _ := strings.Cut(p, "=")
		is, known := are[strings.TrimPrefix(name, "NVreg_")]
		if known && !sameParameter(value, is) {
			lacks = append(lacks, strings.ReplaceAll(p, " ", "_"))
		}
	}
	for _, name := range companions {
		use, err := loadedModule(v, name)
		if err != nil {
			return nil, err
		}
		if use == nil && !builtIn(v, name) {
			lacks = append(lacks, name)
		}
	}
	return lacks, nil
}

// builtIn says whether a module is part of the running kernel itself: then there is nothing to load. Source: modules.builtin in
// Documentation/kbuild/kbuild.rst of the kernel's tree.
func builtIn(v host.View, name string) bool {
	list := oneLine(v, "/lib/modules/"+oneLine(v, "/proc/sys/kernel/osrelease")+"/modules.builtin")
	return strings.Contains(list, "/"+strings.ReplaceAll(name, "-", "_")+".ko") || strings.Contains(list, "/"+strings.ReplaceAll(name, "_", "-")+".ko")
}

// configured reads the parameters of the module nvidia from the files in modprobe.d's form, and the modules to load from those
// in modules-load.d's. A missing file names none.
func (m module) configured(v host.View) (params, companions []string, err error) {
	for _, name := range m.files {
		data, err := v.ReadFile(name)
		if host.NotExist(err) {
			continue
		} else if err != nil {
			return nil, nil, err
		}
		for line := range strings.Lines(string(data)) {
			fields := modprobeWords(strings.TrimSpace(line))
			switch {
			case strings.Contains(name, "/modules-load.d/"):
				if len(fields) == 1 && fields[0][0] != '#' && fields[0][0] != ';' {
					companions = append(companions, fields[0])
				}
			case len(fields) > 2 && fields[0] == "options" && fields[1] == "nvidia":
				params = append(params, fields[2:]...)
			}
		}
	}
	return params, companions, nil
}

// modprobeWords splits a line at spaces outside double quotes, and takes the quotes off, as the kernel does with a
// module's parameters: next_arg in lib/cmdline.c.
func modprobeWords(line string) (words []string) {
	var word strings.Builder
	quoted, any := false, false
	for _, c := range line + " " {
		switch {
		case c == '"':
			quoted, any = !quoted, true
		case (c == ' ' || c == '\t') && !quoted:
			if any {
				words = append(words, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(c)
			any = true
		}
	}
	return words
}

// parameters reads the driver's own list: "EnableGpuFirmware: 18". Source: nv_procfs_read_params in
// kernel-open/nvidia/nv-procfs.c of https://github.com/NVIDIA/open-gpu-kernel-modules.
func parameters(list string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(list) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			found[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return found
}

// sameParameter compares a configured parameter with the parameter that the driver shows: unsigned, in decimal.
func sameParameter(configured, is string) bool {
	a, err1 := strconv.ParseInt(configured, 0, 64)
	b, err2 := strconv.ParseInt(is, 0, 64)
	if err1 == nil && err2 == nil {
		return a == b || uint32(a) == uint32(b) && (a < 0) != (b < 0)
	}
	return configured == is
}

// Affected foresees that a new build or package brings another module on disk, and that changed files set other
// parameters. A build for another kernel than the running one changes nothing here.
func (m module) Affected(found converge.State, by converge.Change) converge.State {
	brought := ""
	switch {
	case by.Kind == "dkms" && strings.HasSuffix(by.Name, " "+m.kernel) || by.Kind == "dkms" && m.kernel == "":
		if by.After == installed {
			what, _, _ := strings.Cut(by.Name, " ")
			_, brought, _ = strings.Cut(what, "/")
		}
	case by.Kind == "module-file" && (m.kernel == "" || by.Name == moduleFile{kernel: m.kernel}.Ref().Name):
		brought = moduleIn(by.After)
	case by.Kind == "file" && slices.Contains(m.files, by.Name):
		if found != moduleSettled && found != "" {
			return found
		}
		return converge.State("the one before" + moduleWithout + by.Name)
	case slices.Contains(by.Brings, m.Ref().Name): // by scripts of packages, or NVIDIA's installer: its undo loads the module that it restores
		brought = "what that leaves"
	default:
		return found
	}
	loaded, _, _ := strings.Cut(string(found), moduleOnDisk)
	if found == "" || found == moduleSettled || strings.Contains(loaded, moduleWithout) {
		loaded = "the one before"
	}
	return converge.State(loaded + moduleOnDisk + cmp.Or(brought, "nothing"))
}

// Current is always what lies on disk: which that is, is known when all else is made.
func (m module) Current(converge.State) converge.State { return moduleSettled }

// Make takes out what is loaded, where it is another, and loads what lies on disk.
func (m module) Make(ctx context.Context, h host.Host, _ converge.State) error {
	s, err := m.look(h)
	if err != nil {
		return err
	}
	if s.loaded != "" && s.loaded == s.disk && !reloads(s.State()) {
		return m.load(ctx, h, s)
	}
	if err := unload(ctx, h, s); err != nil {
		return host.Join(err, things.Resume(ctx, h))
	}
	if s.disk == "" {
		return nil
	}
	return host.Join(m.load(ctx, h, s), things.Resume(ctx, h))
}

// reloads says whether the module is taken out and loaded again: not where it only lacks companions.
func reloads(found converge.State) bool {
	_, lacks, without := strings.Cut(string(found), moduleWithout)
	return !without || slices.ContainsFunc(strings.Fields(lacks), func(l string) bool {
		return strings.Contains(l, "=") || strings.HasPrefix(l, "/") && !strings.Contains(l, "/modules-load.d/")
	})
}

// unload stops the driver's own daemons and takes the modules out one by one. The daemons run again after Resume; without
// a driver there is nothing left to serve, and they stay stopped.
func unload(ctx context.Context, h host.Host, s moduleState) error {
	if s.loaded == "nouveau" {
		err := unloadOne(ctx, h, s.loaded)
		if errors.Is(err, errModuleHeld) { // a console shows by it
			return host.Reboot{Why: "nouveau has the GPUs and is in use: it is blacklisted now, and does not load at the next boot"}
		}
		return err
	}
	why, err := keptBy(ctx, h)
	if err != nil {
		return err
	}
	if len(why) > 0 {
		return host.Reboot{Why: fmt.Sprintf("the module nvidia %s cannot be unloaded: %s", s.loaded, strings.Join(why, "; "))}
	}
	// Where nothing is on disk, a later stage may build it, or a roll-back bring the one before: that starts them again.
	if err := things.Pause(ctx, h, devices.Daemons()); err != nil {
		return err
	}
	for _, name := range unloadOrder() {
		err := unloadOne(ctx, h, name)
		if errors.Is(err, errModuleHeld) {
			return host.Reboot{Why: err.Error()}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// unloadOne takes one module out if it is loaded and nothing holds it. rmmod gets its one name: modprobe -r would
// obey install and remove lines that packages bring, and take out more than was asked for.
func unloadOne(ctx context.Context, h host.Host, name string) error {
	use, err := loadedModule(h, name)
	if err != nil || use == nil {
		return err
	}
	if use.uses != 0 {
		who := "something inside the kernel"
		if len(use.holders) > 0 {
			who = "the module " + strings.Join(use.holders, " and ")
		}
		if holders, err := devices.Holders(ctx, h); err == nil && len(holders) > 0 {
			who = holders[0].String()
		}
		return fmt.Errorf("cannot unload module %s: %w: %s", name, errModuleHeld, who)
	}
	_, err = h.Do(ctx, "rmmod", name)
	return err
}

// moduleFile is the module nvidia on disk for one kernel, brought by a package. Its state is "580.95.05 open", with what
// is wrong with it after a comma. It is not made: it is proven to have come, before anything is loaded or rebooted.
type moduleFile struct {
	kernel string
	proof  ModuleFileFunc
}

// A ModuleFileFunc says which module a kernel has on disk, "580.95.05 open", and after a comma what is wrong with it.
type ModuleFileFunc func(v host.View, kernel string) (converge.State, error)

// ModuleFile wants a kernel to have the module of a version and flavour. What brings it comes before it in the stage.
func ModuleFile(kernel, version, flavour string, proof ModuleFileFunc, why string) converge.Want {
	return converge.Want{Thing: moduleFile{kernel, proof}, Why: why, To: func(converge.State) (converge.State, error) {
		return converge.State(version + " " + flavour), nil
	}}
}

// NewModuleFile builds the thing again from its name.
func NewModuleFile(name string, proof ModuleFileFunc) converge.Thing {
	return moduleFile{strings.TrimPrefix(name, "nvidia for "), proof}
}

// moduleIn is the module that a state says is on disk, without what is wrong with it.
func moduleIn(state converge.State) string {
	module, _, _ := strings.Cut(string(state), ",")
	return module
}

func (m moduleFile) Ref() converge.Ref {
	return converge.Ref{Kind: "module-file", Name: "nvidia for " + m.kernel}
}

func (m moduleFile) Look(_ context.Context, v host.View) (converge.State, error) {
	return m.proof(v, m.kernel)
}

// Make always fails: here the packages did not bring the module that they promise.
func (m moduleFile) Make(_ context.Context, h host.Host, to converge.State) error {
	found, err := m.proof(h, m.kernel)
	if err != nil {
		return err
	}
	if found == "" {
		return &trouble.Error{
			What: fmt.Sprintf("cannot use kernel %s: no package has brought a module nvidia %s for it", m.kernel, to),
			Try:  []string{"build = \"dkms\" in [driver], which builds it here", "hold the kernel back until there is a package for it"},
		}
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot use kernel %s: it has the module nvidia %s, and %s is wanted", m.kernel, found, to),
		Try:  []string{"modinfo -k " + m.kernel + " nvidia, which says where that lies: another package may have brought it, or a build by hand", "build = \"dkms\" in [driver], which builds it here"},
	}
}
