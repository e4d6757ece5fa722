// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/remote"
)

// sshView prints what machines say, each line with the machine in front. On a terminal the last lines are a table of those at work.
type sshView struct {
	*common
	mu    sync.Mutex
	width int      // of the longest name
	many  bool     // more than one machine
	live  bool     // on a terminal
	work  []string // the machines at work
	row   map[string]string
	began map[string]time.Time
	drawn int // lines of the table on the terminal
}

// tableRows is the most rows that the table has.
const tableRows = 12

func newSSHView(c *common, hosts []string) *sshView {
	v := &sshView{common: c, many: len(hosts) > 1, row: map[string]string{}, began: map[string]time.Time{}}
	v.live = v.many && c.tty(c.stderr) && !c.quiet && c.output != "json"
	for _, h := range hosts {
		v.width = max(v.width, len(h))
	}
	return v
}

func (v *sshView) tell(l remote.Line) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wipe()
	defer v.draw()
	switch {
	case l.Begins:
		v.work = append(v.work, l.Host)
		v.row[l.Host], v.began[l.Host] = "connecting", time.Now()
	case l.Result != nil:
		v.work = slices.DeleteFunc(v.work, func(h string) bool { return h == l.Host })
	case l.Attached != nil:
		began := l.Attached.Local().Format(time.DateTime)
		v.print(l.Host, fmt.Sprintf("Attached to the run of %s, which continued without a connection.", began), true)
	default:
		v.row[l.Host] = l.Text
		v.print(l.Host, l.Text, l.Error)
	}
}

// print prints a line of a machine. Its standard output is the answer, and in JSON comes at the end.
func (v *sshView) print(host, text string, progress bool) {
	to := v.stdout
	switch {
	case progress:
		to = v.stderr
	case v.output == "json":
		return
	}
	if v.many {
		printf(to, "%s: %s\n", verbatim(fmt.Sprintf("%-*s", v.width, printable(host))), text)
		return
	}
	printf(to, "%s\n", text)
}

func (v *sshView) wipe() {
	if v.drawn > 0 {
		printf(v.stderr, "%s", verbatim(fmt.Sprintf("\x1b[%dA\r\x1b[J", v.drawn)))
		v.drawn = 0
	}
}

func (v *sshView) draw() {
	if !v.live {
		return
	}
	columns := 80
	if f, ok := file(v.stderr); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			columns = w
		}
	}
	for i, h := range v.work {
		row := []rune(fmt.Sprintf("  %-*s  %4.0f s  %s", v.width, printable(h), time.Since(v.began[h]).Seconds(), printable(v.row[h])))
		if i == tableRows {
			row = []rune(fmt.Sprintf("  and %d more", len(v.work)-tableRows))
		}
		printf(v.stderr, "%s\n", verbatim(string(row[:min(len(row), columns-1)])))
		v.drawn++
		if i == tableRows {
			return
		}
	}
}

// password asks for sudo's password at the terminal.
func (v *sshView) password(host string, terminal int) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wipe()
	printf(v.stderr, "sudo's password on %s, used for all machines that ask: ", host)
	secret, err := term.ReadPassword(terminal)
	printf(v.stderr, "\n")
	if err != nil {
		return "", fmt.Errorf("cannot read the password: %w", err)
	}
	return string(secret), nil
}

func (v *sshView) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wipe()
	v.live = false
}

// sshSummary prints a line for each machine, and what to type next. One machine that has ended needs none.
func (c *common) sshSummary(results []remote.Result, typed func(hosts []string) string) {
	width := 0
	for _, r := range results {
		width = max(width, len(r.Host))
	}
	if len(results) == 1 && results[0].State == remote.Ended && results[0].Ended == nil && results[0].Verified == nil {
		return
	}
	if len(results) > 1 {
		printf(c.stdout, "\n")
	}
	var left []string
	untouched := 0
	for _, r := range results {
		code, took := "-", ""
		if r.State == remote.Ended {
			code = fmt.Sprint(r.Exit)
		}
		if r.State == remote.Untouched {
			untouched++
		} else {
			took = fmt.Sprintf("%.1f s", r.Took.Seconds())
		}
		printf(c.stdout, "  %s  %s\n", verbatim(fmt.Sprintf("%-*s  %2s  %8s", width, printable(r.Host), code, took)), sshOutcome(r))
		if r.State == remote.Failed || r.State == remote.Continuing {
			for _, b := range r.Because {
				printf(c.stdout, "  %s  because: %s\n", strings.Repeat(" ", width+14), b)
			}
		}
		if !r.Fine() && !(r.State == remote.Ended && r.Exit == exitPending) { // that is an answer
			left = append(left, r.Host)
		}
	}
	if len(left) == 0 {
		return
	}
	before := ""
	if untouched > 0 {
		before = count(untouched, "machine") + " untouched. "
	}
	printf(c.stdout, "\n%sTo continue, once the cause is fixed: %s\n", before, typed(left))
}

// sshOutcome says how it went on a machine.
func sshOutcome(r remote.Result) string {
	switch r.State {
	case remote.Untouched:
		return "untouched"
	case remote.Failed:
		return r.Err.Error()
	case remote.Continuing:
		return "the run continues there: " + r.Err.Error() + "; the same command attaches to it"
	}
	if r.Exit == 0 && r.Verified != nil && *r.Verified != 0 {
		return fmt.Sprintf("status: %s", meaning(*r.Verified))
	}
	text := meaning(r.Exit)
	if r.Ended != nil {
		text += ", at " + r.Ended.Local().Format(time.DateTime) + ", while no connection was there; the same command again starts a new run"
	}
	return text
}

// meaning is an exit code in a word or two.
func meaning(code int) string {
	switch code {
	case 0:
		return "done"
	case exitUsage:
		return "the spec or the command line is wrong"
	case exitPending:
		return "changes are pending"
	case exitReboot:
		return "a reboot is needed"
	case exitAgain:
		return "busy, waiting or stopped: run it again"
	}
	return "failed"
}

// sshAnswer is what `ssh -o json` prints.
type sshAnswer struct {
	Format   int          `json:"format"`
	Exit     int          `json:"exit"`
	Machines []sshMachine `json:"machines"`
}

type sshMachine struct {
	Host     string            `json:"host"`
	State    remote.State      `json:"state"`
	Exit     *int              `json:"exit,omitempty"`
	Status   *int              `json:"status,omitempty"`
	Seconds  float64           `json:"seconds"`
	Attached *time.Time        `json:"attached,omitempty"`
	Ended    *time.Time        `json:"ended,omitempty"`
	Error    string            `json:"error,omitempty"`
	Because  []string          `json:"because,omitempty"`
	Answers  []json.RawMessage `json:"answers,omitempty"`
}

// sshJSON prints one object for all machines.
func (c *common) sshJSON(results []remote.Result) error {
	v := sshAnswer{Format: converge.PlanFormat, Exit: sshExit(results)}
	for _, r := range results {
		m := sshMachine{Host: r.Host, State: r.State, Status: r.Verified, Seconds: r.Took.Seconds(), Attached: r.Attached, Ended: r.Ended}
		if r.State == remote.Ended {
			m.Exit = &r.Exit
		} else if r.Err != nil {
			m.Error, m.Because = r.Err.Error(), r.Because
		}
		for _, line := range r.Lines {
			if json.Valid([]byte(line)) {
				m.Answers = append(m.Answers, json.RawMessage(line))
			} else if text, err := json.Marshal(line); err == nil {
				m.Answers = append(m.Answers, text)
			}
		}
		v.Machines = append(v.Machines, m)
	}
	return c.json(v)
}
