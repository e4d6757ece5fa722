// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// pastedMost is how many bytes of pasted text are read.
const pastedMost = 1 << 20

func newExplain(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "explain CODE | LABEL | KEY | PROFILE | \"ERROR TEXT\"",
		Short: "say what a code, a label, a key, a MIG profile or an error text means, and what to type",
		Long: `Explain says what something is, why it matters, where it comes from, and what to
type: a code of doctor; an exit code; a label, taint, condition or resource of
the Node; a key or section of node.toml; a MIG profile; or an error that
nvidia-smi, the kernel, containerd, Docker, kubelet, the device plugin, apt, dnf,
dkms or NVIDIA's Container Toolkit has printed. Paste such an error as it is,
with all that is around it; - reads it from stdin. It needs no spec, no root and
no network.`,
		Example: "  gpuadm explain 75\n  gpuadm explain runtime.cdi\n  gpuadm explain nvidia.com/gpu.product\n  gpuadm explain 1g.10gb\n" +
			"  gpuadm explain 'no runtime for \"nvidia\" is configured'\n  journalctl -u kubelet -n 20 | gpuadm explain -",
		DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error {
			word := strings.Join(args, " ")
			if word == "" {
				return usage{errors.New("cannot explain nothing: name a word, or paste a text; see gpuadm explain --help")}
			}
			if word == "-" {
				data, err := io.ReadAll(io.LimitReader(c.stdin, pastedMost))
				if err != nil {
					return fmt.Errorf("cannot read stdin: %w", err)
				}
				word = string(data)
			}
			found := explained(strings.TrimSpace(word))
			if len(found) == 0 {
				return notExplained(word)
			}
			if c.output == "json" {
				return c.json(map[string]any{"format": 1, "explained": found})
			}
			for i, m := range found {
				if i > 0 {
					printf(c.stdout, "\n")
				}
				c.explanationText(m)
			}
			return nil
		},
	}
}

// An explanation is the answer of explain, one screen.
type explanation struct {
	Word    string   `json:"word"`
	Is      string   `json:"is"` // "a label of the Node"
	What    string   `json:"what"`
	Matters string   `json:"matters,omitempty"`
	From    string   `json:"from,omitempty"`
	Where   []string `json:"where,omitempty"` // a table, such as which GPUs have a profile
	Try     []string `json:"try,omitempty"`
	Source  string   `json:"source,omitempty"`
}

func (c *common) explanationText(m explanation) {
	printf(c.stdout, "%s: %s\n\n", m.Word, m.Is)
	part := func(word, text string) {
		for i, line := range wrapped(text, 70) {
			if i > 0 {
				word = ""
			}
			printf(c.stdout, "  %-8s %s\n", word, line)
		}
	}
	part("what", m.What)
	part("matters", m.Matters)
	part("from", m.From)
	for i, row := range m.Where {
		word := "where"
		if i > 0 {
			word = ""
		}
		printf(c.stdout, "  %-8s %s\n", word, row)
	}
	for i, line := range m.Try {
		word := "try"
		if i > 0 {
			word = ""
		}
		part(word, line)
	}
	if m.Source != "" {
		printf(c.stdout, "  %-8s %s\n", "source", m.Source)
	}
}

// wrapped breaks a text into lines between its words.
func wrapped(text string, most int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > most {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// explained returns all meanings of a word, or the one of a text.
func explained(word string) (all []explanation) {
	for _, of := range []func(string) []explanation{ofExitCode, ofCheck, ofKey, ofProfile, ofLabel, ofText} {
		all = append(all, of(word)...)
	}
	return all
}

// notExplained says what is like the word, and what else to do.
func notExplained(word string) error {
	first := few(word)
	t := &converge.Trouble{What: fmt.Sprintf("cannot explain %q: not found", first)}
	for _, names := range [][]string{checkCodes(), keyNames(), labelNames(), profileNames(), textNames()} {
		if near := spec.Nearest(first, names); near != "" {
			t.Try = append(t.Try, "did you mean this? gpuadm explain "+near)
		}
	}
	t.Try = append(t.Try,
		"an error text: paste the whole line, in quotes, or by: … | gpuadm explain -",
		"gpuadm doctor says what is wrong with this machine; gpuadm help spec lists all keys")
	return t
}

// few is the beginning of what was pasted, on one line.
func few(text string) string {
	line := strings.Join(strings.Fields(text), " ")
	if runes := []rune(line); len(runes) > 60 {
		line = string(runes[:60]) + "…"
	}
	return line
}

// unique sorts names and leaves each once.
func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
