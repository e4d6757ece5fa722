// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Untrusted adds to an error of View.Trusted what to do about it, on a machine whose files are
// below root.
func Untrusted(root string, err error) *trouble.Error {
	var u *host.Untrusted
	if !errors.As(err, &u) {
		return &trouble.Error{What: err.Error(), Err: err}
	}

	whys, fix := u.Fix(root)
	t := &trouble.Error{
		What: fmt.Sprintf("cannot trust %s: %s", path.Join(root, u.Name), whys[0]),
		Try:  []string{"see what is in it, then: " + strings.Join(fix, " && ")},
		Err:  err,
	}
	for _, why := range trouble.Few(whys[1:], 3) {
		t.Because = append(t.Because, "also: "+why)
	}
	t.Because = append(t.Because, "a user who can change it decides what root does here")
	t.Undone = []string{trouble.NothingTouched}

	return t
}
