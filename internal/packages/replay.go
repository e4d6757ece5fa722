// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"slices"
	"strings"
)

// Replays says what the signatures of repositories do not prevent that are reached over http: an index that was signed long ago
// still has a good signature, and a machine on the way can serve it for ever. apt refuses an index after its Valid-Until, and
// an index need not have one: sources.list(5), "Check-Valid-Until" and "Valid-Until-Max"; "Date, Valid-Until" in
// https://wiki.debian.org/DebianRepository/Format. NVIDIA's repositories are reached over https.
func Replays(manager string, repos []Repository) (notes []string) {
	for _, r := range repos {
		if !strings.HasPrefix(r.URL, "http://") {
			continue
		}
		unless := ""
		if manager == "apt" {
			unless = " where it has no Valid-Until"
		}
		note := fmt.Sprintf("%s is reached over http: its signature does not tell an old index from the newest%s, so that another machine on the way can hold updates back", r.URL, unless)
		exact := func(p Pin) bool { return p.Version != "" && !strings.HasSuffix(p.Version, "*") }
		if slices.ContainsFunc(r.Pins, exact) {
			note += "; write it with https"
		} else {
			note += " and have an older release chosen, since the spec leaves the version open; write it with https, or ask for one exact version"
		}
		notes = append(notes, note)
	}
	return notes
}
