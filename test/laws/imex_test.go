// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// gb200 is a tray of a GB200 NVL72 with its driver and nvidia-imex installed, as the package leaves
// it: enabled and running, with its configuration file. The keys and their defaults are those of
// the file in aws/aws-parallelcluster-cookbook.
//
//go:embed testdata/gb200.txtar
var gb200 string

var imexSpecs = map[string]string{
	"auto":  "imex = \"auto\"\n",
	"host":  "imex = \"host\"\nimex_nodes = [\"10.0.0.11\", \"10.0.0.12\"]\n",
	"other": "imex = \"host\"\nimex_nodes = [\"10.0.0.12\", \"gb200-3.example\"]\n",
	"off":   "imex = \"off\"\n",
}

// rack boots the tray. Its nvidia-imex-ctl answers while the unit runs with the command service
// enabled, and not else.
func rack(t testing.TB) *simhost.Node {
	t.Helper()
	n := machine{"gb200", []byte(gb200)}.boot(t)
	n.Install("nvidia-imex-ctl", simhost.Program{Looks: func(argv []string) bool { return len(argv) == 2 && argv[1] == "-q" }, Run: func(f *files.Files, argv []string) ([]byte, error) {
		if config, _ := f.ReadFile(drivers.IMEXConfig); !strings.Contains(string(config), "\nIMEX_CMD_ENABLED=1\n") {
			return nil, &host.CommandError{
				Argv:  argv,
				Code:  1,
				Cause: errors.New("exit status 1"),
			}
		}

		if output, err := f.ReadFile("/run/imex-says"); err == nil {
			return output, nil
		}
		return []byte("READY\n"), nil
	}})
	return n
}

func imexEngine(t testing.TB, name string) *converge.Engine {
	t.Helper()
	e := engine(t, "[driver]\nversion = \"580.95.05\"\npersistenced = false\n"+imexSpecs[name])
	e.Stages, e.Before = []converge.Stage{drivers.New(nil).Services()}, nil
	return e
}

// imexUnit is the unit's state: "masked inactive".
func imexUnit(n *simhost.Node) string {
	for line := range strings.Lines(n.Units()) {
		if rest, is := strings.CutPrefix(line, drivers.IMEXUnit+" "); is {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// Each mode leads where it should, once; the way back is the package's own state.
func TestIMEXModes(t *testing.T) {
	for name, want := range map[string]string{"auto": "masked inactive", "host": "enabled active fresh", "off": "enabled active fresh"} {
		n := rack(t)
		first := tree(n)
		planned := namesNow(plan(t, n, imexEngine(t, name)).Changes)
		made := names(apply(t, n, imexEngine(t, name)).Made)
		check.That(t, made == planned && (made == "") == (name == "off"), "%s: made\n%s\nplanned\n%s", name, made, planned)
		check.Equal(t, imexUnit(n), want, "%s: the unit is", name)
		touches := n.Touches()
		res := apply(t, n, imexEngine(t, name))
		check.That(t, n.Touches() == touches && len(n.Violations()) == 0, "%s: a second apply made %s, %v", name, names(res.Made), n.Violations())
		config, _ := n.ReadFile(drivers.IMEXConfig)
		nodes, _ := n.ReadFile(drivers.IMEXNodes)
		for _, line := range []string{"IMEX_CMD_ENABLED=1\n", "IMEX_CMD_UNIX_DOMAIN_PATH=/etc/nvidia-imex/imex_ctrl.sock\n"} {
			check.That(t, strings.Contains(string(config), line) == (name == "host"), "%s: %q in\n%s", name, line, config)
		}
		check.That(t, (string(nodes) == "10.0.0.11\n10.0.0.12\n") == (name == "host"), "%s: nodes %q", name, nodes)
		undo(t, n, imexEngine(t, name), "all")
		compare(t, name+", undone", first, tree(n))
	}
}

// What is in the wrong state is repaired, and goes back to that state.
func TestIMEXWrongStates(t *testing.T) {
	for _, wrong := range []struct{ spec, was, want string }{
		{"auto", "disabled inactive", "masked inactive"},
		{"auto", "disabled active fresh", "masked inactive"},
		{"auto", "masked active", "masked inactive"}, // masked, and never stopped
		{"host", "masked inactive", "enabled active fresh"},
		{"host", "disabled inactive", "enabled active fresh"},
	} {
		n := rack(t)
		file, job := map[string]string{"masked": "mask", "disabled": "disable"}[strings.Fields(wrong.was)[0]], ""
		if strings.Contains(wrong.was, "inactive") {
			job = "stop"
		}
		for _, c := range []host.UnitChange{{Job: job}, {File: "disable"}, {File: file}} {
			must.OK(t, n.SetUnit(t.Context(), drivers.IMEXUnit, c))
		}
		first := strings.ReplaceAll(tree(n), " fresh\n", " stale\n") // what runs masked was started with its unit file
		got := imexUnit(n)
		must.That(t, strings.HasPrefix(got, wrong.was), "the unit begins as %q, want %q", got, wrong.was)
		apply(t, n, imexEngine(t, wrong.spec))
		check.Equal(t, imexUnit(n), wrong.want, "%s of %s: the unit is", wrong.spec, wrong.was)
		undo(t, n, imexEngine(t, wrong.spec), "all")
		compare(t, wrong.spec+" of "+wrong.was+", undone", first, strings.ReplaceAll(tree(n), " fresh\n", " stale\n"))
	}
}

// Law 8 on a rack's machine: a power cut before any touch, then apply again, ends as a straight
// run; undo in the first tree.
func TestIMEXPowerCuts(t *testing.T) {
	for _, name := range []string{"auto", "host"} {
		t.Run(name, func(t *testing.T) { t.Parallel(); imexPowerCuts(t, name) })
	}
}

func imexPowerCuts(t *testing.T, name string) {
	whole := rack(t)
	whole.Reboot()
	first := tree(whole)
	apply(t, whole, imexEngine(t, name))
	applied, made := tree(whole), whole.Touches()
	undo(t, whole, imexEngine(t, name), "all")
	for cut := range every(whole.Touches()) {
		for _, loss := range losses(cut) {
			n := rack(t)
			n.CutAt(cut)
			_, err := imexEngine(t, name).Apply(context.Background(), n)
			if err == nil {
				_, _ = imexEngine(t, name).Undo(context.Background(), n, "all", nil) // the last touches only clear away
			}
			must.That(t, n.Off(), "%s: touch %d: the power was not cut", name, cut)
			n.Boot(loss)
			if cut < made {
				apply(t, n, imexEngine(t, name))
				compare(t, fmt.Sprintf("%s: apply cut at touch %d, %v, applied again", name, cut, loss), applied, tree(n))
			}
			undo(t, n, imexEngine(t, name), "all")
			compare(t, fmt.Sprintf("%s: cut at touch %d, %v, undone", name, cut, loss), first, tree(n))
		}
	}
}

// Law 6 on a rack's machine: whatever fails is rolled back.
func TestIMEXFailures(t *testing.T) {
	for _, name := range []string{"auto", "host"} {
		whole := rack(t)
		first := tree(whole)
		apply(t, whole, imexEngine(t, name))
		for at := range whole.Touches() {
			n := rack(t)
			n.Fail(at, syscall.ENOSPC)
			_, err := imexEngine(t, name).Apply(context.Background(), n)
			if err == nil || strings.HasPrefix(err.Error(), "cannot close the run") {
				continue
			}
			compare(t, fmt.Sprintf("%s: no space at touch %d: %v", name, at, err), first, tree(n))
		}
	}
}

// Law 9 on a rack's machine: one spec after another ends as the second on a fresh machine.
func TestIMEXShrinks(t *testing.T) {
	for a := range imexSpecs {
		for b := range imexSpecs {
			n, fresh := rack(t), rack(t)
			first := tree(n)
			apply(t, n, imexEngine(t, a))
			apply(t, fresh, imexEngine(t, b))
			apply(t, n, imexEngine(t, b))
			compare(t, a+", then "+b, tree(fresh), tree(n))
			undo(t, n, imexEngine(t, b), "all")
			compare(t, a+", then "+b+", undone", first, tree(n))
		}
	}
}

// Law 10: what an administrator writes into IMEX's configuration after us stays when we go.
func TestIMEXRespectsOthers(t *testing.T) {
	n := rack(t)
	apply(t, n, imexEngine(t, "host"))
	config := must.Get(n.ReadFile(drivers.IMEXConfig))(t)
	edited := strings.Replace(string(config), "LOG_LEVEL=4", "LOG_LEVEL=3", 1) + "NETWORK_INTERFACE=bond0\n"
	put(t, n, drivers.IMEXConfig, edited)
	undo(t, n, imexEngine(t, "host"), "all")
	got, err := n.ReadFile(drivers.IMEXConfig)
	want := strings.NewReplacer("IMEX_CMD_ENABLED=1", "IMEX_CMD_ENABLED=0", "=/etc/nvidia-imex/imex_ctrl.sock", "=").Replace(edited)
	check.That(t, err == nil && string(got) == want, "%v\n%s\nwant\n%s", err, got, want)
}

// IMEX that waits for other nodes goes on running: exit code 75, and nothing is rolled back.
func TestIMEXWaitsForOthers(t *testing.T) {
	n := rack(t)
	apply(t, n, imexEngine(t, "host"))
	n.Advance(time.Hour)
	applied := tree(n)
	put(t, n, "/run/imex-says", "WAITING_FOR_PEERS\n")
	_, err := imexEngine(t, "host").Apply(t.Context(), n)
	check.That(t, trouble.Passes(err) && strings.Contains(err.Error(), "IMEX of the other nodes answers"), "%v", err)
	compare(t, "while it waits", applied, tree(n))
}
