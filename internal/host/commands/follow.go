// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
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

type follower struct{}

// Follow has a function told each line that a command of Do prints on its standard output, secrets
// masked, when the command prints it, and how much of all its work the command has done: "dpkg
// 57%", "dnf 3/12"; "" if it has not said that.
func Follow(ctx context.Context, told func(done, line string)) context.Context {
	return context.WithValue(ctx, follower{}, told)
}

// progress hears a command's standard output, and the status lines of an apt.
type progress struct {
	told func(done, line string)
	mu   sync.Mutex
	done string
}

// steps is what apt writes to APT::Status-Fd (dlstatus:, pmstatus:), and how dnf counts its
// downloads and the steps of its transaction.
// Sources: README.progress-reporting, apt-pkg/acquire.cc and apt-pkg/install-progress.cc of
// https://salsa.debian.org/apt-team/apt; dnf/cli/progress.py and dnf/cli/output.py of
// https://github.com/rpm-software-management/dnf.
var steps = pattern.Of(`^(?:(dl|pm)(?:status|error|conffile):[^:]*:(\d+)[^:]*:(.*)|\((\d+/\d+)\): .*|[A-Z][a-z ]+: .* (\d+/\d+))$`)

func (p *progress) heard(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m := steps().FindStringSubmatch(line); {
	case m == nil:
	case m[1] == "dl":
		p.done, line = "download "+m[2]+"%", m[3]
	case m[1] == "pm":
		p.done, line = "dpkg "+m[2]+"%", m[3]
	case m[4] != "":
		p.done = "download " + m[4]
	default:
		p.done = "dnf " + m[5]
	}
	p.told(p.done, line)
}

// withStatus gives apt a descriptor of its own for its progress, if it is followed.
func (p *progress) withStatus(cmd *exec.Cmd) (done func(), err error) {
	if p.told == nil || !names(cmd, host.StatusFd) {
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
		_, _ = io.Copy(&lines{told: p.heard}, r)
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

// lines cuts what is written to it into lines. A carriage return ends one too: progress bars have
// no other end.
type lines struct {
	told func(string)
	part []byte
}

func (l *lines) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' && b != '\r' {
			if len(l.part) < 200 {
				l.part = append(l.part, b)
			}
			continue
		}
		if text := strings.TrimSpace(strings.ToValidUTF8(string(l.part), "?")); text != "" {
			l.told(mask.Message(text))
		}
		l.part = l.part[:0]
	}
	return len(p), nil
}
