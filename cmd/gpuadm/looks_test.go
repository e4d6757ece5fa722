// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pairs"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const (
	repoURL  = "[driver.repo]\nurl = \"https://mirror.example/cuda/debian12/x86_64\"\nfingerprint = \"EB693B3035CD5710E231E123A4B469963BF863CC\"\n"
	runfile  = "[driver]\nversion = \"580.95.05\"\nsource = \"runfile\"\n[driver.runfile]\nsha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\n"
	driver   = "[driver]\nversion = \"580\"\n"
	webPage  = "<!DOCTYPE html>\n<html>404</html>\n"
	aLayout  = "version: v1\nmig-configs:\n  half:\n  - devices: all\n    mig-enabled: false\n"
	specPath = specHome + "/node.toml"
)

// TestPlanLooksFirst: what the spec names and the machine does not have is refused by plan, validate
// and apply, with the line of the spec, before anything is touched.
func TestPlanLooksFirst(t *testing.T) {
	type row struct {
		name, host, spec, want string
		needsOS                bool // validate judges it with --os
	}
	rows := []row{
		{"no such driver", "debian12-containerd16", "[driver]\nversion = \"470\"\nsource = \"distro\"\n", ":3:1: cannot install driver 470", true},
		{"no such package to leave out", "debian12-containerd16", driver + "without = [\"nvidia-none\"]\n", ":4:1: cannot leave out package nvidia-none", true},
	}
	for _, r := range []struct{ name, host, spec, want string }{
		{"no layouts", "mig-h100-a100-t4", "[mig]\nfile = \"/etc/gpuadm/none\"\nlayout = \"x\"\n", ":3:1: cannot .*/etc/gpuadm/none"},
		{"a folder as layouts", "mig-h100-a100-t4", "[mig]\nfile = \"/etc\"\nlayout = \"x\"\n", ":3:1: cannot use /etc as file in .mig.: it is a folder"},
		{"a circle as layouts", "mig-h100-a100-t4", "[mig]\nfile = \"/etc/gpuadm/circle\"\nlayout = \"x\"\n", ":3:1: cannot use /etc/gpuadm/circle as file in .mig."},
		{"no such layout", "mig-h100-a100-t4", "[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nlayout = \"halv\"\n", ":4:1: cannot find layout .*halv"},
		{"too many partitions", "mig-h100-a100-t4", "[[mig.gpu]]\nmatch = [\"H100-80GB\"]\nlayout = { \"3g.40gb\" = 3 }\n", ":2:7: cannot make 3 × 3g.40gb on H100-80GB"},
		{"no such profile", "mig-h100-a100-t4", "[[mig.gpu]]\nmatch = [\"A100-40GB\"]\nlayout = { \"1g.35gb\" = 1 }\n", ":2:7: cannot make 1g.35gb on A100-40GB"},
		{"no such GPU", "mig-h100-a100-t4", "[[mig.gpu]]\nmatch = [\"B200\"]\nlayout = { \"1g.23gb\" = 1 }\n", ":2:7: cannot partition the GPUs: no entry is for any of them"},
		{"no driver yet, a folder as layouts", "debian12-containerd16", "[mig]\nfile = \"/etc\"\n", ":3:1: cannot use /etc as file in .mig.: it is a folder"},
		{"no driver yet, no layouts", "debian12-containerd16", "[mig]\nfile = \"/etc/gpuadm/none\"\n", ":3:1: cannot .*/etc/gpuadm/none"},
		{"no key", "debian12-containerd16", driver + repoURL + "key = \"/etc/gpuadm/none\"\n", ":7:1: cannot use /etc/gpuadm/none as key in .driver.repo.: it does not exist"},
		{"a web page as key", "debian12-containerd16", driver + repoURL + "key = \"/etc/gpuadm/page\"\n", ":7:1: .*a web page"},
		{"a folder as key", "debian12-containerd16", driver + repoURL + "key = \"/etc\"\n", ":7:1: .*it is a folder"},
		{"a link to nowhere as key", "debian12-containerd16", driver + repoURL + "key = \"/etc/gpuadm/dangling\"\n", ":7:1: .*it is a link to nowhere, which does not exist"},
		{"a circle as key", "debian12-containerd16", driver + repoURL + "key = \"/etc/gpuadm/circle\"\n", ":7:1: .*it is a link that leads back to itself"},
		{"no runfile", "debian13-containerd17", runfile + "url = \"/srv/none.run\"\n", ":7:1: cannot use /srv/none.run"},
		{"another runfile", "debian13-containerd17", runfile + "url = \"/etc/gpuadm/page\"\n", ":7:1: .*its sha256 is a296"},
		{"no such parameter", "debian12-containerd16", driver + "parameters = { RestrictProfilingToAdminUsers = 0 }\n", ":4:16: cannot set RestrictProfilingToAdminUsers"},
		{"a parameter of another module", "debian12-containerd16", driver + "parameters = { modeset = 1 }\n", ":4:16: cannot set modeset: it is a parameter of the module nvidia_drm"},
		{"no runtime", "debian12-containerd16", "[toolkit]\nruntimes = [\"/srv/none\"]\n", ":3:1: .*runtimes"},
		{"no kubeconfig", "debian12-containerd16", "[node]\nkubeconfig = \"/etc/gpuadm/none\"\n", ":3:1: cannot use /etc/gpuadm/none as kubeconfig"},
		{"a folder as kubeconfig", "debian12-containerd16", "[node]\nkubeconfig = \"/etc\"\n", ":3:1: .*it is a folder"},
		{"no certificates", "debian12-containerd16", driver + "[proxy]\nhttps = \"http://10.0.0.1:3128\"\nca_file = \"/etc/gpuadm/page\"\n", ":6:1: .*a web page"},
	} {
		rows = append(rows, row{r.name, r.host, r.spec, r.want, false})
	}

	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			n := must.Get(simhost.New(recorded(t)[tt.host]))(t)
			pairs.Write(t, n, specHome+"/page", webPage)
			pairs.Write(t, n, specHome+"/mig.yaml", aLayout)
			pairs.Write(t, n, specPath, "format = 1\n"+tt.spec)
			must.OK(t, n.Symlink(specHome+"/dangling", "nowhere"))
			must.OK(t, n.Symlink(specHome+"/circle", "circle"))
			before := n.Touches()
			want := regexp.MustCompile(regexp.QuoteMeta(specPath) + tt.want)

			for _, verb := range []string{"plan", "apply", "validate"} {
				code, out := onHost(t, n, verb)
				if verb == "validate" && tt.needsOS {
					continue
				}
				check.That(t, code != 0, "%s: exit code 0\n%s", verb, out)
				check.That(t, want.MatchString(out), "%s does not say %s:\n%s", verb, want, out)
			}

			_, out := onHost(t, n, "plan", "-o", "json")
			check.That(t, want.MatchString(out), "plan -o json does not say %s:\n%s", want, out)
			check.Equal(t, n.Touches(), before, "touches")
		})
	}
}

// TestPlanSaysWhatComesLater: a plan with pending changes lists what only a later moment can judge,
// in text and in JSON; a machine that has nothing to do lists nothing.
func TestPlanSaysWhatComesLater(t *testing.T) {
	n := must.Get(simhost.New(recorded(t)["debian12-containerd16"]))(t)
	pairs.Write(t, n, specPath, "format = 1\n"+driver+"parameters = { NVreg_New = 1 }\n[proxy]\nhttps = \"http://10.0.0.1:3128\"\n")

	code, out := onHost(t, n, "plan")
	check.That(t, code == 0, "exit code %d", code)
	for _, want := range []string{
		"Decided later:\n",
		"  driver.parameters NVreg_New (/etc/gpuadm/node.toml:4): once the module is installed: no driver that this gpuadm knows has NVreg_New\n",
		"  proxy.https http://10.0.0.1:3128 (/etc/gpuadm/node.toml:6): when gpuadm first reaches the network through it\n",
	} {
		check.That(t, strings.Contains(out, want), "plan lacks %q:\n%s", want, out)
	}

	_, out = onHost(t, n, "plan", "-o", "json")
	var p converge.Plan
	must.OK(t, json.Unmarshal([]byte(out), &p))
	must.That(t, len(p.Later) == 2, "%+v", p.Later)
	check.Equal(t, p.Later[1].Key, "proxy.https", "key:")
	check.Equal(t, p.Later[1].At, specPath+":6", "place:")

	pairs.Write(t, n, specPath, "format = 1\n[proxy]\nhttps = \"http://10.0.0.1:3128\"\n")
	_, out = onHost(t, n, "plan")
	check.That(t, !strings.Contains(out, "later"), "nothing is pending:\n%s", out)
}

// TestUnreadNames: a file beside the spec that gpuadm does not read is named.
func TestUnreadNames(t *testing.T) {
	n := must.Get(simhost.New(recorded(t)["debian12-containerd16"]))(t)
	pairs.Write(t, n, specPath, "format = 1\n[runtime]\n")
	unread := []string{"node.d/10-pool.tml", "node.d/10.conf", "node.d/.20.toml", "20-pool.toml"}
	for _, name := range append(unread, "node.d/README.md", "node.d/30.toml", "mig.yaml") {
		text := ""
		if name == "node.d/30.toml" {
			text = "[node]\n"
		}
		pairs.Write(t, n, specHome+"/"+name, text)
	}

	for _, verb := range []string{"plan", "validate", "status"} {
		_, out := onHost(t, n, verb)
		for _, name := range unread {
			named := strings.Contains(out, specHome+"/"+name+" is not read")
			check.That(t, named, "%s does not name %s:\n%s", verb, name, out)
		}

		for _, name := range []string{"README", "30.toml is", "mig.yaml"} {
			check.That(t, !strings.Contains(out, name), "%s names %s:\n%s", verb, name, out)
		}
	}

	_, out := onHostWith(t, n, "format = 1\n[runtime]\n", []string{"plan", "-f", "-"}...)
	check.That(t, !strings.Contains(out, "is not read"), "with -f node.d is not the spec:\n%s", out)
}

// TestSpecBehindALink: where a part of the spec is a link to what is not there, such as a disk that is
// not mounted, the rest of it is another spec, and gpuadm does not go by it.
func TestSpecBehindALink(t *testing.T) {
	for _, name := range []string{specPath, specHome + "/node.d", specHome} {
		n := appliedNode(t)
		must.OK(t, n.Remove(specPath))
		if name == specHome {
			must.OK(t, n.Remove(specHome))
		} else if name != specPath {
			pairs.Write(t, n, specPath, "format = 1\n[runtime]\n")
		}

		must.OK(t, n.Symlink(name, "/data/gpuadm"))

		before := n.Tree(converge.Home, "/run")
		want := "cannot read " + name + ": it is a link to /data/gpuadm, which is not there"
		for _, verb := range []string{"plan", "status", "apply", "validate"} {
			code, out := onHost(t, n, verb)
			check.That(t, code != 0 && strings.Contains(out, want), "%s: exit code %d\n%s", verb, code, out)
		}

		// A boot goes by the spec that was applied last.
		out := ends(t, n, 0, "gate")
		check.Has(t, out, want, "the gate")
		check.Equal(t, n.Tree(converge.Home, "/run"), before, "%s:", name)
	}
}

// TestValidateJudgesOwnFiles: on the machine validate refuses what plan refuses: files that others can
// write. It does not ask for a file that it has read.
func TestValidateJudgesOwnFiles(t *testing.T) {
	n := must.Get(simhost.New(recorded(t)["debian12-containerd16"]))(t)
	pairs.Write(t, n, specHome+"/mig.yaml", aLayout)
	pairs.Write(t, n, specPath, "format = 1\n[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nlayout = \"half\"\n")
	out := ends(t, n, 0, "validate")
	check.That(t, !strings.Contains(out, "--mig-file"), "it has read the file:\n%s", out)

	// Only root may read it, or the disk fails.
	for _, cause := range []error{syscall.EACCES, syscall.EIO} {
		_, out := watch(n).without("read "+specHome+"/mig.yaml", cause).said(t, "validate")
		check.Has(t, out, "not checked: /etc/gpuadm/node.toml:3: mig.file /etc/gpuadm/mig.yaml: ", "%v:", cause)
	}

	must.OK(t, n.SetAttr(specHome+"/mig.yaml", host.Attr{Mode: 0o666}))
	for _, verb := range []string{"plan", "validate"} {
		out := ends(t, n, exitCannot, verb)
		check.Has(t, out, "cannot trust /etc/gpuadm/mig.yaml: all users can write to it", "%s:", verb)
	}
}

// TestBakeWithoutKernel: an image without a kernel gets no driver, and none of its packages.
func TestBakeWithoutKernel(t *testing.T) {
	kernels := regexp.MustCompile(`(?m)^-- (?:usr/)?lib/modules/.*\n|^-- boot/vmlinuz.*\n`)
	archive := kernels.ReplaceAll(recorded(t)["debian12-containerd16"], nil)
	must.That(t, !bytes.Equal(archive, recorded(t)["debian12-containerd16"]), "the machine has no kernel")
	n := must.Get(simhost.New(archive))(t)
	pairs.Write(t, n, specPath, "format = 1\n[driver]\nversion = \"535\"\nsource = \"distro\"\n")
	before := n.Touches()

	for _, args := range [][]string{{"bake", "--dry-run"}, {"bake", "--gpu", "H100-80GB"}} {
		var all strings.Builder
		e := envOn(n, &all)
		e.image = func(string, *local.ModuleKey, commands.Follow) (host.Host, func(), error) {
			n.Bake()
			return n, func() {}, nil
		}

		code := run(context.Background(), e, args)
		out := all.String()
		check.Equal(t, code, exitCannot, "%v, exit code:", args)
		refused := strings.Contains(out, specPath+":3:1: cannot install a driver into the image: no kernel")
		check.That(t, refused, "%v:\n%s", args, out)
	}

	check.Equal(t, n.Touches(), before, "touches")
}

// TestLooksPage: docs/looks.md says of each key what gpuadm looks at and when.
func TestLooksPage(t *testing.T) {
	const name = "../../docs/looks.md"
	page := string(must.Get(os.ReadFile(name))(t))
	const begin, end = "<!-- table -->\n", "<!-- end of table -->\n"
	before, rest, found := strings.Cut(page, begin)
	_, after, ended := strings.Cut(rest, end)
	must.That(t, found && ended, "%s has no place for the table", name)

	want := before + begin + "\n" + stages.LooksPage() + "\n" + end + after
	if *update {
		must.OK(t, os.WriteFile(name, []byte(want), 0o644))
		return
	}
	check.None(t, diff.Texts(name, []byte(page), []byte(want)), "%s:", name)
}
