// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
)

// Each engine states its folders of CDI specs under a name of its own; a file without it states
// none.
func TestCDIFolders(t *testing.T) {
	const v2, v3 = "[plugins.\"io.containerd.grpc.v1.cri\"]\n", "[plugins.\"io.containerd.cri.v1.runtime\"]\n"
	for _, x := range []struct{ engine, version, config, want string }{
		{"containerd", "1.7.24", "version = 2\n" + v2 + "cdi_spec_dirs = [\"/a\", \"/b\"]\n", "/a /b"},
		{"containerd", "2.1.5", "version = 3\n" + v3 + "cdi_spec_dirs = [\"/a\"]\n", "/a"},
		{"containerd", "2.4.2", "version = 3\n" + v3 + "enable_cdi = true\n", ""},
		{"containerd", "1.7.24", "version = \n", ""},
		{"containerd", "1.7.24", "version = 2\n" + v2 + "cdi_spec_dirs = [1]\n", ""},
		{"crio", "1.33.0", "[crio.runtime]\ncdi_spec_dirs = [\"/a\"]\n", "/a"},
		{"crio", "1.33.0", "[crio.runtime]\n", ""},
		{"docker", "28.3.0", `{"cdi-spec-dirs": ["/a"]}`, "/a"},
		{"docker", "28.3.0", `{`, ""},
	} {
		e := facts.Engine{
			Name:    x.engine,
			Version: x.version,
			Config:  "/etc/x",
			Files:   []facts.File{{Path: "/etc/x", Data: []byte(x.config)}},
		}
		got := strings.Join(CDIFolders(e), " ")
		check.Equal(t, got, x.want, "%s %s with %q:", x.engine, x.version, x.config)
	}

	options := facts.Engine{
		Name: "docker",
		Args: []string{"dockerd", "--cdi-spec-dir=/a", "--cdi-spec-dir", "/b"},
	}
	check.Equal(t, strings.Join(CDIFolders(options), " "), "/a /b", "options:")
}
