// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"path"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestFilesHaveTheirFolders: a plan that makes a file also makes the folder of that file, in the
// same stage: an operator may skip the stage before it, and a machine need not have what its
// distribution's packages usually bring.
func TestFilesHaveTheirFolders(t *testing.T) {
	const (
		driver  = "[driver]\nversion = \"580\"\nparameters = { NVreg_EnableMSI = 1 }\n[driver.repo]\n" + mirror
		toolkit = "[toolkit]\nversion = \"1.18.0\"\naccept_envvar_unprivileged = false\n[toolkit.repo]\n" + mirror
		proxies = "[proxy]\nhttps = \"http://proxy.example:3128\"\n"
	)
	texts := []string{
		driver + toolkit + proxies,
		"[driver]\nversion = \"580\"\nsource = \"distro\"\n",
		labelsA + taint,
		sections["default"],
		sections["docker"],
		sections["crio"],
	}

	files := 0
	for _, m := range archives(t) {
		n := m.boot(t)
		for _, text := range texts {
			for _, st := range engine(t, text).Stages {
				e := engine(t, text)
				e.Before = e.Stages
				e.Stages = []converge.Stage{st}
				p, err := e.Plan(context.Background(), n)
				if err != nil {
					continue // another test's
				}

				made := map[string]bool{}
				for _, c := range p.Changes {
					pending := c.Cannot == "" && c.Deferred == "" && c.After != ""
					switch {
					case !pending:
					case c.Kind == "folder":
						made[c.Name] = true
					case c.Kind == "file", c.Kind == "key":
						files++
						folder := path.Dir(c.Name)
						_, err := n.Stat(folder)
						check.That(t, err == nil || made[folder], "%s, stage %s: nothing makes the folder of %s", m.name, st.Name, c)
					}
				}
			}
		}
	}

	check.That(t, files >= 100, "only %d files: the law was hardly tested", files)
}
