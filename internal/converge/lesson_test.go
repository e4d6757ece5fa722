// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestLesson: what a failure has taught is in the journal after the roll-back, the newest about each
// subject, and stays there when the journal is compacted.
func TestLesson(t *testing.T) {
	box := newToybox(t, states{"a": "red"})
	toys := stage("toys", box.want("block", "a", "blue"))
	box.broken = "a"
	for _, says := range []string{"no paint", "no brush"} {
		box.why = converge.Teach(errors.New("it is broken"), converge.Lesson{
			Subject: "a",
			Says:    says,
		})
		_, err := box.engine(toys).Apply(t.Context(), box)
		check.That(t, err != nil, "a broken toy was made")
	}

	want := []converge.Lesson{{Subject: "a", Says: "no brush"}}
	check.List(t, converge.ReadJournal(box).Lessons(), want, "lessons:")

	box.broken = ""
	for i := range 200 {
		box.apply(t, stage("toys", box.want("block", "a", converge.State(fmt.Sprint(i)))))
	}
	j := converge.ReadJournal(box)
	check.That(t, len(j.Records) < 400, "the journal was not compacted: %d records", len(j.Records))
	check.List(t, j.Lessons(), want, "lessons after the journal was compacted:")
	check.Equal(t, j.Damaged == nil, true, "no line is damaged: ")
}
