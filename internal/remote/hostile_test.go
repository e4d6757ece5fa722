// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
)

// hostile is what a machine can do to the operator's side at each step: say nothing, talk all the
// time, or say more than it may. Recorded from an attack on gpuadm ssh, in which each of them kept
// it for as long as the machine liked.
type hostile struct {
	step string // the last step that it keeps to
	does func(out, stderr io.Writer)
}

// start answers as bring.sh and gpuadm do, up to a step. Its pipes do not end when ssh is killed: a
// jump host's ssh holds them.
func (h hostile) start(ctx context.Context, _ string) (*ssh, error) {
	in, words := io.Pipe()
	out, says := io.Pipe()
	stderr, complains := io.Pipe()
	go func() {
		lines := bufio.NewReader(in)
		for _, step := range []struct{ name, line string }{
			{"login", ""}, {"copy", mark + "machine x86_64 root none /run/x\n"}, {"start", mark + "brought\n"}, {"run", ready + "\n"},
		} {
			io.WriteString(says, step.line)
			if step.name == h.step {
				go io.Copy(io.Discard, lines)
				h.does(says, complains)
				return
			}
		}
	}()
	go func() { <-ctx.Done(); in.Close() }()
	return &ssh{words, out, stderr, func() int { return -1 }}, nil
}

// TestMachineIsHostile: whatever a machine does, its session ends within the limit of its step, and
// with a sentence that has the number.
func TestMachineIsHostile(t *testing.T) {
	silent := func(io.Writer, io.Writer) {}
	chatter := func(out, _ io.Writer) {
		for _, err := io.WriteString(out, "motd\n"); err == nil; _, err = io.WriteString(out, "motd\n") {
			time.Sleep(time.Second / 2)
		}
	}

	endless := func(out, _ io.Writer) {
		line := strings.Repeat("A", 1<<20) + "\n"
		for _, err := io.WriteString(out, line); err == nil; _, err = io.WriteString(out, line) {
		}
	}

	longLine := func(_, stderr io.Writer) {
		io.WriteString(stderr, strings.Repeat("A", outputLimit+1))
	}
	// A line of gpuadm's may be longer than a scanner's usual 64 KiB.
	longWord := func(_, stderr io.Writer) {
		io.WriteString(stderr, strings.Repeat("A", 1<<17)+"\n")
	}
	says := func(text string) func(io.Writer, io.Writer) {
		return func(out, _ io.Writer) { io.WriteString(out, text) }
	}
	again := func(text string) func(io.Writer, io.Writer) {
		return func(out, _ io.Writer) {
			for _, err := io.WriteString(out, text); err == nil; _, err = io.WriteString(out, text) {
			}
		}
	}
	// Bytes that never become a line.
	drip := func(out, _ io.Writer) {
		for _, err := io.WriteString(out, "g"); err == nil; _, err = io.WriteString(out, "g") {
			time.Sleep(time.Second)
		}
	}

	for _, c := range []struct {
		name  string
		peer  hostile
		limit time.Duration
		want  string
	}{
		{"silent login", hostile{"login", silent}, stepLimit, "cannot connect: no answer within 45s"},
		{"chatter at login", hostile{"login", chatter}, stepLimit, "cannot connect: no answer within 45s"},
		{"chatter at the copy", hostile{"copy", chatter}, copyLimit, "cannot copy gpuadm: no answer within 15m0s"},
		{"chatter at the start", hostile{"start", chatter}, stepLimit, "cannot start gpuadm as root: no answer within 45s"},
		{"chatter in the run", hostile{"run", chatter}, answerLimit, "no answer within 15m0s"},
		{"a long line, then silence", hostile{"run", longWord}, answerLimit, "no answer within 15m0s"},
		{"endless login", hostile{"login", endless}, 0, "cannot connect: its output is larger than 16 MiB"},
		{"endless run", hostile{"run", endless}, 0, "its output is larger than 16 MiB"},
		{"endless line on stderr", hostile{"run", longLine}, 0, "its output is larger than 16 MiB"},
		{"endless stderr at login", hostile{"login", longLine}, 0, "cannot connect: its output is larger than 16 MiB"},
		{"endless line at login", hostile{"login", says(strings.Repeat("A", outputLimit+1))}, 0, "cannot connect: its output is larger than 16 MiB"},
		{"empty lines", hostile{"start", again(strings.Repeat("\n", 1<<20))}, 0, "cannot start gpuadm as root: its output is larger than 16 MiB"},
		{"ready again and again", hostile{"run", again(strings.Repeat(ready+"\n", 1<<15))}, 0, "its output is larger than 16 MiB"},
		{"letter by letter", hostile{"login", drip}, stepLimit, "cannot connect: no answer within 45s"},
		{"letter by letter in the run", hostile{"run", drip}, answerLimit, "no answer within 15m0s"},
		{"ready before it logs in", hostile{"login", says(ready + "\n" + mark + "brought\n")}, stepLimit, "cannot connect: no answer within 45s"},
		{"too few words", hostile{"login", says(mark + "machine x86_64 root\n")}, 0, "cannot connect: the other side speaks another version"},
		{"no words", hostile{"login", says(mark + "machine \n")}, 0, "cannot connect: the other side speaks another version"},
		{"not root", hostile{"login", says(mark + "machine x86_64 nothing none /run/x\n")}, 0, "cannot become root: the login is not root, and sudo is not there or asks for a password: see NOPASSWD in sudoers(5)"},
		{"no folder", hostile{"login", says(mark + "machine x86_64 root none none\n")}, 0, "cannot copy gpuadm: no folder with 40 MB free where a program may run"},
		{"broken copy", hostile{"copy", says(mark + "broken\n")}, 0, "cannot copy gpuadm: it arrived broken"},
		{"more behind the copy", hostile{"copy", says(mark + "brought \x1b[2J\n")}, 0, "cannot copy gpuadm: it arrived broken"},
		{"another protocol at the start", hostile{"start", says("\x00\xff{\"ready\":false}\r\n")}, stepLimit, "cannot start gpuadm as root: no answer within 45s"},
		{"a carriage return", hostile{"login", says(mark + "machine x86_64 root none /run/x\r\n")}, copyLimit, "cannot copy gpuadm: no answer within 15m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r Result
				f := Fleet{
					Parallel: 1, Tell: func(string, string, bool) {}, Ended: func(one Result) { r = one }, start: c.peer.start,
					Program: func(string) ([]byte, string, error) { return []byte("program"), "digest", nil },
				}
				began := time.Now()
				f.Run(t.Context(), []string{"gpu-01"})
				check.That(t, r.Err != nil && r.Err.Error() == c.want && !r.Goes, "%v, want %s", r.Err, c.want)
				check.That(t, time.Since(began) == c.limit, "it took %v, want %v", time.Since(began), c.limit)
				time.Sleep(time.Minute) // the machine talks on, and ends
			})
		})
	}
}
