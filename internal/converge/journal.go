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
	"strconv"
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
	// compactAbove is how many records a journal may have before a run that starts compacts it.
	compactAbove = 256
	// Each line begins with its format and ends with the checksum of the rest.
	lineStart = `{"format":`
	seal      = `,"crc32":`
)

// A Record is one line of the journal. The journal serves undo and ownership. It never decides what
// to do next.
type Record struct {
	Format int       `json:"format"`
	What   string    `json:"what"` // begin, make, reboot, learned, end, hold, lift
	Run    string    `json:"run"`
	Time   time.Time `json:"time"`
	Boot   string    `json:"boot,omitempty"`   // begin, reboot: the kernel's boot id
	Tool   string    `json:"tool,omitempty"`   // begin: gpuadm's version
	Spec   string    `json:"spec,omitempty"`   // begin: the spec's digest
	Undoes []string  `json:"undoes,omitempty"` // begin: this run undoes those
	Leave  []string  `json:"leave,omitempty"`  // begin: what the operator told the undo to leave
	Repair string    `json:"repair,omitempty"` // begin: the code of the fault that this run repairs
	Found  []Found   `json:"found,omitempty"`  // begin: the states of Perishable things before the run
	Change *Change   `json:"change,omitempty"` // make, reboot: written and synced before the touch
	Lesson *Lesson   `json:"lesson,omitempty"` // learned: what a failure of the run has taught
	Result string    `json:"result,omitempty"` // end: ok, failed, overtaken; make: resumed
}

// valid says whether a record is complete.
func (r *Record) valid() bool {
	needsChange := r.What == "make" || r.What == "reboot"
	needsLesson := r.What == "learned"
	return r.Format == JournalFormat && r.What != "" &&
		(r.Change != nil || !needsChange) && (r.Lesson != nil || !needsLesson)
}

// A Lesson is what a failure has taught about this machine: something cannot be made here. The
// journal keeps it, so that the next plan says it before the same work begins.
type Lesson struct {
	Subject string `json:"subject"`        // what cannot be made, as its kind names it
	With    string `json:"with,omitempty"` // by which tool: with another one it may be made
	Says    string `json:"says"`           // why
}

// Run is what the journal says of one run.
type Run struct {
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Ended  time.Time `json:"ended,omitzero"`
	Spec   string    `json:"spec"`
	Undoes []string  `json:"undoes,omitempty"`
	Repair string    `json:"repair,omitempty"` // the code of the fault that it repairs
	Leave  []string  `json:"leave,omitempty"`
	Found  []Found   `json:"found,omitempty"`  // the states of Perishable things before the run
	Result string    `json:"result,omitempty"` // ok, failed, overtaken; "" = unfinished
	Undone bool      `json:"undone,omitempty"`
	Makes  []Change  `json:"changes,omitempty"`
	Took   Times     `json:"took,omitempty"`
}

// A Journal is what the journal file says.
type Journal struct {
	Records []Record

	// Torn is the number of the last line if a power cut has torn it, else 0. The line's change was
	// not made, since the touch waits for the sync.
	Torn int
	// Damaged has the numbers of the other lines that cannot be read.
	Damaged []int
	// Newer is the format of a newer gpuadm that has written here. This gpuadm reads nothing of the
	// journal then, and writes nothing.
	Newer int
	// Problem says why the file as a whole cannot be read; it counts as empty then.
	Problem string
	// Refused says why the file is not trusted: another user could have written it. For a look the
	// journal counts as empty, and no run begins: another user must neither decide what the journal
	// says nor make gpuadm replace it.
	Refused *trouble.Error

	raw [][]byte // the damaged lines: a compacted journal keeps them
}

// ReadJournal reads a machine's journal. A journal that is missing or cannot be read counts as
// empty: only undo is lost with it.
func ReadJournal(v host.View) Journal {
	err := v.Trusted(journalFile, blobsFolder)
	if err != nil {
		t := faults.Untrusted(v.Root(), err)
		t.Try = append(t.Try, "if gpuadm has not written it, move it away; what gpuadm changed before cannot be undone then")
		return Journal{Refused: t}
	}

	data, err := readJournalFile(v)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Journal{}
	case err != nil:
		return Journal{Problem: err.Error()}
	}

	return ParseJournal(data)
}

// readJournalFile reads the journal file, unless it is larger than any that gpuadm writes.
func readJournalFile(v host.View) ([]byte, error) {
	info, err := v.Stat(journalFile)
	if err != nil {
		return nil, err
	}

	if info.Size > journalMost {
		return nil, fmt.Errorf("it has %d MiB, and gpuadm's own journal never grows above %d", info.Size>>20, journalMost>>20)
	}
	return v.ReadFile(journalFile)
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
		err := parseLine(line, &r)
		if err == nil && r.Format > JournalFormat {
			return Journal{Newer: r.Format}
		}
		switch {
		case err == nil && r.valid():
			j.Records = append(j.Records, r)
		case n == len(lines)-1: // without a newline: torn by a power cut, whatever bytes the disk has in it
			j.Torn = n + 1
		case !isTorn(line):
			j.Damaged = append(j.Damaged, n+1)
			j.raw = append(j.raw, line)
		}
	}

	return j
}

// parseLine parses a line and verifies its checksum, if it has one.
func parseLine(line []byte, r *Record) error {
	err := json.Unmarshal(line, r)
	at := bytes.LastIndex(line, []byte(seal))
	if at < 0 {
		return err
	}

	unsealed := append(line[:at:at], '}')
	if !bytes.Equal(line, sealed(unsealed)) {
		return errors.New("a disk has changed it")
	}
	return err
}

// sealed is a record's line with the checksum of all before it, so that no flipped bit makes
// another change of it.
func sealed(line []byte) []byte {
	open := line[:len(line)-1] // without the closing brace
	return fmt.Appendf(open, `%s"%08x"}`, seal, crc32.ChecksumIEEE(open))
}

// isTorn says whether a line is only the beginning of a record: a power cut or a full disk has cut
// the write short. Zeros may follow.
func isTorn(line []byte) bool {
	line = bytes.TrimRight(line, "\x00")
	start := line[:min(len(line), len(lineStart))]
	if !bytes.HasPrefix([]byte(lineStart), start) {
		return false
	}

	err := json.NewDecoder(bytes.NewReader(line)).Decode(new(json.RawMessage))
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// write adds a record, on disk when it returns.
func (j *Journal) write(h host.Host, r Record) error { return j.add(h, r, h.Append) }

// note adds a record without a sync. A power cut before the next write may lose the record, as if
// the power had been cut earlier.
func (j *Journal) note(h host.Host, r Record) error { return j.add(h, r, h.Note) }

// add adds a record by one of the host's two ways to append to a file.
func (j *Journal) add(h host.Host, r Record, appendTo func(name string, data []byte) error) error {
	r.Format = JournalFormat
	r.Time = h.Now().UTC()
	line, err := r.line()
	if err != nil {
		return err
	}

	if len(j.Records) == 0 {
		if err := makeHome(h); err != nil {
			return err
		}
	}

	if err := appendTo(journalFile, line); err != nil {
		return cannotWriteJournal(h, err)
	}
	j.Records = append(j.Records, r)
	return nil
}

// line is the record as a line of the journal, with its newline.
func (r Record) line() ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	return append(sealed(line), '\n'), nil
}

// cannotWriteJournal says what to do if the journal cannot be written.
func cannotWriteJournal(h host.Host, err error) error {
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot write the journal: %v", err),
		Because: []string{"gpuadm makes no change that it could not undo"},
		Err:     err,
	}

	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		t.Try = []string{"free space for " + path.Join(h.Root(), Home) + ", then run the same command again"}
	}
	return t
}

// makeHome makes gpuadm's folders. The blobs' folder is the last: where it exists, the others do.
func makeHome(h host.Host) error {
	if _, err := h.Lstat(blobsFolder); err == nil {
		return nil
	}

	for _, dir := range []string{"/var", "/var/lib", Home, blobsFolder} {
		mode := fs.FileMode(0o755)
		if strings.HasPrefix(dir, Home) {
			mode = 0o700
		}
		err := h.Mkdir(dir, host.Attr{Mode: mode})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}

	return nil
}

// rewrite replaces the journal file in one step: by some records, and by the lines that cannot be
// read.
func (j *Journal) rewrite(h host.Host, records []Record) error {
	var data bytes.Buffer
	for _, r := range records {
		line, err := r.line()
		if err != nil {
			return err
		}
		data.Write(line)
	}

	for _, line := range j.raw {
		data.Write(append(line, '\n'))
	}

	err := h.WriteFile(journalFile, data.Bytes(), host.Attr{Mode: 0o600})
	if err == nil {
		j.Records = records
		j.Torn = 0
	}
	return err
}

// Held returns the run whose undo holds unattended applies, or "".
func (j Journal) Held() string {
	i := j.holds()
	if i < 0 {
		return ""
	}
	return j.Records[i].Run
}

// holds is the index of the record that holds, -1 if none does.
func (j Journal) holds() int {
	for i, r := range slices.Backward(j.Records) {
		switch r.What {
		case "hold":
			return i
		case "lift":
			return -1
		}
	}
	return -1
}

// Damage says what of the journal cannot be read, and what to do about it; "" if all of it can.
func (j Journal) Damage(v host.View) string {
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

	var numbers []string
	for _, number := range j.Damaged {
		numbers = append(numbers, strconv.Itoa(number))
	}
	return fmt.Sprintf(
		"cannot read these lines of %s: %s: undo does not know the changes that they name. Restore the file from a backup, or remove the lines",
		file, strings.Join(trouble.Few(numbers, 6), ", "))
}
