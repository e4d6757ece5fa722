// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// cdiRun is the spec as the stage that changes partitions sees it: outdated by them, also by an undo of them. One that cannot be made
// current is named there and takes no partitions back; the thing cdi, of the stage that comes next, is what fails.
type cdiRun struct{ cdi }

// CDIRun wants the toolkit's service to run after partitions have changed, where it is installed.
func CDIRun() converge.Want {
	w := CDISpec()
	w.Thing = cdiRun{}
	return w
}

// NewCDI builds a thing of the kind again.
func NewCDI(name string) converge.Thing {
	if name == CDIUnit {
		return cdiRun{}
	}
	return cdi{}
}

// Ref has another name than cdi's, since the journal tells things by kind and name.
func (cdiRun) Ref() converge.Ref { return converge.Ref{Kind: "cdi", Name: CDIUnit} }

// Make is cdi's, but for what a failure leads to.
func (r cdiRun) Make(ctx context.Context, h host.Host, to converge.State) error {
	err := r.cdi.Make(ctx, h, to)
	if told := (*trouble.Error)(nil); errors.As(err, &told) {
		return converge.Stays{Why: told.What}
	}
	return err
}

// Unsettled says that partitions that change make the spec outdated.
func (cdiRun) Unsettled(found converge.State, by converge.Change) converge.State {
	if by.Kind != "mig" || found == cdiNone {
		return found
	}
	return cdiOutdated + ": partitions change"
}
