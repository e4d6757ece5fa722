// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const journal = converge.Home + "/journal.jsonl"

// written is the journal's bytes.
func written(t *testing.T, n *simhost.Node) []byte {
	t.Helper()
	data := must.Get(n.ReadFile(journal))(t)
	return data
}

// saying has an engine note what it tells of its journal.
func saying(e *converge.Engine) (*converge.Engine, *[]string) {
	var warnings []string
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Remains || ev.What == converge.Healed || ev.What == converge.Damaged {
			warnings = append(warnings, ev.Text)
		}
	}
	return e, &warnings
}

// A power cut tears the last line, in one way or another. The next run says so once and ignores the line from then on: gpuadm
// still knows what it changed, nothing refuses, undo undoes all, and what no undo needs is cleared away.
func TestTornLastLineIsHealed(t *testing.T) {
	next := `{"format":1,"what":"make","run":"20260102T030405Z","time":"2026-01-02T03:04:05Z","change":{"stage":"driver","kind":"file","name":"/srv/a","before":"","after":"0644 0:0 ` + strings.Repeat("ab", 32) + ` 3"}}`
	for name, torn := range map[string]string{
		"one byte": next[:1], "half": next[:len(next)/2], "half, and zeros": next[:30] + strings.Repeat("\x00", 50),
		"zeros": strings.Repeat("\x00", 80), "zeros first": strings.Repeat("\x00", 40) + next[40:], "garbage": "\xff\xfe\x01",
	} {
		n := node(t)
		first := n.Tree(converge.Home)
		apply(t, n, edition(t, 1))
		apply(t, n, edition(t, 2))
		whole := written(t, n)
		put(t, n, journal, string(whole)+torn)
		s, err := edition(t, 2).Status(t.Context(), n.View())
		if err != nil || s.Torn != bytes.Count(whole, []byte("\n"))+1 || len(s.Damaged) != 0 {
			t.Errorf("%s: torn %v, damaged %v, %v", name, s.Torn, s.Damaged, err)
		}
		for try := range 2 {
			e, warnings := saying(edition(t, 2))
			if res := apply(t, n, e); len(res.Made) > 0 {
				t.Errorf("%s: made %v", name, res.Made)
			}
			if len(*warnings) != 1-try {
				t.Errorf("%s: try %d says %q", name, try, *warnings)
			}
		}
		if s, err := edition(t, 2).Status(t.Context(), n.View()); err != nil || s.Torn != 0 || len(s.Damaged) != 0 || s.Unfinished != "" {
			t.Errorf("%s: healed, and torn %v, damaged %v, unfinished %q, %v", name, s.Torn, s.Damaged, s.Unfinished, err)
		}
		if !bytes.HasPrefix(written(t, n), whole) {
			t.Errorf("%s: the lines before it have changed", name)
		}
		undo(t, n, edition(t, 2), "all")
		compare(t, name+", undone", first, n.Tree(converge.Home))
		if left := blobs(n); left > 0 {
			t.Errorf("%s: %d unneeded blobs are kept", name, left)
		}
	}
}

// An undo heals it too, and so does a disk that is too full for its record, once there is room.
func TestTornLineOnAFullDisk(t *testing.T) {
	n := node(t)
	apply(t, n, edition(t, 1))
	put(t, n, journal, string(written(t, n))+`{"format":1,"wh`)
	n.Fail(n.Touches(), syscall.ENOSPC)
	e, warnings := saying(edition(t, 1))
	if apply(t, n, e); len(*warnings) != 1 {
		t.Errorf("said %q", *warnings)
	}
	undo(t, n, edition(t, 1), "")
	if s, err := edition(t, 1).Status(t.Context(), n.View()); err != nil || s.Torn+len(s.Damaged) != 0 {
		t.Errorf("torn %v, damaged %v, %v", s.Torn, s.Damaged, err)
	}
	if left := blobs(n); left > 0 {
		t.Errorf("%d unneeded blobs are kept", left)
	}
}

// Power may fail again while that is repaired, at any touch.
func TestTornWhileHealing(t *testing.T) {
	cuts := 0
	for cut := range 12 {
		n := node(t)
		apply(t, n, edition(t, 1))
		put(t, n, journal, string(written(t, n))+"\xff\xfe garbage")
		n.CutAt(n.Touches() + cut)
		e, _ := saying(edition(t, 2))
		if _, err := e.Apply(t.Context(), n); err != nil {
			cuts++
		}
		n.Boot(simhost.Loss(cut))
		apply(t, n, edition(t, 2))
		if s, err := e.Status(t.Context(), n.View()); err != nil || s.Torn+len(s.Damaged) != 0 {
			t.Errorf("cut at %d: torn %v, damaged %v, %v:\n%s", cut, s.Torn, s.Damaged, err, written(t, n))
		}
	}
	if cuts < 6 {
		t.Errorf("power failed %d times only", cuts)
	}
}

// A line that a full disk has cut short in the middle of a run is no news: nothing was touched under it.
func TestLineCutShortInTheMiddle(t *testing.T) {
	n := node(t)
	apply(t, n, edition(t, 1))
	lines := bytes.SplitAfter(written(t, n), []byte("\n"))
	put(t, n, journal, string(lines[0])+string(lines[1][:len(lines[1])/3])+"\n"+string(bytes.Join(lines[1:], nil)))
	e, warnings := saying(edition(t, 2))
	apply(t, n, e)
	if s, err := e.Status(t.Context(), n.View()); err != nil || s.Torn+len(s.Damaged) != 0 || len(*warnings) != 0 {
		t.Errorf("torn %v, damaged %v, %v, said %q", s.Torn, s.Damaged, err, *warnings)
	}
	if undo(t, n, e, "all"); blobs(n) > 0 {
		t.Errorf("%d unneeded blobs are kept", blobs(n))
	}
}

// Garbage in the middle refuses nothing. All that is kept stays, since what that line said may need it; each run and status name
// the file, the line, and what to do, which helps.
func TestDamagedJournal(t *testing.T) {
	n := node(t)
	apply(t, n, edition(t, 1))
	apply(t, n, edition(t, 2))
	lines := bytes.SplitAfter(written(t, n), []byte("\n"))
	broken := append([][]byte{lines[0], []byte("gar\x00bage}\n")}, lines[1:]...)
	put(t, n, journal, string(bytes.Join(broken, nil)))
	had := blobs(n)
	for range 2 {
		e, warnings := saying(edition(t, 2))
		apply(t, n, e)
		if len(*warnings) != 1 || !strings.Contains((*warnings)[0], "cannot read these lines of "+journal+": 2: ") {
			t.Errorf("said %q", *warnings)
		}
	}
	if s, err := edition(t, 2).Status(t.Context(), n.View()); err != nil || len(s.Damaged) != 1 || s.Damaged[0] != 2 || s.Torn != 0 {
		t.Errorf("torn %v, damaged %v, %v", s.Torn, s.Damaged, err)
	}
	undo(t, n, edition(t, 2), "all")
	if left := blobs(n); left != had || had == 0 {
		t.Errorf("%d blobs of %d are left", left, had)
	}
	lines = bytes.SplitAfter(written(t, n), []byte("\n"))
	put(t, n, journal, string(bytes.Join(append(lines[:1:1], lines[2:]...), nil)))
	e, warnings := saying(edition(t, 2))
	if apply(t, n, e); len(*warnings) != 0 {
		t.Errorf("repaired, and it says %q", *warnings)
	}
	if undo(t, n, e, "all"); blobs(n) > 0 {
		t.Errorf("%d unneeded blobs are kept", blobs(n))
	}
}
