// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// generic are texts in which a command is named for any machine: no run prints them as what to type
// next.
var generic = []string{
	"cmd/gpuadm/bundle.go", // what a file of the bundle has
	// who has written a file
	"cloud/kubelet/own.go", "internal/things/sign.go", "internal/packages/mirror_lock.go", "stages/mirror.go", "stages/mirrorkey.go",
	"cloud/eks/settings.go", "cmd/gpuadm/draft.go", // what a file says
	"internal/platform/gke.go", "cloud/node/policy_probe.go", // what a pod runs
	"cmd/gpuadm/ssh.go",       // an example of what to type
	"cmd/gpuadm/mirror.go",    // what is typed in a container
	"cloud/node/condition.go", // what an operator did
}

// TestPrintedCommands: a command in a text of gpuadm is a trouble.Command, which is printed with
// the user's own -f and --root. Help texts name commands for any machine, and so does "gpuadm help"
// and what only lists.
func TestPrintedCommands(t *testing.T) {
	l := commandLooker{
		T:      t,
		inText: inText(),
		found:  map[string]bool{},
	}
	for _, dir := range []string{"cloud", "cmd", "drivers", "internal", "mig", "runtime", "stages"} {
		err := filepath.WalkDir("../../"+dir, func(name string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
				l.look(strings.TrimPrefix(name, "../../"))
			}
			return err
		})
		must.OK(t, err)
	}

	check.That(t, l.marked >= 50, "only %d commands were found", l.marked)
	for _, g := range generic {
		check.That(t, l.found[g], "%s names no command any more", g)
	}
}

// inText matches a command of gpuadm in a text. The verbs that it leaves out know neither machine nor
// spec.
func inText() *regexp.Regexp {
	var verbs []string
	for _, cmd := range newRoot(env{getenv: func(string) string { return "" }}).Commands() {
		if !slices.Contains([]string{"help", "stages", "serve-ssh"}, cmd.Name()) {
			verbs = append(verbs, cmd.Name())
		}
	}
	return regexp.MustCompile(`\bgpuadm (` + strings.Join(verbs, "|") + `)\b`)
}

// commandLooker looks for commands in the source.
type commandLooker struct {
	*testing.T
	inText *regexp.Regexp
	marked int             // calls of trouble.Command
	found  map[string]bool // by generic file: it names a command
}

func (l *commandLooker) look(file string) {
	l.Helper()
	fset := token.NewFileSet()
	f := must.Get(parser.ParseFile(fset, "../../"+file, nil, 0))(l)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			l.call(fset.Position(n.Pos()), calls(n))
		case *ast.KeyValueExpr:
			return !isVerbsHelp(file, n)
		case *ast.BasicLit:
			l.literal(file, fset.Position(n.Pos()), n)
		}
		return true
	})
}

// call wants a marked command to be one that can be typed.
func (l *commandLooker) call(at token.Position, command string) {
	if command == "" {
		return
	}
	l.marked++
	_, err := typed(env{getenv: func(string) string { return "" }}, strings.Fields(command))
	check.That(l, err == nil, "%s: cannot type the command %q: %v", at, command, err)
}

func isVerbsHelp(file string, n *ast.KeyValueExpr) bool {
	key, ok := n.Key.(*ast.Ident)
	isHelp := ok && slices.Contains([]string{"Short", "Long", "Example"}, key.Name)
	return isHelp && strings.HasPrefix(file, "cmd/")
}

// literal wants no command in a text, except in the generic files.
func (l *commandLooker) literal(file string, at token.Position, n *ast.BasicLit) {
	text, err := strconv.Unquote(n.Value)
	if err != nil || n.Kind != token.STRING || !l.inText.MatchString(text) {
		return
	}
	i := slices.IndexFunc(generic, func(g string) bool { return strings.HasPrefix(file, g) })
	if i < 0 {
		l.Errorf("%s: %q names a command in words: make it a trouble.Command", at, text)
		return
	}
	l.found[generic[i]] = true
}

// calls is the constant words of a call of trouble.Command; "" for another call.
func calls(n *ast.CallExpr) string {
	name := ""
	switch f := n.Fun.(type) {
	case *ast.SelectorExpr:
		name = f.Sel.Name
	case *ast.Ident:
		name = f.Name
	}

	if name != "Command" || len(n.Args) != 1 {
		return ""
	}
	lit, ok := n.Args[0].(*ast.BasicLit)
	if !ok {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}

// TestModelsAreQuoted: --gpu takes a model's name with blanks, and what gpuadm says to type has it
// so.
func TestModelsAreQuoted(t *testing.T) {
	err := enoughModels([]string{"H100 80GB"}, 2)
	must.That(t, err != nil, "no error")
	check.Has(t, failureOf(err).Try[0], "--gpu 'H100 80GB' --gpu 'H100 80GB'", "the advice")
}
