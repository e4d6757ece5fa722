// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestRuleNamesItsFile: the file that breaks a rule of the plugin is named, and not a later one with
// another setting of the same table, such as gpuadm's own.
func TestRuleNamesItsFile(t *testing.T) {
	const (
		cri   = "plugins.\"" + criV2 + "\""
		certs = "[" + cri + ".registry]\nconfig_path = \"/etc/containerd/certs.d\"\n"
		auth  = "[" + cri + ".registry.configs.\"b.example\".auth]\nusername = \"u\"\n"
		own   = "[" + cri + ".containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n"
	)
	for name, x := range map[string]struct{ root, later, says string }{
		"mirrors": {
			certs + "[" + cri + ".registry.mirrors.\"docker.io\"]\nendpoint = [\"https://m.example\"]\n", auth,
			"registry.mirrors is there beside",
		},
		"the TLS of a registry": {
			certs + "[" + cri + ".registry.configs.\"a.example\".tls]\nca_file = \"/x\"\n", auth,
			"registry.configs.a.example.tls is there beside",
		},
		"privileged": {
			"[" + cri + ".containerd.runtimes.kata]\nprivileged_without_host_devices_all_devices_allowed = true\n", own,
			"runtimes.kata has",
		},
		"no duration": {"[" + cri + "]\nstream_idle_timeout = \"soon\"\n", own, "stream_idle_timeout = "},
	} {
		tree := Tree{
			Root:    File{Path: etc + "/config.toml", Data: []byte("version = 2\n" + x.root)},
			Imports: []File{{Path: etc + "/conf.d/99-gpuadm.toml", Data: []byte("version = 2\n" + x.later)}},
		}
		dump := must.Get(toml.Values([]byte(x.root + x.later)))(t)
		err := checkRules(dump, tree)
		check.Has(t, fmt.Sprint(err), ": "+etc+"/config.toml: "+x.says, "%s:", name)
	}
}
