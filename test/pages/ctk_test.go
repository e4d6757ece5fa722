// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/must"
)

const ctkRecords = "testdata/nvidia-ctk/"

// TestTableOfCTK: docs/nvidia-ctk.md has exactly the flags that were recorded, names the versions of
// the records, and each key of node.toml that it names exists.
func TestTableOfCTK(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../docs/nvidia-ctk.md"))(t))
	sections := strings.Split(page, "\n## ")
	must.That(t, len(sections) == 4, "%d sections", len(sections))

	for i, record := range []string{"runtime-configure.txt", "cdi-generate.txt", "installer.txt"} {
		text := string(must.Get(os.ReadFile(ctkRecords + record))(t))
		recorded := flagsOfHelp(text)
		must.That(t, len(recorded) >= 10, "%s: only %d flags", record, len(recorded))
		listed := flagsOfTable(sections[i+1])
		check.Equal(t, strings.Join(listed, "\n"), strings.Join(recorded, "\n"), "%s:", record)
	}

	keys := map[string]bool{}
	for _, key := range spec.Keys() {
		keys[key.String()] = true
	}
	said := regexp.MustCompile("`([a-z_]+)` in `\\[([a-z]+)\\]`").FindAllStringSubmatch(page, -1)
	must.That(t, len(said) >= 10, "only %d keys", len(said))
	for _, words := range said {
		check.That(t, keys[words[2]+"."+words[1]], "no key %s in [%s]", words[1], words[2])
	}
}

// TestHelpOfCTK: the recorded help is that of the nvidia-ctk of this version: a newer one needs
// another table.
func TestHelpOfCTK(t *testing.T) {
	ctk := parts.Get(t, parts.CTK).CTK
	page := string(must.Get(os.ReadFile("../../docs/nvidia-ctk.md"))(t))
	check.That(t, strings.Contains(page, "NVIDIA Container Toolkit v"+ctk.Version+"."), "the page is not of %s", ctk.Version)

	for record, verb := range map[string]string{"runtime-configure.txt": "runtime configure", "cdi-generate.txt": "cdi generate"} {
		args := append(strings.Fields(verb), "--help")
		help := must.Get(parts.Run(t.Context(), "", nil, ctk.Path, args...))(t)
		text := string(must.Get(os.ReadFile(ctkRecords + record))(t))
		check.Equal(t, trimmed(string(help)), trimmed(text), "%s:", verb)
	}
}

// trimmed is a text without spaces at the ends of its lines.
func trimmed(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \t\n"))
	}
	return strings.Join(lines, "\n")
}

// flagsOfHelp are the flags that a help lists as options, each with its other names, but for --help.
func flagsOfHelp(text string) (rows []string) {
	options, _, _ := strings.Cut(text, "GLOBAL OPTIONS:")
	for line := range strings.Lines(options) {
		if !strings.HasPrefix(line, "   --") || strings.HasPrefix(line, "   --help") {
			continue
		}
		names, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		names, _, _ = strings.Cut(names, " [ ")
		rows = append(rows, strings.Join(flagNames().FindAllString(names, -1), " "))
	}

	return unique(rows)
}

// flagsOfTable are the flags in the first column of a table.
func flagsOfTable(text string) (rows []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| `--") {
			column, _, _ := strings.Cut(line[2:], " | ")
			rows = append(rows, strings.Join(flagNames().FindAllString(column, -1), " "))
		}
	}
	return unique(rows)
}

func flagNames() *regexp.Regexp { return regexp.MustCompile(`--[a-zA-Z][a-zA-Z.-]*`) }

func unique(rows []string) []string {
	slices.Sort(rows)
	return slices.Compact(rows)
}
