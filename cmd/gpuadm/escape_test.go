// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/sirupsen/logrus"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// FuzzPrintable: whatever a value says, it comes out as one line of characters that show, and comes
// out the same the second time.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{
		"", "plain", "a\nb", "a\x1b[2K\rb", "\u202ecod.exe", "\u2028", "\u2029", "\u009b31m", "\xff\xfe", "\ufeff", `\n`, "it's", "a\tb",
		"\u00ad", "é·→…", "\x00", "\U000e0041",
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, s string) {
		var p string
		alloc.Beside(t, 4<<20, 10000, len(s), func() { p = printable(s) })
		bad := func(r rune) bool {
			return unicode.IsControl(r) && r != '\t' || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
		}
		if i := strings.IndexFunc(p, bad); i >= 0 || !utf8.ValidString(p) || printable(p) != p {
			t.Errorf("%q becomes %q", s, p)
		}
		var b strings.Builder
		printf(&b, "%s %-3s %v\n", s, errors.New(s), converge.State(s))
		check.That(t, strings.Count(b.String(), "\n") == 1, "%q is printed in several lines: %q", s, &b)
		shows := func(r rune) bool {
			return !bad(r) && r != utf8.RuneError && unicode.IsPrint(r)
		}
		if strings.IndexFunc(s, func(r rune) bool { return !shows(r) }) < 0 && p != s {
			t.Errorf("%q needs no escape, and becomes %q", s, p)
		}
	})
}

// planted is what a tenant names its process, and what others say on standard error.
const planted = "x\n  because  forged\n\x1b[31mred\r\u202egnp.exe\u2028y"

// liar is a node whose containerd takes no configuration, and gives planted text for a reason.
type liar struct{ *simhost.Node }

func (liar) AskAbout(_ context.Context, _ map[string][]byte, argv ...string) ([]byte, error) {
	return nil, &host.CommandError{
		Argv:   argv,
		Code:   1,
		Stderr: planted,
		Cause:  errors.New("exit status 1"),
	}
}

// machine is a node on which all that others say is planted.
func machine(t *testing.T) host.Host {
	t.Helper()
	archive := must.Get(os.ReadFile(filepath.Join("..", "..", "test", "hosts", "ubuntu24-h100.txtar")))(t)
	n, err := simhost.New(append(archive, "-- proc/devices --\nCharacter devices:\n195 nvidia\n-- dev/nvidia0 device=195:0 --\n"+
		"-- proc/4711/fd/3 link=/dev/nvidia0 --\n-- proc/4711/comm --\n"+planted+"\n-- proc/4711/cgroup --\n0::/a\x1b[2K.service\n"...))
	must.OK(t, err)
	write := func(name, text string) {
		must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
	}
	err = n.Mkdir("/etc/gpuadm", host.Attr{Mode: 0o755})
	must.That(t, err == nil || os.IsExist(err), "%v", err)
	write("/etc/gpuadm/node.toml", "format = 1\n[runtime]\n")
	write("/etc/os-release", "ID=ubuntu\nVERSION_ID=\"24.04\x1b[31m\n  because  forged\"\nPRETTY_NAME=\"\u202eUbuntu\"\n")
	return liar{n}
}

// forged says what of the planted text would pass for gpuadm's own.
func forged(out string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "  because  forged") || printable(line) != line {
			return line
		}
	}
	return ""
}

// TestNothingIsForged: what a tenant, a program or os-release says comes out as one line, in plan,
// apply and status alike, and what is printed as JSON is JSON.
func TestNothingIsForged(t *testing.T) {
	for _, line := range []string{"plan", "apply", "status", "facts", "facts --verbose", "plan", "undo --dry-run", "undo"} {
		n := machine(t)
		for _, form := range []string{"text", "json"} {
			var out, err bytes.Buffer
			e := envOn(n, &out)
			e.stderr = &err
			run(context.Background(), e, append(strings.Fields(line), "-o", form))
			told := strings.Contains(out.String()+err.String(), `exit status 1: x;   because  forged; `)
			check.That(t, strings.Contains("plan apply status", line) == told, "%s -o %s does not say what the daemon says, or says it: %s%s", line, form, &out, &err)
			check.None(t, forged(err.String()), "%s -o %s: on stderr:", line, form)
			bad := forged(out.String())
			check.That(t, bad == "" || form != "text", "%s: on stdout: %q", line, bad)
			for answer := range strings.Lines(out.String()) {
				check.That(t, form != "json" || (json.Valid([]byte(answer)) && utf8.ValidString(answer)), "%s: no JSON: %q", line, answer)
			}
		}
	}
}

// TestProcessForgesNothing: a process that holds a GPU is named in one line, whatever it calls
// itself.
func TestProcessForgesNothing(t *testing.T) {
	file := things.Exact("/etc/lab", []byte("text"), 0o644, "")
	file.Breaks = []string{"reset-gpu"}
	one := converge.Stage{
		Name:  "one",
		Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return []converge.Want{file}, nil },
	}
	e := &converge.Engine{Stages: []converge.Stage{one}, Clients: devices.Clients}
	_, err := e.Apply(context.Background(), machine(t))
	var said strings.Builder
	report(env{stderr: &said, getenv: func(string) string { return "" }}, newRoot(env{}), err)
	named := strings.Contains(said.String(), `process 4711 (x\n  because  forged\n\x1b[31mred`)
	bad := forged(said.String())
	check.That(t, bad == "" && named && strings.Count(said.String(), "\n") == 3, "%q in\n%s", bad, said.String())
}

// TestManyUndone: what was rolled back, which can be thirty packages, does not hide the cause and
// what to try.
func TestManyUndone(t *testing.T) {
	for _, c := range []struct{ undone, lines int }{{5, 8}, {6, 9}, {7, 9}, {30, 9}} {
		var said strings.Builder
		e := env{stderr: &said, getenv: func(string) string { return "" }}
		report(e, newRoot(e), &trouble.Error{
			What:    "x",
			Because: []string{"y"},
			Undone:  slices.Repeat([]string{"file /z"}, c.undone),
			Try:     []string{"w"},
		})
		got := strings.Count(said.String(), "\n")
		check.That(t, got == c.lines, "%d lines, want %d:\n%s", got, c.lines, said.String())
	}
}

// TestPlanText: one reason for several packages is said once, with their names; and what another
// tool holds is named, with the flag that the next command needs.
func TestPlanText(t *testing.T) {
	var out bytes.Buffer
	c := &common{env: env{
		stdout: &out,
		stderr: &out,
		getenv: func(string) string { return "" },
	}}
	of := func(name string, why converge.Reason, breaks ...string) converge.Line {
		c := converge.Change{
			Stage:  "packages",
			Ref:    converge.Ref{Kind: "package", Name: name},
			After:  "1",
			Breaks: breaks,
		}
		return converge.Line{Change: c, Reason: why}
	}

	said := func(changes ...converge.Line) string {
		out.Reset()
		c.planText(converge.Plan{
			Stages:  []converge.StagePlan{{Name: "packages", Changes: len(changes)}},
			Changes: changes,
		})
		return out.String()
	}

	no := converge.Reason{Cannot: "cannot read installed packages", Try: []string{"wait"}}
	got := said(of("a", no), of("b", converge.Reason{}), of("c", no), of("d", converge.Reason{Cannot: "cannot build d"}))
	check.That(t, strings.Contains(got, "! package a, package c\n               cannot read installed packages\n               try: wait\n  packages   ! package d\n"), "%s", got)
	got = said(of("a", converge.Reason{}, "change-held"), of("b", converge.Reason{}))
	check.That(t, strings.Contains(got, "Changes what another tool holds: package a.") && strings.Contains(got, "--allow change-held\n"), "%s", got)
	got = said(of("b", converge.Reason{}))
	check.That(t, !strings.Contains(got, "--allow"), "%s", got)
}

// TestTroubleIsNotForged: each reason is one line.
func TestTroubleIsNotForged(t *testing.T) {
	var out, said bytes.Buffer
	e := env{
		stdout: &out,
		stderr: &said,
		getenv: func(string) string { return "" },
	}
	list := []string{planted}
	told := &trouble.Error{
		What:    "cannot go on: " + planted,
		Because: append(list, "two"),
		Undone:  list,
		Try:     list,
	}
	report(e, newRoot(e), told)
	bad := forged(said.String())
	check.That(t, bad == "" && strings.Count(said.String(), "\n") == 5, "%q in\n%s", bad, said.String())
	said.Reset()
	c := &common{env: e}
	line := func(kind string) converge.Line {
		return converge.Line{Change: converge.Change{Ref: converge.Ref{
			Kind: kind,
			Name: planted,
		}}}
	}

	change := line("unit")
	change.Before = planted
	change.After = planted
	change.Why = planted
	change.Diff = "+a" + planted + "\n"
	waits := line("k")
	waits.Reason = converge.Reason{Deferred: planted, Waits: planted}
	refused := line("")
	refused.Reason = converge.Reason{Cannot: planted, Because: list, Try: list}
	refused.Keeps = planted
	p := converge.Plan{Notes: list, Changes: []converge.Line{change, waits, refused}}
	p.Host.Summary = planted
	p.Stages = []converge.StagePlan{{Name: "", Changes: 3, Converged: 1}}
	c.planText(p)
	c.undoPlanText(converge.UndoPlan{
		Runs:    []string{planted},
		Changes: p.Changes,
		Kept:    p.Changes,
		Left:    p.Changes,
	}, undoFlags{to: "all"})
	waitingText(&out, p.Changes)
	for what := range strings.FieldsSeq("began making waiting made later undone kept left remains unkept healed damaged failed") {
		(&textVoice{
			common: c,
			pulse:  &pulse{},
		}).tell(converge.Event{
			What:  converge.What(what),
			Run:   planted,
			Stage: planted,
			Text:  planted,
			Line:  &change,
		})
	}

	check.None(t, forged(said.String()+out.String()), "got")
}

// TestJournalIsNotForged: the same of what systemd's journal gets.
func TestJournalIsNotForged(t *testing.T) {
	message, fields := entry(&logrus.Entry{
		Message: planted,
		Data:    logrus.Fields{"THING": planted},
	})
	check.That(t, !strings.ContainsAny(message+fields["THING"], "\n\x1b\u202e") && fields["THING"] != "", "%q %q", message, fields)
}

// TestOnePrinter: nothing in this package prints but by printf, apart from archives and tables for
// other programs.
func TestOnePrinter(t *testing.T) {
	names := must.Get(filepath.Glob("*.go"))(t)
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file := must.Get(parser.ParseFile(fset, name, nil, 0))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			from, _ := f.X.(*ast.Ident)
			_, built := call.Args[0].(*ast.UnaryExpr) // &b, a strings.Builder
			if from != nil && from.Name == "fmt" && (strings.HasPrefix(f.Sel.Name, "Fprint") && !built || strings.HasPrefix(f.Sel.Name, "Print")) {
				if found++; name != "escape.go" {
					t.Errorf("%s: prints past printf", fset.Position(call.Pos()))
				}
			}

			return true
		})
	}

	check.That(t, found != 0, "not even printf prints: the test looks for the wrong thing")
}
