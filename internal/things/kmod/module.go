// SPDX-License-Identifier: Apache-2.0

// Package kmod holds the kinds for NVIDIA's kernel modules: a DKMS build (dkms.go), a module on
// disk and the loaded one (module.go, load.go), the initramfs, and the GPUs' registration with
// NVLink's fabric manager (fabric.go).
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

// module is NVIDIA's loaded kernel module, with its parameters and companions. Its state compares
// the loaded module with the file on disk, so that an upgrade, its undo and a roll-back are the
// same change: gpuadm loads whatever module the packages have left on disk. Its states:
//
//	"as on disk"                              the same version and flavour, or neither loaded nor on disk
//	"580.95.05 open without NVreg_X=1"        without a parameter, or a companion that is to be loaded
//	"570.1 open, on disk 580.95.05 open"      another than on disk; "nouveau" or "nothing" in place of the loaded one
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
		if nouveau != nil && s.disk != "" { // without a driver on disk nouveau may keep the GPUs
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

// lacks lists the parameters whose value differs from the files', and the modules in the files that
// are not loaded.
func (m module) lacks(v host.View) (lacks []string, err error) {
	params, companions, err := m.configured(v)
	if err != nil {
		return nil, err
	}
	are := parameters(oneLine(v, "/proc/driver/nvidia/params"))
	for _, p := range params {
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

// builtIn says whether a module is part of the running kernel itself: then there is nothing to
// load. Source: modules.builtin in Documentation/kbuild/kbuild.rst of the kernel's tree.
func builtIn(v host.View, name string) bool {
	list := oneLine(v, "/lib/modules/"+oneLine(v, "/proc/sys/kernel/osrelease")+"/modules.builtin")
	return strings.Contains(list, "/"+strings.ReplaceAll(name, "-", "_")+".ko") || strings.Contains(list, "/"+strings.ReplaceAll(name, "_", "-")+".ko")
}

// configured reads the parameters of the module nvidia from the files in modprobe.d, and the
// modules to load from those in modules-load.d. It ignores a missing file.
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

// modprobeWords splits a line at spaces outside double quotes, and takes the quotes off, as the
// kernel does with a module's parameters: next_arg in lib/cmdline.c.
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

// sameParameter compares a configured parameter with the parameter that the driver shows: unsigned,
// in decimal.
func sameParameter(configured, is string) bool {
	a, err1 := strconv.ParseInt(configured, 0, 64)
	b, err2 := strconv.ParseInt(is, 0, 64)
	if err1 == nil && err2 == nil {
		return a == b || uint32(a) == uint32(b) && (a < 0) != (b < 0)
	}
	return configured == is
}

// Affected says that a new build or package puts another module on disk, and that changed files set
// other parameters. A build for a kernel that does not run affects nothing.
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
	case slices.Contains(by.Brings, m.Ref().Name): // by packages' scripts, or NVIDIA's installer: undo then loads the module that it restores
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

// Current is always "as on disk": which module that is, is known only when the Follower's turn
// comes.
func (m module) Current(converge.State) converge.State { return moduleSettled }

// Make unloads the loaded module if it differs from the one on disk, and loads that one.
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

// reloads says whether Make unloads the module and loads it again: not if only companions are
// missing.
func reloads(found converge.State) bool {
	_, lacks, without := strings.Cut(string(found), moduleWithout)
	return !without || slices.ContainsFunc(strings.Fields(lacks), func(l string) bool {
		return strings.Contains(l, "=") || strings.HasPrefix(l, "/") && !strings.Contains(l, "/modules-load.d/")
	})
}

// unload stops the driver's own daemons and unloads the modules one by one. Resume starts the
// daemons again; without a driver on disk they stay stopped.
func unload(ctx context.Context, h host.Host, s moduleState) error {
	if s.loaded == "nouveau" {
		err := unloadOne(ctx, h, s.loaded)
		if errors.Is(err, errModuleHeld) { // a console uses it
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
	// If no module is on disk, a later change may build one, or a roll-back may restore the last
	// one: that starts the daemons again.
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

// unloadOne unloads one module if it is loaded and nothing holds it. It runs rmmod: modprobe -r
// obeys the install and remove lines of packages, and may unload more modules.
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

// moduleFile is the module nvidia on disk for one kernel, from a package. Its state is "580.95.05
// open", with what is wrong with it after a comma. gpuadm does not make it: it verifies that the
// package has brought it, before it loads the module or reboots.
type moduleFile struct {
	kernel string
	proof  ModuleFileFunc
}

// A ModuleFileFunc says which module a kernel has on disk, "580.95.05 open", and after a comma what
// is wrong with it.
type ModuleFileFunc func(v host.View, kernel string) (converge.State, error)

// ModuleFile wants a kernel to have the module of a version and flavour. The packages that bring it
// come before it.
func ModuleFile(kernel, version, flavour string, proof ModuleFileFunc, why string) converge.Want {
	return converge.Want{Thing: moduleFile{kernel, proof}, Why: why, To: func(converge.State) (converge.State, error) {
		return converge.State(version + " " + flavour), nil
	}}
}

// NewModuleFile builds the thing again from its name.
func NewModuleFile(name string, proof ModuleFileFunc) converge.Thing {
	return moduleFile{strings.TrimPrefix(name, "nvidia for "), proof}
}

// moduleIn is the module in a moduleFile's state, without what is wrong with it.
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

// Make always fails: the packages have not brought the module that they should contain.
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
		Try:  []string{"modinfo -k " + m.kernel + " nvidia, which says where that lies: another package may have brought it, or a build by hand; if it is the right package's file: apt-get install --reinstall, or dnf reinstall", "build = \"dkms\" in [driver], which builds it here"},
	}
}
