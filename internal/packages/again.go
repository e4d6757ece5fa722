// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/converge"
)

func Mismatched(err error) bool { return errors.As(err, new(mismatch)) }

// onceMore tries again, with lists read again, what found a package to be another one than the lists say: then they fit most
// often. Where they cannot be read, what the first try said counts.
func OnceMore(ctx context.Context, try, read func() error) error {
	err := try()
	if !Mismatched(err) || ctx.Err() != nil {
		return err
	}
	converge.Say(ctx, "a package is another one than the lists say: the lists are read again, and it is fetched once more")
	if read() != nil {
		return err
	}
	return try()
}
