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

// Loads judges an engine's present files as its next start would read them: by gpuadm's reader, and
// then by the engine's own program, which ask asks.
func Loads(
	e facts.Engine, read func(facts.Engine) Configured, ask func(context.Context, host.View) error,
) things.PrecheckFunc {
	return func(ctx context.Context, v host.View) error {
		err := read(e).Unreadable
		if err == nil {
			err = ask(ctx, v)
		}
		if err == nil || errors.As(err, &host.Later{}) {
			return nil
		}
		return Rejected(e, err)
	}
}

// Judge compares how an engine's program reads its files before and after an edit. T is the
// configuration that the program prints.
type Judge[T any] struct {
	// Own has the program read the machine's own files. nil: no file of the machine is what the
	// daemon reads, such as a template.
	Own func() error
	// Ask has the program print its configuration with these bytes in the edited file.
	Ask func(data []byte) (T, error)
	// Compare says why the second configuration is not the edited first one.
	Compare func(was, is T) error
}

// Edit has the engine's own program judge an edit of the file target. Where no program answers,
// gpuadm's own reader has to do.
func (j Judge[T]) Edit(e facts.Engine, target string, before, after []byte) error {
	if j.Own != nil {
		err := j.Own()
		if err != nil && !errors.As(err, &host.Later{}) {
			return rejectedBefore(e, target, err)
		}
	}

	was, err := j.Ask(before)
	if errors.As(err, &host.Later{}) {
		return nil
	}
	if err != nil {
		return rejectedBefore(e, target, err)
	}

	is, err := j.Ask(after)
	if err == nil {
		err = j.Compare(was, is)
	}
	if err == nil {
		return nil
	}

	try := []string{"report it with " + trouble.Command("facts --record") + " and the configuration: gpuadm should have known"}
	if explained := (*trouble.Error)(nil); errors.As(err, &explained) {
		try = explained.Try
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot edit %s: %s would read the edited file differently: %v", target, e.Name, err),
		Because: []string{e.Name + " was asked about a copy; the machine's own files are as they were"},
		Try:     try,
		Err:     err,
	}
}

// rejectedBefore says that the program does not read the files as they are before the edit.
func rejectedBefore(e facts.Engine, target string, err error) error {
	if e.Binary == "" { // its unit may still run what was removed
		return &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: the engine's program is not found, so gpuadm cannot verify the change with it", target),
			Try:  []string{"reinstall the engine: its configuration is there"},
			Err:  err,
		}
	}

	if errors.As(err, new(NotJudged)) {
		return &trouble.Error{
			What: err.Error(),
			Try:  []string{Shows(e) + ", which has to end without an error"},
			Err:  err,
		}
	}

	if explained := (*trouble.Error)(nil); errors.As(err, &explained) {
		return err
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot edit %s: %s rejects its present configuration: %v", target, e.Name, err),
		Try:  []string{Shows(e) + ", which says where"},
		Err:  err,
	}
}
