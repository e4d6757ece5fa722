// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/pages"
	"github.com/gpuadm/gpuadm/test/pairs"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// The law of hints: each command that gpuadm prints to be typed is typed on a clone of that
// machine. It parses, it ends, a verb that only looks touches nothing, and "To undo" ends in the
// machine from before the run. What gpuadm prints is known from where it makes the line (env.told),
// and what it advises of other programs from the fields try and fix of -o json; no sentence is
// parsed for it.

// told is one gpuadm run whose hints are typed.
type told struct {
	env    env
	args   []string // what was typed
	code   int      // how it ended
	before *simhost.Node
	now    *simhost.Node
	lines  []string
}

// looking are the verbs that touch nothing. Others are typed too, but for those that write files
// beside the machine or talk to others.
var (
	looking  = []string{"plan", "status", "doctor", "owners", "facts", "validate", "config", "fit", "profiles", "export", "generate", "manifest", "version"}
	notTyped = []string{"init", "bundle", "ssh", "mirror", "bake"}
)

// wrong says what is wrong with the hints of a run; "" if nothing is.
func (r told) wrong() string {
	for _, line := range slices.Compact(slices.Sorted(slices.Values(r.lines))) {
		if why := r.line(line); why != "" {
			return fmt.Sprintf("gpuadm %s printed %q: %s", strings.Join(r.args, " "), line, why)
		}
	}
	return r.others()
}

func (r told) line(line string) string {
	words := (pages.Line{Text: strings.TrimPrefix(line, "sudo ")}).Commands()[0]
	c := r.now.Clone()
	var out bytes.Buffer
	e := r.env
	e.stdin, e.stdout, e.stderr, e.told, e.root = strings.NewReader(""), &out, &out, nil, true
	e.open = func(string, commands.Follow) (host.Host, error) { return c, nil }
	cmd, err := typed(e, words[1:])
	if err != nil {
		return "it does not parse: " + err.Error()
	}
	if slices.Contains(notTyped, cmd.Name()) || cmd.Flags().Changed("root") || c.Off() {
		return ""
	}
	if r.code != exitUsage {
		mendSpec(c, e)
	}
	was := tree(c)
	code := run(context.Background(), e, words[1:])
	dry, _ := cmd.Flags().GetBool("dry-run")
	to, _ := cmd.Flags().GetString("to")
	switch now := tree(c); {
	case code == exitUsage && r.code != exitUsage:
		return "it is refused as no command line:\n" + out.String()
	case (slices.Contains(looking, cmd.Name()) || dry) && now != was:
		return "it touches the machine"
	case cmd.Name() == "undo" && to != "" && to != "all" && !dry && r.args[0] == "apply" && r.code == 0 && now != tree(r.before):
		return "it does not end in the machine from before the run:\n" + out.String()
	}

	return ""
}

// mendSpec does what comes before the commands that are printed where a boot goes by the spec that
// was applied last: "fix the file, then".
func mendSpec(c *simhost.Node, e env) {
	text := []byte("format = 1\n")
	if last, err := converge.ReadLastSpec(c); err == nil {
		text = last.TOML()
	}
	if _, err := e.spec(c, nil); err == nil || errors.Is(err, errNoSpec) {
		return
	}
	anyFile := func(*host.Entry) bool { return true }
	names, _ := c.ReadDir("/etc/gpuadm/node.d")
	for _, name := range names {
		_ = c.Replace("/etc/gpuadm/node.d/"+name, nil, anyFile)
	}
	fixed := &host.Entry{Data: text, Attr: host.Attr{Mode: 0o644}}
	_ = c.Replace("/etc/gpuadm/node.toml", fixed, anyFile)
}

// others judges what the run advises of other programs, as -o json has it.
func (r told) others() string {
	if r.code == 0 || r.before.Off() || slices.Contains(r.args, "json") {
		return ""
	}
	c := r.before.Clone()
	var out bytes.Buffer
	e := r.env
	e.stdin, e.stdout, e.stderr, e.told = strings.NewReader(""), &out, &out, nil
	e.open = func(string, commands.Follow) (host.Host, error) { return c, nil }
	run(context.Background(), e, append(slices.Clone(r.args), "-o", "json"))
	for line := range strings.Lines(out.String()) {
		var value any
		if json.Unmarshal([]byte(line), &value) != nil {
			continue
		}
		for _, advice := range advised(value) {
			if why := foreign(advice); why != "" {
				return fmt.Sprintf("gpuadm %s advises %q: %s", strings.Join(r.args, " "), advice, why)
			}
		}
	}

	return ""
}

// advised are all texts in the fields try and fix.
func advised(value any) (all []string) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			all = append(all, advised(one)...)
		}
	case map[string]any:
		for key, one := range v {
			texts, _ := one.([]any)
			if key == "fix" {
				texts = append(texts, one)
			}
			for _, text := range texts {
				if s, is := text.(string); is && (key == "try" || key == "fix") {
					all = append(all, s)
				}
			}

			all = append(all, advised(one)...)
		}
	}
	return all
}

// foreign judges an advice that begins with another program: its first word and its options are
// ones that the program knows.
func foreign(advice string) string {
	command, _, _ := strings.Cut(advice, ", ")
	command, _, _ = strings.Cut(command, "    ")
	for _, words := range (pages.Line{Text: command}).Commands() {
		if words[0] == "sudo" {
			words = words[1:]
		}
		if isKnown(words[0]) {
			if why := foreignOne(words); why != "" {
				return why
			}
		}
	}

	return ""
}

// TestDoctorCommands types each command of gpuadm in doctor's table, and judges those of other
// programs.
func TestDoctorCommands(t *testing.T) {
	n, bare := pairs.Machine(t), pairs.Machine(t)
	pairs.Write(t, n, specHome+"/node.toml", "format = 1\n"+pairs.Specs[len(pairs.Specs)-1].Text)
	r := told{
		env:    env{getenv: func(string) string { return "" }, read: os.ReadFile},
		args:   []string{"doctor"},
		now:    n,
		before: n,
	}
	repairs := r // is for a machine whose node.toml does not have the section
	repairs.now = bare
	tested := 0
	for _, check := range doctor.Checks() {
		for _, text := range []string{check.Fix, check.Command} {
			trouble.Commands(text, func(words string) string {
				of := &r
				if strings.HasPrefix(words, "repair ") {
					of = &repairs
				}
				of.lines = append(of.lines, "sudo gpuadm "+words)
				tested++
				return ""
			})
			if why := foreign(text); why != "" {
				t.Errorf("%s: %q: %s", check.Code, text, why)
			}
		}
	}

	why := r.wrong() + repairs.wrong()
	check.That(t, why == "" && tested >= 10, "%d commands: %s", tested, why)
}
