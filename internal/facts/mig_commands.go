// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// callsMIG says what a unit or a script calls that cuts GPUs, itself or in a script that its
// command lines name; and for a unit which others it starts.
func (g *gathering) callsMIG(file, text string, depth int) (calls string, starts []string) {
	unit := strings.HasPrefix(file, "/etc/systemd/system/")
	for _, line := range logicalLines(text) {
		command := words(line)
		if key, value, _ := strings.Cut(command, "="); unit && slices.Contains([]string{"Wants", "Requires", "BindsTo", "Upholds", "Unit"}, key) {
			starts = append(starts, strings.Fields(value)...)
			continue
		} else if unit {
			if !strings.HasPrefix(key, "Exec") {
				continue
			}
			command = strings.TrimLeft(value, "-@:+!")
		}
		if calls = cuts(command); calls != "" {
			return calls, nil
		}
		for _, word := range strings.Fields(command) {
			_, beside, ok := strings.Cut(word, "/") // "$(dirname "$0")/cut.sh", $HERE/cut.sh, ./cut.sh
			for i, script := range []string{word, path.Join(path.Dir(file), beside)} {
				if !ok || !path.IsAbs(script) || i == 1 && word[0] == '/' && !strings.Contains(line, "$") || depth == deepest || script == file {
					continue
				}
				if info, err := g.v.Stat(script); err != nil || !info.Mode.IsRegular() || info.Size > maxScript {
					continue
				}
				if text := g.attr(script); strings.HasPrefix(text, "#!") {
					if found, _ := g.callsMIG(script, text, depth+1); strings.Contains(found, ", in ") {
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

// words is a line with blanks for what is between words in a shell's line, and in a list of YAML or
// Python.
func words(line string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("\"',;&|()[]{}", r) {
			return ' '
		}
		return r
	}, line)
}

// cuts names the program by which a command line cuts GPUs; "" if it cuts none.
func cuts(line string) string {
	switch found := partitions().FindString(words(line)); {
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
	deepest   = 3
	maxScript = 256 << 10
)
