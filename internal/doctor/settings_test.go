// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
)

// TestDecidingFile: a comment decides nothing.
func TestDecidingFile(t *testing.T) {
	e := facts.Engine{
		Config: "/etc/crio/crio.conf",
		Files: []facts.File{
			{Path: "/etc/crio/crio.conf", Data: []byte("[crio.runtime]\ndefault_runtime = \"crun\"\n")},
			{Path: "/etc/crio/crio.conf.d/50-x.conf", Data: []byte("[crio.runtime]\n  # default_runtime = \"runc\"\n")},
		},
	}
	check.That(t, decidingFile(e, "default_runtime") == "/etc/crio/crio.conf", "%s", decidingFile(e, "default_runtime"))
	check.That(t, decidingFile(e, "cgroup_manager") == e.Config, "%s", decidingFile(e, "cgroup_manager"))
}

// TestNetworkFolder: the folder with networks is that of the setting that an engine reads, in any of
// its files. A comment, such as each line of crio config's output is, sets no other.
func TestNetworkFolder(t *testing.T) {
	const head = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"
	for _, c := range []struct {
		name         string
		main, dropIn string
		network      byte // 1: the engine says that the network is ready
		want         string
	}{
		{"no setting", "", "", 0, "KUB-013"},
		{"a comment", "# network_dir = \"/etc/cni/net.d/\"\n", "", 0, "KUB-013"},
		{"a comment on another folder", "#   conf_dir = \"/opt/cni/net.d\"\n", "", 0, "KUB-013"},
		{"the folder itself", "[cni]\nnetwork_dir = \"/etc/cni/net.d/\"\n", "", 0, "KUB-013"},
		{"another folder", "[cni]\nconf_dir = \"/opt/cni/net.d\"\n", "", 1, ""},
		{"another folder in a drop-in", "", "[cni]\nconf_dir = \"/opt/cni/net.d\"\n", 1, ""},
		{"another folder, and a comment", "# conf_dir = \"/etc/cni/net.d\"\n[cni]\nconf_dir = \"/opt/cni/net.d\"\n", "", 1, ""},
	} {
		n, _ := joined(t, func(r *incident.Machine) {
			r.Put("etc/cni/net.d/.keep", "")
			r.Put("etc/containerd/config.toml", head+c.main)
			r.Put("etc/containerd/conf.d/10-net.toml", "version = 2\n"+c.dropIn)
		})
		n.Daemon("/run/containerd/containerd.sock", func(string, []byte) ([]byte, error) {
			return incident.Status(1, c.network), nil
		})
		r := examine(t, n)
		check.That(t, codes(r) == c.want, "%s: %q, want %q: %v", c.name, codes(r), c.want, r.Causes)
	}
}
