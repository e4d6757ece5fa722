// SPDX-FileCopyrightText: The gpuadm authors
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
	"github.com/gpuadm/gpuadm/internal/pci"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// UnboundGPUs says which GPUs on the bus the module nvidia does not serve, and why that may be: the wrong flavour binds
// none of a new or an old architecture. GPUs that are handed to virtual machines count as served.
func UnboundGPUs(v host.View) (problem string, err error) {
	functions, err := pci.Functions(v)
	if err != nil {
		return "", err
	}
	var unbound []string
	all := 0
	for _, f := range functions {
		if f.Vendor != pci.Nvidia || !f.Display() {
			continue
		}
		all++
		switch f.Driver {
		case "":
			unbound = append(unbound, f.Address)
		case "nouveau":
			unbound = append(unbound, f.Address+" (nouveau holds it)")
		}
	}
	if len(unbound) == 0 {
		return "", nil
	}
	return fmt.Sprintf("the module nvidia serves %d of %d GPUs, and not %s", all-len(unbound), all, strings.Join(unbound, ", ")), nil
}

// oneLine reads an attribute of the kernel's, "" if it does not say it.
func oneLine(v host.View, name string) string {
	return strings.TrimSpace(string(mustRead(v, name)))
}

// moduleUse is what keeps one loaded module.
type moduleUse struct {
	name    string
	uses    int
	holders []string // other modules
}

// loadedModule looks at one module, by its name or its file's; nil if it is not loaded, or built into the kernel.
func loadedModule(v host.View, name string) (*moduleUse, error) {
	name = strings.ReplaceAll(name, "-", "_")
	b, err := v.ReadFile("/sys/module/" + name + "/refcnt")
	if host.NotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	m := &moduleUse{name: name}
	if m.uses, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return nil, fmt.Errorf("cannot read the reference count of module %s: %w", name, err)
	}
	m.holders, err = v.ReadDir("/sys/module/" + name + "/holders")
	if err != nil && !host.NotExist(err) {
		return nil, err
	}
	return m, nil
}

// unloadOrder is how NVIDIA's modules are taken out: those that hold others first.
func unloadOrder() []string {
	return []string{"nvidia_peermem", "nvidia_fs", "gdrdrv", "nvidia_drm", "nvidia_uvm", "nvidia_modeset", "nvidia"}
}

// keptBy says what keeps the loaded modules from being unloaded, "" if nothing does: modules of others, uses by no
// process (a console, a display), processes that are not the driver's own.
func keptBy(ctx context.Context, v host.View) (why []string, err error) {
	holders, err := devices.Holders(ctx, v)
	if err != nil {
		return nil, err
	}
	why = trouble.Few(devices.NamesOf(holders), 4)
	for _, name := range unloadOrder() {
		m, err := loadedModule(v, name)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		foreign := slices.DeleteFunc(slices.Clone(m.holders), func(h string) bool { return slices.Contains(unloadOrder(), h) })
		if len(foreign) > 0 {
			why = append(why, fmt.Sprintf("module %s is used by the module %s", name, strings.Join(foreign, " and ")))
		}
		if m.uses > len(m.holders) && len(holders) == 0 {
			why = append(why, fmt.Sprintf("module %s is used %d times by no process that can be seen: by a console, or inside the kernel", name, m.uses-len(m.holders)))
		}
	}
	return why, nil
}

var errModuleHeld = errors.New("it is in use")
