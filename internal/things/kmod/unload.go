// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

var errModuleHeld = errors.New("it is in use")

// unloadOrder is the order in which to unload NVIDIA's modules: each comes before those that it
// holds.
func unloadOrder() []string {
	return []string{
		"nvidia_peermem", "nvidia_fs", "gdrdrv",
		"nvidia_drm", "nvidia_uvm", "nvidia_modeset",
		"nvidia",
	}
}

// unload stops the driver's own daemons and unloads the modules one by one. Resume starts the
// daemons again; without a driver on disk they stay stopped.
func unload(ctx context.Context, h host.Host, s moduleState) error {
	if slices.Contains(kernelsOwn(), s.loaded) {
		err := unloadOne(ctx, h, s.loaded)
		if errors.Is(err, errModuleHeld) { // a console uses it
			return host.Reboot{Why: s.loaded + " has the GPUs and is in use: it is blacklisted now, and does not load at the next boot"}
		}
		return err
	}

	why, err := whyHeld(ctx, h)
	if err != nil {
		return err
	}
	if len(why) > 0 {
		return host.Reboot{
			Why: fmt.Sprintf("the module nvidia %s cannot be unloaded: %s", s.loaded, strings.Join(why, "; ")),
		}
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
		}
		if err != nil {
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

	if use.uses == 0 {
		_, err = h.Do(ctx, "rmmod", name)
		return err
	}

	who := "something inside the kernel"
	if len(use.holders) > 0 {
		who = "the module " + strings.Join(use.holders, " and ")
	}
	processes, err := devices.Holders(ctx, h)
	if err == nil && len(processes) > 0 {
		who = processes[0].String()
	}
	return fmt.Errorf("cannot unload module %s: %w: %s", name, errModuleHeld, who)
}

// whyHeld says what keeps the loaded modules from being unloaded: other modules, a console or a
// display, processes other than the driver's own daemons. It is nil if nothing does.
func whyHeld(ctx context.Context, v host.View) ([]string, error) {
	processes, err := devices.Holders(ctx, v)
	if err != nil {
		return nil, err
	}

	why := trouble.Few(devices.NamesOf(processes), 4)
	for _, name := range unloadOrder() {
		use, err := loadedModule(v, name)
		if err != nil {
			return nil, err
		}
		if use == nil {
			continue
		}

		foreign := slices.DeleteFunc(slices.Clone(use.holders), func(module string) bool {
			return slices.Contains(unloadOrder(), module)
		})
		if len(foreign) > 0 {
			users := strings.Join(foreign, " and ")
			why = append(why, fmt.Sprintf("module %s is used by the module %s", name, users))
		}

		unseen := use.uses - len(use.holders)
		if unseen > 0 && len(processes) == 0 {
			why = append(why, fmt.Sprintf(
				"module %s is used %s by no process that can be seen: by a console, or inside the kernel",
				name, trouble.Count(unseen, "time"),
			))
		}
	}

	return why, nil
}

// moduleUse is what keeps a loaded module from being unloaded.
type moduleUse struct {
	uses    int      // by processes, the kernel and other modules
	holders []string // the other modules
}

// loadedModule looks at one module, by its name or by that of its file; nil if the module is not
// loaded, or is built into the kernel.
func loadedModule(v host.View, name string) (*moduleUse, error) {
	name = strings.ReplaceAll(name, "-", "_") // a file may be named nvidia-uvm.ko
	folder := "/sys/module/" + name
	count, err := v.ReadFile(folder + "/refcnt")
	if host.NotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	uses, err := strconv.Atoi(strings.TrimSpace(string(count)))
	if err != nil {
		return nil, fmt.Errorf("cannot read the reference count of module %s: %w", name, err)
	}
	holders, err := v.ReadDir(folder + "/holders")
	if err != nil && !host.NotExist(err) {
		return nil, err
	}

	return &moduleUse{uses, holders}, nil
}
