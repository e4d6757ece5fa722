// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestUsual: how long a change usually takes is what the longest of its kind took in the last run
// that succeeded and made one: neither a run that failed counts, nor the time of a reboot. A word
// of a journal is "RUN WHAT SECOND" or "RUN end SECOND RESULT".
func TestUsual(t *testing.T) {
	const now = "; d begin 900; d package 900"
	for journal, want := range map[string]int64{
		"":                                     0,
		"a begin 0; a package 0; a end 180 ok": 180,
		"a begin 0; a package 0; a package 60; a package 240; a file 250; a end 900 ok":                180,
		"a begin 0; a package 0; a end 180 failed":                                                     0,
		"a begin 0; a package 0; a end 180 ok; b begin 200; b package 200; b end 205 failed":           180,
		"a begin 0; a package 0; a end 180 ok; b begin 200; b package 200; b end 290 ok":               90,
		"a begin 0; a package 0; a end 180 ok; b begin 200; b file 200; b end 290 ok":                  180,
		"a begin 0; a package 0; a begin 700; a package 700; a end 760 ok":                             60,
		"a begin 0; a package 0; a end 180 ok; b begin 200; b package 200; c begin 300; c package 300": 180,
		"a begin 0; a package 0; a end 180 overtaken":                                                  0,
	} {
		var j Journal
		for line := range strings.SplitSeq(strings.TrimPrefix(journal+now, "; "), "; ") {
			var r Record
			var second int
			_, _ = fmt.Sscan(line+" -", &r.Run, &r.What, &second, &r.Result)
			r.Time = time.Unix(int64(second), 0)
			if r.What == "package" || r.What == "file" {
				r.What, r.Change, r.Result = "make", &Change{
					Ref:   Ref{Kind: r.What},
					After: "1",
				}, ""
			}

			j.Records = append(j.Records, r)
		}

		check.Equal(t, j.usual(Change{
			Ref:   Ref{Kind: "package"},
			After: "1",
		})/1000, want, "%q: usually takes", journal)
	}
}
