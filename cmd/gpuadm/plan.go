// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func newPlan(c *common) *cobra.Command {
	var exitCode, report bool
	cmd := &cobra.Command{
		Use:               "plan [STAGE…]",
		Short:             "show what apply would change; touch nothing",
		ValidArgsFunction: stageNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if report {
				return c.reportDrift(cmd.Context())
			}
			c.shown = args
			return c.plan(cmd.Context(), args, exitCode)
		},
	}
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 3 if changes are pending, 4 if a reboot is needed")
	cmd.Flags().BoolVar(&report, "report", false, "for the drift timer: one line, also as an Event of the Node; nothing if converged")
	return cmd
}

func (c *common) plan(ctx context.Context, only []string, exitCode bool) error {
	e, h, err := c.engine(ctx, only, nil)
	if err != nil {
		return c.withoutSpec(ctx, err)
	}
	return c.planWith(ctx, e, h, exitCode)
}

// planWith prints the plan of an engine.
func (c *common) planWith(ctx context.Context, e *converge.Engine, h host.Host, exitCode bool) error {
	if none, err := c.noGPU(ctx, e, h, justPlan); none || err != nil {
		return err
	}
	p, err := e.Plan(ctx, view.Patiently(h))
	if err != nil {
		return err
	}

	p.Notes = append(p.Notes, c.followNote(e.Spec)...)
	p.Notes = append(p.Notes, c.unread(h)...)
	if err := show(c, p, c.planText); err != nil {
		return err
	}

	// A plan shows what would change: it fails only where it cannot show that.
	isShown := p.State == converge.EndsPending || p.State == converge.EndsReboot
	if isShown && !exitCode {
		return nil
	}
	return exitOf(p.State)
}

// noGPU prints one line if the machine has no NVIDIA GPU: in a mixed pool a DaemonSet also runs on
// such nodes. With gpu_count in [driver], or if the node had GPUs before, that is an error, which
// preflight reports. answer makes the verb's JSON from an empty plan.
func (c *common) noGPU(
	ctx context.Context, e *converge.Engine, h host.View, answer func(converge.Plan) any,
) (none bool, err error) {
	if !h.Live() || e.Spec.Driver.GPUCount > 0 {
		return false, nil
	}
	gpus, err := e.GPUs(h)
	if err != nil || slices.ContainsFunc(gpus, facts.PCI.Display) { // the plan reports other faults of GPUs
		return false, err
	}
	f, err := facts.Gather(ctx, h, facts.Needs{}) // a machine without GPUs needs no facts from its cloud
	if err != nil {
		return false, &trouble.Unknown{Err: err}
	}
	if node.MissingGPUs(h, e.Spec, f) != "" {
		return false, nil
	}

	const noGPU = "no NVIDIA GPU on the PCI bus: nothing to do here"
	if c.output != "json" {
		c.answer("N" + noGPU[1:] + ".")
		return true, nil
	}
	return true, printJSON(c.stdout, answer(converge.Plan{
		Format: converge.PlanFormat,
		Host: converge.Host{
			Root:    h.Root(),
			Summary: f.String(),
			Spec:    e.Spec.Digest(),
			Facts:   f,
		},
		Stages:  []converge.StagePlan{},
		Changes: []converge.Line{},
		Notes:   []string{noGPU},
		State:   converge.EndsConverged,
	}))
}

func justPlan(p converge.Plan) any { return p }

// followNote names the source of the layout.
func (c *common) followNote(s spec.Spec) []string {
	if !s.MIG.FollowLabel {
		return nil
	}

	followed := c.run.Label
	switch {
	case followed.Layout == "":
		return []string{"no label " + node.MIGConfig + " has named a layout yet: gpuadm leaves the partitions"}
	case !followed.Asked:
		return []string{fmt.Sprintf(
			"the layout is %s, as the label %s said last: the API server does not answer now",
			followed.Layout, node.MIGConfig,
		)}
	}

	return []string{fmt.Sprintf("the layout is %s, by the node's label %s", followed.Layout, node.MIGConfig)}
}

// reportDrift reports the pending changes in one line, here and to the cluster.
func (c *common) reportDrift(ctx context.Context) error {
	e, h, err := c.engineAtBoot(ctx, nil, nil)
	if err != nil {
		c.keepFailure(err)
		return c.reportNoSpec(err)
	}
	none, err := c.noGPU(ctx, e, h, justPlan)
	if err != nil {
		c.keepMetrics(h, converge.Status{}, err)
	}
	if none || err != nil {
		return err
	}
	if c.broken != nil {
		c.reportSpec(ctx)
		c.keepMetrics(h, converge.Status{}, c.broken.why)
		return c.broken.why
	}

	s, err := c.run.Drift(ctx, func(pending []converge.Line) string {
		text := drift(pending)
		c.answer(text)
		return text
	})
	unseen := err
	if s.State != "" { // a plan was made: it counts what could not be looked at
		unseen = nil
	}
	s.InProgress = s.Unfinished != "" && agent.AtWork(h)
	c.keepMetrics(h, s, unseen)
	return err
}

// drift says in one line which changes are pending.
func drift(changes []converge.Line) string {
	var names []string
	for _, ch := range changes {
		if ch.Deferred == "" && ch.Unknown == "" {
			names = append(names, ch.String())
		}
	}

	count := trouble.Count(len(names), "change")
	few := strings.Join(trouble.Few(names, 6), ", ")
	return fmt.Sprintf("%s pending: %s. %s shows why.", count, few, trouble.Command("plan"))
}
