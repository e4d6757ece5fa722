// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// mismatch reports a package that is another one than the lists say, as it is while a repository is published or a mirror follows
// it. Source: https://github.com/NVIDIA/cuda-repo-management/issues/12.
type mismatch struct{ error }

func (m mismatch) Unwrap() error { return m.error }

func mismatched(err error) bool { return errors.As(err, new(mismatch)) }

// explainMismatch says it with the packager's own lines.
func explainMismatch(t *converge.Trouble, said []string) {
	t.What = "cannot fetch packages: the repository's files do not fit together, as while it is being published"
	t.Because = said
	t.Try = []string{"run the same command again in some minutes", "if it is a mirror: mirror it again", "see that no proxy rewrites what passes through it"}
	t.Err = mismatch{t.Err}
}

// onceMore makes a second try of what found a package to be another one than the lists say, with lists read anew: then they fit
// most often. Where they cannot be read, what the first try said counts.
func onceMore(ctx context.Context, try, read func() error) error {
	err := try()
	if !mismatched(err) || ctx.Err() != nil {
		return err
	}
	converge.Say(ctx, "a package is another one than the lists say: the lists are read anew, and it is fetched once more")
	if read() != nil {
		return err
	}
	return try()
}
