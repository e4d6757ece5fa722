// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// lookAtNamed adds to a plan what the looks at the spec's values have found. A value that no
// pending change uses is not looked at: a machine that is converged needs no key file any more.
func (e *Engine) lookAtNamed(ctx context.Context, m machine, p *Plan) {
	if e.Named == nil || len(p.Changes) == 0 {
		return
	}

	known := refusedKeys(p.Changes)
	for _, seen := range e.Named(ctx, m.view, e.Spec, m.facts, p.Changes) {
		if slices.Contains(known, seen.Key) {
			continue
		}
		var later host.Later
		if errors.As(seen.Err, &later) {
			at := e.Places.At(seen.Keys()...)
			p.Later = append(p.Later, Later{
				Key:   seen.Key,
				Value: seen.Value,
				At:    lineOf(at),
				Until: later.Until,
			})
			continue
		}

		if seen.Err != nil {
			p.refuse(e.refused(seen))
		}
	}
}

// refusedKeys are the keys of the spec for which a change is refused: a stage that looks at a value
// says what is wrong with it.
func refusedKeys(lines []Line) (keys []string) {
	for _, c := range lines {
		if c.refused() {
			keys = append(keys, c.Keys...)
		}
	}
	return keys
}

// Keys are the keys at whose place an operator finds the value: the entry of a table, else the key.
func (s Seen) Keys() []string { return []string{s.Key + "." + s.Value, s.Key} }

// refused is the change that stands in for a value that cannot be used.
func (e *Engine) refused(s Seen) Line {
	r := cannot(s.Err)
	if !isJudged(s.Err) {
		r = unknownBecause(s.Err)
		r.Passes = false // without the look an apply touches nothing
	}
	r.Keys = s.Keys()
	return Line{
		Change: Change{Stage: s.Stage, Ref: Ref{Kind: "check", Name: s.Key}},
		Reason: e.placed(r),
	}
}

// isJudged says whether a look has judged the value. Otherwise it could not look.
func isJudged(err error) bool {
	var t *trouble.Error
	return errors.As(err, &t)
}

// placed adds to a refusal where the spec states the value at fault.
func (e *Engine) placed(r Reason) Reason {
	at := e.Places.At(r.Keys...)
	if at.Line == 0 {
		return r
	}
	if r.Cannot != "" {
		r.Cannot = (&trouble.Error{What: r.Cannot, At: at}).Error()
	}
	if r.Unknown != "" {
		r.Unknown = (&trouble.Error{What: r.Unknown, At: at}).Error()
	}
	return r
}

func lineOf(at trouble.Position) string {
	if at.Line == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", at.File, at.Line)
}
