// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"io"

	"github.com/gpuadm/gpuadm/internal/packages/apt"
)

// AptHook is the verb by which apt runs gpuadm.
const AptHook = apt.HookVerb

// VerifyApt is what that verb does: see apt.Verify.
func VerifyApt(getenv func(string) string, announced io.Reader, answer io.Writer) error {
	return apt.Verify(getenv, announced, answer)
}
