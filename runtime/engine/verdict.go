// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NotJudged says that an engine's program was not able to judge the machine's files: it did not
// start, or did not end in time. That is neither a yes nor a no: what is wanted of the files is
// unknown, gpuadm edits nothing, and it leaves the running daemon alone, since systemd may not be
// able to start the program either.
type NotJudged struct {
	Program string
	Err     error
}

func (n NotJudged) Error() string {
	return fmt.Sprintf("the engine's files could not be judged by %s: %v", n.Program, n.Err)
}

func (n NotJudged) Unwrap() error { return n.Err }

// Waits says that a program that did not end in time may do so later.
func (n NotJudged) Waits() bool { return errors.Is(n.Err, context.DeadlineExceeded) }

// AskOwn has an engine's program read the machine's own files, as its unit runs it: as root, in the
// same root folder, with the unit's environment. A copy would hide what only the machine's own
// files have, such as a link that leads nowhere.
func AskOwn(ctx context.Context, v host.View, e facts.Engine, args ...string) ([]byte, error) {
	argv := append([]string{e.Binary}, args...)
	out, err := v.AskWith(ctx, e.Env, argv...)

	var command *host.CommandError
	ended := errors.As(err, &command) && command.Code >= 0
	if err == nil || ended || errors.As(err, &host.Later{}) {
		return out, err
	}
	return nil, &trouble.Unknown{Err: NotJudged{Program: e.Binary, Err: err}}
}

// Fresh judges an engine's files as they are when it is called, and not as they were when the
// engine was found: gpuadm's own edits lie between the two.
func Fresh(
	config, unit string, verdict func(context.Context, host.View, facts.Engine) error,
) things.PrecheckFunc {
	return func(ctx context.Context, v host.View) error {
		e, err := Reading(ctx, v, config, unit)
		if err != nil || e.Name == "" {
			return err
		}
		err = verdict(ctx, v, e)
		if errors.As(err, &host.Later{}) {
			return nil
		}
		return err
	}
}

// Rejected says that an engine's program does not take the machine's present files.
func Rejected(e facts.Engine, err error) error {
	if explained := (*trouble.Error)(nil); err == nil || errors.As(err, &explained) {
		return err
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot start %s with its present files: %v", UnitOf(e), err),
		Try:  []string{Shows(e) + ", which says where"},
		Err:  err,
	}
}
