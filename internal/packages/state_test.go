// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

func TestStateText(t *testing.T) {
	for text, want := range map[converge.State]State{
		"":                           {},
		"580.95.05-0ubuntu1 held":    {Version: "580.95.05-0ubuntu1", Held: true},
		"3:580.95.05-1.el9 auto":     {Version: "3:580.95.05-1.el9", Auto: true},
		"1 held auto half-installed": {Version: "1", Held: true, Auto: true, Broken: "half-installed"},
		"driver=580.* held":          {Version: "driver=580.*", Held: true},
		"- held":                     {Version: Nowhere, Held: true},
		"1.0 config-files":           {Version: "1.0", Broken: ConfigFiles},
	} {
		if got := Parse(text); got != want || want.String() != text {
			t.Errorf("%q: parsed %+v, written %q", text, got, want.String())
		}
	}
}

// TestToIsIdempotent goes through the states of a package: the second To changes nothing.
func TestToIsIdempotent(t *testing.T) {
	set := NewSet()
	for _, wanted := range []State{{Version: "driver=580.*", Held: true}, {Version: "580.1-1"}, {Version: "driver=*", Auto: true}} {
		want := Want(set, "x", wanted, "")
		for _, found := range []converge.State{"", "580.1-1", "580.1-1 auto", "580.1-1 held", "570.1-1", "580.1-1 half-configured", "580.1-1 config-files"} {
			once, err := want.To(found)
			if err != nil {
				continue
			}
			if twice, err := want.To(once); err != nil || twice != once {
				t.Errorf("wanted %q, found %q: %q, then %q, %v", wanted.String(), found, once, twice, err)
			}
		}
	}
	if _, err := Want(set, "x", State{Version: "driver=580.*", Held: true}, "").To("- held"); err == nil {
		t.Error("a package that is held as not installed would be installed")
	}
	if to, _ := Want(set, "x", State{Version: "driver=580.*"}, "").To("580.1-1 auto"); to != "580.1-1" {
		t.Errorf("an automatic package that is wanted becomes %q", to)
	}
}
