// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package remote runs gpuadm on other machines, over the system's own ssh: it brings the program, runs it there as root, passes on
// what it prints, and removes it. Fleet is the operator's side, Serve and Job are the other machine's.
package remote

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Request is a command line of gpuadm for the other machine, with all that it reads of the operator's.
type Request struct {
	Args  []string          `json:"args"`            // without the program's name
	Files map[string][]byte `json:"files,omitempty"` // by the names that Args has
	Stdin []byte            `json:"stdin,omitempty"`
	// Outlives says that the run must go on when the connection is lost.
	Outlives bool `json:"outlives,omitempty"`
	// Install says that the program stays on the machine.
	Install bool `json:"install,omitempty"`
	// Brought is the folder with the program that was brought; the machine's side fills it in. "" if none was.
	Brought string `json:"brought,omitempty"`
	// Began is when the run began, on the machine's clock.
	Began time.Time `json:"began,omitzero"`
}

// id is the same for the same command line with the same files.
func (r Request) id() string {
	text, _ := json.Marshal(Request{Args: r.Args, Files: r.Files, Stdin: r.Stdin}) // strings and bytes can always be encoded
	return fmt.Sprintf("%x", sha256.Sum256(text))[:12]
}

// question is a line from the operator's side.
type question struct {
	Request *Request `json:"request,omitempty"`
	Stop    bool     `json:"stop,omitempty"`
}

// answer is a line from the machine's side: one of these.
type answer struct {
	Ready    bool       `json:"ready,omitempty"`
	Out      *string    `json:"out,omitempty"` // a line of the command's standard output
	Err      *string    `json:"err,omitempty"` // a line of its standard error
	Attached *time.Time `json:"attached,omitempty"`
	Exit     *int       `json:"exit,omitempty"`
	// Ended is set beside Exit where the run had ended before this session asked for it.
	Ended *time.Time `json:"ended,omitempty"`
	Error string     `json:"error,omitempty"`
}

// lines writes answers, one a line.
type lines struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lines) say(a answer) {
	text, err := json.Marshal(a)
	if err != nil {
		return // strings, numbers and times can always be encoded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.to.Write(append(text, '\n')) // of a connection that is lost the reader knows
}

// split calls line with each whole line written to it.
type split struct {
	line func(string)
	mu   sync.Mutex // a run writes what it does, and that it was asked to stop
	rest string
}

func (s *split) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest += string(p)
	for {
		line, rest, whole := strings.Cut(s.rest, "\n")
		if !whole {
			return len(p), nil
		}
		s.rest = rest
		s.line(line)
	}
}

// end passes on a last line without an end.
func (s *split) end() {
	if s.rest != "" {
		s.line(s.rest)
		s.rest = ""
	}
}

// Run runs a command line of gpuadm in this process. It continues in a new process by again, with the whole new command line.
type Run func(r Request, stdout, stderr io.Writer, again func(args []string) error) int

// into runs a request, and says its lines.
func into(say func(answer), r Request, run Run, again func([]string) error) int {
	stdout := &split{line: func(s string) { say(answer{Out: &s}) }}
	stderr := &split{line: func(s string) { say(answer{Err: &s}) }}
	defer func() { stdout.end(); stderr.end() }()
	return run(r, stdout, stderr, again)
}
