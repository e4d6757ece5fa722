// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/local"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

var update = flag.Bool("update", false, "rewrite the golden sections")

// bench is what one script works on: a simulated node, and what it looked like at first.
type benchNode struct {
	node    *simhost.Node
	first   string
	touches int
}

type benchKey struct{}

// TestScripts runs test/script/*.txtar: the command line as a person sees it, on recorded machines.
// Beside testscript's own words:
//
//	host NAME            take a recorded machine from test/hosts; its spec is the script's node.toml, if there is one
//	incident NAME        take the machine of a report, from test/incident/reports
//	gpuadm ARGS…         run it on that machine; in a script without one, on the real one: use --root
//	exits N ARGS…        run it and want exit code N
//	put FILE PATH        another program writes the script's FILE to the machine's PATH
//	owner UID MODE PATH  another process gives the machine's PATH to a user
//	link TARGET PATH     another process makes the machine's PATH a link
//	cat PATH             the machine's file, to stdout
//	touched N            since the last look, N changes were made to the disk
//	cut N                power is cut before the Nth touch from now; boot brings the machine up again
//	damage N             line N of the journal cannot be read any more
//	same                 the machine's tree is as at first
func TestScripts(t *testing.T) {
	syscall.Umask(0o022) // with another one gpuadm would not trust the scripts' folders
	testscript.Run(t, testscript.Params{
		Dir:           "../../test/script",
		UpdateScripts: *update,
		Setup: func(e *testscript.Env) error {
			e.Values[benchKey{}] = &benchNode{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"host": cmdHost,
			"incident": func(ts *testscript.TestScript, _ bool, args []string) {
				at(ts).take(reported(t, args[0]))
			},
			"gpuadm": func(ts *testscript.TestScript, neg bool, args []string) {
				want(ts, neg, command(ts, args))
			},
			"exits":   cmdExits,
			"put":     cmdPut,
			"owner":   cmdOwner,
			"link":    cmdLink,
			"cat":     cmdCat,
			"touched": cmdTouched,
			"cut":     cmdCut,
			"boot":    func(ts *testscript.TestScript, _ bool, _ []string) { at(ts).node.Boot(simhost.LoseAll) },
			"damage":  cmdDamage,
			"same":    cmdSame,
		},
	})
}

func at(ts *testscript.TestScript) *benchNode { return ts.Value(benchKey{}).(*benchNode) }

func cmdHost(ts *testscript.TestScript, _ bool, args []string) {
	archive, err := os.ReadFile(filepath.Join("..", "..", "test", "hosts", args[0]+".txtar"))
	ts.Check(err)
	b := at(ts)
	b.node, err = simhost.New(append(archive, "-- dev/null device=1:3 mode=0666 --\n"...))
	ts.Check(err)
	if spec, err := os.ReadFile(ts.MkAbs("node.toml")); err == nil {
		if err := b.node.Mkdir("/etc/gpuadm", host.Attr{Mode: 0o755}); err != nil && !os.IsExist(err) {
			ts.Check(err)
		}
		ts.Check(b.node.WriteFile("/etc/gpuadm/node.toml", spec, host.Attr{Mode: 0o644}))
	}

	if len(args) > 1 { // toolkit: what a default handler runs
		ts.Check(b.node.WriteFile("/usr/bin/nvidia-container-runtime", nil, host.Attr{Mode: 0o755}))
	}
	b.take(b.node)
}

// take begins with a machine as it is now.
func (b *benchNode) take(n *simhost.Node) {
	b.node = n
	b.first = tree(n)
	b.touches = n.Touches()
}

func tree(n *simhost.Node) string {
	return n.Tree(converge.Home, "/run", "/proc") + n.Units()
}

// command runs gpuadm in this process, on the script's machine.
func command(ts *testscript.TestScript, args []string) int {
	e := env{
		stdin:  strings.NewReader(""),
		stdout: ts.Stdout(),
		stderr: ts.Stderr(),
		getenv: ts.Getenv,
		root:   ts.Getenv("USER") != "nobody",
		open:   local.OpenFollowed,
		read: func(name string) ([]byte, error) {
			if self, err := os.Executable(); err == nil && name == self {
				return []byte("the binary\n"), nil // not the test's own, of many megabytes
			}
			return os.ReadFile(ts.MkAbs(name))
		},
		stat: func(name string) (fs.FileInfo, error) { return os.Stat(ts.MkAbs(name)) },
	}
	n := at(ts).node
	if n != nil {
		e.open = func(root string, _ commands.Follow) (host.Host, error) {
			if root == "/" {
				return n, nil
			}
			return local.Open(ts.MkAbs(root))
		}

		e.image = func(string, *local.ModuleKey, commands.Follow) (host.Host, func(), error) {
			n.Bake()
			return n, func() {}, nil
		}
	} else {
		e.open = func(root string, _ commands.Follow) (host.Host, error) {
			return local.Open(ts.MkAbs(root))
		}
	}

	if n == nil || n.Off() || len(args) == 0 {
		return run(context.Background(), e, args)
	}
	r := told{env: e, args: args, before: n.Clone(), now: n}
	e.told = func(line string) { r.lines = append(r.lines, line) }
	r.code = run(context.Background(), e, args)
	if why := r.wrong(); why != "" {
		ts.Fatalf("%s", why)
	}
	return r.code
}

func want(ts *testscript.TestScript, neg bool, code int) {
	if neg != (code != 0) {
		ts.Fatalf("exit code %d", code)
	}
}

func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	if code := command(ts, args[1:]); strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d", code)
	}
}

func cmdPut(ts *testscript.TestScript, _ bool, args []string) {
	n := at(ts).node
	for i, c := range args[1] {
		if c != '/' || i == 0 {
			continue
		}
		if err := n.Mkdir(args[1][:i], host.Attr{Mode: 0o755}); !errors.Is(err, fs.ErrExist) {
			ts.Check(err)
		}
	}

	ts.Check(n.WriteFile(args[1], []byte(ts.ReadFile(args[0])), host.Attr{Mode: 0o644}))
	at(ts).touches = n.Touches()
}

func cmdOwner(ts *testscript.TestScript, _ bool, args []string) {
	uid, err := strconv.Atoi(args[0])
	ts.Check(err)
	mode, err := strconv.ParseUint(args[1], 8, 9)
	ts.Check(err)
	n := at(ts).node
	ts.Check(n.SetAttr(args[2], host.Attr{
		Mode: fs.FileMode(mode),
		UID:  uid,
		GID:  uid,
	}))
	at(ts).touches = n.Touches()
}

func cmdLink(ts *testscript.TestScript, _ bool, args []string) {
	n := at(ts).node
	if err := n.Remove(args[1]); !errors.Is(err, fs.ErrNotExist) {
		ts.Check(err)
	}
	ts.Check(n.Symlink(args[1], args[0]))
	at(ts).touches = n.Touches()
}

func cmdCat(ts *testscript.TestScript, _ bool, args []string) {
	data, err := at(ts).node.ReadFile(args[0])
	ts.Check(err)
	ts.Stdout().Write(data)
}

func cmdTouched(ts *testscript.TestScript, neg bool, args []string) {
	b := at(ts)
	n := b.node.Touches() - b.touches
	b.touches = b.node.Touches()
	if neg == (strconv.Itoa(n) == args[0]) {
		ts.Fatalf("%d touches", n)
	}
}

func cmdCut(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	at(ts).node.CutAt(at(ts).node.Touches() + n)
}

func cmdDamage(ts *testscript.TestScript, _ bool, args []string) {
	const journal = converge.Home + "/journal.jsonl"
	data, err := at(ts).node.ReadFile(journal)
	ts.Check(err)
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	lines := strings.Split(string(data), "\n")
	lines[n-1] = "garbage"
	ts.Check(at(ts).node.WriteFile(journal, []byte(strings.Join(lines, "\n")), host.Attr{Mode: 0o600}))
}

func cmdSame(ts *testscript.TestScript, neg bool, _ []string) {
	if now := tree(at(ts).node); neg == (now == at(ts).first) {
		ts.Fatalf("the tree is\n%s\nat first it was\n%s", now, at(ts).first)
	}
}

// TestHelp holds the help texts of all verbs still.
func TestHelp(t *testing.T) {
	golden(t, "help")
	for _, cmd := range newRoot(env{getenv: func(string) string { return "" }}).Commands() {
		if cmd.Name() != "completion" && cmd.Name() != "help" {
			golden(t, "help-"+cmd.Name(), "help", cmd.Name())
		}
	}
}

var seconds = regexp.MustCompile(`in \d+\.\d s`)

func golden(t *testing.T, name string, args ...string) {
	t.Helper()
	if len(args) == 0 {
		args = []string{name}
	}
	var out strings.Builder
	e := env{
		stdin:  strings.NewReader(""),
		stdout: &out,
		stderr: &out,
		getenv: func(string) string { return "" },
		open:   local.OpenFollowed,
		read:   os.ReadFile,
	}
	code := run(context.Background(), e, args)
	must.That(t, code == 0, "gpuadm %s: exit code %d\n%s", args, code, &out)
	got := seconds.ReplaceAllString(out.String(), "in 0.0 s")
	compareGolden(t, filepath.Join("testdata", name+".txt"), got)
}

// compareGolden compares a text with a file, which -update writes.
func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must.OK(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	check.That(t, err == nil && string(want) == got, "the output is not as in %s (%v); if that is meant: make update\n%s", file, err, got)
}
