// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

const (
	podUnit = "gpuadm-daemonset.service"
	podHome = "/run/gpuadm" // on the machine: a reboot empties it
	// Not in podHome: Debian's and Ubuntu's initramfs mounts /run noexec (initramfs-tools, init).
	podProgram = converge.Home + "/daemonset"
	// On Container-Optimized OS nothing under /var can be executed but in a few folders, of which this is one:
	// https://cloud.google.com/container-optimized-os/docs/concepts/disks-and-filesystem
	podProgramCOS = "/var/lib/google/gpuadm-daemonset"
	podRetry      = 20 * time.Second // after an apply that waits for something, or that failed
	podPolls      = 24 * time.Second // between two looks at the node's label, up to a fifth more or less: 30 s at most
)

// pod is the DaemonSet's process: it brings this program and the spec to the machine, and has the machine's systemd run them.
type pod struct {
	*common
	root  string        // where the machine's files are mounted
	every time.Duration // between two applies
	once  bool

	failed  int       // applies since the last that did not fail
	follows bool      // the spec has follow_label in [mig]
	layout  string    // by the label, when the last apply began
	own     host.Host // see ownFiles
	account
}

// ownFiles are the pod's, opened once: a pod lives for months, and each opening keeps a descriptor.
func (p *pod) ownFiles() (h host.Host, err error) {
	if p.own == nil {
		p.own, err = p.open("/")
	}
	return p.own, err
}

func newDaemonSet(c *common) *cobra.Command {
	p := pod{common: c}
	cmd := &cobra.Command{
		Use:   "daemonset",
		Short: "from a pod, keep its machine converged",
		Long: `The DaemonSet in images/daemonset runs this command. It copies this program to the
machine's /var/lib/gpuadm (on Container-Optimized OS /var/lib/google), since /run
may be mounted noexec, and the specs in /etc/gpuadm (a ConfigMap) to its
/run/gpuadm. Then the machine's own systemd runs apply in a separate unit, which
continues when the pod is killed or the container engine restarts. This command
prints the unit's output.

The unit uses the pod's ServiceAccount for the node's taints, if the policy of
rbac.yaml limits that account: before each apply this command sends, as a dry run,
a change of the pod's own Node that the policy must deny. If the API server does not
deny it, or the cluster has no such policies (Kubernetes before 1.30), the command
warns, and apply uses kubelet's identity: it sets labels and the condition, and no
taints.

With follow_label in [mig] the command reads the label nvidia.com/mig.config of its
Node every 20 to 30 seconds, and applies at once when that has changed (Kubernetes
1.30 or newer; before, at the next apply).

With --once it ends after one apply, with its exit code: as an init container.
Without a spec from a ConfigMap the machine's own /etc/gpuadm/node.toml applies.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&p.root, "host", "/host", "`DIR` at which the machine's / is mounted")
	f.DurationVar(&p.every, "every", 10*time.Minute, "time between two applies, up to a fifth more or less")
	f.BoolVar(&p.withoutPolicy, "without-policy", false, "use the ServiceAccount also where no policy limits it")
	f.BoolVar(&p.once, "once", false, "end after one apply that does not wait for anything")
	return cmd
}

// run applies, and again.
func (p *pod) run(ctx context.Context) error {
	machine, err := p.open(p.root)
	if err != nil {
		return err
	}
	stop, done := onSignal(func() {})
	defer done()
	for {
		if p.follows = p.wantsLabel(machine); p.follows {
			_ = p.relabelled(ctx) // before apply reads it: a change meanwhile is seen
		}
		status, err := p.apply(ctx, machine)
		var pause time.Duration
		switch {
		case err != nil && p.once:
			return err
		case err != nil:
			failureOf(err).print(p.env)
			pause = podRetry
		case p.once && status != exitAgain && !p.unknown:
			if status != 0 {
				return exit(status)
			}
			return nil
		default:
			pause = p.pause(status)
		}
		debug.FreeOSMemory() // the program's bytes were read twice; now the pod waits for long
		if p.rest(ctx, pause, stop) {
			return nil
		}
	}
}

// pause is how long the pod rests after an apply with this exit code. As a boot does, it tries again soon where an apply has failed:
// the container engine may just have been restarting.
func (p *pod) pause(status int) time.Duration {
	switch status {
	case exitAgain:
		return podRetry
	case 0:
		p.failed = 0
	case exitUsage, exitReboot:
	default:
		if p.failed++; p.failed < bootTries {
			return podRetry
		}
	}
	if p.unknown {
		return podRetry
	}
	return p.every
}

// rest waits for the next apply: a time, or less where the node's label names another layout. It says whether a signal has come.
func (p *pod) rest(ctx context.Context, pause time.Duration, stop <-chan struct{}) bool {
	due := time.After(spread(pause, rand.Float64()))
	for {
		var polls <-chan time.Time
		if p.follows {
			polls = time.After(spread(podPolls, rand.Float64()))
		}
		select {
		case <-stop:
			return true
		case <-due:
			return false
		case <-polls:
			if p.relabelled(ctx) {
				return false
			}
		}
	}
}

// relabelled says whether the node's label names another layout than when it was last asked.
func (p *pod) relabelled(ctx context.Context) bool {
	self, err := p.ownFiles()
	if err != nil {
		return false
	}
	layout, err := node.PodsMIGLabel(ctx, self)
	if err != nil || layout == p.layout {
		return false // the next apply asks, too
	}
	p.layout = layout
	return true
}

// spread makes a time up to a fifth shorter or longer, by a number from 0 to 1: the pods of many nodes that started together, as when
// their image is replaced, do not ask the API server together for long.
func spread(pause time.Duration, random float64) time.Duration {
	return pause*4/5 + time.Duration(random*float64(pause)*2/5)
}

// apply copies the program and the spec to the machine, and runs it there.
func (p *pod) apply(ctx context.Context, machine host.Host) (int, error) {
	argv, err := p.lay(ctx, machine)
	if err != nil {
		return 0, err
	}
	const log = podHome + "/daemonset.log"
	if err := machine.WriteFile(log, nil, host.Attr{Mode: 0o600}); err != nil {
		return 0, err
	}
	tick := time.NewTicker(podRenews)
	defer tick.Stop()
	renewing, stop := context.WithCancel(ctx)
	defer stop()
	go p.renew(renewing, machine, tick.C)
	status, err := host.Job{Unit: podUnit, About: "gpuadm, for its DaemonSet", Argv: argv, Output: log}.Run(ctx)
	if output, rerr := machine.ReadFile(log); rerr == nil {
		_, _ = p.stdout.Write(output)
	}
	return status, err
}

// lay copies all of it, and returns the command for the machine.
func (p *pod) lay(ctx context.Context, machine host.Host) (argv []string, err error) {
	program := podProgram
	if release, err := machine.ReadFile("/etc/os-release"); err == nil && bytes.Contains(append([]byte("\n"), release...), []byte("\nID=cos\n")) {
		program = podProgramCOS
	}
	if err := machine.Trusted(path.Dir(program), converge.Home, podHome); err != nil {
		return nil, converge.Distrust("/", err) // the machine's administrator knows no /host
	}
	for _, dir := range []string{"/var", "/var/lib", converge.Home, path.Dir(program), "/run", podHome} {
		mode := fs.FileMode(0o755)
		if dir == converge.Home || dir == podHome {
			mode = 0o700
		}
		if _, err := machine.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			if err := machine.Mkdir(dir, host.Attr{Mode: mode}); err != nil {
				return nil, err
			}
		}
	}
	self, err := p.self()
	if err != nil {
		return nil, err
	}
	if err := put(machine, program, self, 0o755); err != nil {
		return nil, err
	}
	argv = []string{program, "apply", "--unattended"}
	for _, name := range podSpecs() {
		to := path.Join(podHome, path.Base(name))
		if err := p.bring(machine, name, to, 0o600); err != nil {
			return nil, err
		}
		argv = append(argv, "-f", to)
	}
	return argv, p.lend(ctx, machine)
}

// podSpecs are the specs of the ConfigMap.
func podSpecs() []string {
	names, _ := filepath.Glob(specHome + "/*.toml") // the pattern is well-formed
	return names
}

// wantsLabel says whether the spec that apply will read has follow_label.
func (p *pod) wantsLabel(machine host.Host) bool {
	s, err := p.spec(machine, podSpecs())
	return err == nil && s.MIG.FollowLabel
}

// bring copies a file of the pod to the machine, unless it is there.
func (p *pod) bring(machine host.Host, from, to string, mode fs.FileMode) error {
	data, err := p.read(from)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", from, cause(err))
	}
	return put(machine, to, data, mode)
}

// put writes a file, unless it is there with these bytes, and root's: another user's can become any bytes until it is run.
func put(machine host.Host, name string, data []byte, mode fs.FileMode) error {
	want := host.Attr{Mode: mode}
	if i, err := machine.Stat(name); err == nil && i.Attr().Mode == want.Mode && i.UID == want.UID && i.GID == want.GID {
		if now, err := machine.ReadFile(name); err == nil && bytes.Equal(now, data) {
			return nil
		}
	}
	return machine.WriteFile(name, data, want)
}
