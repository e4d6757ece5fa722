// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/remote"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func newSSH(c *common) *cobra.Command {
	parallel := 16
	cmd := &cobra.Command{
		Use:   "ssh [USER@]HOST… -- VERB …",
		Short: "run gpuadm on other machines, over ssh",
		RunE:  func(cmd *cobra.Command, args []string) error { return c.ssh(cmd, args, parallel) },
	}
	cmd.Flags().IntVar(&parallel, "parallel", parallel, "run on `N` machines at a time")
	return cmd
}

// ssh runs the words after -- on the hosts before it.
func (c *common) ssh(cmd *cobra.Command, args []string, parallel int) error {
	dash := max(0, cmd.ArgsLenAtDash())
	hosts := args[:dash]
	line := args[dash:]
	isWrong := func(host string) bool {
		return host == "" || host[0] == '-' || strings.ContainsAny(host, " \t")
	}
	switch {
	case len(hosts) == 0 || len(line) == 0 || slices.ContainsFunc(hosts, isWrong):
		return usage{errors.New("cannot run this: name the machines as ssh takes them, then -- and what to run: gpuadm ssh root@gpu-01 -- status")}
	case len(c.files) > 0 || c.rootDir != "/":
		return usage{&trouble.Error{
			What: "cannot use -f or --root before --: they belong to the command that runs there",
			Try:  []string{"gpuadm ssh HOST -- plan -f node.toml"},
		}}
	case parallel < 1:
		return usage{fmt.Errorf("cannot run on %d machines at a time: --parallel takes 1 or more", parallel)}
	}

	for _, host := range hosts {
		if err := misnamed(host); err != nil {
			return err
		}
	}

	request, err := c.request(line)
	if err != nil {
		return err
	}

	a := sshAnswers{
		common:  c,
		many:    len(hosts) > 1,
		answers: map[string][]json.RawMessage{},
		worst:   len(sshExits) - 1,
	}
	c.silence.does("waits for " + strings.Join(trouble.Few(hosts, 3), ", "))
	fleet := remote.Fleet{
		Parallel: parallel,
		Request:  request,
		Program:  c.program,
		Tell:     a.tell,
		Ended:    a.ended,
	}
	fleet.Run(cmd.Context(), slices.Compact(slices.Sorted(slices.Values(hosts))))
	code := sshExits[a.worst]
	if code != 0 {
		return exit(code)
	}
	return nil
}

// misnamed refuses the name of a machine that no ssh takes, and that a person may write.
func misnamed(host string) error {
	_, address, hasUser := strings.Cut(host, "@")
	if !hasUser {
		address = host
	}
	name, port, hasPort := strings.Cut(address, ":")
	_, err := strconv.Atoi(port)
	isURL := strings.HasPrefix(host, "ssh://")
	switch {
	case isURL:
	case strings.Contains(host, ","):
		return usage{&trouble.Error{
			What: fmt.Sprintf("cannot run on %q: the name of a machine has no comma", host),
			Try:  []string{"gpuadm ssh " + strings.ReplaceAll(host, ",", " ") + " -- status"},
		}}
	case hasUser && address == "":
		return usage{fmt.Errorf("cannot run on %q: no machine follows the @; gpuadm ssh root@gpu-01 -- status", host)}
	case hasPort && name != "" && err == nil:
		return usage{&trouble.Error{
			What: fmt.Sprintf("cannot run on %q: ssh takes a port in another form", host),
			Try:  []string{"gpuadm ssh ssh://" + host + " -- status"},
		}}
	}

	return nil
}

// request checks a command line before any machine runs it, and reads its files.
func (c *common) request(args []string) (r remote.Request, err error) {
	root := newRoot(c.env)
	verb, rest, err := root.Find(args)
	if err != nil {
		return r, usage{err}
	}
	if verb == root || verb.Name() == "ssh" || verb.Name() == "daemonset" {
		return r, notThere(root, args)
	}
	if _, err := c.habitual(root, args); err != nil {
		return r, err
	}
	verb.InitDefaultHelpFlag() // else pflag takes --help for a mistake
	if err := verb.ParseFlags(rest); err != nil {
		return r, wrongFlag(verb, err)
	}

	output := lookup(verb, "output")
	_, isFile := output.Annotations[noVariable]
	printsArchive := verb.Name() == "bundle" && output.Value.String() == "-"
	if printsArchive {
		return r, usage{&trouble.Error{
			What: "cannot run bundle -o - over gpuadm ssh: it passes on lines of text, and an archive is none",
			Try:  []string{"ssh HOST sudo gpuadm bundle -o - >bundle.tar.gz"},
		}}
	}

	r = remote.Request{
		Args:     args,
		Files:    map[string][]byte{},
		Outlives: verb.Name() == "apply" || verb.Name() == "undo",
	}
	names, _ := verb.Flags().GetStringArray("file") // all verbs have it
	for _, name := range names {
		r.Files[name], err = c.file(name)
		if err != nil {
			return r, usage{cannotRead(name, err)}
		}
	}

	if c.output == "json" && !isFile {
		r.Args = append([]string{"-o", "json"}, r.Args...)
	}
	return r, nil
}

// notThere refuses a command line that gpuadm ssh does not run, and names the one that
// may be meant.
func notThere(root *cobra.Command, args []string) error {
	t := &trouble.Error{
		What: fmt.Sprintf("cannot run %q on other machines: gpuadm ssh runs gpuadm's own verbs there", strings.Join(args, " ")),
		Try:  []string{"gpuadm --help    lists them"},
	}
	own := slices.Clone(args)
	for len(own) > 0 && (own[0] == "sudo" || path.Base(own[0]) == "gpuadm") {
		own = own[1:]
	}
	if len(own) == 0 {
		return usage{t}
	}

	var verbs []string
	for _, v := range root.Commands() {
		if v.IsAvailableCommand() {
			verbs = append(verbs, v.Name())
		}
	}

	if like := nearest.Of(own[0], verbs); like != "" {
		own[0] = like
		line := "gpuadm ssh HOST --"
		for _, word := range own {
			line += " " + host.ShellWord(word)
		}
		t.Try = []string{line + "    runs it as root"}
	}
	return usage{t}
}

// program returns gpuadm for a machine, by its uname -m. The packages install the programs for all
// processors in /usr/lib/gpuadm.
func (c *common) program(machine string) (data []byte, digest string, err error) {
	goNames := map[string]string{"x86_64": "amd64", "aarch64": "arm64"}
	arch := goNames[machine]
	if arch == runtime.GOARCH {
		data, err = c.self()
	} else {
		data, err = c.read("/usr/lib/gpuadm/gpuadm-" + arch)
	}

	if err != nil {
		err = fmt.Errorf("cannot bring gpuadm: this machine has none for %s: %w", machine, err)
	}
	return data, fmt.Sprintf("%x", sha256.Sum256(data)), err
}

// sshExits are the exit codes, the most important one first.
var sshExits = []int{exitCannot, exitUsage, exitReboot, exitAgain, exitPending, 0}

// sshAnswers prints the machines' answers.
type sshAnswers struct {
	*common
	many    bool
	mu      sync.Mutex                   // several machines answer at a time
	worst   int                          // in sshExits
	answers map[string][]json.RawMessage // by machine
}

// tell prints a line of a machine. A line of standard output belongs to the answer, which with -o
// json is printed at the end.
func (a *sshAnswers) tell(host, text string, progress bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !progress && a.output == "json" {
		a.answers[host] = append(a.answers[host], rawJSON(text))
		if !tooDeep(text) {
			return
		}
		text = fmt.Sprintf("gpuadm: its answer is JSON more than %d levels deep, and is printed as text", mostDeep)
		progress = true
	}

	w := a.stdout
	if progress {
		w = a.stderr
	}
	before := ""
	if a.many {
		before = host + ": "
	}
	printf(w, "%s%s\n", before, text)
}

const mostDeep = 100 // levels of a machine's JSON

// rawJSON returns a line as a JSON value: the line itself if it is JSON of limited depth, else a
// string.
func rawJSON(line string) json.RawMessage {
	if tooDeep(line) || !json.Valid([]byte(line)) {
		text, _ := json.Marshal(line) // a text can always be encoded
		line = string(text)
	}
	return json.RawMessage(line)
}

// tooDeep says whether a line is JSON of more than mostDeep levels.
func tooDeep(line string) bool {
	depth := 0
	d := json.NewDecoder(strings.NewReader(line))
	for depth <= mostDeep {
		token, err := d.Token()
		if err != nil {
			return false
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}

	return true
}

// sshMachine is what `ssh -o json` prints for each machine.
type sshMachine struct {
	Format  int               `json:"format"`
	Host    string            `json:"host"`
	Exit    int               `json:"exit"`              // gpuadm's exit code there, or one that fits Error
	Error   string            `json:"error,omitempty"`   // why there is no usable answer
	Because []string          `json:"because,omitempty"` // the last lines of ssh and sudo
	Answers []json.RawMessage `json:"answers,omitempty"` // what the verb printed
}

// ended prints the end of a machine's run.
func (a *sshAnswers) ended(r remote.Result) {
	m := sshMachine{Format: converge.PlanFormat, Host: r.Host, Exit: r.Exit}
	switch {
	case r.Goes:
		m.Exit = exitAgain
		m.Error = r.Err.Error() + "; the run goes on there, and gpuadm status will say how it went"
	case r.Err != nil:
		m.Exit = exitCannot
		m.Error = r.Err.Error()
		m.Because = r.Because
	case !slices.Contains(sshExits, r.Exit): // such as a signal's
		m.Exit = exitCannot
	}

	if a.output != "json" {
		a.endText(m)
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.worst = min(a.worst, slices.Index(sshExits, m.Exit))
	m.Answers = a.answers[r.Host]
	if a.output == "json" {
		_ = printJSON(a.stdout, m) // these values can always be encoded
	}
}

// endText prints why a machine has no usable answer, or its exit code. Of many machines, each line
// begins with its machine.
func (a *sshAnswers) endText(m sshMachine) {
	switch {
	case m.Error != "":
		about := m.Host + ": "
		if a.many {
			about = ""
		}
		a.tell(m.Host, "gpuadm: "+about+m.Error, true)
		for _, b := range m.Because {
			a.tell(m.Host, "  because  "+b, true)
		}
	case a.many && m.Exit != 0:
		a.tell(m.Host, fmt.Sprintf("gpuadm: exit code %d", m.Exit), true)
	}
}

// newServeSSH makes the verb that gpuadm ssh runs on the other machine.
func newServeSSH(c *common) *cobra.Command {
	return &cobra.Command{
		Use:                "serve-ssh",
		Short:              "answer gpuadm ssh, which runs this on the other machine",
		Hidden:             true,
		DisableFlagParsing: true,
		// more has the flags of a process that continues the run.
		RunE: func(cmd *cobra.Command, more []string) error {
			r, err := remote.Serve(c.stdin, c.stdout)
			if err != nil {
				return err
			}
			code := run(cmd.Context(), c.remoteEnv(r), append(r.Args, more...))
			if code != 0 {
				return exit(code)
			}
			return nil
		},
	}
}

// remoteEnv is the environment of a request from another machine. The operator's own machine has
// checked the owners of the files that it sends.
func (c *common) remoteEnv(r remote.Request) env {
	e := c.env
	e.stdin = bytes.NewReader(r.Files["-"])
	e.stat = nil
	e.public = nil
	e.typedAs = "" // the program that gpuadm ssh brings is gone when the operator reads its path
	e.read = func(name string) ([]byte, error) {
		data, carried := r.Files[name]
		if carried {
			return data, nil
		}
		return c.read(name)
	}

	return e
}
