// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestDraw: a change of partitions is drawn by the slices that each kind takes: what goes, what comes
// and what stays.
func TestDraw(t *testing.T) {
	for _, c := range []struct{ model, before, after, want string }{
		{
			"H100-80GB", "off", "on 3g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6", "" +
				"- MIG off\n" +
				"+ 3g.40gb  [======]\n" +
				"+ 1g.10gb          [][][]\n",
		},
		{
			"H100-80GB", "on 4g.40gb@0 1g.10gb@4 1g.10gb@6", "on 2g.20gb@0 1g.10gb@4 1g.10gb@6", "" +
				"- 4g.40gb  [======]\n" +
				"+ 2g.20gb  [==]\n" +
				"  1g.10gb          []  []\n",
		},
		{
			"H100-80GB", "on 2g.20gb@0(1c,1c) 2g.20gb@2", "on", "" +
				"- 2g.20gb (1c,1c)  [==]\n" +
				"- 2g.20gb              [==]\n" +
				"+ no partition\n",
		},
		{"A30-24GB", "on 2g.12gb@0 1g.6gb@2", "off", "" +
			"- 2g.12gb  [======]\n" +
			"- 1g.6gb           [==]\n" +
			"+ MIG off\n"},
	} {
		m := must.Get(Find(c.model))(t)
		before := must.Get(ParseState(c.before))(t)
		after := must.Get(ParseState(c.after))(t)
		check.Equal(t, m.draw(before, after), c.want, "%s: %q to %q:", c.model, c.before, c.after)
	}
}
