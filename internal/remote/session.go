// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed bring.sh
var bring string

const (
	// answerLimit is how long a machine may take to answer a step before the run: to log in, to check a password.
	answerLimit = 45 * time.Second
	// stopLimit is how long a run that is over its time, and was asked to stop, may take to finish a change.
	stopLimit = 2 * time.Minute
	maxLine   = 64 << 20 // bytes: a plan as JSON is one line
	mark      = "gpuadm-ssh "
)

// session is one connection to one machine.
type session struct {
	fleet  *Fleet
	host   string
	in     io.WriteCloser
	out    chan string // lines of the machine's standard output; closed at its end
	err    chan string // lines of standard error, sudo's prompt among them; closed at its end
	last   []string    // the last lines of standard error
	result *Result
}

// Client finds the system's ssh.
func Client() (string, error) { return exec.LookPath("ssh") }

// options of every ssh. All else is the operator's: configuration, keys, agent, jump hosts, known hosts.
func (f *Fleet) options(host string) []string {
	argv := []string{
		"-T",
		"-o", "ControlMaster=no", // one of the operator's is used, none is left behind in the background
		"-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes",
		"-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
	}
	if f.Batch {
		argv = append(argv, "-o", "BatchMode=yes")
	}
	return append(argv, "--", host, "exec /bin/sh")
}

// start starts ssh. Ctrl-C is not for it: the run is asked to stop, and ends.
func (s *session) start(ctx context.Context) (wait func() error, err error) {
	cmd := exec.CommandContext(ctx, s.fleet.SSH, s.fleet.options(s.host)...)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: s.fleet.Batch}
	if s.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	outEnd, stdout := io.Pipe()
	errEnd, stderr := io.Pipe()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if !s.fleet.Batch {
		// It asks at the terminal, for which it must be in the foreground, as we are. A signal that is ignored stays so: clientloop.c of
		// OpenSSH, "don't overwrite SIG_IGN, matches behaviour from rsh(1)"; execve(2).
		signal.Ignore(os.Interrupt)
		defer signal.Notify(s.fleet.signals, os.Interrupt)
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.out, s.err = scan(outEnd), scan(errEnd)
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		stdout.Close()
		stderr.Close()
		ended <- err
	}()
	return func() error { return <-ended }, nil
}

// scan sends each line, to the end.
func scan(from *io.PipeReader) chan string {
	to := make(chan string, 64)
	go func() {
		defer close(to)
		sc := bufio.NewScanner(from)
		sc.Buffer(nil, maxLine)
		for sc.Scan() {
			to <- sc.Text()
		}
		_ = from.CloseWithError(bufio.ErrTooLong) // where a line was too long, ssh's next write fails
	}()
	return to
}

var (
	errSilent  = fmt.Errorf("no answer within %v", answerLimit)
	errStopped = errors.New("stopped before it began")
	errEnded   = errors.New("the connection ended")
	errLate    = fmt.Errorf("not stopped %v after that", stopLimit)
)

// next waits for a line of the machine, for a limited time if limit is not 0. asked says that sudo asks for a password.
func (s *session) next(ctx context.Context, limit time.Duration) (line string, asked bool, err error) {
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case line, ok := <-s.out:
			if !ok {
				if s.err != nil { // it may be at its end already
					for text := range s.err {
						s.keep(text)
					}
				}
				return "", false, errEnded
			}
			return line, false, nil
		case text, ok := <-s.err:
			switch {
			case !ok:
				s.err = nil
			case strings.HasSuffix(text, mark+"password"):
				return "", true, nil
			default:
				s.keep(text)
			}
		case <-over:
			return "", false, errSilent
		case <-ctx.Done():
			return "", false, context.Cause(ctx)
		}
	}
}

// keep keeps a line of standard error as a reason, should the session fail.
func (s *session) keep(text string) {
	if text = strings.TrimSpace(text); text != "" {
		s.last = append(s.last, text)
		s.last = s.last[max(0, len(s.last)-4):]
	}
}

// words waits for a line with our mark, and returns its words. What a login shell prints by itself is passed over.
func (s *session) words(ctx context.Context, limit time.Duration) ([]string, error) {
	for {
		line, _, err := s.next(ctx, limit)
		if err != nil {
			return nil, err
		}
		if text, ours := strings.CutPrefix(line, mark); ours {
			return strings.SplitN(text, " ", 5), nil
		}
	}
}

// open brings the program and starts it.
func (s *session) open(ctx context.Context) error {
	go io.WriteString(s.in, bring) //nolint:errcheck // a connection that is lost ends the answers
	login := answerLimit
	if !s.fleet.Batch {
		login = 0 // the operator types
	}
	w, err := s.words(ctx, login)
	if err != nil {
		return fmt.Errorf("cannot connect: %w", err)
	} else if len(w) != 5 || w[0] != "machine" {
		return fmt.Errorf("cannot connect: the other side speaks another version")
	}
	arch, as, has, folder := w[1], w[2], w[3], w[4]
	if as == "nothing" {
		return errors.New("cannot become root: sudo is not installed, and the login is not root")
	}
	program, err := s.fleet.Program(arch)
	if err != nil {
		return err
	}
	if has == program.Digest {
		program.Bytes = nil
	} else if folder == "none" {
		return errors.New("cannot copy gpuadm: no folder with 40 MB free where a program may run")
	}
	var password string
	if as == "password" {
		if password, err = s.fleet.password(s.host); err != nil {
			return err
		}
	}
	go fmt.Fprintf(s.in, "%d %s\n%s", len(program.Bytes), program.Digest, program.Bytes) //nolint:errcheck // as above
	if w, err := s.words(ctx, 0); err != nil {
		return fmt.Errorf("cannot copy gpuadm: %w", err)
	} else if w[0] != "brought" {
		return fmt.Errorf("cannot copy gpuadm to %s: it arrived broken", folder)
	}
	for refused := false; ; refused = true {
		line, asked, err := s.next(ctx, answerLimit)
		if asked && refused {
			return errors.New("cannot become root: sudo refuses the password")
		} else if asked {
			if password == "" {
				return errors.New("cannot become root: sudo asks for a password after all")
			}
			_, err = io.WriteString(s.in, password+"\n")
		} else if err == nil {
			var a answer
			if json.Unmarshal([]byte(line), &a) == nil && a.Ready {
				return nil
			}
		}
		if err != nil {
			return fmt.Errorf("cannot start gpuadm: %w", err)
		}
	}
}

// ask sends a request and passes on its lines. It returns its exit code.
func (s *session) ask(ctx context.Context, r Request, stop <-chan struct{}) (code int, err error) {
	questions := make(chan question, 3) // a request of megabytes must not keep us from its answers
	defer close(questions)
	go func() {
		for q := range questions {
			text, _ := json.Marshal(q)            // strings and bytes can always be encoded
			_, _ = s.in.Write(append(text, '\n')) // of a connection that is lost the answers end
		}
	}()
	questions <- question{Request: &r}
	answers, ended := make(chan string), make(chan error, 1)
	running, done := context.WithCancel(context.WithoutCancel(ctx))
	var reader sync.WaitGroup
	defer reader.Wait()
	defer done()
	reader.Go(func() {
		for {
			line, _, err := s.next(running, 0)
			if err != nil {
				ended <- err
				return
			}
			select {
			case answers <- line:
			case <-running.Done():
				return
			}
		}
	})
	over := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case line := <-answers:
			if exit, err := s.heard(line); exit != nil {
				return *exit, nil
			} else if err != nil {
				return 0, err
			}
		case err := <-ended:
			return 0, err
		case <-stop:
			stop = nil
			questions <- question{Stop: true}
		case <-over:
			over, late = nil, time.After(stopLimit)
			questions <- question{Stop: true}
		case <-late:
			return 0, fmt.Errorf("%w, and %w", context.Cause(ctx), errLate)
		}
	}
}

// heard passes on an answer. exit is set at the end.
func (s *session) heard(line string) (exit *int, err error) {
	var a answer
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		return nil, nil // not gpuadm's
	}
	switch {
	case a.Error != "":
		return nil, errors.New(a.Error)
	case a.Attached != nil:
		s.result.Attached = a.Attached
		s.fleet.Tell(Line{Host: s.host, Attached: a.Attached})
	case a.Out != nil:
		s.result.Lines = append(s.result.Lines, *a.Out)
		s.fleet.Tell(Line{Host: s.host, Text: *a.Out})
	case a.Err != nil:
		s.fleet.Tell(Line{Host: s.host, Text: *a.Err, Error: true})
	case a.Exit != nil:
		s.result.Ended = a.Ended
		return a.Exit, nil
	}
	return nil, nil
}
