// SPDX-License-Identifier: Apache-2.0

// Package remote runs gpuadm on other machines, over the system's own ssh: it brings the program,
// runs it there as root, passes on what it prints, and removes it. Fleet is the operator's side,
// Serve is the other machine's.
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
	mark      = "gpuadm-ssh "    // begins a line of bring.sh
	ready     = `{"ready":true}` // is gpuadm's first line there, as root
	sshFailed = 255              // ssh's exit status where the connection is at fault: ssh(1)
)

// The limits of what a machine may do to the operator's side.
const (
	stepLimit   = 45 * time.Second // for a step before the run, whatever the machine says meanwhile: to log in, to start gpuadm
	copyLimit   = 15 * time.Minute // for the program's bytes
	answerLimit = 15 * time.Minute // for a command that changes nothing; an apply or undo may take as long as it needs
	outputLimit = 16 << 20         // bytes of all that a machine says
)

var (
	errEnded = errors.New("the connection ended")
	errMuch  = fmt.Errorf("it has said more than %d MiB", outputLimit>>20)
)

// Request is a command line of gpuadm for the other machine, with all that it reads of the
// operator's.
type Request struct {
	Args     []string          `json:"args"`               // without the program's name
	Files    map[string][]byte `json:"files,omitempty"`    // by the names that Args has; - is standard input
	Outlives bool              `json:"outlives,omitempty"` // the run goes on when the connection is lost
}

// Fleet is machines that the same command line is run on. Its functions may be called for several
// machines at a time.
type Fleet struct {
	Parallel int // how many machines at a time
	Request  Request
	// Program returns gpuadm for a machine that uname -m calls so, and its SHA-256 in hex.
	Program func(machine string) (program []byte, digest string, err error)
	Tell    func(host, text string, progress bool) // gets each line of the command as it comes
	Ended   func(Result)

	start func(ctx context.Context, host string) (*ssh, error) // in tests; nil for the system's ssh
}

// Result is how it went on one machine.
type Result struct {
	Host    string
	Exit    int      // gpuadm's exit code, if Err is nil
	Err     error    // why the machine has no answer that can be used
	Goes    bool     // the run goes on there all the same
	Because []string // the last lines of ssh's own
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
				f.Ended(f.one(ctx, host))
			}
		})
	}
	for _, host := range hosts {
		queue <- host
	}
	close(queue)
	all.Wait()
}

// one runs it on one machine.
func (f *Fleet) one(ctx context.Context, host string) Result {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	peer, err := f.start(ctx, host)
	if err != nil {
		return Result{Host: host, Err: fmt.Errorf("cannot run ssh: %w", err)}
	}

	s, r := &session{Fleet: f, host: host, ctx: ctx, kill: kill, in: peer.in, out: scanner(peer.out)}, Result{Host: host}
	// A jump host's ssh inherits these pipes, and may hold them when ssh is dead.
	context.AfterFunc(ctx, func() { peer.out.Close(); peer.stderr.Close() })
	heard := make(chan error)
	go func() { heard <- s.lines(scanner(peer.stderr), s.hear) }()
	if r.Err = s.open(); r.Err == nil {
		r.Err = s.ask()
	}
	if !errors.Is(r.Err, errEnded) {
		kill(r.Err)
	}
	s.in.Close()
	defer time.AfterFunc(stepLimit, func() { kill(nil) }).Stop() // the other side removes what was brought
	_ = s.lines(s.out, func(string) bool { return false })
	<-heard
	r.Exit, r.Because = peer.wait(), s.last
	if s.begun.Load() && errors.Is(r.Err, errEnded) && r.Exit >= 0 && r.Exit != sshFailed {
		r.Err = nil
	}
	r.Goes = s.begun.Load() && r.Err != nil && f.Request.Outlives

	return r
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

	begun atomic.Bool // what it says is the command's
	last  []string    // the last lines of standard error before that
}

// scanner reads lines, none of which is longer than all that a machine may say.
func scanner(from io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, outputLimit)
	return lines
}

// ssh is a process of the system's ssh.
type ssh struct {
	in          io.WriteCloser
	out, stderr io.ReadCloser
	wait        func() int // its exit status, once both have ended
}

// start starts ssh. All that is not named here is the operator's: configuration, keys, agent, jump
// hosts, known hosts.
func start(ctx context.Context, host string) (*ssh, error) {
	argv := []string{
		"-T", "-o", "BatchMode=yes", // neither ssh nor sudo asks: there may be many machines
		"-o", "ControlMaster=no", // one of the operator's is used, none is left behind in the background
		"-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes",
		"-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
	}
	cmd := exec.CommandContext(ctx, "ssh", append(argv, "--", host, "exec /bin/sh")...)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	return &ssh{in, out, stderr, func() int {
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}}, errors.Join(err1, err2, err3, cmd.Start())
}

// lines calls tell with each line until it has enough; errEnded says that there are no more.
func (s *session) lines(from *bufio.Scanner, tell func(line string) (enough bool)) error {
	for from.Scan() {
		if s.said.Add(int64(len(from.Bytes())+1)) > outputLimit {
			s.kill(errMuch)
		} else if tell(from.Text()) {
			return nil
		}
	}
	if from.Err() != nil { // a line is too long
		s.kill(errMuch)
	}
	return cmp.Or(context.Cause(s.ctx), errEnded)
}

// hear takes a line of standard error: of the command, or of ssh before it.
func (s *session) hear(line string) (enough bool) {
	switch {
	case s.begun.Load():
		s.Tell(s.host, line, true)
	case strings.TrimSpace(line) != "":
		s.last = append(s.last, strings.TrimSpace(line))
		s.last = s.last[max(0, len(s.last)-4):]
	}
	return false
}

// within ends the session if a step takes longer, whatever the machine says meanwhile.
func (s *session) within(limit time.Duration) *time.Timer {
	return time.AfterFunc(limit, func() { s.kill(fmt.Errorf("no answer within %v", limit)) })
}

// wait waits for a line that begins so, and returns its rest. What a login shell prints besides is
// passed over.
func (s *session) wait(limit time.Duration, prefix string) (rest string, err error) {
	defer s.within(limit).Stop()
	err = s.lines(s.out, func(line string) (ours bool) {
		rest, ours = strings.CutPrefix(line, prefix)
		return ours
	})
	return rest, err
}

// open brings the program and starts it.
func (s *session) open() error {
	go io.WriteString(s.in, bring) //nolint:errcheck // a connection that is lost ends the answers
	said, err := s.wait(stepLimit, mark+"machine ")
	w := strings.SplitN(said, " ", 4) // processor, how it becomes root, digest of the gpuadm there, folder
	if err != nil || len(w) != 4 {
		return fmt.Errorf("cannot connect: %w", cmp.Or(err, errors.New("the other side speaks another version")))
	}

	program, digest, err := s.Program(w[0])
	switch {
	case w[1] == "nothing":
		return errors.New("cannot become root: the login is not root, and sudo is not there or asks for a password: see NOPASSWD in sudoers(5)")
	case err != nil:
		return err
	case w[2] == digest:
		program = nil
	case w[3] == "none":
		return errors.New("cannot copy gpuadm: no folder with 40 MB free where a program may run")
	}

	go fmt.Fprintf(s.in, "%d %s\n%s", len(program), digest, program) //nolint:errcheck // as above
	if said, err = s.wait(copyLimit, mark); err != nil || said != "brought" {
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
	go json.NewEncoder(s.in).Encode(s.Request) //nolint:errcheck // as above; a large one must not keep us from the answers
	if !s.Request.Outlives {
		defer s.within(answerLimit).Stop()
	}
	return s.lines(s.out, func(line string) bool {
		if line != ready { // of a process that continues the run
			s.Tell(s.host, line, false)
		}
		return false
	})
}

// Serve reads the request that the operator's side sends. A process that continues the run finds it
// on its standard input again, in memory.
func Serve(stdin io.Reader, stdout io.Writer) (r Request, err error) {
	fmt.Fprintln(stdout, ready)
	text, err := bufio.NewReader(stdin).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	fd, noFile := unix.MemfdCreate("request", unix.MFD_CLOEXEC)
	_, noRoom := unix.Pwrite(fd, text, 0)
	if err = errors.Join(err, noFile, noRoom, unix.Dup3(fd, 0, 0)); err != nil {
		err = fmt.Errorf("cannot read the request: %w", err)
	}
	return r, err
}
