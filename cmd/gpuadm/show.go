// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/stages"
)

func newFacts(c *common) *cobra.Command {
	var record bool
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "show what machine this is",
		Long: `Facts prints what gpuadm knows about the machine: OS, kernel, GPUs on the
PCI bus, container engines, kubelet.

With --record it prints a recording of all that it read, as a txtar archive from
which tests can simulate the machine: attach it to a bug report. Only files that are known to hold no secrets are recorded with their
content; values of keys that look like secrets are masked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			if record {
				r := view.Record(h)
				if _, err := facts.Gather(cmd.Context(), r, facts.Everything); err != nil {
					return err
				}
				_, err := c.stdout.Write(r.Txtar())
				return err
			}
			f, err := facts.Gather(cmd.Context(), h, facts.Everything)
			if err != nil {
				return err
			}
			return show(c, f, c.factsText)
		},
	}
	cmd.Flags().BoolVar(&record, "record", false, "print a recording of the machine, for a bug report or a test")
	return cmd
}

// factsText prints a line, and with -v all facts.
func (c *common) factsText(f facts.Facts) {
	printf(c.stdout, "%s\n", f)
	if c.verbose {
		text, _ := json.MarshalIndent(f, "", "  ") // facts can always be encoded
		for line := range strings.SplitSeq(mask.Message(string(text)), "\n") {
			printf(c.stdout, "%s\n", line)
		}
	}
}

// withoutSpec shows what machine this is where an operator asks for its state and it has no spec; err is returned.
func (c *common) withoutSpec(ctx context.Context, err error) error {
	if h, openErr := c.open(c.rootDir); errors.Is(err, errNoSpec) && openErr == nil && c.output != "json" {
		if f, factsErr := facts.Gather(ctx, h, facts.Everything); factsErr == nil {
			printf(c.stdout, "%s\n", f)
		}
	}
	return err
}

// ownerList is what `owners -o json` prints.
type ownerList struct {
	Format int           `json:"format"`
	Parts  []stages.Part `json:"parts"`
}

func newOwners(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "owners",
		Short: "show who owns each part of this node",
		Long: `Owners prints for driver, toolkit, CDI, handler, MIG, IMEX, and device plugin or
DRA: who owns it on this node, and by what evidence. Where another program tries
to manage it too, it prints the setting of each that ends the quarrel: a Helm
value of the GPU Operator with a ClusterPolicy or a GPUCluster, a label for one
pool, or a key of node.toml. It changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			s, err := c.spec(h, c.files)
			if err != nil {
				return err
			}
			f, err := facts.Gather(cmd.Context(), h, stages.OwnersNeeds(s))
			if err != nil {
				return err
			}
			parts, err := stages.Owners(cmd.Context(), h, s, f)
			if err != nil {
				return err
			}
			return show(c, ownerList{1, parts}, c.ownersText)
		},
	}
}

// ownersText prints one owner a line, and where two programs claim a part, the settings that end each claim.
func (c *common) ownersText(all ownerList) {
	for _, p := range all.Parts {
		lines := []string{"no owner: " + p.None}
		if p.Owner != nil {
			lines = []string{p.Owner.Who + ": " + p.Owner.By}
		}
		for _, other := range p.Others {
			lines = append(lines, "! also "+other.Who+": "+other.By)
		}
		if p.Owner != nil && len(p.Others) > 0 {
			for _, claim := range append([]stages.Claim{*p.Owner}, p.Others...) {
				for _, e := range claim.Ends {
					lines = append(lines, fmt.Sprintf("  to end the claim of %s (%s): %s", claim.Who, e.Where, e.Setting))
				}
			}
		}
		rows(c.stdout, 0, 21, p.Name, lines...)
	}
}

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
			return show(c, versionOf{1, version()}, func(v versionOf) { printf(c.stdout, "gpuadm %s\n", v.Version) })
		},
	}
}

// newAptHook is the verb by which apt, when gpuadm has started it, asks whether it may start dpkg.
func newAptHook(*common) *cobra.Command {
	return &cobra.Command{
		Use:    stages.AptHook,
		Short:  "compare what apt is about to do with the plan; apt runs it",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stages.VerifyApt(os.Getenv, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// newStartCUDA is the verb of the child process in which gpuadm starts CUDA.
func newStartCUDA(*common) *cobra.Command {
	return &cobra.Command{
		Use:    nvml.CUDAVerb,
		Short:  "start CUDA in this process and print what it answers",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return nvml.StartCUDA(strings.Join(args, "")) },
	}
}
