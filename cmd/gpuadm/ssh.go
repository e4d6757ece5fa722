// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/gpuadm/gpuadm/internal/remote"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// programs is where the packages put gpuadm for all processors, as gpuadm-amd64 and gpuadm-arm64.
const programs = "/usr/lib/gpuadm"

type sshFlags struct {
	hostsFile                 string
	parallel, unavailable     int
	failFast, verify, install bool
	timeout                   time.Duration
}

func newSSH(c *common) *cobra.Command {
	var s sshFlags
	cmd := &cobra.Command{
		Use:   "ssh [USER@]HOST… [--hosts FILE] -- VERB …",
		Short: "run gpuadm on other machines, over ssh",
		Long: `Ssh runs a command line of gpuadm on other machines. It uses this machine's own
ssh, with your configuration, keys, agent, jump hosts and known hosts. It copies
this program into a private folder there, checks its digest, runs it as root, and
removes it. Nothing has to be installed there but sshd and, where the login is not
root, sudo. If sudo wants a password, ssh asks for it once, at the terminal.

Files that VERB reads with -f are yours: they travel with it, in memory or as a file
that only root can read, and are removed.

An apply or undo continues on the machine when the connection is lost, in a systemd
unit of its own. The same command again attaches to it, or says how it ended. Ctrl-C
asks all runs to stop: each finishes the change that it is making.

With more than one machine, or without a terminal, ssh itself asks for nothing: load
your keys into an agent, and log in once to accept a new host key. The exit code is
the first of 1, 2, 4, 75, 3 and 0 that any machine returned.

For more than a few hundred machines, use the DaemonSet: it needs no operator who
waits, and new machines get it by themselves.`,
		Example: `  gpuadm ssh root@gpu-01 -- status
  gpuadm ssh gpu-01 gpu-02 gpu-03 -- plan -f node.toml
  gpuadm ssh --hosts pool.txt --max-unavailable 2 --verify -- apply -f node.toml
  gpuadm ssh --hosts pool.txt -o json -- facts`,
		RunE: func(cmd *cobra.Command, args []string) error { return c.ssh(cmd, args, s) },
	}
	f := cmd.Flags()
	f.StringVar(&s.hostsFile, "hosts", "", "also run on the machines in `FILE`, one a line (- is stdin)")
	f.IntVar(&s.parallel, "parallel", 16, "run on `N` machines at a time")
	f.IntVar(&s.unavailable, "max-unavailable", 0, "roll: run on `N` machines at a time, and begin no other after one that fails")
	f.BoolVar(&s.verify, "verify", false, "run status after VERB; a machine that is not converged has failed")
	f.BoolVar(&s.failFast, "fail-fast", false, "begin no other machine after one that fails")
	f.DurationVar(&s.timeout, "timeout", 0, "ask a machine's run to stop after this time; 0: never")
	f.BoolVar(&s.install, "install", false, "leave gpuadm on the machines, as /usr/local/sbin/gpuadm")
	return cmd
}

// ssh runs args behind the dash on the hosts before it.
func (c *common) ssh(cmd *cobra.Command, args []string, s sshFlags) error {
	dash := cmd.ArgsLenAtDash()
	if dash < 0 || dash == len(args) {
		return usage{errors.New("cannot run nothing: name the machines, then -- and what to run: gpuadm ssh root@gpu-01 -- status")}
	}
	if len(c.files) > 0 || c.rootDir != "/" {
		return usage{errors.New("cannot use -f or --root before the --: they belong behind it, to what runs on the machines")}
	}
	if s.parallel < 1 || s.unavailable < 0 || s.timeout < 0 {
		return usage{errors.New("cannot use a number below 1 for --parallel, or below 0 for --max-unavailable or --timeout")}
	}
	hosts, err := c.hosts(slices.Clone(args[:dash]), s.hostsFile)
	if err != nil {
		return err
	}
	request, verify, err := c.request(args[dash:])
	if err != nil {
		return err
	}
	request.Install = s.install
	program, err := remote.Client()
	if err != nil {
		return &trouble.Error{What: "cannot find ssh: it is not installed", Try: []string{"install your distribution's openssh-client"}}
	}
	stdin, terminal := c.stdin.(*os.File)
	terminal = terminal && term.IsTerminal(int(stdin.Fd()))
	view := newSSHView(c, hosts)
	fleet := &remote.Fleet{
		SSH: program, Batch: !terminal || len(hosts) > 1, Program: c.programs(), Request: request,
		Parallel: s.parallel, FailFast: s.failFast || s.unavailable > 0, Timeout: s.timeout, Tell: view.tell,
		Password: func(host string) (string, error) {
			if !terminal {
				return "", errors.New("cannot become root: sudo asks for a password, and no terminal is here to ask you for it; " +
					"give the login NOPASSWD in sudoers(5), or log in as root")
			}
			return view.password(host, int(stdin.Fd()))
		},
	}
	if s.unavailable > 0 {
		fleet.Parallel = s.unavailable
	}
	if s.verify {
		fleet.Verify = &verify
	}
	results := fleet.Run(cmd.Context(), hosts)
	view.close()
	if c.output == "json" {
		err = c.sshJSON(results)
	} else {
		c.sshSummary(results, func(again []string) string { return sshTyped(cmd, again, args[dash:]) })
	}
	if code := sshExit(results); err == nil && code != 0 {
		return exit(code)
	}
	return err
}

// hosts reads the names of machines, each once.
func (c *common) hosts(named []string, file string) (hosts []string, err error) {
	if file != "" {
		text, err := c.file(file)
		if err != nil {
			return nil, usage{fmt.Errorf("cannot read %s: %w", file, cause(err))}
		}
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "#")
			named = append(named, strings.TrimSpace(line))
		}
	}
	for _, name := range named {
		switch {
		case name == "" || slices.Contains(hosts, name):
		case strings.HasPrefix(name, "-") || strings.ContainsAny(name, " \t"):
			return nil, usage{fmt.Errorf("cannot use %q as a machine: a line has one name, as ssh takes it", name)}
		default:
			hosts = append(hosts, name)
		}
	}
	if len(hosts) == 0 {
		return nil, usage{errors.New("cannot run on no machine: name some before the --, or with --hosts FILE")}
	}
	return hosts, nil
}

// request checks a command line here, before it is run anywhere, and reads its files.
func (c *common) request(args []string) (r, verify remote.Request, err error) {
	e := c.env
	e.args = args
	other := newRoot(e)
	sub, rest, err := other.Find(args)
	if err == nil {
		err = sub.ParseFlags(rest)
	}
	if err != nil || sub == other || sub.Name() == "ssh" || sub.Name() == "daemonset" {
		if err == nil {
			err = fmt.Errorf("cannot run %q on other machines; see gpuadm --help", strings.Join(args, " "))
		}
		return r, verify, usage{err}
	}
	names, err := sub.Flags().GetStringArray("file")
	if err != nil {
		return r, verify, err
	}
	r = remote.Request{Args: args, Files: map[string][]byte{}, Outlives: sub.Name() == "apply" || sub.Name() == "undo"}
	verify.Args = []string{"status", "--quiet"}
	for _, name := range names {
		data, err := c.file(name)
		if err != nil {
			return r, verify, usage{fmt.Errorf("cannot read %s: %w", name, cause(err))}
		}
		if name == "-" {
			r.Stdin = data
		} else {
			r.Files[name] = data
		}
		verify.Args = append(verify.Args, "-f", name)
	}
	if c.output == "json" {
		r.Args = append([]string{"-o", "json"}, r.Args...)
		verify.Args = append([]string{"-o", "json"}, verify.Args...)
	}
	verify.Files, verify.Stdin = r.Files, r.Stdin
	return r, verify, nil
}

// programs returns gpuadm for a machine, by what its uname -m says. Each is read once.
func (c *common) programs() func(machine string) (remote.Program, error) {
	read := func(arch string) func() (remote.Program, error) {
		return sync.OnceValues(func() (remote.Program, error) {
			name, err := os.Executable()
			if arch != runtime.GOARCH {
				name, err = programs+"/gpuadm-"+arch, nil
			}
			var data []byte
			if err == nil {
				data, err = c.read(name)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return remote.Program{}, fmt.Errorf("cannot bring gpuadm: this machine has none for %s in %s", arch, name)
			} else if err != nil {
				return remote.Program{}, fmt.Errorf("cannot read %s: %w", name, cause(err))
			}
			return remote.Program{Bytes: data, Digest: fmt.Sprintf("%x", sha256.Sum256(data))}, nil
		})
	}
	known := map[string]func() (remote.Program, error){"x86_64": read("amd64"), "aarch64": read("arm64")}
	return func(machine string) (remote.Program, error) {
		if get := known[machine]; get != nil {
			return get()
		}
		return remote.Program{}, fmt.Errorf("cannot bring gpuadm: there is none for %s", machine)
	}
}

// sshExit is the exit code of many machines: the first of 1, 2, 4, 75 and 3 that one returned.
func sshExit(results []remote.Result) int {
	returned := map[int]bool{}
	untouched := false
	for _, r := range results {
		switch {
		case r.State == remote.Untouched:
			untouched = true
		case r.State == remote.Failed:
			returned[exitCannot] = true
		case r.State == remote.Continuing:
			returned[exitAgain] = true
		case r.Exit == 0 && r.Verified != nil:
			returned[known(*r.Verified)] = true
		default:
			returned[known(r.Exit)] = true
		}
	}
	for _, code := range []int{exitCannot, exitUsage, exitReboot, exitAgain, exitPending} {
		if returned[code] {
			return code
		}
	}
	if untouched {
		return exitAgain
	}
	return 0
}

// known takes an exit code that gpuadm does not use, such as a signal's, for a failure.
func known(code int) int {
	if slices.Contains([]int{0, exitUsage, exitReboot, exitAgain, exitPending}, code) {
		return code
	}
	return exitCannot
}

// sshTyped is the command line that does the same on some machines.
func sshTyped(cmd *cobra.Command, hosts, args []string) string {
	words := []string{"gpuadm", "ssh"}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "hosts" {
			words = append(words, "--"+f.Name+"="+f.Value.String())
		}
	})
	words = append(append(append(words, hosts...), "--"), args...)
	for i, w := range words {
		if strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%[]") != "" || w == "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
