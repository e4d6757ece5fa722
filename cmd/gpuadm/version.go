// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
)

// release is set by the linker when a release is built.
var release string

// version is the release, or what Go knows of the source it was built from.
var version = sync.OnceValue(func() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
})

// versionOf is what `version -o json` prints.
type versionOf struct {
	Format  int    `json:"format"`
	Version string `json:"version"`
}

func newVersion(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if c.output == "json" {
				return c.json(versionOf{1, version()})
			}
			printf(c.stdout, "gpuadm %s\n", version())
			return nil
		},
	}
}
