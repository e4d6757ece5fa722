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
	var verbs []string
	for _, cmd := range newRoot(env{getenv: func(string) string { return "" }}).Commands() {
		if !slices.Contains([]string{"help", "stages", "serve-ssh"}, cmd.Name()) { // they know neither machine nor spec
			verbs = append(verbs, cmd.Name())
		}
	}

	command := regexp.MustCompile(`\bgpuadm (` + strings.Join(verbs, "|") + `)\b`)
	marked, found := 0, map[string]bool{}
	look := func(file string) {
		fset := token.NewFileSet()
		f := must.Get(parser.ParseFile(fset, "../../"+file, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if text := calls(n); text != "" {
					marked++
					if _, err := typed(env{getenv: func(string) string { return "" }}, strings.Fields(text)); err != nil {
						t.Errorf("%s: cannot type the command %q: %v", fset.Position(n.Pos()), text, err)
					}
				}
			case *ast.KeyValueExpr: // a verb's own help
				if key, ok := n.Key.(*ast.Ident); ok && strings.HasPrefix(file, "cmd/") && slices.Contains([]string{"Short", "Long", "Example"}, key.Name) {
					return false
				}
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if err != nil || n.Kind != token.STRING || !command.MatchString(text) {
					return true
				}
				if i := slices.IndexFunc(generic, func(g string) bool { return strings.HasPrefix(file, g) }); i >= 0 {
					found[generic[i]] = true
					return true
				}
				t.Errorf("%s: %q names a command in words: make it a trouble.Command", fset.Position(n.Pos()), text)
			}
			return true
		})
	}

	for _, dir := range []string{"cloud", "cmd", "drivers", "internal", "mig", "runtime", "stages"} {
		if err := filepath.WalkDir("../../"+dir, func(name string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
				look(strings.TrimPrefix(name, "../../"))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}

	check.That(t, marked >= 50, "only %d commands were found", marked)
	for _, g := range generic {
		check.That(t, found[g], "%s names no command any more", g)
	}
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
