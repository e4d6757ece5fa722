// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestDaemonSetBrings: the program comes to where the machine may execute it, which /run often is
// not, and secrets to where root alone may read them.
func TestDaemonSetBrings(t *testing.T) {
	for id, at := range map[string]string{"ubuntu": "/var/lib/gpuadm/", "cos": "/var/lib/google/"} {
		t.Run(id, func(t *testing.T) { daemonSetBrings(t, id, at) })
	}
}

// lentPod is a pod whose files all have this content, and whose account may be lent.
func lentPod(content string) Pod {
	return Pod{
		WithoutPolicy: true,
		Getenv:        func(string) string { return "10.0.0.1" },
		Read:          func(string) ([]byte, error) { return []byte(content), nil },
		Program:       func() ([]byte, error) { return []byte(content), nil },
		Specs:         func() []string { return nil },
	}
}

func daemonSetBrings(t *testing.T, id, at string) {
	t.Helper()
	n := must.Get(simhost.New([]byte("-- etc/os-release --\nNAME=x\nID=" + id + "\n")))(t)
	p := lentPod("content\n")
	argv := must.Get(p.copyFiles(t.Context(), n))(t)
	check.That(t, strings.HasPrefix(argv[0], at) && len(argv) >= 3 && argv[1] == "apply" && argv[2] == "--unattended", "the machine runs %q", argv)
	for name, mode := range map[string]fs.FileMode{argv[0]: 0o755, podHome: 0o711, podHome + "/token": 0o600, node.PodKubeconfig: 0o600, "/var/lib/gpuadm": 0o700} {
		i, err := n.Stat(name)
		check.That(t, err == nil && i.Mode.Perm() == mode, "%s: %v %v, want %v", name, i.Mode, err, mode)
	}
}

// TestDaemonSetOwners: what another user could have written, or could write to once it lies there,
// is not left for root to run.
func TestDaemonSetOwners(t *testing.T) {
	boot := func(sections string) *simhost.Node {
		n := must.Get(simhost.New([]byte(sections)))(t)
		return n
	}

	p := lentPod("same\n")
	for _, dir := range []string{"var/lib/gpuadm/ owner=65534:65534", "var/lib/ mode=0777", "run/gpuadm/ mode=0770"} {
		n := boot("-- " + dir + " --\n")
		_, err := p.copyFiles(t.Context(), n)
		told := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &told) && strings.HasPrefix(err.Error(), "cannot trust /") && n.Touches() <= 0, "%s: %d touches, %v", dir, n.Touches(), err)
	}
	// The bytes are what they shall be, and another user could change them.
	for _, marks := range []string{"mode=0755 owner=65534:65534", "mode=0755 owner=0:7", "mode=0777", "mode=4755"} {
		n := boot("-- var/lib/gpuadm/daemonset " + marks + " --\nsame\n-- run/gpuadm/token mode=0644 --\nsame\n")
		argv := must.Get(p.copyFiles(t.Context(), n))(t)
		for name, mode := range map[string]fs.FileMode{argv[0]: 0o755, podHome + "/token": 0o600} {
			i, err := n.Stat(name)
			check.That(t, err == nil && i.UID == 0 && i.GID == 0 && i.Mode == mode, "%s: %s is %v of %d:%d, %v", marks, name, i.Mode, i.UID, i.GID, err)
		}

		touches := n.Touches()
		_, err := p.copyFiles(t.Context(), n)
		check.That(t, err == nil && n.Touches() == touches, "%s: laid again: %d touches, %v", marks, n.Touches()-touches, err)
	}
}

// TestDaemonSetSpread: pods that started together do not stay together, and on average a pod
// applies as often as its flag says.
func TestDaemonSetSpread(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 8 * time.Minute, 0.5: 10 * time.Minute, 1: 12 * time.Minute} {
		check.Equal(t, spread(10*time.Minute, random), want, "by %v:", random)
	}
	most := spread(podPolls, 1)
	check.That(t, most <= 30*time.Second, "a changed label is seen after %v", most)
}

// TestDaemonSetTriesAgain: a failure that passes by itself, such as a container engine that just
// restarts, does not leave the node unready until the next regular apply. What another run does not
// help waits for that.
func TestDaemonSetTriesAgain(t *testing.T) {
	const killed = 9
	p := Pod{Every: time.Hour}
	for i, step := range []struct {
		status int
		want   time.Duration
	}{
		{0, time.Hour},
		{1, podRetry},
		{killed, podRetry},
		{1, time.Hour},
		{1, time.Hour},
		{ExitAgain, podRetry},
		{1, time.Hour},
		{0, time.Hour},
		{1, podRetry},
		{0, time.Hour},
		{1, podRetry},
		{1, podRetry},
		{1, time.Hour},
		{ExitUsage, time.Hour},
		{ExitReboot, time.Hour},
	} {
		check.Equal(t, p.pause(step.status), step.want, "step %d, after exit code %d:", i, step.status)
	}
}

// TestMIGLabelState: the words of mig-parted's manager, each when it writes them: reconfigure.go,
// Run.
func TestMIGLabelState(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	for want, tt := range map[string]struct {
		is      partitions
		res     converge.Result
		reboots bool
	}{
		"success":   {partitions{made: true}, converge.Result{}, true},
		"rebooting": {partitions{made: true}, converge.Result{Reboot: "a GPU changes its mode"}, true},
		"failed":    {partitions{}, converge.Result{Reboot: "a GPU changes its mode"}, false}, // of a layout that is not in the file
	} {
		r := &Run{
			Host:    n,
			Reboots: tt.reboots,
			Engine: &converge.Engine{
				Stages: []converge.Stage{mig.Stage},
				Spec:   spec.Spec{MIG: spec.MIG{File: "/etc/gpuadm/mig.yaml", Layout: "none"}},
			},
		}
		check.Equal(t, r.migState(t.Context(), tt.is, tt.res, nil), want, "%+v:", tt)
	}
}
