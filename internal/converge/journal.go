// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// JournalFormat is the version of the journal's lines.
const JournalFormat = 1

// overtaken is the result of a run that was cut short, and that another kind of run superseded. The
// run's last change of each thing may not have been made.
const overtaken = "overtaken"

// resumed is the Result of the first make record after a run was cut short.
const resumed = "resumed"

const (
	journalFile = Home + "/journal.jsonl"
	// journalMost is the size in bytes above which a journal is not read: gpuadm compacts its own
	// long before.
	journalMost = 16 << 20
	// A journal with more records than this is compacted when a run starts; the newest runs keep
	// their records.
	compactAbove = 256
	compactKeeps = 16
	seal         = `,"crc32":`
)

// A Record is one line of the journal. The journal serves undo and ownership. It never decides what
// to do next.
type Record struct {
	Format int       `json:"format"`
	What   string    `json:"what"` // begin, make, reboot, end, hold, lift
	Run    string    `json:"run"`
	Time   time.Time `json:"time"`
	Boot   string    `json:"boot,omitempty"`   // begin, reboot: the kernel's boot id
	Tool   string    `json:"tool,omitempty"`   // begin: gpuadm's version
	Spec   string    `json:"spec,omitempty"`   // begin: the spec's digest
	Undoes []string  `json:"undoes,omitempty"` // begin: this run undoes those
	Leave  []string  `json:"leave,omitempty"`  // begin: what the operator told the undo to leave
	Repair string    `json:"repair,omitempty"` // begin: the code of the fault that this run repairs
	Change *Change   `json:"change,omitempty"` // make, reboot: written and synced before the touch
	Result string    `json:"result,omitempty"` // end: ok, failed, overtaken; make: resumed
}

// A Journal is what the journal file says.
type Journal struct {
	Records []Record
	Torn    int    // the number of the last line if a power cut has torn it, else 0: its change was not made, since the touch waits for the sync
	Damaged []int  // other lines that cannot be read
	Newer   int    // the format of a newer gpuadm that has written here; this one reads nothing of it, and writes nothing
	Problem string // why the file as a whole cannot be read; it counts as empty then
	// Refused says why the file is not trusted: another user could have written it. For a look the
	// journal counts as empty, and no run begins: another user must neither decide what the journal
	// says nor make gpuadm replace it.
	Refused *trouble.Error

	raw [][]byte // the damaged lines: a compacted journal keeps them
}

// ParseJournal reads a journal. It skips lines that it cannot read, and names them.
func ParseJournal(data []byte) Journal {
	var j Journal
	lines := bytes.Split(data, []byte("\n"))
	j.Records = slices.Grow(j.Records, min(len(lines)-1, compactAbove))
	var r Record // one for all lines: json would allocate each
	for n, line := range lines {
		if len(line) == 0 {
			continue
		}
		r = Record{}
		err := json.Unmarshal(line, &r)
		if at := bytes.LastIndex(line, []byte(seal)); at >= 0 && !bytes.Equal(line, sealed(append(line[:at:at], '}'))) {
			err = errors.New("a disk has changed it")
		}
		if err == nil && r.Format > JournalFormat {
			return Journal{Newer: r.Format}
		}
		switch {
		case err == nil && r.Format == JournalFormat && r.What != "" && (r.What != "make" && r.What != "reboot" || r.Change != nil):
			j.Records = append(j.Records, r)
		case n == len(lines)-1: // without a newline: torn by a power cut, whatever bytes the disk has there
			j.Torn = n + 1
		case !isTorn(line):
			j.Damaged, j.raw = append(j.Damaged, n+1), append(j.raw, line)
		}
	}
	return j
}

// sealed is a record's line with the checksum of all before it, so that no flipped bit makes
// another change of it.
func sealed(line []byte) []byte {
	return fmt.Appendf(line[:len(line)-1], `%s"%08x"}`, seal, crc32.ChecksumIEEE(line[:len(line)-1]))
}

// isTorn says whether a line is only the beginning of a record: a power cut or a full disk has cut
// the write short. Zeros may follow.
func isTorn(line []byte) bool {
	line = bytes.TrimRight(line, "\x00")
	begun := line[:min(len(line), len(`{"format":`))]
	if !bytes.HasPrefix([]byte(`{"format":`), begun) {
		return false
	}
	err := json.NewDecoder(bytes.NewReader(line)).Decode(new(json.RawMessage))
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// ReadJournal reads a machine's journal. A journal that is missing or cannot be read counts as
// empty: only undo is lost with it.
func ReadJournal(v host.View) Journal {
	if err := v.Trusted(journalFile, Home+"/blobs"); err != nil {
		t := faults.Untrusted(v.Root(), err)
		t.Try = append(t.Try, "if gpuadm has not written it, move it away; what gpuadm changed before cannot be undone then")
		return Journal{Refused: t}
	}
	info, err := v.Stat(journalFile)
	if err == nil && info.Size > journalMost {
		err = fmt.Errorf("it has %d MiB, and gpuadm's own journal never grows above %d", info.Size>>20, journalMost>>20)
	}
	var data []byte
	if err == nil {
		data, err = v.ReadFile(journalFile)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Journal{}
	} else if err != nil {
		return Journal{Problem: err.Error()}
	}
	return ParseJournal(data)
}

// write adds a record, on disk when it returns.
func (j *Journal) write(h host.Host, r Record) error { return j.add(h, r, h.Append) }

// note adds a record without a sync. A power cut before the next write may lose the record, as if
// the power had been cut earlier.
func (j *Journal) note(h host.Host, r Record) error { return j.add(h, r, h.Note) }

func (j *Journal) add(h host.Host, r Record, put func(name string, data []byte) error) error {
	r.Format, r.Time = JournalFormat, h.Now().UTC()
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("internal error: %w", err)
	}
	if len(j.Records) == 0 {
		if err := makeHome(h); err != nil {
			return err
		}
	}
	if err := put(journalFile, append(sealed(line), '\n')); err != nil {
		t := &trouble.Error{What: fmt.Sprintf("cannot write the journal: %v", err), Err: err, Because: []string{"gpuadm makes no change that it could not undo"}}
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			t.Try = []string{"free space for " + path.Join(h.Root(), Home) + ", then run the same command again"}
		}
		return t
	}
	j.Records = append(j.Records, r)
	return nil
}

func makeHome(h host.Host) error {
	if _, err := h.Lstat(Home + "/blobs"); err == nil { // it is the last
		return nil
	}
	for _, dir := range []string{"/var", "/var/lib", Home, Home + "/blobs"} {
		mode := map[bool]fs.FileMode{true: 0o700, false: 0o755}[strings.HasPrefix(dir, Home)]
		err := h.Mkdir(dir, host.Attr{Mode: mode})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// compact rewrites a journal that has grown: it drops runs that have nothing left to undo, and
// joins all but the newest into one run with the id of the oldest. It keeps the records of a run
// that was cut short. A full disk does not stop the run.
func (j *Journal) compact(h host.Host) {
	if len(j.Records) <= compactAbove || j.Newer > 0 || j.Problem != "" {
		return
	}
	runs := j.Runs()
	recent := map[string]bool{}
	last, open := j.unfinished()
	for _, r := range slices.Backward(runs) {
		if open && r.ID == last.ID || !r.settled() && len(recent) < compactKeeps {
			recent[r.ID] = true
		}
	}
	var old []Run
	for _, r := range runs {
		if !recent[r.ID] && !r.settled() {
			old = append(old, r)
		}
	}
	var kept []Record
	add := func(r Record) {
		r.Format, r.Run, r.Time = JournalFormat, old[0].ID, old[0].Time
		kept = append(kept, r)
	}
	for i, o := range present(old) {
		if i == 0 {
			add(Record{What: "begin", Spec: old[0].Spec, Tool: "compacted"})
		}
		for _, c := range joined(o.makes) {
			add(Record{What: "make", Change: &c})
		}
	}
	if len(kept) > 0 {
		add(Record{What: "end", Result: "ok"})
	}
	hold := j.holds()
	for i, r := range j.Records {
		if recent[r.Run] && r.What != "hold" || i == hold {
			kept = append(kept, r)
		}
	}
	_ = j.rewrite(h, kept)
}

// joined merges consecutive changes of a thing, where each starts at the After of the one before.
// It does not merge a change that may not have been made, nor the change before that.
func joined(makes []Change) (list []Change) {
	for i, c := range makes {
		if n := len(list); n > 0 && list[n-1].After == c.Before && !list[n-1].Unsure && !c.Unsure && i < len(makes)-1 {
			list[n-1].After = c.After
		} else {
			list = append(list, c)
		}
	}
	return list
}

// rewrite replaces the journal file in one step: by some records, and by the lines that cannot be
// read.
func (j *Journal) rewrite(h host.Host, records []Record) error {
	var data bytes.Buffer
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("internal error: %w", err)
		}
		data.Write(append(sealed(line), '\n'))
	}
	for _, line := range j.raw {
		data.Write(append(line, '\n'))
	}
	err := h.WriteFile(journalFile, data.Bytes(), host.Attr{Mode: 0o600})
	if err == nil {
		j.Records, j.Torn = records, 0
	}
	return err
}

// Held returns the run whose undo holds unattended applies, or "".
func (j Journal) Held() string {
	if i := j.holds(); i >= 0 {
		return j.Records[i].Run
	}
	return ""
}

// holds is the index of the record that holds, -1 if none does.
func (j Journal) holds() int {
	for i, r := range slices.Backward(j.Records) {
		if r.What == "hold" {
			return i
		} else if r.What == "lift" {
			break
		}
	}
	return -1
}

// unfinished returns the last run if it has no end.
func (j Journal) unfinished() (Run, bool) {
	runs := j.Runs()
	if len(runs) == 0 || runs[len(runs)-1].Result != "" {
		return Run{}, false
	}
	return runs[len(runs)-1], true
}

// damage says what of the journal cannot be read, and what to do about it; "" if all of it can.
func (j Journal) damage(v host.View) string {
	file := path.Join(v.Root(), journalFile)
	switch {
	case j.Refused != nil:
		return fmt.Sprintf("%s: apply and undo refuse until that is fixed: %s", j.Refused.What, j.Refused.Try[0])
	case j.Newer > 0:
		return fmt.Sprintf("%s was written by a newer gpuadm (its format is %d, this gpuadm reads %d): this gpuadm can plan, and changes nothing here", file, j.Newer, JournalFormat)
	case j.Problem != "":
		return fmt.Sprintf("cannot read %s: %s: gpuadm continues without it; earlier changes cannot be undone", file, j.Problem)
	case len(j.Damaged) == 0:
		return ""
	}
	lines := strings.Fields(strings.Trim(fmt.Sprint(j.Damaged), "[]"))
	return fmt.Sprintf("cannot read these lines of %s: %s: undo does not know the changes that they name. Restore the file from a backup, or remove the lines",
		file, strings.Join(trouble.Few(lines, 6), ", "))
}
