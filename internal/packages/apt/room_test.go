// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import "testing"

func TestFits(t *testing.T) {
	one := "       Avail Mounted on\n5000000 /\n5000000 /\n"
	two := "       Avail Mounted on\n5000000 /\n9000000 /var\n"
	for _, c := range []struct {
		df            string
		usr, archives int64
		ok            bool
	}{{one, 2e6, 2e6, true}, {one, 3e6, 3e6, false}, {two, 3e6, 3e6, true}, {two, 6e6, 1, false}, {"rubbish", 1e12, 1, true}, {one, -1e6, 5e6, true}} {
		if err := fits(c.df, c.usr, c.archives); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
