// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	nightFolder = "bin/nightly"
	pageFile    = "bin/nightly.md"
)

// A night is a commit on which all rings run once. It may take several days.
type night struct {
	Commit string
	// Turn is another number in each night: what two tests share, such as the touches on two
	// distributions, changes places in the next one. It is the seed of what is shuffled, too.
	Turn string
}

// A record says of the last run of a ring, or of a part of it, what its log does not. Its place is
// bin/nightly/RING.json.
type record struct {
	Ring   string
	Part   string // 3/12; "" = all of the ring
	Commit string
	Turn   string
	Began  time.Time     // its last run: a ring that was cut short has several
	Took   time.Duration // all its runs that are over
	Ended  bool          // false = it was cut short
	Exit   int
	// IsTests says that the log has the events of go test.
	IsTests bool
	Tests   []string // what go test lists, of a ring that boots hosts
}

// A book is the folder of the records and logs.
type book struct {
	folder  string
	last    night
	records []record
}

func openBook(folder string) (*book, error) {
	b := &book{folder: folder}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	if err := readJSON(b.nightFile(), &b.last); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if file == b.nightFile() {
			continue
		}
		var r record
		if err := readJSON(file, &r); err != nil {
			return nil, err
		}
		b.records = append(b.records, r)
	}

	return b, nil
}

func readJSON(file string, to any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("cannot read %s: %w", file, err)
	}
	return nil
}

// writeJSON replaces a file: a night may be killed at any time.
func writeJSON(file string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func (b *book) nightFile() string { return filepath.Join(b.folder, "night.json") }

func (b *book) keepNight(n night) error {
	b.last = n
	return writeJSON(b.nightFile(), n)
}

// keep writes a record in the place of the one of the same ring and part.
func (b *book) keep(r record) error {
	b.records = slices.DeleteFunc(b.records, func(other record) bool {
		return other.name() == r.name()
	})
	b.records = append(b.records, r)
	return writeJSON(filepath.Join(b.folder, r.name()+".json"), r)
}

// name is the file's of a record and of its log: crash-3-of-12.
func (r record) name() string {
	if r.Part == "" {
		return r.Ring
	}
	return r.Ring + "-" + strings.ReplaceAll(r.Part, "/", "-of-")
}

func (b *book) log(r record) string { return filepath.Join(b.folder, r.name()+".log") }

// nightOn is the night that goes on, or begins, on a commit. A tree with changes begins one each
// time: what it was before is not known.
func (b *book) nightOn(commit string) night {
	isKnown := commit == b.last.Commit && !strings.HasSuffix(commit, andChanges)
	if isKnown && !b.complete(b.last) {
		return b.last
	}
	if turn := os.Getenv("GPUADM_TURN"); turn != "" {
		return night{Commit: commit, Turn: turn}
	}
	if last, err := strconv.Atoi(b.last.Turn); err == nil {
		return night{Commit: commit, Turn: strconv.Itoa(last + 1)}
	}
	days := time.Now().Unix() / (24 * 60 * 60)
	return night{Commit: commit, Turn: strconv.FormatInt(days, 10)}
}

// complete reports whether the night has run all rings.
func (b *book) complete(n night) bool {
	return !slices.ContainsFunc(nightRings(), func(ring nightRing) bool {
		return !b.has(ring, b.part(ring, n), n)
	})
}

// has reports whether a ring has run to its end in a night. One that could not look runs again.
func (b *book) has(ring nightRing, part string, n night) bool {
	return slices.ContainsFunc(b.records, func(r record) bool {
		isOf := r.Ring == ring.name && r.Part == part && r.of(n)
		return isOf && r.Ended && r.Exit != couldNotLook
	})
}

// of reports whether the record is of a night.
func (r record) of(n night) bool { return r.Commit == n.Commit && r.Turn == n.Turn }

// cut returns the record of a ring whose run in this night was cut short, and can go on: other rings
// begin again.
func (b *book) cut(ring nightRing, part string, n night) (record, bool) {
	i := slices.IndexFunc(b.records, func(r record) bool {
		return r.Ring == ring.name && r.Part == part && r.of(n) && !r.Ended
	})
	if i < 0 || !ring.hosts || strings.HasSuffix(n.Commit, andChanges) {
		return record{}, false
	}
	return b.records[i], true
}

// part is the part of a ring that a night runs: the one that it has begun, or the one that has not
// ended for the longest time. Among parts that never have, the turn chooses. So each part has its
// night, also if nights are left out.
func (b *book) part(ring nightRing, n night) string {
	if ring.parts == 0 {
		return ""
	}
	ended := map[string]time.Time{}
	for _, r := range b.records {
		if r.Ring != ring.name {
			continue
		}
		if r.of(n) {
			return r.Part
		}
		if r.Ended {
			ended[r.Part] = r.Began
		}
	}

	turn, _ := strconv.Atoi(n.Turn)
	var parts []string
	for i := range ring.parts {
		parts = append(parts, fmt.Sprintf("%d/%d", (turn+i)%ring.parts+1, ring.parts))
	}
	return slices.MinFunc(parts, func(a, b string) int {
		return cmp.Compare(ended[a].Unix(), ended[b].Unix())
	})
}

// sinceBegan is how long a run took that was cut short: until it last wrote.
func (r record) sinceBegan(log string) time.Duration {
	info, err := os.Stat(log)
	if err != nil {
		return 0
	}
	return max(0, info.ModTime().Sub(r.Began))
}
