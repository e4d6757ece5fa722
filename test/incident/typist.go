// SPDX-License-Identifier: Apache-2.0

package incident

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A Typist is an operator who types commands on a machine, as a user of the group sudo. What programs
// of other projects do there is in programs.go; gpuadm is run as it is.
type Typist struct {
	t      testing.TB
	world  *World
	node   *simhost.Node
	gpuadm func(words []string) error

	Changed  bool // a command has changed the machine or the cluster
	Rebooted bool
}

// Typist types on a machine of the world. gpuadm runs gpuadm there.
func (w *World) Typist(n *simhost.Node, gpuadm func(words []string) error) *Typist {
	return &Typist{t: w.t, world: w, node: n, gpuadm: gpuadm}
}

// Types executes a command line as sh(1) does; the error is that of its last program.
func (y *Typist) Types(line string) error {
	parts, err := partsOf(line)
	if err != nil {
		return err
	}
	out := ""
	for _, p := range parts {
		switch {
		case p.after == "&&" && err != nil, p.after == "||" && err == nil:
			continue
		case p.after != "|":
			out = ""
		}

		out, err = y.runs(p.argv, out)
	}

	return err
}

// runs executes one program.
func (y *Typist) runs(argv []string, in string) (out string, err error) {
	asRoot := len(argv) > 1 && argv[0] == "sudo"
	if asRoot {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return "", fmt.Errorf("no program")
	}
	name := path.Base(argv[0])
	if !asRoot && needsRoot(argv) {
		return "", fmt.Errorf("%s: permission denied: it is not typed with sudo", strings.Join(argv, " "))
	}

	if name == "gpuadm" {
		touches := y.node.Touches()
		err := y.gpuadm(argv[1:])
		y.Changed = y.Changed || y.node.Touches() > touches
		return "", err
	}

	if slices.Contains(looking, name) || looks(argv) {
		return in, nil
	}
	does := programs[name]
	if does == nil {
		return "", fmt.Errorf("%s: this test does not know what it does", strings.Join(argv, " "))
	}
	y.Changed = true
	return does(y, argv[1:], in)
}

// Settles is what daemons do after a change: systemd starts again what waits for a restart, and kubelet
// and the engine run with the node as it is then.
func (y *Typist) Settles() {
	for _, unit := range []string{"containerd.service", "kubelet.service"} {
		u, err := y.node.Unit(context.Background(), unit)
		if err == nil && u.Load == "loaded" && u.Active == "activating" {
			_ = y.unit(unit, host.UnitChange{Job: "start"}) // it may end again
		}
	}

	y.node.Advance(2 * time.Minute)
}

// needsRoot reports whether a program refuses a user who is not root. polkit asks such a user of a
// terminal for a password at systemctl, timedatectl and reboot, and refuses one without.
func needsRoot(argv []string) bool {
	switch name := path.Base(argv[0]); name {
	case "gpuadm":
		return len(argv) > 1 && !slices.Contains([]string{"validate", "version", "manifest"}, argv[1])
	case "kubectl", "echo", "printf", "nvidia-modprobe": // nvidia-modprobe is setuid root: nvidia-modprobe(1)
		return slices.Contains(argv, "/etc/kubernetes/kubelet.conf")
	case "journalctl", "ipmitool", "crictl", "dmesg":
		return true
	case "lspci":
		return slices.Contains(argv, "-vvv") // capabilities: <access denied>
	default:
		return !slices.Contains(looking, name) && !looks(argv)
	}
}

// put writes a file as another program does.
func (y *Typist) put(name, text string) error { return y.node.Put(name, text, 0o644) }

func (y *Typist) text(name string) string {
	data, _ := y.node.ReadFile(name)
	return string(data)
}

func (y *Typist) has(name string) bool {
	_, err := y.node.Stat(name)
	return err == nil
}

// ubuntu runs one of Ubuntu's programs that test/sim/ubuntu has.
func (y *Typist) ubuntu(argv ...string) error {
	_, err := y.node.Do(context.Background(), argv...)
	return err
}

// nodeDevice makes a device file with the number that the driver gave it.
func (y *Typist) nodeDevice(name, driver string, minor uint32) error {
	major := uint32(195)
	for line := range strings.Lines(y.text("/proc/devices")) {
		var number uint32
		_, err := fmt.Sscanf(line, "%d "+driver, &number)
		if err == nil && strings.HasSuffix(strings.TrimSpace(line), " "+driver) {
			major = number
		}
	}

	return y.node.PutDevice(name, major, minor, fs.FileMode(0o666))
}

// unit sets a unit.
func (y *Typist) unit(name string, to host.UnitChange) error {
	if path.Ext(name) == "" {
		name += ".service"
	}
	return y.node.SetUnit(context.Background(), name, to)
}
