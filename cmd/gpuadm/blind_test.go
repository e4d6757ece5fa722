// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A reader is one question that gpuadm asks a machine: "read /etc/os-release", "find /usr/bin/crio",
// "unit kubelet.service", "ask dpkg-query …", "call /run/containerd/containerd.sock", "driver".
type reader string

// A watched machine is a simulated one that notes its readers, and has one of them fail.
type watched struct {
	*simhost.Node

	mu    *sync.Mutex
	used  map[reader]bool
	fails reader
	cause error
}

func watch(n *simhost.Node) watched {
	return watched{Node: n, mu: new(sync.Mutex), used: map[reader]bool{}}
}

// without is the machine with a reader that fails.
func (w watched) without(r reader, cause error) watched {
	w.Node = w.Clone()
	w.fails = r
	w.cause = cause
	return w
}

// ask notes a reader, and returns the error if it is the one that fails.
func (w watched) ask(what string, about ...string) error {
	r := reader(strings.Join(append([]string{what}, about...), " "))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used[r] = true
	if r == w.fails {
		return w.cause
	}
	return nil
}

func (w watched) file(what, name string) error {
	err := w.ask(what, name)
	if err == nil {
		return nil
	}
	return &host.FileError{Verb: "read", Path: name, Cause: err}
}

func (w watched) ReadFile(name string) ([]byte, error) {
	if err := w.file("read", name); err != nil {
		return nil, err
	}
	return w.Node.ReadFile(name)
}

func (w watched) ReadAt(name string, p []byte, off int64) (int, error) {
	if err := w.file("read", name); err != nil {
		return 0, err
	}
	return w.Node.ReadAt(name, p, off)
}

func (w watched) ReadDir(name string) ([]string, error) {
	if err := w.file("list", name); err != nil {
		return nil, err
	}
	return w.Node.ReadDir(name)
}

func (w watched) Stat(name string) (host.Info, error) {
	if err := w.file("find", name); err != nil {
		return host.Info{}, err
	}
	return w.Node.Stat(name)
}

func (w watched) Lstat(name string) (host.Info, error) {
	if err := w.file("find", name); err != nil {
		return host.Info{}, err
	}
	return w.Node.Lstat(name)
}

func (w watched) Readlink(name string) (string, error) {
	if err := w.file("follow", name); err != nil {
		return "", err
	}
	return w.Node.Readlink(name)
}

func (w watched) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return w.AskWith(ctx, nil, argv...)
}

func (w watched) AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	if err := w.ask("ask", argv...); err != nil {
		return nil, &host.CommandError{Argv: argv, Code: -1, Cause: err}
	}
	return w.Node.AskWith(ctx, env, argv...)
}

func (w watched) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	if err := w.ask("call", socket, method); err != nil {
		return nil, err
	}
	return w.Node.Call(ctx, socket, method, request)
}

func (w watched) Unit(ctx context.Context, name string) (host.Unit, error) {
	if err := w.ask("unit", name); err != nil {
		return host.Unit{}, err
	}
	return w.Node.Unit(ctx, name)
}

func (w watched) Driver(ctx context.Context) (host.Driver, error) {
	if err := w.ask("driver"); err != nil {
		return host.Driver{}, &host.NoDriver{Why: err.Error()}
	}
	return w.Node.Driver(ctx)
}

// causes are the ways in which a reader fails.
func (r reader) causes() []error {
	what, _, _ := strings.Cut(string(r), " ")
	switch what {
	case "ask":
		return []error{context.DeadlineExceeded}
	case "unit":
		return []error{errors.New("systemd does not answer: timed out")}
	case "call":
		return []error{syscall.ECONNREFUSED}
	case "driver":
		return []error{errors.New("NVML does not answer")}
	}

	return []error{syscall.EACCES, syscall.EIO}
}

// own says whether a reader reads what gpuadm keeps itself: law 1 has what counts then.
func (r reader) own() bool {
	return strings.Contains(string(r), "/gpuadm") || strings.Contains(string(r), "gpuadm.service")
}

// said runs a command line, and returns its exit code and answer.
func (w watched) said(t *testing.T, line string) (code int, said string) {
	t.Helper()
	var out bytes.Buffer
	code = run(t.Context(), envOn(w, &out), strings.Fields(line))
	return code, out.String()
}

// blindSpecs are wanted of each recorded machine.
var blindSpecs = map[string]string{
	"runtime": "[runtime]\nset_as_default = true\n",
	"mig": `[[mig.gpu]]
match = ["H100-80GB"]
layout = { "7g.80gb" = 1 }
[[mig.gpu]]
match = ["A100-40GB"]
layout = { "1g.5gb" = 7 }
`,
	"node": "[runtime]\n[node]\nlabels = { \"example.com/pool\" = \"h200\" }\n",
}

// TestBlindIsAnEndOfItsOwn holds law 12: on each recorded machine each reader fails in turn, and no
// command then ends as if it had looked.
func TestBlindIsAnEndOfItsOwn(t *testing.T) {
	tested := 0
	for _, name := range slices.Sorted(maps.Keys(recorded(t))) {
		for _, wish := range slices.Sorted(maps.Keys(blindSpecs)) {
			n := recordedNode(t, name)
			plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
			must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
			plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n"+blindSpecs[wish])
			tested += blindOn(t, name+"/"+wish, n)
		}
	}

	t.Logf("%d readers", tested)
	check.That(t, tested > 0, "no reader failed: the law was not tested")
}

// blindOn holds the law on one machine, and returns how many readers it has tested.
func blindOn(t *testing.T, name string, n *simhost.Node) (tested int) {
	w := watch(n)
	w.said(t, "apply --allow all")
	code, converged := w.said(t, "status")
	if code != 0 || !strings.Contains(converged, "Converged.") {
		return 0
	}
	clear(w.used)
	w.said(t, "status")
	_, open := w.said(t, "gate")

	for _, r := range someReaders(t, name, slices.Sorted(maps.Keys(w.used))) {
		absent := error(syscall.ENOENT)
		_, status := w.without(r, absent).said(t, "status")
		if r.own() || r != "driver" && wanted(status) == wanted(converged) {
			continue // its answer makes no difference to what the spec wants
		}
		if r == "driver" && !strings.Contains(name, "mig") {
			continue
		}
		tested++
		for _, cause := range r.causes() {
			for _, line := range []string{
				"status", "plan", "status -o json", "plan -o json", "apply --allow all", "gate",
			} {
				m := w.without(r, cause)
				if line == "gate" {
					if _, shut := w.without(r, absent).said(t, line); shut == open {
						continue
					}
				}

				code, said := m.said(t, line)
				isDeceived := strings.Contains(said, "Converged.") || strings.Contains(said, "Nothing to do.")
				check.That(t, code == exitAgain && !isDeceived,
					"%s: %s: %v: %s: exit %d\n%s", name, r, cause, line, code, said)
			}
		}
	}

	return tested
}

// wanted is the part of an answer that is about what the spec wants: without the line about the
// machine, and without remarks.
func wanted(said string) string {
	_, said, _ = strings.Cut(said, "\n")
	isNote := func(line string) bool { return line == "" || strings.HasPrefix(line, "Note:") }
	return strings.Join(slices.DeleteFunc(strings.Split(said, "\n"), isNote), "\n")
}

// someReaders are a few of a machine's readers, others in each run of CI; at night all.
func someReaders(t *testing.T, name string, all []reader) (some []reader) {
	t.Helper()
	if check.All() {
		return all
	}
	step := 24
	if testing.Short() {
		step = 48
	}
	h := fnv.New32a()
	fmt.Fprint(h, name)
	for i := (int(h.Sum32()>>1) + check.Turn(step)) % step; i < len(all); i += step {
		some = append(some, all[i])
	}
	return some
}

// doctorEnds are the ends of doctor that say something of a machine with a reader that failed.
var doctorEnds = []int{exitPending, exitAgain}

// TestDoctorIsNotBlind holds law 12 for doctor: on each recorded machine each reader fails in turn,
// and doctor then neither says that all is well, nor fails to name what it could not look at.
func TestDoctorIsNotBlind(t *testing.T) {
	tested := 0
	for _, name := range slices.Sorted(maps.Keys(recorded(t))) {
		n := recordedNode(t, name)
		plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n"+blindSpecs["node"])
		for _, program := range []string{"journalctl", "dmesg", "systemd-detect-virt"} {
			n.Install(program, simhost.Program{
				Looks: func([]string) bool { return true },
				Run:   func(*files.Files, []string) ([]byte, error) { return []byte("none\n"), nil },
			})
		}

		w := watch(n)
		if _, said := w.said(t, "doctor"); strings.HasPrefix(said, "No NVIDIA GPU") {
			continue
		}
		_, silent := w.without("driver", errors.New("NVML does not answer")).said(t, "doctor")
		if strings.Contains(silent, "no NVIDIA driver is installed") {
			delete(w.used, "driver") // the record has no driver, and doctor says so
		}
		for _, r := range someReaders(t, name+"/doctor", slices.Sorted(maps.Keys(w.used))) {
			tested++
			for _, cause := range r.causes() {
				code, said := w.without(r, cause).said(t, "doctor")
				isFine := strings.Contains(said, "No fault found,")
				check.That(t, slices.Contains(doctorEnds, code) && !isFine,
					"%s: %s: %v: exit %d\n%s", name, r, cause, code, said)
				check.That(t, !r.isFile() || strings.Contains(said, r.about()),
					"%s: %s: %v: doctor does not name it: exit %d\n%s", name, r, cause, code, said)
			}
		}
	}

	t.Logf("%d readers", tested)
	check.That(t, tested > 0, "no reader failed: the law was not tested")
}

// about is what a reader asks about: a file, a unit, a command line.
func (r reader) about() string {
	_, about, _ := strings.Cut(string(r), " ")
	return about
}

// isFile says whether a reader is of a file.
func (r reader) isFile() bool {
	what, about, _ := strings.Cut(string(r), " ")
	return strings.HasPrefix(about, "/") && what != "call" && what != "ask"
}
