// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// The printed command changes the file, or there is none: a restart without a change helps nothing.
func TestCgroupsCommand(t *testing.T) {
	for text, want := range map[string]string{
		"[o]\nSystemdCgroup = false\n":              "[o]\nSystemdCgroup = true\n",
		"  SystemdCgroup=false\n":                   "  SystemdCgroup=true\n",
		"\tSystemdCgroup   =  false # by hand\n":    "\tSystemdCgroup   =  true # by hand\n",
		"[o]\n":                                     "",
		"# SystemdCgroup = false\n":                 "",
		"options = { SystemdCgroup = false }\n":     "",
		"SystemdCgroup = true\n":                    "",
		"SystemdCgroup = false\n[p]\noptions = 1\n": "SystemdCgroup = true\n[p]\noptions = 1\n",
	} {
		name := filepath.Join(t.TempDir(), "config.toml")
		must.OK(t, os.WriteFile(name, []byte(text), 0o644))
		e := facts.Engine{Config: name, Files: []facts.File{{Path: name, Data: []byte(text)}}}

		_, command := stateCgroups(e, true)
		edit, _, _ := strings.Cut(strings.TrimPrefix(command, "sudo "), " && ")
		if want == "" {
			check.Equal(t, command, "", "%q:", text)
			continue
		}
		must.OK(t, exec.Command("sh", "-c", edit).Run())
		check.Equal(t, string(must.Get(os.ReadFile(name))(t)), want, "%q by %s:", text, edit)
	}
}
