// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// findMIGCall says what a unit or a script calls that cuts GPUs, itself or in a script that its
// command lines name; and for a unit which others it starts.
func (g *gathering) findMIGCall(file, text string, depth int) (calls string, starts []string) {
	unit := strings.HasPrefix(file, "/etc/systemd/system/")
	for _, line := range logicalLines(text) {
		command := splitShell(line)
		if key, value, _ := strings.Cut(command, "="); unit && slices.Contains([]string{"Wants", "Requires", "BindsTo", "Upholds", "Unit"}, key) {
			starts = append(starts, strings.Fields(value)...)
			continue
		} else if unit {
			if !strings.HasPrefix(key, "Exec") {
				continue
			}
			command = strings.TrimLeft(value, "-@:+!")
		}
		if calls = migCommand(command); calls != "" {
			return calls, nil
		}
		for _, word := range strings.Fields(command) {
			_, beside, ok := strings.Cut(word, "/") // "$(dirname "$0")/cut.sh", $HERE/cut.sh, ./cut.sh
			for i, script := range []string{word, path.Join(path.Dir(file), beside)} {
				if !ok || !path.IsAbs(script) || i == 1 && word[0] == '/' && !strings.Contains(line, "$") || depth == maxDepth || script == file {
					continue
				}
				if info, err := g.v.Stat(script); err != nil || !info.Mode.IsRegular() || info.Size > maxScript {
					continue
				}
				if text := g.attr(script); strings.HasPrefix(text, "#!") {
					if found, _ := g.findMIGCall(script, text, depth+1); strings.Contains(found, ", in ") {
						return found, nil
					} else if found != "" {
						return found + ", in " + script, nil
					}
				}
			}
		}
	}
	return "", starts
}

// splitShell returns a line with blanks in the place of what separates words in a shell, and in a
// list of YAML or Python.
func splitShell(line string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("\"',;&|()[]{}", r) {
			return ' '
		}
		return r
	}, line)
}

// migCommand names the program by which a command line cuts GPUs; "" if it cuts none.
func migCommand(line string) string {
	switch found := partitions().FindString(splitShell(line)); {
	case strings.HasPrefix(found, "nvidia-mig-parted"):
		return "nvidia-mig-parted"
	case found != "":
		return "nvidia-smi"
	}
	return ""
}

// partitions is a call that cuts GPUs. A list of what is there ("nvidia-smi mig -lgi") cuts none.
var partitions = pattern.Of(`nvidia-smi\b.*\s(-mig|--multi-instance-gpu)\b|\bmig\b.*\s(-[cd][gc]i|--(create|destroy)-)|nvidia-mig-parted\b.*\s(apply|restore)\b`)

// The limits of a search through scripts that call scripts: how deep, and the size in bytes of the
// largest that is read.
const (
	maxDepth  = 3
	maxScript = 256 << 10
)
