// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// TestSealable: an image is sealed if what is left for first boot needs no network, and nothing else is pending.
func TestSealable(t *testing.T) {
	later := func(stage, kind string) converge.Change {
		return converge.Change{Stage: stage, Kind: kind, Name: "x", Deferred: "first boot"}
	}
	for name, c := range map[string]struct {
		is      converge.Status
		refused string
	}{
		"nothing":     {converge.Status{}, ""},
		"GPUs":        {status(later("mig", "check"), later("modules", "module"), later("services", "fabric")), ""},
		"the cluster": {status(later("join", "file"), later("ready", "node")), ""},
		"packages":    {status(later("packages", "package")), "package x"},
		"a runfile":   {status(later("packages", "runfile")), "runfile x"},
		"pending":     {status(converge.Change{Kind: "file", Name: "/etc/x"}), "file /etc/x"},
		"cut short":   {converge.Status{Unfinished: "run"}, ""},
	} {
		err := Sealable(c.is)
		trouble := (*converge.Trouble)(nil)
		if want := c.refused != "" || c.is.Unfinished != ""; errors.As(err, &trouble) != want {
			t.Errorf("%s: %v", name, err)
		} else if want && !strings.Contains(strings.Join(trouble.Because, " "), c.refused) {
			t.Errorf("%s: because %q", name, trouble.Because)
		}
	}
}

func status(changes ...converge.Change) (s converge.Status) {
	s.Changes = changes
	return s
}
