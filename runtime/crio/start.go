// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// checkStart refuses files that only a start of CRI-O judges, while `crio config` takes them, and
// names the file where `crio config` does not. Measured with 1.36.3.
// Sources: Validate and ValidateRuntimes of RuntimeConfig in pkg/config/config.go, and
// SetCgroupManager in internal/config/cgmgr, of https://github.com/cri-o/cri-o at v1.36.3;
// docs/crio.conf.5.md there on runtime_path and cgroup_manager.
func checkStart(v host.View, e facts.Engine) error {
	c, err := readFiles(e.Files, e.Version)
	if err != nil || statedOutside(e) {
		return nil // CRI-O itself says what is wrong
	}

	if c.manager != "" && c.manager != "systemd" && c.manager != "cgroupfs" {
		const says = "cgroup_manager in %s is %q: CRI-O knows systemd and cgroupfs"
		return notStarted(e, fmt.Sprintf(says, c.managerIn, c.manager),
			"write systemd or cgroupfs, as kubelet's cgroupDriver is")
	}

	entry := c.runtimes[c.byDefault]
	if entry == nil {
		const says = "default_runtime in %s is %q, and no file has the runtime"
		return notStarted(e, fmt.Sprintf(says, c.defaultIn, c.byDefault),
			fmt.Sprintf("add [crio.runtime.runtimes.%s], or name another default", c.byDefault))
	}

	program := toml.String(entry, "runtime_path")
	if program == "" || entry[inherits] == true {
		return nil // CRI-O looks along its own PATH
	}
	if _, err := v.Stat(program); !host.NotExist(err) {
		return nil
	}
	const says = "%s in %s, the default, runs %s, which is not there"
	return notStarted(e, fmt.Sprintf(says, c.byDefault, c.from[c.byDefault], program),
		"install the program, or name another default")
}

// statedOutside says whether an option or a variable has what checkStart reads in files.
func statedOutside(e facts.Engine) bool {
	options := facts.Options(e.Args, "default-runtime", "runtimes", "cgroup-manager")
	names := []string{"CONTAINER_DEFAULT_RUNTIME", "CONTAINER_RUNTIMES", "CONTAINER_CGROUP_MANAGER"}
	variable := func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(names, name)
	}

	return len(options) > 0 || slices.ContainsFunc(e.Env, variable)
}

func notStarted(e facts.Engine, why, try string) error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot start %s with its present files: %s", engine.UnitOf(e), why),
		Try:  []string{try},
	}
}

// words leaves of what CRI-O has logged why it ended: before that is a line for each file that
// it has read.
func words(err error) error {
	var command *host.CommandError
	if !errors.As(err, &command) {
		return err
	}

	var why []string
	for line := range strings.Lines(command.Stderr) {
		_, message, isFatal := strings.Cut(line, "level=fatal msg=")
		if isFatal {
			why = append(why, strings.TrimSpace(message))
		}
	}

	if why == nil {
		return err
	}
	short := *command
	short.Stderr = strings.Join(why, "\n")
	return &short
}
