// SPDX-License-Identifier: Apache-2.0

package converge

import "cmp"

// with is t with the time between two records.
func (t Times) with(from, to Record) Times {
	millis := spent(from, to)
	if millis <= 0 {
		return t
	}

	stage := from.Change.Stage
	last := len(t) - 1
	if last >= 0 && t[last].Stage == stage {
		t[last].Millis += millis
		return t
	}
	return append(t, Took{stage, millis})
}

// spent is how many milliseconds the change of a record took: until the next record. A time during
// which gpuadm was not at work, such as a reboot, does not count.
func spent(from, to Record) int64 {
	continued := to.What == "begin" || to.Result == resumed
	if from.What != "make" || from.Run != to.Run || continued {
		return 0
	}
	return to.Time.Sub(from.Time).Milliseconds()
}

// usual is how many milliseconds the longest change like this one took in the last run that
// succeeded and made one; 0 if no run did.
func (j Journal) usual(c Change) (longest int64) {
	var lastLike string  // the last run that succeeded and made such a change
	var succeeded string // the run of the records that are being read, if it succeeded
	for i := len(j.Records) - 1; i > 0; i-- {
		from := j.Records[i-1]
		to := j.Records[i]
		if to.What == "end" && to.Result == "ok" {
			succeeded = to.Run
		}

		if from.What != "make" || from.Run != succeeded || !alike(*from.Change, c) {
			continue
		}
		if cmp.Or(lastLike, succeeded) == succeeded {
			lastLike = succeeded
			longest = max(longest, spent(from, to))
		}
	}

	return longest
}

// alike says whether two changes take about as long: both make, or both remove, a thing of one kind
// in one stage.
func alike(a, b Change) bool {
	removes := func(c Change) bool { return c.After == "" }
	return a.Kind == b.Kind && a.Stage == b.Stage && removes(a) == removes(b)
}
