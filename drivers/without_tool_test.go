// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"testing"
)

// A tool that a repository has renamed, or that its owner installed by hand, is left out by without = [].
func TestWithoutATool(t *testing.T) {
	d := driver("580.95.05")
	d.Without = []string{"dkms"}
	if ch, err := Choose(Load(), machine("rocky", "9.6", "amd64", "2331"), d); err != nil {
		t.Errorf("%v", err)
	} else if len(names(ch, "dkms")) > 0 {
		t.Errorf("%v", names(ch, "dkms"))
	}
}
