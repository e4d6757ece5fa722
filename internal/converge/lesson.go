// SPDX-License-Identifier: Apache-2.0

package converge

import "slices"

// Taught is an error with a lesson.
type Taught struct {
	error
	Lesson Lesson
}

func (t Taught) Unwrap() error { return t.error }

// Teach adds a lesson to an error.
func Teach(err error, l Lesson) error { return Taught{err, l} }

// Lessons are what failures have taught, the newest about each subject.
func (j Journal) Lessons() (list []Lesson) {
	for _, r := range slices.Backward(j.Records) {
		if r.Lesson == nil {
			continue
		}
		same := func(l Lesson) bool { return l.Subject == r.Lesson.Subject }
		if !slices.ContainsFunc(list, same) {
			list = append(list, *r.Lesson)
		}
	}
	return list
}

// learned are the records of the newest lessons. They stay when the runs that have taught them are
// dropped.
func (j Journal) learned(most int) (records []Record) {
	seen := map[string]bool{}
	for _, r := range slices.Backward(j.Records) {
		if r.Lesson != nil && !seen[r.Lesson.Subject] && len(records) < most {
			seen[r.Lesson.Subject] = true
			records = append(records, r)
		}
	}

	slices.Reverse(records)
	return records
}
