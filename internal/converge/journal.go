// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// JournalFormat is the version of the journal's lines. A reader refuses newer ones.
const JournalFormat = 1

const journalFile = Home + "/journal.jsonl"

// A Record is one line of the journal. The journal is a diary: it serves undo, ownership and the reboot budget.
// Without it only undo is lost.
type Record struct {
	Format int       `json:"format"`
	What   string    `json:"what"` // begin, make, reboot, end, lift, torn
	Run    string    `json:"run"`
	Time   time.Time `json:"time"`
	Boot   string    `json:"boot,omitempty"`   // begin, reboot: the kernel's boot id
	Tool   string    `json:"tool,omitempty"`   // begin: gpuadm's version
	Spec   string    `json:"spec,omitempty"`   // begin: the spec's digest
	Undoes []string  `json:"undoes,omitempty"` // begin: this run puts those back
	Change *Change   `json:"change,omitempty"` // make, reboot: written and synced before the touch
	Result string    `json:"result,omitempty"` // end: ok, failed
}

// A Journal is what the journal file says.
type Journal struct {
	Records []Record
	Torn    int   // the last line, from 1, if a power cut has torn it: before its touch, since that waits for the sync; else 0
	Damaged []int // lines that were whole once, maybe, and cannot be read
}

// ParseJournal reads a journal. What cannot be read is passed over, and named where that means anything; a newer format is an
// error.
func ParseJournal(data []byte) (Journal, error) {
	var j Journal
	odd := 0 // a line that is damaged, unless it is the last one or was found to be
	passOver := func() {
		if odd != 0 {
			j.Damaged, odd = append(j.Damaged, odd), 0
		}
	}
	for n, line := range bytes.Split(data, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil || r.Format == 0 || r.What == "" || r.What == "make" && r.Change == nil {
			if j.Torn = n + 1; !cutShort(line) { // one that is may be a record of what stands before it
				passOver()
				odd = n + 1
			}
			continue
		}
		if r.Format > JournalFormat {
			return Journal{}, fmt.Errorf("cannot read the journal: line %d has format %d, this gpuadm reads up to %d; use the newer gpuadm that wrote it", n+1, r.Format, JournalFormat)
		}
		if r.What == tornLine {
			odd = 0
		}
		passOver()
		j.Torn = 0
		j.Records = append(j.Records, r)
	}
	return j, nil
}

// tornLine records that the line before it was torn by a power cut.
const tornLine = "torn"

// cutShort says whether a line is the beginning of a record, as a write leaves it that found no more room. A disk may have made
// the rest zeros.
func cutShort(line []byte) bool {
	line = bytes.TrimRight(line, "\x00")
	begun := line[:min(len(line), len(`{"format":`))]
	return bytes.HasPrefix([]byte(`{"format":`), begun) && endsEarly(line)
}

// endsEarly says whether a text would be JSON if it went on.
func endsEarly(text []byte) bool {
	err := json.NewDecoder(bytes.NewReader(text)).Decode(new(json.RawMessage))
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// ReadJournal reads a machine's journal. None is an empty one.
func ReadJournal(v host.View) (Journal, error) {
	data, err := v.ReadFile(journalFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Journal{}, nil
	} else if err != nil {
		return Journal{}, unreadable(v, err)
	}
	return ParseJournal(data)
}

// unreadable says what to do about a journal that cannot be read: it is no reason never to run again.
func unreadable(v host.View, err error) error {
	t := &Trouble{What: err.Error(), Err: err, Because: []string{"it says what gpuadm has changed here, and could put back"}}
	name := typed(path.Join(v.Root(), journalFile))
	switch {
	case errors.Is(err, fs.ErrPermission):
	case errors.Is(err, syscall.ENOTDIR):
		t.Try = []string{Home + " must be a folder of root's: move away what is there"}
	default:
		t.Try = []string{
			"mend the disk, or bring the file back from a backup",
			fmt.Sprintf("or go on without, and what was changed so far cannot be undone: mv %s %s.bad", name, name),
		}
	}
	return t
}

// write adds a record, on disk when it returns.
func (j *Journal) write(h host.Host, r Record) error {
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
	if err := h.Append(journalFile, append(line, '\n')); err != nil {
		return &Trouble{What: fmt.Sprintf("cannot write the journal: %v", err), Err: err, Because: []string{"what is not in the journal could not be undone, so it is not touched"}}
	}
	j.Records = append(j.Records, r)
	return nil
}

func makeHome(h host.Host) error {
	for _, dir := range []string{"/var", "/var/lib", Home, Home + "/blobs"} {
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

// Blob returns the bytes kept under a SHA-256 in hex.
func Blob(v host.View, sha string) ([]byte, error) {
	data, err := v.ReadFile(path.Join(Home, "blobs", sha))
	if err == nil && digest(data) != sha {
		err = fmt.Errorf("cannot use blob %s: its bytes have changed", sha)
	}
	return data, err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// keep stores the bytes that the change's states name, before the journal names them.
func keep(h host.Host, t Thing, c Change) error {
	st, ok := t.(Stored)
	if !ok {
		return nil
	}
	for _, s := range []State{c.Before, c.After} {
		data, err := st.Bytes(h, s)
		if err != nil {
			return err
		}
		if data == nil {
			continue
		}
		sha := digest(data)
		if _, err := Blob(h, sha); err == nil {
			continue
		}
		if err := h.WriteFile(path.Join(Home, "blobs", sha), data, host.Attr{Mode: 0o600}); err != nil {
			return err
		}
	}
	return nil
}

// Run is what the journal says of one run.
type Run struct {
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Boot   string    `json:"-"`
	Spec   string    `json:"spec"`
	Undoes []string  `json:"undoes,omitempty"`
	Result string    `json:"result,omitempty"` // ok, failed; "" = unfinished
	Undone bool      `json:"undone,omitempty"`
	Makes  []Change  `json:"-"`
	asked  []Record  // reboots asked for
	spent  bool      // an undo that failed, of runs that a later one put back
}

// settled says that nothing of the run is ours any more: it was put back, by another or by itself, or it put back others.
func (r Run) settled() bool {
	return r.Undone || r.spent || len(r.Undoes) > 0 && r.Result == "ok" || !r.changed()
}

// Runs returns the journal's runs, oldest first.
func (j Journal) Runs() []Run {
	var runs []Run
	at := map[string]int{}
	for _, r := range j.Records {
		i, ok := at[r.Run]
		if !ok {
			if r.What == "lift" || r.What == tornLine {
				continue
			}
			i, at[r.Run] = len(runs), len(runs)
			runs = append(runs, Run{ID: r.Run, Time: r.Time, Boot: r.Boot, Spec: r.Spec, Undoes: r.Undoes})
		}
		switch run := &runs[i]; r.What {
		case "begin":
			run.Result = "" // continued
		case "make":
			run.Makes = append(run.Makes, *r.Change)
		case "reboot":
			run.asked = append(run.asked, r)
		case "end":
			run.Result = r.Result
			if r.Result == "ok" {
				for _, id := range run.Undoes {
					if i, ok := at[id]; ok {
						runs[i].Undone = true
					}
				}
				for k := range runs { // undos of the same that failed: what they left was put back with it
					if len(runs[k].Undoes) > 0 && runs[k].Result != "ok" && subset(runs[k].Undoes, run.Undoes) {
						runs[k].spent = true
					}
				}
			}
		}
	}
	return runs
}

// Held returns the run whose undo holds unattended applies, or "".
func (j Journal) Held() string {
	held := ""
	for _, r := range j.Records {
		switch {
		case r.What == "lift":
			held = ""
		case r.What == "begin" && len(r.Undoes) > 0:
			held = r.Undoes[len(r.Undoes)-1]
		}
	}
	return held
}

// unfinished returns the last run if it has no end.
func (j Journal) unfinished() (Run, bool) {
	runs := j.Runs()
	if len(runs) == 0 || runs[len(runs)-1].Result != "" {
		return Run{}, false
	}
	return runs[len(runs)-1], true
}

// A link is a stretch of changes of ours to one thing with nobody else's between. The last of them may never have been
// made: it is journalled before the touch, and power may fail between. So every state of the stretch counts as ours.
type link struct {
	Before, After State
	made          []State // all states that we made or meant to make, After last
}

func (l link) ours(s State) bool { return slices.Contains(l.made, s) }

// changed says whether a run has left anything that could be put back.
func (r Run) changed() bool {
	return slices.ContainsFunc(fold([]Run{r}), func(o ours) bool { return r.Result == "" || !o.back() })
}

// ours is what we have done to one thing.
type ours struct {
	Change // the last one, as journalled
	links  []link
	first  Run // which run touched it first
}

// standing folds runs into what of ours stands. Those of which nothing is ours any more cancel out and are left out.
func standing(runs []Run) []ours {
	return fold(slices.DeleteFunc(slices.Clone(runs), Run.settled))
}

// fold joins the runs' changes to each thing, in the order of the first touch: what was made upon another thing came after it, and
// has to go before it, however often that was changed since. What settles leaves nothing to put back.
func fold(runs []Run) []ours {
	var order []key
	all := map[key]*ours{}
	for _, run := range runs {
		for _, c := range run.Makes {
			if c.Settles {
				continue
			}
			o := all[c.key()]
			if o == nil {
				o = &ours{first: run}
				all[c.key()], order = o, append(order, c.key())
			}
			o.Change = c
			o.add(c)
		}
	}
	var list []ours
	for _, k := range order {
		list = append(list, *all[k])
	}
	return list
}

func (o *ours) add(c Change) {
	if n := len(o.links); n > 0 {
		if last := &o.links[n-1]; c.Before == last.Before || last.ours(c.Before) {
			last.After, last.made = c.After, append(last.made, c.After)
			return
		}
	}
	o.links = append(o.links, link{c.Before, c.After, []State{c.After}})
}

// back says that the thing was put back to where it stood before us, as far as the journal knows.
func (o *ours) back() bool {
	return !slices.ContainsFunc(o.links, func(l link) bool { return l.Before != l.After })
}
