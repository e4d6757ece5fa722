// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import "testing"

// TestScheduled: a restart that has begun may have been, and hides nothing of what is still to come.
func TestScheduled(t *testing.T) {
	const begun = `{"EventType":"Reboot","EventStatus":"Started","Resources":["n"],"NotBefore":""}`
	for _, c := range []struct{ events, want string }{
		{begun, ""},
		{`{"EventType":"Redeploy","EventStatus":"Started","Resources":["n"],"NotBefore":""}`, ""},
		{`{"EventType":"Reboot","EventStatus":"Scheduled","Resources":["n"],"NotBefore":"Fri, 02 Jan 2026 03:06:05 GMT"}`, "reboot"},
		{begun + `,{"EventType":"Terminate","Resources":["n"],"NotBefore":"Fri, 02 Jan 2026 03:06:05 GMT"}`, "terminate"},
		{begun + `,{"EventType":"Preempt","Resources":["n"],"NotBefore":""}`, "preempt"},
	} {
		got := ""
		if n := scheduled([]byte(`{"Events":[`+c.events+`]}`), "n"); n != nil {
			got = n.What
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.events, got, c.want)
		}
	}
}
