// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/spf13/cobra"
)

func newFacts(c *common) *cobra.Command {
	var record bool
	cmd := &cobra.Command{
		Use:   "facts",
		Short: "show what machine this is",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			if record {
				r := view.Record(view.Within(h))
				if _, err := facts.Gather(cmd.Context(), r, facts.Everything); err != nil {
					return err
				}
				if !terminal(c.stdout) {
					_, err := c.stdout.Write(r.Txtar())
					return err
				}
				for line := range strings.Lines(string(r.Txtar())) { // some come from files that others write
					printf(c.stdout, "%s\n", whole(strings.TrimSuffix(line, "\n")))
				}
				return nil
			}
			f, err := facts.Gather(cmd.Context(), view.Within(h), facts.Everything)
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
			printf(c.stdout, "%s\n", whole(line))
		}
	}
}

// withoutSpec shows the facts of a machine without a spec, whose state an operator asks for; it
// returns err.
func (c *common) withoutSpec(ctx context.Context, err error) error {
	if h, openErr := c.open(c.rootDir); errors.Is(err, errNoSpec) && openErr == nil && c.output != "json" {
		if f, factsErr := facts.Gather(ctx, view.Within(h), facts.Everything); factsErr == nil {
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
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, s, err := c.machine()
			if errors.Is(err, errNoSpec) { // operators ask for the owners before they write a spec
				s, err = spec.Defaults(), nil
			}
			if err != nil {
				return err
			}
			f, err := facts.Gather(cmd.Context(), view.Within(h), stages.OwnersNeeds(s))
			if err != nil {
				return err
			}
			return show(c, ownerList{1, stages.Owners(cmd.Context(), h, s, f)}, c.ownersText)
		},
	}
}

// ownersText prints one owner a line and, if two programs claim a part, the settings that end each
// claim.
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
			return show(c, versionOf{1, version()}, func(v versionOf) { printf(c.stdout, "gpuadm %s\n", v.Version) })
		},
	}
}

// children returns the verbs of processes that gpuadm starts itself, or has apt start.
func (c *common) children() (all []*cobra.Command) {
	for _, child := range []struct {
		verb, about string
		run         func(cmd *cobra.Command, args []string) error
	}{
		{stages.AptHook, "compare what apt is about to do with the plan; apt runs it", func(cmd *cobra.Command, _ []string) error {
			return stages.VerifyApt(os.Getenv, cmd.InOrStdin(), cmd.OutOrStdout()) // its failure stops apt
		}},
		{nvml.CUDAVerb, "start CUDA in this process and print what it answers", func(_ *cobra.Command, args []string) error {
			return nvml.StartCUDA(strings.Join(args, ""))
		}},
		{nvml.DriverVerb, "ask the driver in this process and hand its answer to the parent", c.sayDriver},
		{local.FirstVerb, "hold the PID namespace of an image's programs", func(*cobra.Command, []string) error {
			return local.First(c.stdin, os.Stdout)
		}},
	} {
		all = append(all, &cobra.Command{Use: child.verb, Short: child.about, Args: cobra.MaximumNArgs(1), RunE: child.run})
	}
	return all
}

// sayDriver asks the driver, which may hang.
func (c *common) sayDriver(cmd *cobra.Command, _ []string) error {
	h, err := c.open("/")
	if err != nil {
		return err
	}
	if d, is := h.(interface{ SayDriver(context.Context) error }); is {
		return d.SayDriver(cmd.Context())
	}
	return errors.New("internal error: this machine is no real one")
}

func newDoctor(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "find what is broken on this machine, and name one fix",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return c.doctor(cmd.Context()) },
	}
}

func (c *common) doctor(ctx context.Context) error {
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	if !h.Live() {
		return usage{errors.New("cannot examine the files of another machine: doctor asks the kernel and the driver that run")}
	}
	gpus, err := new(facts.Cache).GPUs(h)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(gpus, facts.PCI.Display) && c.output != "json" {
		c.answer("No NVIDIA GPU on the PCI bus: nothing to examine here.")
		return nil
	}
	r, err := c.examine(ctx, h, view.Within(h))
	if err != nil {
		return err
	}
	for i, cause := range r.Causes {
		if slices.ContainsFunc(stages.Repairs(), func(o stages.Repair) bool { return o.Code == cause.Code }) {
			r.Causes[i].Commands = []string{c.typed("repair " + cause.Code)}
		}
	}
	if err = show(c, r, c.doctorText); err == nil && len(r.Causes) > 0 {
		return exit(exitPending)
	}
	return err
}

// examine examines a machine, with its node.toml if it has one. It reports an unusable node.toml as
// not checked.
func (c *common) examine(ctx context.Context, h host.Host, v host.View) (doctor.Report, error) {
	s, err := c.spec(h, c.files)
	if err != nil && len(c.files) > 0 {
		return doctor.Report{}, err
	}
	r := doctor.Examine(ctx, v, s)
	if err != nil && !errors.Is(err, errNoSpec) {
		r.Unread = append(r.Unread, doctor.Unread{What: "what node.toml asks for", Why: strings.ReplaceAll(err.Error(), "\n", "; ")})
	}
	return r, nil
}

// doctorText prints a report: the root causes first, each with the command to type.
func (c *common) doctorText(r doctor.Report) {
	w := c.stdout
	for _, cause := range r.Causes {
		printf(w, "%s %s  %s\n", c.colour(w, "!"), cause.Code, cause.Title)
		for _, f := range cause.Found {
			printf(w, "    %s\n", f.What)
		}
		printf(w, "    %s.\n", cause.Meaning)
		row := func(word string, lines ...string) { rows(w, 4, 11, word, lines...) }
		var explains []string
		for _, f := range cause.Explains {
			explains = append(explains, f.Code+"  "+f.What)
		}
		if more := len(explains) - 1; more > 0 && !c.verbose {
			explains = []string{explains[0], fmt.Sprintf("and %d more, which -v lists", more)}
		}
		row("explains", explains...)
		row("fix", cause.Fix)
		row("interrupts", cause.Interrupts)
		if cause.NoRepair != "" {
			row("no repair", cause.NoRepair)
		}
		row("type", cause.Commands...)
		if c.verbose {
			row("source", cause.Sources...)
		}
		printf(w, "\n")
	}
	for _, n := range r.Notes {
		printf(w, "Note: %s.\n", n.What)
	}
	for _, u := range r.Unread {
		printf(w, "Not checked: %s: %s\n", u.What, u.Why)
	}
	end := "No fault found"
	if n := len(r.Causes); n > 0 {
		end = trouble.Count(n, "root cause")
	}
	printf(w, "%s, %s.\n", end, trouble.Count(r.Checks, "check"))
}
