// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

func TestEditIMEX(t *testing.T) {
	const written = "# c\nIMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\nIMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=/etc/nvidia-imex/imex_ctrl.sock\n"
	for _, x := range []struct{ name, found, want string }{
		{"the package's", "# c\nIMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\nIMEX_CMD_ENABLED=0\nIMEX_CMD_UNIX_DOMAIN_PATH=\n", written},
		{
			"no keys", "# c\n",
			"# c\nIMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=/etc/nvidia-imex/imex_ctrl.sock\nIMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\n",
		},
		{
			"no last newline", "IMEX_CMD_ENABLED=0",
			"IMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=/etc/nvidia-imex/imex_ctrl.sock\nIMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\n",
		},
		{
			"a socket of theirs, nodes elsewhere", "IMEX_CMD_ENABLED = 0\nIMEX_CMD_UNIX_DOMAIN_PATH=/var/run/x.sock\nIMEX_NODE_CONFIG_FILE=/srv/nodes\n#IMEX_CMD_ENABLED=0\n",
			"IMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=/var/run/x.sock\nIMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\n#IMEX_CMD_ENABLED=0\n",
		},
	} {
		got, err := editIMEX(true)([]byte(x.found))
		twice, _ := editIMEX(true)(got)
		check.That(t, err == nil && string(got) == x.want && string(twice) == x.want, "%s: %v\n%s\nwant\n%s", x.name, err, got, x.want)
		back, left, err := TakeOutKeys([]byte(x.found), got, append(got, "THEIRS=1\n"...))
		want := configValues([]byte(x.found + "\nTHEIRS=1\n"))
		check.That(t, err == nil && left == nil && equal(configValues(back), want), "%s: taken out: %v\n%s", x.name, err, back)
	}

	if got, err := editIMEX(true)(nil); got != nil || err != nil {
		t.Errorf("a file that the package is to bring: %q, %v", got, err)
	}
	elsewhere, _ := editIMEX(false)([]byte("IMEX_NODE_CONFIG_FILE=/srv/nodes\n"))
	check.That(t, configValues(elsewhere)[imexNodesFile] == "/srv/nodes", "a file of nodes that the spec does not name was taken: %s", elsewhere)
	changed := strings.Replace(written, "IMEX_CMD_ENABLED=1", "IMEX_CMD_ENABLED=0", 1)
	got, left, err := TakeOutKeys([]byte("# c\n"), []byte(written), []byte(changed))
	if err != nil || configValues(got)[imexEnabled] != "0" || configValues(got)[imexPath] != "" || !slices.Equal(left, []string{`IMEX_CMD_ENABLED is "0", gpuadm had set "1"`}) {
		t.Errorf("a key that was changed since, and one that is ours: %s %q %v", got, left, err)
	}
}

func equal(a, b map[string]string) bool {
	for k := range b {
		if a[k] != b[k] {
			return false
		}
	}
	return len(a) == len(b)
}

// What nvidia-imex-ctl says decides: ready, waiting for others, or not ready, which holds nothing
// else back. The program is not asked while its answer would be about other files than those that
// are wanted.
func TestIMEXAnswers(t *testing.T) {
	const config = "-- etc/nvidia-imex/config.cfg --\nIMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=/run/x\nIMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\n-- etc/nvidia-imex/nodes_config.cfg --\n10.0.0.11\n"
	unit := func(active string) string {
		return "-- sim.toml --\n[[unit]]\nname = \"nvidia-imex.service\"\nenabled = \"enabled\"\nactive = \"" + active + "\"\n"
	}
	ctl := func(stdout, exit string) string {
		return "[[command]]\nargv = [\"nvidia-imex-ctl\", \"-q\"]\nstdout = \"" + stdout + "\\n\"\nexit = " + exit + "\n"
	}
	for _, x := range []struct{ name, archive, waits string }{
		{"ready", unit("active") + ctl("READY", "0") + config, ""},
		{"waiting", unit("active") + ctl("WAITING_FOR_PEERS", "0") + config, "IMEX of the other nodes answers"},
		{"starting for an hour", unit("active") + ctl("INITIALIZING", "0") + config, "says INITIALIZING, and not READY"},
		{"no word that is known holds READY", unit("active") + ctl("NOT READY", "0") + config, "says NOT READY, and not READY"},
		{"no answer", unit("active") + ctl("", "1") + config, "says UNAVAILABLE, and not READY"},
		{"not installed whole", unit("active") + config, "nvidia-imex-ctl is not installed"},
		{"stopped", unit("inactive") + ctl("", "1") + config, ""},
		{"other nodes are wanted", unit("active") + ctl("", "1") + strings.Replace(config, "10.0.0.11", "10.0.0.10", 1), ""},
		{"its command service is off", unit("active") + ctl("", "1") + strings.Replace(config, "ENABLED=1", "ENABLED=0", 1), ""},
	} {
		state, err := imexAnswers([]string{"10.0.0.11"}).Look(t.Context(), drivertest.Node(t, x.archive))
		if x.waits == "" && (state != "ok" || err != nil) {
			t.Errorf("%s: %q, %v", x.name, state, err)
		}
		if x.waits != "" && (!trouble.Passes(err) || !strings.Contains(err.Error(), x.waits)) {
			t.Errorf("%s: %q, %v; want to wait: %s", x.name, state, err, x.waits)
		}
	}
}

// The package of IMEX has the driver's branch in its name on Ubuntu, and before driver 580 in
// NVIDIA's repositories.
func TestIMEXWithoutItsProgram(t *testing.T) {
	const node = "-- sim.toml --\n[[unit]]\nname = \"nvidia-imex.service\"\nactive = \"active\"\n-- etc/nvidia-imex/config.cfg --\nIMEX_CMD_ENABLED=1\n"
	err := imexReady(t.Context(), drivertest.Node(t, node))
	var refused *trouble.Error
	must.That(t, errors.As(err, &refused), "%v", err)
	check.Has(t, strings.Join(refused.Try, "; "), "nvidia-imex-BRANCH", "try:")
}

// A restart that goes back to a configuration without the command service is not waited for: the
// daemon does not answer.
func TestIMEXRestartBeforeUs(t *testing.T) {
	const node = "-- sim.toml --\n[[unit]]\nname = \"nvidia-imex.service\"\nactive = \"active\"\n[[command]]\nargv = [\"nvidia-imex-ctl\", \"-q\"]\nexit = 1\n-- etc/nvidia-imex/config.cfg --\nIMEX_CMD_ENABLED="
	for enabled, ready := range map[string]bool{"0": true, "1": false} {
		err := imexReady(t.Context(), drivertest.Node(t, node+enabled+"\n"))
		check.That(t, (err == nil) == ready, "IMEX_CMD_ENABLED=%s: %v", enabled, err)
	}
}

func TestIMEXNodesKnown(t *testing.T) {
	for archive, says := range map[string]string{
		"-- x --\n": "/etc/nvidia-imex/nodes_config.cfg is missing or empty",
		"-- etc/nvidia-imex/nodes_config.cfg --\n\n":          "/etc/nvidia-imex/nodes_config.cfg is missing or empty",
		"-- etc/nvidia-imex/nodes_config.cfg --\n10.0.0.11\n": "",

		"-- etc/nvidia-imex/config.cfg --\nIMEX_NODE_CONFIG_FILE=/srv/nodes\n-- etc/nvidia-imex/nodes_config.cfg --\n10.0.0.11\n":      "/srv/nodes is missing or empty",
		"-- etc/nvidia-imex/config.cfg --\nIMEX_NODE_CONFIG_FILE=/srv/nodes\n-- srv/nodes --\n10.0.0.11\n":                             "",
		"-- etc/nvidia-imex/config.cfg --\n#IMEX_NODE_CONFIG_FILE=/srv/nodes\n-- etc/nvidia-imex/nodes_config.cfg --\ngpu-1.example\n": "",
	} {
		got := drivertest.Problems(t, []converge.Want{imexNodesKnown(false)}, drivertest.Node(t, archive))
		check.That(t, (says == "") == (got == "") && strings.Contains(got, says), "%s: %q, want %q", archive, got, says)
		check.None(t, drivertest.Problems(t, []converge.Want{imexNodesKnown(true)}, drivertest.Node(t, archive)), "the spec names them:")
	}
}

// TestIMEXNodesUnknown: a configuration that cannot be read does not say that IMEX reads its nodes from
// the usual file.
func TestIMEXNodesUnknown(t *testing.T) {
	n := drivertest.Node(t, "-- etc/nvidia-imex/config.cfg --\nIMEX_NODE_CONFIG_FILE=/srv/nodes\n-- srv/nodes --\n10.0.0.11\n")

	state, err := imexNodesKnown(false).Look(t.Context(), unreadable{n, IMEXConfig})

	check.That(t, errors.Is(err, syscall.EIO), "%q, %v", state, err)
}

// The spec's word decides about the module's channel and what is said; a parameter of the spec
// wins.
func TestIMEXParameterAndNotes(t *testing.T) {
	f := facts.Facts{
		Live: true, Arch: "arm64", OS: facts.OS{
			ID:      "ubuntu",
			Version: "24.04",
		}, GPUs: []facts.PCI{function("2941", "030200")},
		Kernel: facts.Kernel{
			Running:   "6.8.0",
			Installed: []string{"6.8.0"},
		}, Modules: &facts.Modules{},
	}
	const theirs = "-- etc/nvidia-imex/config.cfg --\nIMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=/var/run/imex.sock\n"
	for _, x := range []struct{ text, channel, says, saysTheirs string }{
		{"", "", `imex = "host" in [driver] has it run on the host`, "names a command socket"},
		{`imex = "off"`, "", "", ""},
		{
			`imex = "host"`, "1",
			"resources.computeDomains.imex.hostSocketPath=/etc/nvidia-imex/imex_ctrl.sock",
			"hostSocketPath=/var/run/imex.sock",
		},
		{"imex = \"host\"\nparameters = { NVreg_CreateImexChannel0 = 0 }", "0", "HostManagedIMEXDaemon=true", ""},
	} {
		s := specs.Of(t, "[driver]\nversion = \"580.95.05\"\n"+x.text+"\n")
		c, _, err := New(nil).Choose(s, f)
		must.OK(t, err)
		k, _ := c.KernelSide(s.Driver, f)
		check.That(t, k.Parameters[imexChannel] == x.channel && !slices.Contains(k.Companions, "ib_umad"), "%s: %v, loads %v", x.text, k.Parameters, k.Companions)
		for archive, says := range map[string]string{"-- x --\n": x.says, theirs: x.saysTheirs} {
			message := strings.Join(New(nil).Services().Notes(drivertest.Node(t, archive), s, f), "\n")
			check.That(t, strings.Contains(message, says) && (x.says == "") == (message == ""), "%s: %q, want %q", x.text, message, says)
		}
	}
}

// In an image, where nothing runs, the unit is masked for the first boot; where it is not installed
// nothing is wanted.
func TestIMEXMaskedInAnImage(t *testing.T) {
	wants, err := imexWants(Services{
		Fabric: FabricRack,
		IMEX:   "auto",
	}, facts.Facts{Live: true})
	must.That(t, err == nil && len(wants) == 1, "%v: %v", wants, err)
	const image = "-- sim.toml --\nlive = false\n-- etc/systemd/system/ --\n"
	for archive, want := range map[string]converge.State{
		image: "",
		image + "-- usr/lib/systemd/system/nvidia-imex.service --\n[Service]\nExecStart=/usr/bin/nvidia-imex\n[Install]\nWantedBy=multi-user.target\n": "masked -",
	} {
		n := drivertest.Node(t, archive)
		found, err := wants[0].Look(t.Context(), n)
		must.That(t, err == nil || errors.As(err, new(host.Later)), "%v", err)
		to, err := wants[0].To(found)
		check.That(t, err == nil && to == want, "%q leads to %q, %v; want %q", found, to, err, want)
		err = wants[0].Make(t.Context(), n, to)
		check.That(t, to == "" || err == nil, "%v", err)
	}
}

// TestRubinRack: in a rack of Vera Rubin the host's IMEX is masked as on GB300, for ComputeDomains run
// it; and the spec may have the host run it. Sources: NVIDIA/aicr docs/integrator/rke2-vr200-setup.md;
// of the ids kubevirt/kubevirt pull request 19070.
func TestRubinRack(t *testing.T) {
	for _, id := range []string{"3041", "307f"} {
		m := machine("ubuntu", "26.04", "arm64", id)
		ch := choose(t, m, driver("620"))
		check.That(t, slices.Contains(names(ch, "imex"), "nvidia-imex"), "%s: IMEX is not installed: %v", id, ch.Members)
		check.Equal(t, FabricOf(Load(), facts.Facts{GPUs: []facts.PCI{function(id, "030200")}}), FabricRack, "%s: fabric", id)
	}
}

// TestTakeOutKeysBeside: another process writes a line anywhere into the configuration. Without it the
// rest is the file from before gpuadm's edit, to the byte.
func TestTakeOutKeysBeside(t *testing.T) {
	for _, before := range []string{
		"# c\nIMEX_CMD_ENABLED=0",
		"# c",
		"IMEX_CMD_ENABLED = 0\r\nSERVER_PORT=50000\r\n",
		" IMEX_CMD_ENABLED=0 \n\nIMEX_NODE_CONFIG_FILE = /srv/nodes\nX=1",
	} {
		after := must.Get(editIMEX(true)([]byte(before)))(t)
		lines := slices.Collect(strings.Lines(string(after)))
		for at := range lines {
			found := strings.Join(slices.Insert(slices.Clone(lines), at, "# foreign\n"), "")
			rest, left, err := TakeOutKeys([]byte(before), after, []byte(found))
			erased := strings.Replace(string(rest)+"\n", "# foreign\n", "", 1)
			isExact := err == nil && left == nil && strings.TrimRight(erased, "\r\n") == strings.TrimRight(before, "\r\n")
			check.That(t, isExact, "taken out of %q: %q, left %q, %v; before %q", found, rest, left, err, before)
		}
	}
}
