// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// TestJudgeOfAChangedSpec: the judge must not rely on what an earlier spec put into the file. The judge gets
// the state from which the want was computed: the file without gpuadm's part.
func TestJudgeOfAChangedSpec(t *testing.T) {
	n := node(t)
	var judged []string
	for _, word := range []string{"one", "two", "two"} {
		f := things.NewFile("/etc/d.conf", nil).Proven(func(_ context.Context, _ host.View, before, after []byte) error {
			judged = append(judged, fmt.Sprintf("%s to %s", before, after))
			return nil
		})
		apply(t, n, engineOf(t, stage(things.Edited(f, func(found []byte) ([]byte, error) {
			return append(slices.Clip(found[:4]), word...), nil
		}, ""))))
	}
	if want := []string{"old\n to old\none", "old\n to old\ntwo"}; !slices.Equal(judged, want) {
		t.Errorf("judged %q, want %q", judged, want)
	}
}
