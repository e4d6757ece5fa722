// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import "time"

// Until asks again and again until the answer is yes or the time is up. It pauses for an eighth of the time that it has waited: who asks a
// host runs two programs there, and a few who wait for minutes would keep a processor busy.
func Until(limit time.Duration, yes func() bool) bool {
	for began := time.Now(); !yes(); {
		waited := time.Since(began)
		if waited > limit {
			return false
		}
		time.Sleep(min(max(waited/8, 2*time.Millisecond), time.Second))
	}
	return true
}
