// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Every recorded machine has a plan for a driver, or a refusal that says what to do.
func TestDriverPlans(t *testing.T) {
	planned := 0
	for _, m := range machines(t) {
		n := m.boot(t)
		if packages.Detect(n) != "apt" {
			continue // rpm's answers were not recorded
		}
		planned++
		for _, text := range []string{
			"[driver]\nversion = \"580\"\n",
			"[driver]\nversion = \"580.95.05\"\nmodules = \"open\"\n[toolkit]\nversion = \"1.18.0\"\n",
			"[driver]\nversion = \"580.95.05\"\nowner = \"other\"\n",
		} {
			p := plan(t, n, engine(t, text))
			if n.Touches() > 0 || len(n.Violations()) > 0 {
				t.Fatalf("%s: %d touches, %v", m.name, n.Touches(), n.Violations())
			}
			for _, c := range p.Cannot() {
				if !strings.HasPrefix(c.Cannot, "cannot ") || len(c.Try) == 0 {
					t.Errorf("%s: a refusal without a fix: %s: %s %q", m.name, c, c.Cannot, c.Try)
				}
			}
		}
	}
	if planned < 5 {
		t.Errorf("only %d machines were planned for", planned)
	}
}

// A refusal in which several stages agree is said once.
func TestRefusalIsSaidOnce(t *testing.T) {
	for _, m := range machines(t) {
		if m.name != "demo" {
			continue
		}
		n := m.boot(t)
		_, err := engine(t, "[driver]\nversion = \"123.45.67\"\n").Apply(context.Background(), n)
		told := (*trouble.Error)(nil)
		if !errors.As(err, &told) || len(told.Try) == 0 {
			t.Fatalf("%s: no refusal with a fix: %v", m.name, err)
		}
		sentences := append([]string{told.What}, told.Because...)
		for i := range sentences {
			sentences[i] = strings.TrimPrefix(sentences[i], "also: ")
		}
		for _, list := range [][]string{sentences, told.Try} {
			slices.Sort(list)
			if once := slices.Compact(slices.Clone(list)); len(once) < len(list) {
				t.Errorf("said twice: %q", list)
			}
		}
		return
	}
	t.Fatal("no machine")
}
