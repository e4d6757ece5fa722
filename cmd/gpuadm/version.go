// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
)

// release is set by the linker for a release.
var release string

// version returns the release, or Go's record of the source revision.
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
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return show(c, versionOf{1, version()}, func(v versionOf) {
				printf(c.stdout, "gpuadm %s\n", v.Version)
			})
		},
	}
}
