// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
	"github.com/gpuadm/gpuadm/internal/mask"
)

// Program is a command that a test implements, such as a package manager.
type Program struct {
	// Looks reports whether a call only looks; to ask one that does not is a violation.
	Looks func(argv []string) bool
	// Run runs it on the node's files, on which each change is durable and part of the one touch.
	// An error that is a *host.CommandError is returned unchanged.
	Run func(files *files.Files, argv []string) (stdout []byte, err error)
}

// Install makes a program answer a command, before any [[command]] of this name.
func (n *Node) Install(name string, p Program) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.programs[name] = p
}

// Ask is host.View's.
func (n *Node) Ask(ctx context.Context, argv ...string) (out []byte, err error) {
	if !n.Runs() {
		return nil, host.FirstBoot
	}
	err = n.look(func() error {
		if err := ctx.Err(); err != nil {
			return failed(argv, -1, "", err)
		}
		out, err = n.run(argv, true)
		return err
	})
	return out, err
}

// AskWith is host.View's. Programs and recorded commands know no environment. What a test has not
// installed, but the node's disk has, only a real machine could run.
func (n *Node) AskWith(ctx context.Context, _ []string, argv ...string) ([]byte, error) {
	out, err := n.Ask(ctx, argv...)
	_, missing := n.raw.Stat(argv[0])
	if errors.As(err, new(unknownProgram)) && missing == nil {
		return nil, host.Later{Until: "a real machine"}
	}
	return out, err
}

// unknownProgram is a program that the simulated machine does not have.
type unknownProgram struct{ argv []string }

func (u unknownProgram) Error() string {
	return fmt.Sprintf("the simulated machine does not know %q: %v", strings.Join(u.argv, " "), fs.ErrNotExist)
}

func (unknownProgram) Unwrap() error { return fs.ErrNotExist }

// Do is host.Host's: one touch.
func (n *Node) Do(ctx context.Context, argv ...string) (out []byte, err error) {
	if !n.Runs() {
		return nil, host.FirstBoot
	}
	err = n.touch(func() error {
		if err := ctx.Err(); err != nil {
			return failed(argv, -1, "", err)
		}
		out, err = n.run(argv, false)
		n.stopGone()
		return err
	})
	return out, err
}

// stopGone stops the daemons whose units a program has taken away, as the scripts of packages do.
func (n *Node) stopGone() {
	for name, d := range n.units {
		u, err := systemd.UnitOf(n.raw, name)
		gone := notLater(err) == nil && u.Load == "not-found"
		ofTest := d.unit.Load != "" || len(d.Reads) > 0 // sim.toml describes it
		if gone && !ofTest {
			d.stop(n)
			delete(n.units, name)
		}
	}
}

// run answers a command; the node is locked.
func (n *Node) run(argv []string, ask bool) ([]byte, error) {
	if len(argv) == 0 {
		return nil, failed([]string{"nothing"}, -1, "", fs.ErrInvalid)
	}
	if p, ok := n.programs[path.Base(argv[0])]; ok {
		if ask && !p.Looks(argv) {
			return nil, n.violation(argv)
		}
		return p.Run(n.raw, argv)
	}

	for _, c := range n.commands {
		if c.answers(argv) {
			return n.runCommand(c, argv, ask)
		}
	}

	if path.Base(argv[0]) == "nvidia-container-runtime" && slices.Equal(argv[1:], []string{"--version"}) {
		if _, err := n.raw.Stat(argv[0]); err == nil {
			return []byte(toolkitVersion), nil
		}
	}

	if output, is := n.generatesCDI(argv); is && !ask {
		return nil, n.generateCDI(output)
	}
	return nil, failed(argv, -1, "", unknownProgram{argv})
}

// answers reports whether a [[command]] is about an argv.
func (c command) answers(argv []string) bool {
	if c.Prefix && len(argv) > len(c.Argv) {
		argv = argv[:len(c.Argv)]
	}
	return slices.Equal(c.Argv, argv)
}

func (n *Node) runCommand(c command, argv []string, ask bool) ([]byte, error) {
	if ask && !c.looks() {
		return nil, n.violation(argv)
	}
	if err := n.effect(c); err != nil {
		return nil, failed(argv, 1, "", err)
	}
	if c.Exit != 0 {
		return []byte(c.Stdout), failed(argv, c.Exit, c.Stderr, fmt.Errorf("exit status %d", c.Exit))
	}
	return []byte(c.Stdout), nil
}

// toolkitVersion is what the toolkit's runtime prints, and then runc. Sources:
// NVIDIA/nvidia-container-toolkit, internal/runtime/runtime.go and internal/info/version.go;
// https://github.com/NVIDIA/nvidia-container-toolkit/issues/548.
const toolkitVersion = `NVIDIA Container Runtime version 1.18.0
commit: f8daa5e26de9fd7eb79259040b6dd5a52060048c
spec: 1.2.1

runc version 1.3.3
`

// violation notes that something was asked that changes something.
func (n *Node) violation(argv []string) error {
	n.violated = append(n.violated, strings.Join(argv, " "))
	return failed(argv, -1, "", fmt.Errorf("asked, but it changes something"))
}

// effect writes and removes what a command does.
func (n *Node) effect(c command) error {
	for name, text := range c.Writes {
		if _, err := n.folderFor(name); err != nil {
			return err
		}
		attr := host.Attr{Mode: 0o644}
		if i, err := n.raw.Stat(name); err == nil {
			attr = i.Attr()
		}
		if err := n.raw.WriteFile(name, []byte(text), attr); err != nil {
			return err
		}
	}

	for _, name := range c.Removes {
		if err := n.raw.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}

	return nil
}

func failed(argv []string, code int, stderr string, cause error) error {
	return &host.CommandError{
		Argv:   argv,
		Code:   code,
		Stderr: mask.Message(strings.TrimSpace(stderr)),
		Cause:  cause,
	}
}

// AskAbout is host.View's. An installed program finds the files below a folder of the node, for as
// long as it runs; recorded ones know only the questions they were recorded with.
func (n *Node) AskAbout(_ context.Context, files map[string][]byte, argv ...string) (out []byte, err error) {
	n.mu.Lock()
	_, known := n.programs[path.Base(argv[0])]
	n.mu.Unlock()
	if !known {
		return nil, host.Later{Until: "a real machine"}
	}
	err = n.look(func() (err error) {
		const scratch = "/tmp/scratch"
		before := maps.Clone(n.root.names["tmp"].names)
		defer func() { n.root.names["tmp"].names = before }()

		for name, data := range files {
			folder, err := n.folderFor(scratch + "/" + name)
			if err != nil {
				return err
			}
			folder.put(path.Base(name), &inode{
				attrs: attrs{mode: 0o644, data: data},
				ctime: n.now,
			})
		}

		argv = slices.Clone(argv)
		for i := range argv {
			argv[i] = strings.ReplaceAll(argv[i], host.Scratch, scratch)
		}
		out, err = n.run(argv, true)
		return err
	})
	return out, err
}

// Daemon lets a daemon answer calls to its socket.
func (n *Node) Daemon(socket string, answer func(method string, request []byte) ([]byte, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.daemons == nil {
		n.daemons = map[string]func(string, []byte) ([]byte, error){}
	}
	n.daemons[socket] = answer
}

// Call is host.View's; daemons of a simulated node do not talk unless a test has them.
func (n *Node) Call(_ context.Context, socket, method string, request []byte) (answer []byte, err error) {
	err = n.look(func() (err error) {
		answer, err = n.answer(socket, method, request)
		return err
	})
	return answer, err
}

// answer is what a daemon says; the node is locked.
func (n *Node) answer(socket, method string, request []byte) ([]byte, error) {
	if says := n.daemons[socket]; says != nil {
		return says(method, request)
	}
	return nil, host.Later{Until: "a real machine"}
}
