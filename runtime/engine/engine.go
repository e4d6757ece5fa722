// SPDX-License-Identifier: Apache-2.0

// Package engine has what all container engines share: their units and versions (engine.go), the
// desired handler and its program (handler.go), the engine's own judgement of its files (judge.go),
// the restart of a daemon and the wait until it serves again (restart.go), and how undo takes
// gpuadm's edits out of TOML files (takeout.go).
package engine

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	NoProgram trouble.Code = "RUN-004"      // doctor's code for a default handler whose program is missing
	NoCRI     trouble.Code = "cri-disabled" // the configuration switches the CRI plugin off
)

// Configured is what an engine's configuration says of handlers, as the engine reads it.
type Configured struct {
	Unreadable error             // why the engine cannot serve pods with it; nil if no reason is known
	Default    string            // the handler of pods that name none
	Unread     []string          // which settings the engine starts without, by file
	Programs   map[string]string // by handler: the program that it runs, as the configuration has it
	Untyped    []string          // handlers without a runtime_type, which containerd needs; sorted
	Cgroups    map[string]string // by handler: systemd or cgroupfs, where containerd has the choice
}

// UnitOf is the unit that runs an engine.
func UnitOf(e facts.Engine) string {
	if e.Unit == "" {
		return e.Name + ".service"
	}
	return e.Unit
}

// Reading is the engine that reads a configuration file, "" for any, and runs in a unit; the zero
// Engine if there is none.
func Reading(ctx context.Context, v host.View, config, unit string) (facts.Engine, error) {
	all, err := facts.Engines(ctx, v, facts.NamedEngine{Config: config, Unit: unit})
	if err != nil {
		return facts.Engine{}, err
	}
	for _, e := range all {
		reads := config == "" || e.Config == config
		if reads && UnitOf(e) == unit {
			return e, nil
		}
	}

	return facts.Engine{}, nil
}

// Shows is the command that prints an engine's configuration as its program reads it, or says why
// it cannot. CRI-O's options, such as --config-dir, say which files those are.
func Shows(e facts.Engine) string {
	command := []string{"sudo"}
	switch e.Name {
	case "crio":
		options := e.Args[min(1, len(e.Args)):]
		command = append(command, cmp.Or(e.Binary, "crio"))
		command = append(command, options...)
		command = append(command, "config")
	case "docker":
		command = append(command, cmp.Or(e.Binary, "dockerd"), "--validate", "--config-file", e.Config)
	default:
		command = append(command, cmp.Or(e.Binary, e.Name), "--config", e.Config, "config", "dump")
	}

	for i, word := range command {
		command[i] = host.ShellWord(word)
	}
	return strings.Join(command, " ")
}

// ParseVersion reads major and minor off "1.7.24", "v2.1.5", "2.1.5~ds1".
func ParseVersion(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(strings.TrimSpace(version), "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return 0, 0, false
	}

	digits := parts[1]
	notDigit := func(r rune) bool { return r < '0' || r > '9' }
	if end := strings.IndexFunc(digits, notDigit); end >= 0 {
		digits = digits[:end]
	}
	minor, err = strconv.Atoi(digits)
	return major, minor, err == nil
}

// IsBefore says whether a version is known, and older than major.minor.
func IsBefore(version string, major, minor int) bool {
	hasMajor, hasMinor, known := ParseVersion(version)
	if !known {
		return false
	}
	return hasMajor < major || hasMajor == major && hasMinor < minor
}
