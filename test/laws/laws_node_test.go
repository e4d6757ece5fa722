// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/must"
)

// Law 2 for what needs a network to be read: wants are pure, of every machine, and To is idempotent from whatever is found.
func TestNodeWantsArePure(t *testing.T) {
	const node = "[node]\nlabels = { \"example.com/pool\" = \"h200\" }\ntaints = [\"nvidia.com/gpu=present:NoSchedule\"]\n"
	tested := 0
	for _, m := range machines(t) {
		for name, text := range map[string]string{"node": node, "auto": node + "[join]\nmethod = \"auto\"\n"} {
			n, spec := m.boot(t), engine(t, text).Spec
			f := must.Get(facts.Gather(t.Context(), n, facts.Needs{Files: []string{"/proc/swaps", "/etc/resolv.conf"}}))(t)
			for _, st := range stages.Sequence() {
				wants, err1 := st.Wants(spec, f)
				again, err2 := st.Wants(spec, f)
				if len(wants) != len(again) || fmt.Sprint(err1) != fmt.Sprint(err2) {
					t.Fatalf("%s/%s: %s wants %d things, then %d; %v, then %v", m.name, name, st.Name, len(wants), len(again), err1, err2)
				}
				for i, w := range wants {
					if o := again[i]; w.Ref().Kind != o.Ref().Kind || w.Ref().Name != o.Ref().Name || w.Why != o.Why || w.Keeps != o.Keeps || w.Leaves != o.Leaves {
						t.Errorf("%s/%s: %s wants %s %s, then %s %s", m.name, name, st.Name, w.Ref().Kind, w.Ref().Name, o.Ref().Kind, o.Ref().Name)
					}
					found, err := w.Look(t.Context(), n)
					if err != nil {
						continue // there is no cluster
					}
					one, err := w.To(found)
					if err != nil {
						continue
					}
					tested++
					if twice, err := w.To(one); err != nil || twice != one {
						t.Errorf("%s/%s: %s %s: To gives %q, and of itself %q, %v", m.name, name, w.Ref().Kind, w.Ref().Name, one, twice, err)
					}
				}
			}
		}
	}
	if tested < 100 {
		t.Errorf("only %d things were tested", tested)
	}
}
