// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// lacks lists the parameters whose value differs from the files', and the modules in the files that
// are not loaded.
func (m module) lacks(v host.View) ([]string, error) {
	params, companions, err := m.configured(v)
	if err != nil {
		return nil, err
	}

	set, err := moduleLine(v, "/proc/driver/nvidia/params")
	if err != nil {
		return nil, err
	}

	var lacks []string
	loaded := parameters(set)
	for _, param := range params {
		name, value, _ := strings.Cut(param, "=")
		now, known := loaded[strings.TrimPrefix(name, "NVreg_")]
		if known && !sameParameter(value, now) {
			lacks = append(lacks, strings.ReplaceAll(param, " ", "_"))
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

// builtIn reports whether a module is part of the running kernel itself: then there is nothing to
// load. Source: modules.builtin in Documentation/kbuild/kbuild.rst of the kernel's tree.
func builtIn(v host.View, name string) bool {
	list := oneLine(v, "/lib/modules/"+runningKernel(v)+"/modules.builtin")
	withUnderscores := "/" + strings.ReplaceAll(name, "-", "_") + ".ko"
	withDashes := "/" + strings.ReplaceAll(name, "_", "-") + ".ko"

	return strings.Contains(list, withUnderscores) || strings.Contains(list, withDashes)
}

// configured reads the parameters of the module nvidia from the files in modprobe.d, and the
// modules to load from those in modules-load.d. It ignores a missing file.
func (m module) configured(v host.View) (params, companions []string, err error) {
	for _, name := range m.files {
		data, err := v.ReadFile(name)
		if host.NotExist(err) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}

		loadsAtBoot := strings.Contains(name, "/modules-load.d/")
		for line := range strings.Lines(string(data)) {
			words := modprobeWords(strings.TrimSpace(line))
			switch {
			case loadsAtBoot:
				if len(words) == 1 && words[0][0] != '#' && words[0][0] != ';' {
					companions = append(companions, words[0])
				}
			case len(words) > 2 && words[0] == "options" && words[1] == "nvidia":
				params = append(params, words[2:]...)
			}
		}
	}

	return params, companions, nil
}

// modprobeWords splits a line at spaces outside double quotes, and takes the quotes off, as the
// kernel does with a module's parameters: next_arg in lib/cmdline.c.
func modprobeWords(line string) []string {
	var words []string
	var word strings.Builder
	inQuotes := false
	inWord := false
	for _, c := range line + " " {
		switch {
		case c == '"':
			inQuotes = !inQuotes
			inWord = true
		case (c == ' ' || c == '\t') && !inQuotes:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}

	return words
}

// parameters reads the driver's own list: "EnableGpuFirmware: 18". Source: nv_procfs_read_params in
// kernel-open/nvidia/nv-procfs.c of https://github.com/NVIDIA/open-gpu-kernel-modules.
func parameters(list string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(list) {
		name, value, ok := strings.Cut(line, ":")
		if ok {
			found[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}

	return found
}

// sameParameter compares a configured parameter with the parameter that the driver shows: unsigned,
// in decimal.
func sameParameter(configured, shown string) bool {
	a, errA := strconv.ParseInt(configured, 0, 64)
	b, errB := strconv.ParseInt(shown, 0, 64)
	if errA != nil || errB != nil {
		return configured == shown
	}

	oneNegative := (a < 0) != (b < 0)
	return a == b || oneNegative && uint32(a) == uint32(b)
}
