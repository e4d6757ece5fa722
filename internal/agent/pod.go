// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"runtime/debug"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
	"github.com/gpuadm/gpuadm/internal/platform"
)

const (
	podUnit = "gpuadm-daemonset.service"
	podHome = "/run/gpuadm" // on the machine: a reboot empties it
	// Not in podHome: Debian's and Ubuntu's initramfs mounts /run noexec (initramfs-tools, init).
	podProgram = converge.Home + "/daemonset"
	podRetry   = 20 * time.Second // after an apply that waits for something, or that failed
	podPolls   = 24 * time.Second // between two looks at the node's label; with jitter, 30 s at most
)

// Exit codes of apply that the pod, which runs apply as a program, distinguishes. cmd returns them.
const (
	ExitUsage   = 2  // the spec or the command line is wrong
	ExitPending = 3  // changes are pending; an unattended apply: an undo holds them
	ExitReboot  = 4  // a reboot is needed
	ExitAgain   = 75 // run it again: sysexits' EX_TEMPFAIL
)

// A Pod is the DaemonSet's process: it copies this program and the spec to the machine, and has the
// machine's systemd run them.
type Pod struct {
	Machine func() (host.Host, error)         // the machine's files, mounted in the pod
	Own     func() (host.Host, error)         // the pod's own files
	Read    func(name string) ([]byte, error) // a file of the pod
	Getenv  func(string) string
	Program func() ([]byte, error) // this program's file
	Specs   func() []string        // the specs of the ConfigMap
	Follows func(host.View) bool   // the spec that apply will read has follow_label in [mig]

	Every         time.Duration // between two applies
	Once          bool          // end after one apply
	WithoutPolicy bool          // lend the ServiceAccount, whatever it may do

	Say   func(Event)
	Print func([]byte) // what apply has printed

	failed  int       // applies since the last successful one
	follows bool      // the last answer of Follows
	layout  string    // the layout in the label when the last apply began
	own     host.Host // see ownFiles

	narrow   bool   // the cluster's last answer: the policy limits the account
	answered bool   // the cluster has said yes or no
	unknown  bool   // the cluster has not answered yet, and nothing is lent
	warned   string // the last warning about the account: it is printed once
}

// ownFiles opens the pod's files once: a pod runs for months, and each opening keeps a descriptor.
func (p *Pod) ownFiles() (h host.Host, err error) {
	if p.own == nil {
		p.own, err = p.Own()
	}
	return p.own, err
}

// Run applies until stop is closed, or once. It returns the last apply's exit code.
func (p *Pod) Run(ctx context.Context, stop <-chan struct{}) (int, error) {
	machine, err := p.Machine()
	if err != nil {
		return 0, err
	}

	for {
		p.follows = p.Follows(machine)
		if p.follows {
			_ = p.relabelled(ctx) // before apply reads it, so that a later change is seen
		}

		status, err := p.apply(ctx, machine, stop)
		pause := podRetry
		switch {
		case err != nil && p.Once:
			return 0, err
		case err != nil:
			p.Say(Event{What: Warning, Err: err})
		case p.Once && status != ExitAgain && !p.unknown:
			return status, nil
		default:
			pause = p.pause(status)
		}

		debug.FreeOSMemory() // the pod has read the program's bytes twice, and now waits long
		if p.rest(ctx, pause, stop) {
			p.withdrawOwn(machine)
			return 0, nil
		}
	}
}

// pause returns how long the pod waits after an apply with this exit code. Like a boot, it retries
// a failed apply soon: perhaps the container engine was restarting.
func (p *Pod) pause(status int) time.Duration {
	switch status {
	case ExitAgain:
		return podRetry
	case 0:
		p.failed = 0
	case ExitUsage, ExitReboot:
	default:
		p.failed++
		if p.failed < Tries {
			return podRetry
		}
	}

	if p.unknown {
		return podRetry
	}
	return p.Every
}

// rest waits until the next apply is due, or the node's label names another layout. It says whether
// stop was closed.
func (p *Pod) rest(ctx context.Context, pause time.Duration, stop <-chan struct{}) bool {
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

// relabelled says whether the node's label names another layout than at the last look.
func (p *Pod) relabelled(ctx context.Context) bool {
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

// spread makes a time up to a fifth shorter or longer, by a random number from 0 to 1. So pods that
// started together on many nodes, for example after an update of their image, soon ask the API
// server at different times.
func spread(pause time.Duration, random float64) time.Duration {
	return pause*4/5 + time.Duration(random*float64(pause)*2/5)
}

// apply copies the program and the spec to the machine, and runs apply there.
func (p *Pod) apply(ctx context.Context, machine host.Host, stop <-chan struct{}) (int, error) {
	argv, err := p.copyFiles(ctx, machine)
	if err != nil {
		return 0, err
	}
	const log = podHome + "/daemonset.log"
	if err := machine.WriteFile(log, nil, host.Attr{Mode: 0o600}); err != nil {
		return 0, err
	}

	tick := time.NewTicker(podRenews)
	defer tick.Stop()
	renewing, ended := context.WithCancel(ctx)
	defer ended()
	go p.renew(renewing, machine, tick.C, stop)

	job := systemd.Job{
		Unit:   podUnit,
		About:  "gpuadm, for its DaemonSet",
		Argv:   argv,
		Output: log,
	}
	status, err := job.Run(ctx)
	output, readErr := machine.ReadFile(log)
	if readErr == nil {
		p.Print(output)
	}
	if status == ExitPending { // a hold by an operator's undo is not a failure
		status = 0
	}
	return status, err
}

// copyFiles copies the program, the specs and the account's kubeconfig to the machine, and returns
// the command to run there.
func (p *Pod) copyFiles(ctx context.Context, machine host.Host) (argv []string, err error) {
	program := podProgram
	if folder := platform.SystemOn(machine).Programs; folder != "" {
		program = folder + "/gpuadm-daemonset"
	}
	if err := machine.Trusted(path.Dir(program), converge.Home, podHome); err != nil {
		return nil, faults.Untrusted("/", err) // the machine's administrator knows no /host
	}
	folders := []string{"/var", "/var/lib", converge.Home, path.Dir(program), "/run", podHome}
	if err := makeFolders(machine, folders); err != nil {
		return nil, err
	}

	self, err := p.Program()
	if err != nil {
		return nil, err
	}
	if err := put(machine, program, self, 0o755); err != nil {
		return nil, err
	}
	argv = []string{program, "apply", "--unattended"}
	for _, name := range p.Specs() {
		data, err := p.Read(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", name, cause(err))
		}
		target := path.Join(podHome, path.Base(name))
		if err := put(machine, target, data, 0o644); err != nil {
			return nil, err
		}
		argv = append(argv, "-f", target)
	}

	return argv, p.lend(ctx, machine)
}

// makeFolders makes the folders that do not exist. Only root may read the token in podHome; in that
// folder node.toml comes from a ConfigMap, and errors quote only files that every user can read.
func makeFolders(machine host.Host, folders []string) error {
	for _, dir := range folders {
		mode := fs.FileMode(0o755)
		switch dir {
		case converge.Home:
			mode = 0o700
		case podHome:
			mode = 0o711
		}

		_, err := machine.Stat(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := machine.Mkdir(dir, host.Attr{Mode: mode}); err != nil {
			return err
		}
	}
	return nil
}

// put writes a file unless it has these bytes and root owns it: another owner could change the
// program before it runs.
func put(machine host.Host, name string, data []byte, mode fs.FileMode) error {
	if isPut(machine, name, data, mode) {
		return nil
	}
	return machine.WriteFile(name, data, host.Attr{Mode: mode})
}

func isPut(machine host.View, name string, data []byte, mode fs.FileMode) bool {
	info, err := machine.Stat(name)
	isRoots := info.UID == 0 && info.GID == 0
	if err != nil || !isRoots || info.Attr().Mode != mode {
		return false
	}
	now, err := machine.ReadFile(name)
	return err == nil && bytes.Equal(now, data)
}

// cause leaves out the path that the message before it has named already.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
