// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
)

// Of packages of which the same is to be said it is said once, and a place once for all its versions.
func TestToldOnce(t *testing.T) {
	const a, b = "https://a.example/cuda", "https://b.example/main"
	offers := map[string][]offer{
		"nvidia-driver": {{version: "590.1-1", from: []string{a}}, {version: "580.2-1", from: []string{a}}, {version: "535.1-1", from: []string{b}}},
		"nvidia-smi":    {{version: "590.1-1", from: []string{a}}, {version: "580.2-1", from: []string{a}}, {version: "535.1-1", from: []string{b}}},
		"nvidia-old":    nil,
	}
	names := []string{"nvidia-driver", "nvidia-old", "nvidia-smi"}
	got := toldAll(names, func(name string) ([]offer, State) { return offers[name], State{Version: "580.2-1"} })
	want := []string{
		"nvidia-driver, nvidia-smi: 590.1-1, 580.2-1 from " + a + "; 535.1-1 from " + b + "; installed is 580.2-1",
		"nvidia-old: no source has it; installed is 580.2-1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	var many []offer
	for _, v := range []string{"8", "7", "6", "5", "4", "3", "2", "1"} {
		many = append(many, offer{version: v, from: []string{a}})
	}
	if got := told("x", many, State{}); got != "x: 8, 7, 6, 5, 4, 3 from "+a+", and 2 more" {
		t.Error(got)
	}
}

// Who holds a lock is said on one line that can be read.
func TestCommandOf(t *testing.T) {
	n, err := simhost.New([]byte("-- proc/7/cmdline base64 --\nc2gALWMAZWNobyBhCgllY2hvIGIA\n-- proc/8/cmdline --\n" + strings.Repeat("x", 300) + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[string]string{"7": " (sh -c echo a echo b)", "8": " (" + strings.Repeat("x", 120) + "…)", "9": " (apt-get)"} {
		if got := commandOf(n, pid, "apt-get"); got != want {
			t.Errorf("%s: %q, want %q", pid, got, want)
		}
	}
	if got := commandOf(n, "9", ""); got != "" {
		t.Errorf("nobody: %q", got)
	}
}

// Whatever apt or dnf say, there is something to do next.
func TestExplainedWithAMend(t *testing.T) {
	n, err := simhost.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, explained := range map[string]error{
		"apt":          explain(n, "", &host.CommandError{Stderr: "E: something that nobody has seen before"}),
		"apt, unmet":   explain(n, "The following packages have unmet dependencies:\n a : Depends: b but it is not installable\n", &host.CommandError{Stderr: "E: Unable to correct problems"}),
		"dnf":          explainDnf(n, "", &host.CommandError{Stderr: "Error: something that nobody has seen before"}),
		"dnf, problem": explainDnf(n, "", &host.CommandError{Stderr: "Error: \n Problem: conflicting requests\n  - nothing provides x\n"}),
	} {
		trouble := (*converge.Trouble)(nil)
		if !errors.As(explained, &trouble) || len(trouble.Try) == 0 || !strings.HasPrefix(trouble.What, "cannot ") {
			t.Errorf("%s: %v", name, explained)
		}
	}
}
