// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// findMIGCall finds a program that cuts GPUs in a unit or a script, or in the scripts that their
// command lines name. For a unit it also returns the units that it starts.
func (g *gathering) findMIGCall(file, text string, depth int) (calls string, starts []string) {
	isUnit := strings.Contains(file, "/systemd/system/")
	for _, line := range logicalLines(text) {
		command := splitShell(line)
		if isUnit {
			key, value, _ := strings.Cut(command, "=")
			if startsUnits(strings.TrimSpace(key)) {
				starts = append(starts, strings.Fields(value)...)
			}
			if !strings.HasPrefix(key, "Exec") {
				continue
			}
			command = strings.TrimLeft(value, "-@:+!")
		}

		if calls := migCommand(command); calls != "" {
			return calls, nil
		}
		for _, script := range scriptsIn(command, line, path.Dir(file)) {
			if script == file || depth == maxDepth {
				continue
			}
			if calls := g.findMIGCallIn(script, depth+1); calls != "" {
				return calls, nil
			}
		}
	}

	return "", starts
}

// startsUnits says whether a setting of a unit names units that start with it.
func startsUnits(key string) bool {
	return slices.Contains([]string{"Wants", "Requires", "BindsTo", "Upholds", "Unit"}, key)
}

// scriptsIn returns the files that a command line may call. A name below a variable or a relative
// folder is looked up in the caller's folder: "$(dirname "$0")/cut.sh", $HERE/cut.sh, ./cut.sh.
func scriptsIn(command, line, folder string) (scripts []string) {
	for _, word := range strings.Fields(command) {
		_, name, hasSlash := strings.Cut(word, "/")
		if !hasSlash {
			continue
		}
		if path.IsAbs(word) {
			scripts = append(scripts, word)
		}
		if !path.IsAbs(word) || strings.Contains(line, "$") {
			scripts = append(scripts, path.Join(folder, name))
		}
	}
	return scripts
}

// findMIGCallIn is findMIGCall for a script that another file calls; it adds the script's name.
func (g *gathering) findMIGCallIn(script string, depth int) string {
	info, err := g.v.Stat(script)
	if err != nil || !info.Mode.IsRegular() || info.Size > maxScript {
		return ""
	}
	text := g.attr(script)
	if !strings.HasPrefix(text, "#!") {
		return ""
	}

	calls, _ := g.findMIGCall(script, text, depth)
	if calls == "" || strings.Contains(calls, ", in ") {
		return calls
	}
	return calls + ", in " + script
}

// splitShell returns a line with blanks in place of the characters that separate words in a shell,
// and in a list of YAML or Python.
func splitShell(line string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("\"',;&|()[]{}", r) {
			return ' '
		}
		return r
	}, line)
}

// migCommand returns the program with which a command line cuts GPUs; "" if it cuts none.
func migCommand(line string) string {
	found := partitions().FindString(splitShell(line))
	name, _, _ := strings.Cut(found, " ")
	switch {
	case name == "nvidia-mig-parted", name == bottlerocketsMIG:
		return name
	case found != "":
		return "nvidia-smi"
	}

	return ""
}

// partitions is a call that cuts GPUs. A list of the partitions ("nvidia-smi mig -lgi") cuts none,
// and neither does validate-mig of Bottlerocket's program.
var partitions = pattern.Of(`nvidia-smi\b.*\s(-mig|--multi-instance-gpu)\b|\bmig\b.*\s(-[cd][gc]i|--(create|destroy)-)|nvidia-mig-parted\b.*\s(apply|restore)\b|nvidia-migmanager apply-mig\b`)

// bottlerocketsMIG is the program of nvidia-migmanager.service.
// Source: bottlerocket-os/bottlerocket-core-kit, packages/nvidia-migmanager.
const bottlerocketsMIG = "nvidia-migmanager"

// The limits of a search through scripts that call scripts: how deep, and the size in bytes of the
// largest that is read.
const (
	maxDepth  = 3
	maxScript = 256 << 10
)
