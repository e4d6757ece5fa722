// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// merged is the merged content of a spec's files.
type merged struct {
	Format int           `json:"format"`
	Spec   string        `json:"spec"` // its digest
	Keys   []spec.Stated `json:"keys"`
}

func newConfig(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "config [FILE…]",
		Short: "show the merged spec, and the file that each value comes from",
		RunE: func(_ *cobra.Command, files []string) error {
			c.files = append(c.files, files...)
			h, err := c.open(c.rootDir, nil)
			if err != nil {
				return err
			}
			all, err := c.specFiles(h, c.files)
			if err != nil {
				return err
			}
			s, places, err := spec.Read(all...)
			if err != nil {
				return c.unquoted(h, c.files, err)
			}
			return show(c, merged{1, s.Digest(), places.Stated(s)}, c.mergedText)
		},
	}
}

// mergedText prints one key a line, with its value and its place.
func (c *common) mergedText(m merged) {
	if len(m.Keys) == 0 {
		printf(c.stdout, "The spec sets no key: each has its default, which gpuadm help spec lists.\n")
		return
	}

	values := make([]string, len(m.Keys))
	widestKey := 0
	widestValue := 0
	for i, k := range m.Keys {
		text, _ := encoded(k.Value) // a value from TOML can always be encoded
		values[i] = strings.TrimSpace(string(text))
		widestKey = max(widestKey, len(k.Key))
		widestValue = max(widestValue, min(len(values[i]), 40))
	}

	for i, k := range m.Keys {
		printf(c.stdout, "%-*s  %-*s  %s:%d\n", widestKey, k.Key, widestValue, values[i], k.File, k.Line)
	}
}
