// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
)

// foreignThing is a thing that another process brings: /srv/theirs. gpuadm can only wait for it, in its look or in its make.
type foreignThing struct{ looks bool }

func (foreignThing) Ref() converge.Ref { return converge.Ref{Kind: "check", Name: "theirs"} }

func (o foreignThing) Look(_ context.Context, v host.View) (converge.State, error) {
	if _, err := v.Stat("/srv/theirs"); err == nil {
		return "there", nil
	} else if o.looks {
		return "", trouble.Wait{For: "theirs is missing", Try: []string{"ask them"}}
	}
	return "", nil
}

func (foreignThing) Make(context.Context, host.Host, converge.State) error {
	return trouble.Wait{For: "theirs is missing"}
}

// TestWaiting: a thing that only others can bring stops nothing else and rolls nothing back. The same run continues once it is there.
func TestWaiting(t *testing.T) {
	for _, o := range []foreignThing{{looks: true}, {looks: false}} {
		n := node(t)
		e := engineOf(t, stage(
			things.Exact("/etc/a", []byte("a"), 0o600, ""),
			converge.Want{Thing: o, To: to("there")},
			things.Exact("/etc/b", []byte("b"), 0o600, ""),
		))
		res, err := e.Apply(context.Background(), n)
		if !trouble.Passes(err) || !strings.Contains(err.Error(), "theirs is missing") {
			t.Fatalf("%+v: %v", o, err)
		}
		if tr := (*trouble.Error)(nil); o.looks && (!errors.As(err, &tr) || len(tr.Try) != 1 || tr.Try[0] != "ask them") {
			t.Errorf("no fix: %+v", err)
		}
		if _, err := n.Stat("/etc/a"); err != nil {
			t.Errorf("%+v: what was made before is gone: %v", o, err)
		}
		if _, err := n.Stat("/etc/b"); (err == nil) != o.looks {
			t.Errorf("%+v: what comes after it: %v", o, err)
		}
		plan, err := e.Plan(context.Background(), n)
		if err != nil || len(plan.Cannot()) > 0 {
			t.Errorf("%+v: the plan says it cannot be: %v %+v", o, err, plan.Cannot())
		}
		must.OK(t, n.WriteFile("/srv/theirs", nil, host.Attr{Mode: 0o644}))
		again := apply(t, n, e)
		if !o.looks && again.Run != res.Run {
			t.Errorf("a new run %s does not go on with %s", again.Run, res.Run)
		}
		if _, err := n.Stat("/etc/b"); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestWaitingToKnow: a stage that cannot say yet what it wants, since a cloud does not answer, is waited for too.
func TestWaitingToKnow(t *testing.T) {
	for _, waits := range []bool{true, false} {
		n := node(t)
		st := stage()
		st.Wants = func(spec.Spec, facts.Facts) ([]converge.Want, error) {
			cause := error(trouble.Wait{For: "an answer"})
			if !waits {
				cause = errors.New("no")
			}
			return nil, &trouble.Error{What: "cannot ask", Try: []string{"ask them"}, Err: cause}
		}
		_, err := engineOf(t, st).Apply(context.Background(), n)
		if tr := (*trouble.Error)(nil); trouble.Passes(err) != waits || !errors.As(err, &tr) || len(tr.Try) != 1 || tr.What != "cannot ask" {
			t.Errorf("waits %v: %+v", waits, err)
		}
	}
}
