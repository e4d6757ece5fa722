// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/stages"
)

// Advice to stop an instance says what that loses.
func TestStoppingLosesLocalDisks(t *testing.T) {
	for cloud, loses := range map[string]string{"aws": "instance store", "gce": "Local SSD", "azure": "temporary disk", "other": "local disks", "": ""} {
		for _, spec := range []string{"[driver]\ngpu_count = 8\n", "[driver]\n"} {
			all := stages.Sequence()
			preflight := all[slices.IndexFunc(all, func(st converge.Stage) bool { return st.Name == "preflight" })]
			var f facts.Facts
			f.Live, f.Cloud.Name = true, cloud
			wants, err := preflight.Wants(parse(t, spec), f)
			if err != nil || len(wants) != 1 {
				t.Fatalf("%v %v", wants, err)
			}
			_, err = wants[0].To("a GPU is missing")
			tr := (*converge.Trouble)(nil)
			if !errors.As(err, &tr) {
				t.Fatal(err)
			}
			try := strings.Join(tr.Try, "\n")
			if stops := strings.Contains(try, "stop the instance"); stops != (cloud != "") || !strings.Contains(try, loses) || strings.Contains(try, "first save") != stops {
				t.Errorf("%q: %s", cloud, try)
			}
		}
	}
	for _, line := range []string{"NVRM: Xid (PCI:0000:17:00): 79, pid=1", "NVRM: Xid (PCI:0000:17:00): 143, pid=1", "NVRM: GPU 0000:17:00.0: GPU has fallen off the bus."} {
		if got := strings.Join(things.Meanings([]string{line}), "\n"); !strings.Contains(got, "power the machine off and on") || !strings.Contains(got, "loses what is on its local disks") {
			t.Errorf("%s: %s", line, got)
		}
	}
}
