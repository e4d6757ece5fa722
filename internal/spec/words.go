// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// wrong is what is wrong with a value, before it has a place, and how to fix it.
func wrong(fix, format string, args ...any) *trouble.Error {
	return &trouble.Error{What: fmt.Sprintf(format, args...), Try: []string{fix}}
}

// show quotes what a file says, so that a message can contain it: no control characters, no endless tails.
func show(text string) string {
	return strconv.Quote(clip(text))
}

func clip(text string) string {
	const most = 64
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// a puts the article before a type.
func a(kind string) string {
	switch kind {
	case TypeInt:
		return "an " + kind
	case TypeDevices:
		return kind
	}
	return "a " + kind
}

// choice is `one of "a", "b", "c"`.
func choice(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	return "one of " + strings.Join(quoted, ", ")
}

func header(section string) string {
	switch section {
	case "":
		return "at the top of the file"
	case "mig.gpu", "mig.gpu.placements":
		return "[[" + section + "]]"
	}
	return "[" + section + "]"
}

// About is what a section of node.toml is for, in one line; "" for the top of the file.
func About(section string) string {
	return map[string]string{
		"driver":             "the NVIDIA driver: its version, its source, its kernel modules and daemons",
		"driver.repo":        "the repository of the driver's packages, in place of NVIDIA's",
		"driver.runfile":     "NVIDIA's installer, for source = \"runfile\"",
		"toolkit":            "the NVIDIA Container Toolkit and its configuration",
		"toolkit.repo":       "the repository of the toolkit's packages, in place of NVIDIA's",
		"runtime":            "how the container engine runs containers with GPUs",
		"mig":                "MIG partitions",
		"mig.gpu":            "the partitions of some GPUs",
		"mig.gpu.placements": "a partition at a given place",
		"sharing":            "how containers share a GPU, for the device plugin",
		"node":               "what the node tells Kubernetes about itself",
		"join":               "how the node joins its cluster; without this section another program does that",
		"proxy":              "proxies, and further CA certificates",
		"disruption":         "what gpuadm may do while pods use the GPUs",
	}[section]
}
