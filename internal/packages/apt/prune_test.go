// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/must"
)

// kept are the packages in our own folder.
func (m *machine) kept() (names []string) {
	m.t.Helper()
	files := must.Get(filepath.Glob(m.dir + packages.Store + "/*.deb"))(m.t)
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}

// What no undo needs any more is removed; what one needs is there, and goes back without a
// repository.
func TestPrune(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, v := range []string{"570.1-1", "580.1-1", "590.1-1"} {
		m.repo.driver(v)
	}
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.update()
	var had []string
	for _, v := range []string{"570.1", "580.1", "590.1"} {
		m.apply(drivers(v))
		had = append(had, m.has())
	}
	m.write(packages.Store+"/other_1.0-1_"+m.repo.arch+".deb", "an old one")
	m.write(packages.Store+"/readme", "not ours to judge")

	undo := func(to string) {
		t.Helper()
		if _, err := m.engine(drivers("590.1")).Undo(t.Context(), m, to, nil); err != nil {
			t.Fatalf("undo %s: %s", to, wordsOf(err))
		}
	}
	for _, v := range []string{"570.1-1", "580.1-1"} {
		for _, name := range members {
			m.repo.drop(name, v)
		}
	}
	m.update()
	undo("")
	if now := m.has(); now != had[1] {
		t.Errorf("after one undo:\n%swant:\n%s", now, had[1])
	}
	for _, name := range m.kept() {
		if !strings.Contains(name, "_570.1-1_") && !strings.Contains(name, "_580.1-1_") {
			t.Errorf("%s is kept, and no undo goes back to it", name)
		}
	}
	if _, err := os.Stat(m.dir + packages.Store + "/readme"); err != nil {
		t.Error(err)
	}
	undo("")
	if now := m.has(); now != had[0] {
		t.Errorf("after two undos:\n%swant:\n%s", now, had[0])
	}
	undo("")
	if left := m.kept(); len(left) > 0 {
		t.Errorf("all is undone, and %v is kept", left)
	}
}

// From every state that some applies and undos lead to, all of them can be undone, though the repository has forgotten each
// version by the time it is replaced. Each run is a real apt's: there are few of them but in a nightly run.
func TestPruneNeverTakesWhatUndoNeeds(t *testing.T) {
	t.Parallel()
	all := []string{"570.1", "580.1", "590.1", "600.1"}
	seeds, runs := uint64(1), 3
	if os.Getenv("LAB_ALL") != "" {
		seeds, runs = 2, 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			m := newMachine(t)
			for _, v := range all {
				m.repo.driver(v + "-1")
			}
			m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
			m.update()
			first := m.has()
			stack := []string{first} // the states before each run that is not undone
			for range runs {
				if len(stack) > 1 && r.IntN(3) == 0 {
					if _, err := m.engine(drivers("*")).Undo(t.Context(), m, "", nil); err != nil {
						t.Fatalf("undo: %s", wordsOf(err))
					}
					if stack = stack[:len(stack)-1]; m.has() != stack[len(stack)-1] {
						t.Fatalf("undo ended in\n%swant\n%s", m.has(), stack[len(stack)-1])
					}
					continue
				}
				m.apply(drivers(all[r.IntN(len(all))]))
				if now := m.has(); !slices.Equal(stack[len(stack)-1:], []string{now}) {
					stack = append(stack, now)
				}
			}
			for _, v := range all {
				for _, name := range members {
					m.repo.drop(name, v+"-1")
				}
			}
			m.update()
			for len(stack) > 1 {
				stack = stack[:len(stack)-1]
				if _, err := m.engine(drivers("*")).Undo(t.Context(), m, "", nil); err != nil {
					t.Fatalf("undo: %s", wordsOf(err))
				}
				if now := m.has(); now != stack[len(stack)-1] {
					t.Fatalf("undo ended in\n%swant\n%s", now, stack[len(stack)-1])
				}
			}
			if left := m.kept(); len(left) > 0 {
				t.Errorf("all is undone, and %v is kept", left)
			}
		})
	}
}

// A package that no repository has any more is kept as long as it is the one that is installed: after an undo the same upgrade
// runs again, and must have its way back as the first had.
func TestPruneKeepsWhatIsInstalled(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.driver("570.1-1")
	m.repo.driver("580.1-1")
	m.repo.add(deb{name: "dkms-like", version: "1.0-1"})
	m.update()
	m.must("apt-get", "-y", "install", "nvidia-driver=570.1-1", "nvidia-kernel=570.1-1", "libnvidia-compute=570.1-1")
	first := m.has()
	for attempt := range 2 {
		res := m.apply(drivers("580.1"))
		for _, c := range res.Made {
			if c.Keeps != "" {
				t.Errorf("attempt %d: %s stays: %s", attempt, c, c.Keeps)
			}
		}
		m.must("apt-get", "clean")
		if attempt == 0 {
			for _, name := range members {
				m.repo.drop(name, "570.1-1")
			}
			m.update()
		}
		if _, err := m.engine(drivers("580.1")).Undo(t.Context(), m, "", nil); err != nil {
			t.Fatalf("undo: %s", wordsOf(err))
		}
		if now := m.has(); now != first {
			t.Fatalf("attempt %d: undo ended in\n%swant\n%s", attempt, now, first)
		}
		for _, name := range m.kept() {
			if !strings.Contains(name, "_570.1-1_") {
				t.Errorf("attempt %d: %s is kept, and no undo goes back to it", attempt, name)
			}
		}
	}
}
