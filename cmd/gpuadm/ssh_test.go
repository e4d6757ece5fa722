// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/remote"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// The test's own binary is the gpuadm that gpuadm ssh brings.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "serve-ssh") {
		main()
	}
	runtime.GOMAXPROCS(runtime.NumCPU()) // tests may take all, and races need several
	os.Exit(m.Run())
}

// fakeSSH runs what ssh is asked to on this machine, in a home folder for each name. A name that
// begins with "down" is out of reach. It is not a stand-in for sshd, whose real one is in test/lab:
// what is tested here is what gpuadm does with the answers.
//
//go:embed testdata/ssh.sh
var fakeSSH string

func runSSH(t *testing.T, args ...string) (code int, stdout, stderr, homes string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("gpuadm ssh becomes root on the other machine, which here is this one")
	}
	dir := t.TempDir()
	homes = filepath.Join(dir, "homes")
	must.OK(t, os.WriteFile(filepath.Join(dir, "ssh"), []byte(fakeSSH), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("HOMES", homes)
	var out, bad bytes.Buffer
	none := func(string) string { return "" }
	e := env{
		stdin:  strings.NewReader(""),
		stdout: &out,
		stderr: &bad,
		getenv: none,
		open:   local.OpenFollowed,
		read:   os.ReadFile,
		stat:   os.Stat,
	}
	code = run(context.Background(), e, args)
	return code, out.String(), bad.String(), homes
}

// Each line has its machine in front, and each that fails says why.
func TestSSHMany(t *testing.T) {
	code, out, bad, homes := runSSH(t, "ssh", "one", "down", "three", "--parallel", "2", "--", "version")
	check.That(t, code == 1 && out != "", "exit %d", code)
	for _, want := range []string{"one: gpuadm devel", "three: gpuadm devel"} {
		check.That(t, strings.Contains(out, want), "it does not say %q:\n%s%s", want, out, bad)
	}
	for _, want := range []string{"down: gpuadm: cannot connect: the connection ended\n", "down:   because  ssh: connect to host down port 22: No route to host\n"} {
		check.That(t, strings.Contains(bad, want), "it does not say %q:\n%s%s", want, out, bad)
	}
	for _, name := range []string{"one", "three"} {
		said := must.Get(os.ReadFile(filepath.Join(homes, name, "said")))(t)
		first, _, _ := strings.Cut(string(said), "\n") // "gpuadm-ssh machine x86_64 root none /run/.gpuadm-ssh.0a1b2c"
		words := strings.Fields(first)
		_, err := os.Stat(words[len(words)-1])
		check.That(t, os.IsNotExist(err) && len(words) == 6, "%s: left behind: %q: %v", name, first, err)
	}
}

// With -o json each machine's answer is an object.
func TestSSHJSON(t *testing.T) {
	code, out, bad, _ := runSSH(t, "ssh", "-o", "json", "one", "down", "--", "version")
	all := map[string]machineSaid{}
	for line := range strings.Lines(out) {
		var m machineSaid
		err := json.Unmarshal([]byte(line), &m)
		must.That(t, err == nil, "%v: %s", err, line)
		all[m.Host] = m
	}

	m := all["one"]
	check.That(t, code == 1 && m.Exit == 0 && len(m.Answers) == 1 && strings.Contains(string(m.Answers[0]), version()), "exit %d, one: %+v: %s", code, m, bad)
	m = all["down"]
	check.That(t, m.Exit == 1 && m.Error != "" && len(m.Because) == 1 && m.Answers == nil, "down: %+v", m)
}

type machineSaid struct {
	Host, Error string
	Exit        int
	Because     []string
	Answers     []json.RawMessage
}

// What a machine says does no harm to a terminal or a reader of JSON. How much it may say is in
// internal/remote.
func TestSSHBounds(t *testing.T) {
	code, out, bad, _ := runSSH(t, "ssh", "-o", "json", "deep", "--", "version")
	check.That(t, strings.Contains(bad, "more than 100 levels deep"), "deep: it does not say so: %s", bad)
	var m machineSaid
	err := json.Unmarshal([]byte(out), &m)
	check.That(t, err == nil && code == 0 && len(m.Answers) == 1 && m.Answers[0][0] == '"', "deep: exit %d, %v", code, err)
	for _, form := range []string{"text", "json"} {
		_, out, bad, _ := runSSH(t, "ssh", "-o", form, "rude", "--", "version")
		check.That(t, !strings.ContainsAny(out+bad, "\u009b\x1b\u202e") && strings.Contains(out, `\u009b[31m\u202e`), "%s: %q %q", form, out, bad)
	}
}

// A connection that is lost stops no apply, which is said, and makes an answer of another verb
// unusable.
func TestSSHCut(t *testing.T) {
	spec := filepath.Join(t.TempDir(), "node.toml")
	must.OK(t, os.WriteFile(spec, []byte("format = 1\n"), 0o600))
	for verb, want := range map[string]int{"apply": exitAgain, "plan": exitCannot} {
		code, out, bad, _ := runSSH(t, "ssh", "cut", "--", verb, "-f", spec)
		check.That(t, code == want && out == "half\n" && strings.Contains(bad, "gpuadm: cut: ") && strings.Contains(bad, "the run goes on there") == (verb == "apply"), "%s: exit %d: %s%s", verb, code, out, bad)
	}
}

// The operator's file is read here, and judged there under its own name.
func TestSSHCarriesFiles(t *testing.T) {
	spec := filepath.Join(t.TempDir(), "my node.toml")
	must.OK(t, os.WriteFile(spec, []byte("format = 1\n[runtme]\n"), 0o600))
	code, out, bad, _ := runSSH(t, "ssh", "one", "--", "plan", "-f", spec)
	check.That(t, code == 2 && strings.Contains(bad, spec+":2:2: unknown section [runtme]"), "exit %d: %s%s", code, out, bad)
}

// A wrong command line is refused before any machine is reached.
func TestSSHRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"one"},
		{"one", "--"},
		{"--", "plan"},
		{"one", "--", "pln"},
		{"one", "--", "plan", "--nonsense"},
		{"-oProxyCommand=x", "--", "plan"},
		{"one", "--", "plan", "-f", "/nonexistent"},
		{"-f", "x", "one", "--", "plan"},
		{"--parallel", "0", "one", "--", "plan"},
		{"one", "--", "ssh", "two", "--", "plan"},
		{"one two", "--", "plan"},
	} {
		if code, out, _, homes := runSSH(t, append([]string{"ssh"}, args...)...); code != 2 {
			t.Errorf("%q: exit %d: %s", args, code, out)
		} else if _, err := os.Stat(homes); err == nil {
			t.Errorf("%q: a machine was reached", args)
		}
	}
}

// The exit code is the first of 1, 2, 4, 75, 3, 0 that any machine returned.
func TestSSHExit(t *testing.T) {
	lost := errors.New("lost")
	ended := func(codes ...int) (all []remote.Result) {
		for _, c := range codes {
			all = append(all, remote.Result{Exit: c})
		}
		return all
	}

	for _, c := range []struct {
		results []remote.Result
		want    int
	}{
		{ended(0, 0), 0},
		{ended(0, 3), 3},
		{ended(3, 75, 0), 75},
		{ended(75, 4, 3), 4},
		{ended(4, 2, 75), 2},
		{ended(2, 1, 4), 1},
		{ended(0, 137), 1}, // killed there
		{append(ended(0), remote.Result{Err: lost, Goes: true}), 75},
		{append(ended(2), remote.Result{Err: lost}), 1},
	} {
		a := sshAnswers{
			common: &common{env: env{stderr: io.Discard}},
			worst:  len(sshExits) - 1,
		}
		for _, r := range c.results {
			a.ended(r)
		}
		check.Equal(t, sshExits[a.worst], c.want, "%+v:", c.results)
	}
}

// A terminal that hangs up stops no run: proc_pid_status(5) has the signals that a process ignores.
func TestHangupIsIgnored(t *testing.T) {
	ignored := func() bool {
		status := must.Get(os.ReadFile("/proc/self/status"))(t)
		_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
		mask, _, _ := strings.Cut(rest, "\n")
		return strings.ContainsAny(mask[len(mask)-1:], "13579bdf") // SIGHUP is signal 1, the lowest bit
	}

	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // another test's run, or nohup, may have left it ignored
	must.That(t, !ignored(), "a signal that is asked for is ignored")
	_, done := onSignal(func() {})
	defer done()
	check.That(t, ignored(), "a run ends with its terminal")
}

// TestSSHRequest: a command line for another machine is read as it is read here: help is no
// mistake, a wrong flag is named with the right one, and -o json goes only to a verb whose -o is the
// form. The bytes of a bundle do not pass through lines of text. What is printed can be typed.
func TestSSHRequest(t *testing.T) {
	of := func(words ...string) (remote.Request, error) {
		c := &common{env: envOn(nil, io.Discard), output: "json"}
		return c.request(words)
	}

	_, err := of("plan", "--help")
	check.That(t, err == nil, "help: %v", err)

	r, err := of("status", "-q")
	check.That(t, err == nil, "status: %v", err)
	check.List(t, r.Args, []string{"-o", "json", "status", "-q"}, "status:")
	r, err = of("bundle")
	check.That(t, err == nil, "bundle: %v", err)
	check.List(t, r.Args, []string{"bundle"}, "bundle:")
	_, err = of("mirror", "-o", "-") // a folder of this name
	check.That(t, err == nil, "mirror: %v", err)

	for line, try := range map[string]string{
		"plan --exit-cod":       "gpuadm plan --exit-code",
		"bundle -o -":           "ssh HOST sudo gpuadm bundle -o - >bundle.tar.gz",
		"sudo gpuadm plan a;b":  "gpuadm ssh HOST -- plan 'a;b'    runs it as root",
		"bundle --output=- -q ": "ssh HOST sudo gpuadm bundle -o - >bundle.tar.gz",
	} {
		_, err := of(strings.Fields(line)...)
		must.That(t, errors.As(err, &usage{}), "%s: %v", line, err)
		check.List(t, failureOf(err).Try, []string{try}, "%s:", line)
	}
}

// TestSSHHabits: the other machine reads no file of the operator's to tell a file from a habit.
func TestSSHHabits(t *testing.T) {
	var out bytes.Buffer
	e := envOn(nil, &out)
	e.stat = nil
	code := run(t.Context(), e, []string{"config", "validate"})
	check.That(t, code == exitUsage, "exit code %d: %s", code, &out)
}
