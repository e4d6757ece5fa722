// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Fleet is machines that the same command line is run on.
type Fleet struct {
	SSH   string // the program
	Batch bool   // ssh asks for nothing, since there is no terminal or more than one machine
	// Program returns gpuadm for a machine that uname -m calls so.
	Program func(machine string) (Program, error)
	// Password asks the operator for sudo's password, once for all machines.
	Password func(host string) (string, error)
	Parallel int           // how many machines at a time
	FailFast bool          // begin no machine after one that failed
	Timeout  time.Duration // for each machine; 0 is none
	Request  Request
	Verify   *Request // a second command line, once the first has ended with 0
	// Tell gets each line as it comes; calls may overlap.
	Tell func(Line)

	signals  chan os.Signal
	once     sync.Once
	secret   string
	noSecret error
}

// Program is gpuadm for one kind of machine.
type Program struct {
	Bytes  []byte
	Digest string // SHA-256 in hex
}

// Line is what a machine says, or what happens to it.
type Line struct {
	Host     string
	Text     string
	Error    bool       // it is a line of standard error
	Attached *time.Time // the run that this session attaches to began then
	Begins   bool       // the connection is being made
	Result   *Result    // it has ended so
}

// Result is how it went on one machine.
type Result struct {
	Host     string
	State    State
	Exit     int      // gpuadm's exit code, if State is Ended
	Verified *int     // the exit code of Verify, if it was asked
	Lines    []string // of the command's standard output
	Err      error    // why State is not Ended
	Because  []string // the last lines of ssh's and sudo's own
	Took     time.Duration
	Attached *time.Time // the run had begun then, by an earlier session
	Ended    *time.Time // the run had ended then, before this session
}

// State says how far a machine came.
type State string

// The states.
const (
	Ended      State = "ended"
	Untouched  State = "untouched"  // it was not begun
	Failed     State = "failed"     // nothing was run there
	Continuing State = "continuing" // the connection is lost, and the run goes on
)

// Fine says whether nothing is left to do for a machine.
func (r Result) Fine() bool {
	return r.State == Ended && r.Exit == 0 && (r.Verified == nil || *r.Verified == 0)
}

// password asks once.
func (f *Fleet) password(host string) (string, error) {
	f.once.Do(func() { f.secret, f.noSecret = f.Password(host) })
	return f.secret, f.noSecret
}

// Run runs the command line on all machines. The first SIGINT or SIGTERM asks all runs to stop.
func (f *Fleet) Run(ctx context.Context, hosts []string) []Result {
	f.signals = make(chan os.Signal, 1)
	signal.Notify(f.signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(f.signals)
	stop, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-f.signals:
			signal.Stop(f.signals) // a second one ends this process, and the runs go on
			close(stop)
		case <-over:
		}
	}()

	results := make([]Result, len(hosts))
	places := make(chan struct{}, max(1, f.Parallel))
	var failed sync.Once
	halt := make(chan struct{})
	var all sync.WaitGroup
	for i, host := range hosts {
		results[i] = Result{Host: host, State: Untouched}
		select {
		case <-halt:
		case <-stop:
		case places <- struct{}{}:
		}
		if closed(halt) || closed(stop) {
			continue
		}
		all.Go(func() {
			defer func() { <-places }()
			f.Tell(Line{Host: host, Begins: true})
			began := time.Now()
			f.one(ctx, host, stop, &results[i])
			results[i].Took = time.Since(began)
			if f.FailFast && !results[i].Fine() {
				failed.Do(func() { close(halt) })
			}
			f.Tell(Line{Host: host, Result: &results[i]})
		})
	}
	all.Wait()
	return results
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// one runs it on one machine.
func (f *Fleet) one(ctx context.Context, host string, stop <-chan struct{}, r *Result) {
	r.State = Failed
	if f.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.Timeout, fmt.Errorf("not done within %v", f.Timeout))
		defer cancel()
	}
	living, kill := context.WithCancel(context.WithoutCancel(ctx))
	s := &session{fleet: f, host: host, result: r}
	wait, err := s.start(living)
	if err != nil {
		kill()
		r.Err = fmt.Errorf("cannot run ssh: %w", err)
		return
	}
	stdout, stderr := s.out, s.err
	defer func() {
		s.in.Close()
		for _, rest := range []chan string{stdout, stderr} { // a pipe that nothing reads would keep ssh from its end
			go func() {
				for range rest { //nolint:revive // to its end
				}
			}()
		}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = wait() }()
		select { // the other side removes what was brought
		case <-ended:
		case <-time.After(10 * time.Second):
		}
		kill()
		<-ended
	}()
	opening, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-stop:
			cancel(errStopped)
		case <-opening.Done():
		}
	}()
	err = s.open(opening)
	cancel(nil)
	if err != nil {
		kill() // nothing has begun
		r.Err, r.Because = err, s.last
		if errors.Is(err, errStopped) {
			r.State, r.Err = Untouched, nil
		}
		return
	}
	r.Exit, err = s.ask(ctx, f.Request, stop)
	if err == nil && r.Exit == 0 && f.Verify != nil {
		var code int
		code, err = s.ask(ctx, *f.Verify, stop)
		r.Verified = &code
	}
	if err == nil {
		r.State = Ended
		return
	}
	r.Err, r.Because = err, s.last
	if f.Request.Outlives && (errors.Is(err, errEnded) || errors.Is(err, errLate)) {
		r.State = Continuing
	}
}
