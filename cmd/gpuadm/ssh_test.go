// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/remote"
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

// fakeSSH runs what ssh is asked to on this machine, in a home folder for each name. A name that begins with "down" is out of reach.
// It is no stand-in for sshd, whose real one is in test/lab: what is tested here is what gpuadm does with the answers.
const fakeSSH = `#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in down*) echo "ssh: connect to host $2 port 22: No route to host" >&2; exit 255 ;; esac
echo "a talkative login shell"
mkdir -p "$HOMES/$2"
HOME=$HOMES/$2 /bin/sh -c "$3" | tee "$HOMES/$2/said"
`

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
	e := env{stdin: strings.NewReader(""), stdout: &out, stderr: &bad, getenv: none, open: host.Open, read: os.ReadFile}
	code = run(context.Background(), e, args)
	return code, out.String(), bad.String(), homes
}

// Each line has its machine in front; the summary has a row for each, and says what to type for those that are left.
func TestSSHMany(t *testing.T) {
	code, out, bad, homes := runSSH(t, "ssh", "one", "down", "three", "--", "version")
	if code != 1 {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{
		"one  : gpuadm devel", "three: gpuadm devel", "cannot connect: the connection ended",
		"because: ssh: connect to host down port 22: No route to host", "gpuadm ssh down -- version\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s%s", want, out, bad)
		}
	}
	for _, name := range []string{"one", "three"} {
		said := must.Get(os.ReadFile(filepath.Join(homes, name, "said")))(t)
		first, _, _ := strings.Cut(string(said), "\n") // "gpuadm-ssh machine x86_64 root none /run/.gpuadm-ssh.0a1b2c"
		words := strings.Fields(first)
		if _, err := os.Stat(words[len(words)-1]); !os.IsNotExist(err) || len(words) != 6 {
			t.Errorf("%s: left behind: %q: %v", name, first, err)
		}
	}
}

func TestSSHJSON(t *testing.T) {
	code, out, bad, _ := runSSH(t, "ssh", "-o", "json", "one", "down", "--", "version")
	var v struct {
		Exit     int
		Machines []struct {
			Host, State, Error string
			Exit               *int
			Answers            []struct{ Version string }
		}
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 1 || v.Exit != 1 || len(v.Machines) != 2 {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, bad)
	}
	if m := v.Machines[0]; m.Host != "one" || m.State != "ended" || *m.Exit != 0 || m.Answers[0].Version != version() {
		t.Errorf("one: %+v", m)
	}
	if m := v.Machines[1]; m.State != "failed" || m.Exit != nil || m.Error == "" {
		t.Errorf("down: %+v", m)
	}
}

// After a machine that fails no other is begun.
func TestSSHRolls(t *testing.T) {
	pool := filepath.Join(t.TempDir(), "pool")
	must.OK(t, os.WriteFile(pool, []byte("one # first\n\ndown\nthree\none\n"), 0o600))
	code, out, _, homes := runSSH(t, "ssh", "--max-unavailable", "1", "--hosts", pool, "--", "version")
	const want = "\n1 machine untouched. To continue, once the cause is fixed: gpuadm ssh --max-unavailable=1 down three -- version\n"
	if code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(homes, "three")); err == nil {
		t.Error("three was begun")
	}
}

// The operator's file is read here, and judged there under its own name.
func TestSSHCarriesFiles(t *testing.T) {
	spec := filepath.Join(t.TempDir(), "my node.toml")
	must.OK(t, os.WriteFile(spec, []byte("format = 1\n[runtme]\n"), 0o600))
	code, out, bad, _ := runSSH(t, "ssh", "one", "--", "plan", "-f", spec)
	if code != 2 || !strings.Contains(bad, spec+":2:2: unknown section [runtme]") {
		t.Errorf("exit %d: %s%s", code, out, bad)
	}
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
		{"--hosts", "/nonexistent", "--", "plan"},
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
	ended := func(codes ...int) (all []remote.Result) {
		for _, c := range codes {
			all = append(all, remote.Result{State: remote.Ended, Exit: c})
		}
		return all
	}
	pending := 3
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
		{append(ended(0), remote.Result{State: remote.Continuing}), 75},
		{append(ended(2), remote.Result{State: remote.Failed}), 1},
		{append(ended(0), remote.Result{State: remote.Untouched}), 75},
		{append(ended(3), remote.Result{State: remote.Untouched}), 3},
		{[]remote.Result{{State: remote.Ended, Verified: &pending}}, 3},
	} {
		if got := sshExit(c.results); got != c.want {
			t.Errorf("%+v: %d, want %d", c.results, got, c.want)
		}
	}
}

func TestSSHTyped(t *testing.T) {
	cmd := newSSH(&common{})
	must.OK(t, cmd.ParseFlags([]string{"--timeout", "10m", "--hosts", "pool"}))
	const want = `gpuadm ssh --timeout=10m0s root@a -- apply -f 'it'\''s.toml'`
	if got := sshTyped(cmd, []string{"root@a"}, []string{"apply", "-f", "it's.toml"}); got != want {
		t.Errorf("got %s, want %s", got, want)
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
	if ignored() {
		t.Fatal("a signal that is asked for is ignored")
	}
	_, done := onSignal(func() {})
	defer done()
	if !ignored() {
		t.Error("a run ends with its terminal")
	}
}
