// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// ErrInUse reports that a change would take the GPUs from a process, and the operator has not
// allowed that. The GPUs are not at fault.
var ErrInUse = errors.New("the GPUs are in use")

// errKept is an ErrInUse that waiting does not end.
var errKept = fmt.Errorf("%w, and stay so", ErrInUse)

// Interrupts says what Apply would refuse to interrupt now. It touches nothing.
func (e *Engine) Interrupts(ctx context.Context, v host.View) error {
	p, err := e.Plan(ctx, v)
	if err == nil {
		err = refuse(p.refused())
	}
	if err == nil {
		err = e.consent(ctx, v, p.Changes)
	}
	return e.untilIdle(err)
}

// untilIdle turns a refusal that ends once the GPUs are idle into a wait, unless policy = "never"
// in [disruption]. Only the error that a run ends with becomes a wait. Inside a run, gpuadm rolls
// back a stage that finds the GPUs in use: if it waited there, no process could use the GPUs
// meanwhile.
func (e *Engine) untilIdle(err error) error {
	policy := e.Spec.Disruption.Policy
	mayWait := policy != "" && policy != "never"
	endsIdle := errors.Is(err, ErrInUse) && !errors.Is(err, errKept)
	if !mayWait || !endsIdle || trouble.Passes(err) {
		return err
	}

	t := troubleOf(err)
	t.Try = append(t.Try, "or wait: once nothing uses the GPUs, the same command makes the change")
	t.Err = errors.Join(err, trouble.Wait{For: t.What})
	return t
}

// consent refuses changes whose breaks affect a process and are not allowed.
func (e *Engine) consent(ctx context.Context, v host.View, lines []Line) error {
	for _, what := range e.forbidden(lines) {
		names, clients, err := e.affected(ctx, v, lines, what)
		if err != nil {
			return fmt.Errorf("cannot list the processes that use the GPUs: %w", err)
		}
		if len(clients) == 0 {
			continue
		}

		why, try, cause := objection(what)
		tries := []string{try + "run again with --allow " + what}
		if what == "stop-clients" && e.podsUseGPUs(ctx, v) {
			tries = []string{`move the pods away: kubectl drain NODE, or policy = "drain" in [disruption]`}
		}
		all := strings.Join(trouble.Few(names, 6), ", ")
		return &trouble.Error{
			What:    fmt.Sprintf("cannot make %s: that needs %s, and %s", all, what, why),
			Because: trouble.Few(clients, 6),
			Try:     tries,
			Err:     cause,
		}
	}
	return nil
}

// podsUseGPUs reports whether a pod is among the clients of the GPUs.
func (e *Engine) podsUseGPUs(ctx context.Context, v host.View) bool {
	if e.Pods == nil {
		return false
	}
	pods, err := e.Pods(ctx, v)
	return err == nil && len(pods) > 0
}

// allows says whether the operator or the spec allows a break, or a downgrade of gpuadm.
func (e *Engine) allows(what string) bool {
	return slices.Contains(e.Spec.Disruption.Allow, what) ||
		slices.Contains(e.Allow, what) ||
		slices.Contains(e.Allow, "all")
}

// forbidden returns the breaks of the changes that were not allowed, in their order, but first
// those that waiting does not end: an operator must not wait, or move pods away, in vain. Pods live
// on through some breaks: those need no consent.
func (e *Engine) forbidden(lines []Line) (list []string) {
	podsRun := []string{"restart-runtime", "restart-kubelet", "pause-services"}
	for _, c := range lines {
		if c.Deferred != "" || c.Unknown != "" {
			continue
		}
		for _, what := range c.Breaks {
			if !e.allows(what) && !slices.Contains(podsRun, what) {
				list = appendUnique(list, what)
			}
		}
	}

	sorting.By(list, func(a, b string) int { return waitRank(a) - waitRank(b) })
	return list
}

// waitRank is 0 for a break that waiting does not end, else 1.
func waitRank(what string) int {
	_, _, cause := objection(what)
	if errors.Is(cause, errKept) {
		return 0
	}
	return 1
}

// affected returns the names of the changes that need a break, and the processes that it affects.
func (e *Engine) affected(
	ctx context.Context, v host.View, lines []Line, what string,
) (names, clients []string, err error) {
	affectsAll := false // processes that hold a GPU
	for _, c := range lines {
		if c.Deferred != "" || c.Unknown != "" || !slices.Contains(c.Breaks, what) {
			continue
		}
		names = append(names, c.String())
		clients = append(clients, c.Clients[what]...)
		affectsAll = affectsAll || len(c.Clients[what]) == 0
	}

	if !affectsAll || e.Clients == nil {
		return names, clients, nil
	}
	holders, err := e.Clients(ctx, v)
	return names, append(clients, holders...), err
}

// objection says why an operator has to allow a break, and what else they can do.
func objection(what string) (why, try string, err error) {
	switch what {
	case "lose-partitions":
		return "the GPUs are partitioned", "", errKept
	case "change-held":
		return "another tool holds what would change",
			"lift the hold (apt-mark unhold, dnf versionlock delete), or ", errKept
	case "stop-containers":
		return "containers run",
			"stop them, or have them live on (live-restore in Docker's documentation), or ", errKept
	}
	return "the GPUs are in use", "stop them, or ", ErrInUse
}

// consent asks for the consent of an operator, with what the machine says now.
func (r *run) consent(ctx context.Context, lines []Line) error {
	return r.engine.consent(ctx, r.host, lines)
}
