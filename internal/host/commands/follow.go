// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Follow is called with each line that a command of Do prints on its standard output, when the
// command prints it, with secrets masked. done says how much of all its work the command has done:
// "dpkg 57%", "dnf 3/12"; "" if the command has not said that.
type Follow func(done, line string)

// progress reads a command's standard output, and the status lines of apt.
type progress struct {
	follow Follow
	mu     sync.Mutex
	done   string
}

// steps matches what apt writes to APT::Status-Fd (dlstatus:, pmstatus:), and how dnf counts its
// downloads and the steps of its transaction.
// Sources: README.progress-reporting, apt-pkg/acquire.cc and apt-pkg/install-progress.cc of
// https://salsa.debian.org/apt-team/apt; dnf/cli/progress.py and dnf/cli/output.py of
// https://github.com/rpm-software-management/dnf.
var steps = pattern.Of(`^(?:(dl|pm)(?:status|error|conffile):[^:]*:(\d+)[^:]*:(.*)|\((\d+/\d+)\): .*|[A-Z][a-z ]+: .* (\d+/\d+))$`)

// line takes a line of the command's.
func (p *progress) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m := steps().FindStringSubmatch(text); {
	case m == nil:
	case m[1] == "dl":
		p.done = "download " + m[2] + "%"
		text = m[3]
	case m[1] == "pm":
		p.done = "dpkg " + m[2] + "%"
		text = m[3]
	case m[4] != "":
		p.done = "download " + m[4]
	default:
		p.done = "dnf " + m[5]
	}

	p.follow(p.done, text)
}

// withStatus gives apt a descriptor of its own for its progress, if it is followed.
func (p *progress) withStatus(cmd *exec.Cmd) (done func(), err error) {
	if p.follow == nil || !hasPlaceholder(cmd, host.StatusFd) {
		replace(cmd, host.StatusFd, "-1") // apt's default: none
		return func() {}, nil
	}

	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe for the progress of apt: %w", err)
	}

	cmd.ExtraFiles = append(cmd.ExtraFiles, w)
	replace(cmd, host.StatusFd, strconv.Itoa(2+len(cmd.ExtraFiles)))
	copied := make(chan struct{})
	go func() {
		_, _ = io.Copy(&lineWriter{line: p.line}, r)
		close(copied)
	}()

	return func() {
		w.Close()
		select {
		case <-copied:
		case <-time.After(killAfter): // what apt started holds it still
		}

		r.Close()
	}, nil
}

// lineWriter splits what is written to it into lines. A carriage return ends a line too: progress
// bars have no other end.
type lineWriter struct {
	line func(string)
	part []byte // of a line whose end has not come
}

func (w *lineWriter) Write(p []byte) (int, error) {
	const longest = 200 // bytes of a line that are kept
	for _, b := range p {
		switch {
		case b == '\n', b == '\r':
			w.end()
		case len(w.part) < longest:
			w.part = append(w.part, b)
		}
	}

	return len(p), nil
}

func (w *lineWriter) end() {
	text := strings.TrimSpace(strings.ToValidUTF8(string(w.part), "?"))
	w.part = w.part[:0]
	if text != "" {
		w.line(mask.Message(text))
	}
}
