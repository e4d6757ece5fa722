// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strings"
	"testing"
)

// TestReplays: over http an old index can be served again, and most where the version is left open.
func TestReplays(t *testing.T) {
	branch, exact := []Pin{KeepAt("580.*", "nvidia-open")}, []Pin{KeepAt("580.95.05", "nvidia-open")}
	for _, tt := range []struct {
		manager, url string
		pins         []Pin
		says         []string // nil for no note
		not          string
	}{
		{"apt", "https://mirror.example/cuda", branch, nil, ""},
		{"apt", "file:///srv/cuda", branch, nil, ""},
		{"apt", "", branch, nil, ""},
		{"apt", "http://mirror.example/cuda", branch, []string{"http://mirror.example/cuda", "Valid-Until", "older release", "https"}, "!"},
		{"apt", "http://mirror.example/cuda", nil, []string{"older release"}, "!"},
		{"apt", "http://mirror.example/cuda", exact, []string{"Valid-Until", "hold updates back", "https"}, "older release"},
		{"dnf", "http://mirror.example/cuda", exact, []string{"hold updates back"}, "Valid-Until"},
	} {
		notes := Replays(tt.manager, []Repository{{URL: tt.url, Pins: tt.pins}})
		if len(notes) != min(len(tt.says), 1) {
			t.Errorf("%s %q: %q", tt.manager, tt.url, notes)
			continue
		}
		for _, says := range tt.says {
			if !strings.Contains(notes[0], says) || strings.Contains(notes[0], tt.not) {
				t.Errorf("%s %q with pins %v: %s", tt.manager, tt.url, tt.pins, notes[0])
			}
		}
	}
}
