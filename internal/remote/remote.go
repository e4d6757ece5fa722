// SPDX-License-Identifier: Apache-2.0

// Package remote runs gpuadm on other machines, over the system's own ssh: it copies the program,
// runs it there as root, passes on what it prints, and removes it. Fleet is the operator's side,
// Serve the other machine's.
package remote

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed bring.sh
var bring string // the first half of a session, on the other machine

const (
	mark      = "gpuadm-ssh "    // the beginning of a line of bring.sh
	ready     = `{"ready":true}` // gpuadm's first line on the other machine, as root
	sshFailed = 255              // ssh's exit status if the connection has failed: ssh(1)
)

// The limits of what a machine may do to the operator's side. They hold whatever the machine says
// meanwhile.
const (
	stepLimit   = 45 * time.Second // to log in, and to start gpuadm
	copyLimit   = 15 * time.Minute // to copy the program
	answerLimit = 15 * time.Minute // for a command that changes nothing; others take as long as they need
	outputLimit = 16 << 20         // bytes of all that a machine says
)

var (
	errEnded   = errors.New("the connection ended")
	errTooMuch = fmt.Errorf("its output is larger than %d MiB", outputLimit>>20)
)

// Request is a command line of gpuadm for the other machine, with the operator's files
// that it reads.
type Request struct {
	Args     []string          `json:"args"`               // without the program's name
	Files    map[string][]byte `json:"files,omitempty"`    // by their names in Args; - is standard input
	Outlives bool              `json:"outlives,omitempty"` // the run continues if the connection is lost
}

// Fleet runs the same command line on several machines. It may call its functions for several
// machines at the same time.
type Fleet struct {
	Parallel int // how many machines at a time
	Request  Request
	// Program returns gpuadm for a machine by its uname -m, and the program's SHA-256 in hex.
	Program func(machine string) (program []byte, digest string, err error)
	// Tell gets each line that the command prints, when it comes.
	Tell  func(host, text string, progress bool)
	Ended func(Result)

	start func(ctx context.Context, host string) (*ssh, error) // in tests; nil for the system's ssh
}

// Result is how the run went on one machine.
type Result struct {
	Host    string
	Exit    int      // gpuadm's exit code, if Err is nil
	Err     error    // why the machine has no answer that can be used
	Goes    bool     // in spite of Err the run continues there
	Because []string // the last lines that ssh itself has printed
}

// Run runs the command line on all machines.
func (f *Fleet) Run(ctx context.Context, hosts []string) {
	queue := make(chan string)
	var all sync.WaitGroup
	if f.start == nil {
		f.start = start
	}
	for range min(f.Parallel, len(hosts)) {
		all.Go(func() {
			for host := range queue {
				f.Ended(f.runOn(ctx, host))
			}
		})
	}

	for _, host := range hosts {
		queue <- host
	}
	close(queue)
	all.Wait()
}

// runOn runs the command line on one machine.
func (f *Fleet) runOn(ctx context.Context, host string) Result {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	peer, err := f.start(ctx, host)
	if err != nil {
		return Result{Host: host, Err: fmt.Errorf("cannot run ssh: %w", err)}
	}

	s := &session{
		Fleet: f,
		host:  host,
		ctx:   ctx,
		kill:  kill,
		in:    peer.in,
		out:   newScanner(peer.out),
	}
	// A jump host's ssh inherits these pipes, and may hold them when ssh is dead.
	context.AfterFunc(ctx, func() {
		peer.out.Close()
		peer.stderr.Close()
	})
	stderrEnded := make(chan struct{})
	go func() {
		_ = s.lines(newScanner(peer.stderr), s.stderrLine)
		close(stderrEnded)
	}()

	err = s.open()
	if err == nil {
		err = s.ask()
	}
	if !errors.Is(err, errEnded) {
		kill(err)
	}

	s.in.Close()
	defer time.AfterFunc(stepLimit, func() { kill(nil) }).Stop() // the other side removes the program
	_ = s.lines(s.out, func(string) bool { return false })
	<-stderrEnded

	exit := peer.wait()
	begun := s.begun.Load()
	answered := exit >= 0 && exit != sshFailed
	if begun && answered && errors.Is(err, errEnded) {
		err = nil
	}
	return Result{
		Host:    host,
		Exit:    exit,
		Err:     err,
		Goes:    begun && err != nil && f.Request.Outlives,
		Because: s.last,
	}
}

// session is one connection to one machine. kill ends it, for a reason.
type session struct {
	*Fleet
	host string
	in   io.WriteCloser
	out  *bufio.Scanner
	said atomic.Int64 // bytes
	ctx  context.Context
	kill context.CancelCauseFunc

	begun atomic.Bool // the command has started: all lines are the command's
	last  []string    // the last lines of standard error before that
}

// newScanner reads lines. No line may be longer than all that a machine may say.
func newScanner(from io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, outputLimit)
	return lines
}

// ssh is a process of the system's ssh.
type ssh struct {
	in     io.WriteCloser
	out    io.ReadCloser
	stderr io.ReadCloser
	wait   func() int // returns the exit status, after out and stderr have ended
}

// start starts ssh. All that is not named here comes from the operator: configuration, keys, agent,
// jump hosts, known hosts.
func start(ctx context.Context, host string) (*ssh, error) {
	argv := []string{
		"-T", "-o", "BatchMode=yes", // neither ssh nor sudo asks: there may be many machines
		"-o", "ControlMaster=no", // use the operator's connection, and leave none in the background
		"-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes",
		"-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
		"--", host, "exec /bin/sh",
	}
	cmd := exec.CommandContext(ctx, "ssh", argv...)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3, cmd.Start()); err != nil {
		return nil, err
	}

	wait := func() int {
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}

	return &ssh{in: in, out: out, stderr: stderr, wait: wait}, nil
}

// lines calls take with each line until take has enough; errEnded says that no more lines come.
func (s *session) lines(from *bufio.Scanner, take func(line string) (enough bool)) error {
	for from.Scan() {
		if s.said.Add(int64(len(from.Bytes())+1)) > outputLimit {
			s.kill(errTooMuch)
		} else if take(from.Text()) {
			return nil
		}
	}

	if from.Err() != nil { // a line is too long
		s.kill(errTooMuch)
	}
	return cmp.Or(context.Cause(s.ctx), errEnded)
}

// stderrLine takes a line of standard error: the command's, or before that ssh's.
func (s *session) stderrLine(line string) (enough bool) {
	switch {
	case s.begun.Load():
		s.Tell(s.host, line, true)
	case strings.TrimSpace(line) != "":
		s.last = append(s.last, strings.TrimSpace(line))
		s.last = s.last[max(0, len(s.last)-4):]
	}
	return false
}

// within ends the session if a step takes longer than the limit.
func (s *session) within(limit time.Duration) *time.Timer {
	return time.AfterFunc(limit, func() { s.kill(fmt.Errorf("no answer within %v", limit)) })
}

// wait waits for a line with a prefix, and returns the rest of the line. It ignores all other
// lines: a login shell may print some.
func (s *session) wait(limit time.Duration, prefix string) (rest string, err error) {
	defer s.within(limit).Stop()
	err = s.lines(s.out, func(line string) (found bool) {
		rest, found = strings.CutPrefix(line, prefix)
		return found
	})
	return rest, err
}

// open copies the program and starts it.
func (s *session) open() error {
	go io.WriteString(s.in, bring) //nolint:errcheck // a connection that is lost ends the answers
	answer, err := s.wait(stepLimit, mark+"machine ")
	words := strings.SplitN(answer, " ", 4)
	if err != nil || len(words) != 4 {
		otherVersion := errors.New("the other side speaks another version")
		return fmt.Errorf("cannot connect: %w", cmp.Or(err, otherVersion))
	}
	processor := words[0]
	becomesRoot := words[1]
	digestThere := words[2] // of the gpuadm that is installed there
	folder := words[3]      // for the copy

	program, digest, err := s.Program(processor)
	switch {
	case becomesRoot == "nothing":
		return errors.New("cannot become root: the login is not root, and sudo is not there or asks for a password: see NOPASSWD in sudoers(5)")
	case err != nil:
		return err
	case digestThere == digest:
		program = nil
	case folder == "none":
		return errors.New("cannot copy gpuadm: no folder with 40 MB free where a program may run")
	}

	go fmt.Fprintf(s.in, "%d %s\n%s", len(program), digest, program) //nolint:errcheck // as above
	answer, err = s.wait(copyLimit, mark)
	if err != nil || answer != "brought" {
		return fmt.Errorf("cannot copy gpuadm: %w", cmp.Or(err, errors.New("it arrived broken")))
	}
	if _, err := s.wait(stepLimit, ready); err != nil {
		return fmt.Errorf("cannot start gpuadm as root: %w", err)
	}

	return nil
}

// ask sends the request and passes on the lines of the command, to the end.
func (s *session) ask() error {
	s.begun.Store(true)
	// In the background: a large request must not delay the reading of answers.
	go json.NewEncoder(s.in).Encode(s.Request) //nolint:errcheck // as above
	if !s.Request.Outlives {
		defer s.within(answerLimit).Stop()
	}
	return s.lines(s.out, func(line string) bool {
		if line != ready { // a process that continues the run says it again
			s.Tell(s.host, line, false)
		}
		return false
	})
}

// Serve reads the request that the operator's side sends. It puts the request on standard input
// again, in memory, for a process that continues the run.
func Serve(stdin io.Reader, stdout io.Writer) (Request, error) {
	fmt.Fprintln(stdout, ready)
	var r Request
	text, err := bufio.NewReader(stdin).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil {
		err = keepOnStdin(text)
	}
	if err != nil {
		return r, fmt.Errorf("cannot read the request: %w", err)
	}
	return r, nil
}

// keepOnStdin makes a text this process's standard input, in memory.
func keepOnStdin(text []byte) error {
	fd, err := unix.MemfdCreate("request", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if _, err := unix.Pwrite(fd, text, 0); err != nil {
		return err
	}
	return unix.Dup3(fd, 0, 0)
}
