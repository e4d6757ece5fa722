// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"regexp"
	"testing"

	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/mig"
)

// TestTypesMIG holds the types against the table of GPUs that can be partitioned.
func TestTypesMIG(t *testing.T) {
	titles := ""
	for _, m := range mig.Models() {
		titles += m.Name + "\n" + m.Title + "\n"
	}
	chip := regexp.MustCompile(`^(RTX PRO [0-9]+|[A-Z]+[0-9]+[A-Z]*)`)
	partitioned := 0
	instance.EachType(func(_, name string, of instance.Type) {
		in := regexp.MustCompile(`(?m)(^|[ ,])` + regexp.QuoteMeta(chip.FindString(of.Model)) + `([ ,-]|$)`)
		if want := in.MatchString(titles) && !of.Part; want != of.MIG {
			t.Errorf("%s (%s): MIG %t, the table of partitions says %t", name, of.Model, of.MIG, want)
		}
		if of.MIG {
			partitioned++
		}
	})
	if partitioned < 20 {
		t.Errorf("%d types with MIG", partitioned)
	}
}
