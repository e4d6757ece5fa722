// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// The replacement of nvidia-imex does what NVIDIA's IMEX guide says of the daemon's start: without
// nodes it fails, and with the command service enabled it makes the socket that its configuration
// names, or fails. Its unit has the ProtectSystem=full of which the DRA driver's page warns
// (site/content/docs/prerequisites.md). nvidia-imex-ctl -q prints one word, as DCGM knows them.
const (
	imexUnit = `[Unit]
Description=NVIDIA IMEX service
[Service]
Type=simple
ProtectSystem=full
ExecStart=/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg
[Install]
WantedBy=multi-user.target
`
	imexDaemon = `#!/bin/sh
. /etc/nvidia-imex/config.cfg
test -s "$IMEX_NODE_CONFIG_FILE" || exit 1
if test "$IMEX_CMD_ENABLED" = 1 && test -n "$IMEX_CMD_UNIX_DOMAIN_PATH"; then
	: >"$IMEX_CMD_UNIX_DOMAIN_PATH" || exit 1
fi
exec sleep infinity
`
	imexCtl = `#!/bin/sh
. /etc/nvidia-imex/config.cfg
test "$1" = -q && test "$IMEX_CMD_ENABLED" = 1 && test -e "$IMEX_CMD_UNIX_DOMAIN_PATH" && systemctl is-active --quiet nvidia-imex || exit 1
echo READY
`
	imexConfig = "# NVIDIA IMEX configuration file.\nLOG_LEVEL=4\nIMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes_config.cfg\nIMEX_CMD_ENABLED=0\nIMEX_CMD_PORT=50005\nIMEX_CMD_UNIX_DOMAIN_PATH=\n"
	imexNodes  = "/etc/nvidia-imex/nodes_config.cfg"
	imexSocket = "/etc/nvidia-imex/imex_ctrl.sock"
	gb200Spec  = "format = 1\n[driver]\nversion = \"595.71.05\"\nsource = \"nvidia\"\npersistenced = false\n"
)

// TestLabIMEX: a real systemd says whether the host's IMEX is masked, runs, and has read its files.
func TestLabIMEX(t *testing.T) {
	t.Parallel()
	n := node{lab.Boot(t, lab.Options{
		Dist: "trixie",
		GPUs: 4,
		Kind: "GB200",
	}), t}
	n.Put("/usr/lib/systemd/system/nvidia-imex.service", imexUnit, 0o644)
	n.Put("/usr/bin/nvidia-imex", imexDaemon, 0o755)
	n.Put("/usr/bin/nvidia-imex-ctl", imexCtl, 0o755)
	n.Put("/etc/nvidia-imex/config.cfg", strings.NewReplacer("ENABLED=0", "ENABLED=1", "PATH=", "PATH="+imexSocket).Replace(imexConfig), 0o644)
	n.Put(imexNodes, "10.0.0.9\n", 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "nvidia-imex")
	if n.Exec("systemctl", "start", "nvidia-imex"); eventually(func() bool { return n.imexHas("enabled failed") }) && n.Exec("test", "-e", imexSocket).Exit == 0 {
		t.Fatal("a unit with ProtectSystem=full made a socket below /etc: the host shows nothing")
	}
	n.Put("/etc/nvidia-imex/config.cfg", imexConfig, 0o644)
	n.Must("systemctl", "restart", "nvidia-imex")
	n.imexIs("enabled active")
	n.Put(specFile, gb200Spec, 0o644)
	first := n.Tree([]string{"/etc"}, state)

	says(t, n.gpuadm(0, "plan", "services"), `imex = "host" in [driver] has it run on the host`)
	n.imexIs("enabled active")
	n.gpuadm(0, "apply", "services")
	n.imexIs("masked inactive")
	check.That(t, n.Exec("test", "-e", "/etc/systemd/system/multi-user.target.wants/nvidia-imex.service").Exit != 0, "the unit is masked and not disabled")
	says(t, n.gpuadm(0, "apply", "services"), "Nothing to do.")
	says(t, n.gpuadm(3, "status"), `imex = "host" in [driver] has it run on the host`)

	n.Must("systemctl", "unmask", "--quiet", "nvidia-imex") // an administrator's, or an image's
	n.Must("systemctl", "enable", "--quiet", "--now", "nvidia-imex")
	n.gpuadm(0, "apply", "services")
	n.imexIs("masked inactive")

	host := func(nodes string) {
		n.Put(specFile, gb200Spec+"imex = \"host\"\nimex_nodes = ["+nodes+"]\n", 0o644)
	}
	host(`"10.0.0.11", "10.0.0.12"`)
	n.gpuadm(0, "apply", "services")
	n.imexIs("enabled active")
	check.Equal(t, n.Get(imexNodes), "10.0.0.11\n10.0.0.12\n", "nodes:")
	n.Must("test", "-e", imexSocket)
	says(t, n.gpuadm(0, "apply", "services"), "Nothing to do.")

	before := n.imexPID()
	host(`"10.0.0.11", "10.0.0.13"`)
	n.gpuadm(0, "apply", "services")
	check.That(t, n.imexPID() != before, "IMEX runs with the list of nodes from before")
	n.Must("systemctl", "kill", "--signal=KILL", "nvidia-imex")
	eventually(func() bool { return n.imexHas("enabled failed") })
	n.gpuadm(0, "apply", "services")
	n.imexIs("enabled active")

	n.Put(specFile, gb200Spec, 0o644) // and back to ComputeDomains
	n.gpuadm(0, "apply", "services")
	n.imexIs("masked inactive")
	n.gpuadm(0, "undo", "--to", "all")
	n.imexIs("enabled inactive")   // gpuadm found it dead before it started it, and undo leaves it as it was found
	n.Must("rm", "-f", imexSocket) // the daemon's own
	diff := n.Tree([]string{"/etc"}, state).Diff(first)
	check.That(t, ourOwn(diff) == "", "undo of all left:\n%s", diff)
}

// imexHas compares the unit's state: "masked inactive".
func (n node) imexHas(want string) bool {
	return strings.TrimSpace(n.Exec("systemctl", "is-enabled", "nvidia-imex").Stdout)+" "+strings.TrimSpace(n.Exec("systemctl", "is-active", "nvidia-imex").Stdout) == want
}

func (n node) imexIs(want string) {
	n.t.Helper()
	if !n.imexHas(want) {
		n.t.Fatalf("nvidia-imex.service is not %s: %s", want, n.Exec("systemctl", "status", "--no-pager", "nvidia-imex"))
	}
}

func (n node) imexPID() string {
	n.t.Helper()
	return n.Must("systemctl", "show", "--property=MainPID", "nvidia-imex")
}
