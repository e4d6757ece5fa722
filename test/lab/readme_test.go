// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// readmeDiffers are the lines of README.md and docs/install.md that are typed otherwise here, and
// what is typed.
func readmeDiffers() map[string]string {
	return map[string]string{
		"make build":                                  "test -x bin/gpuadm",                                      // make lab has built it
		"apt install ./gpuadm_1.2.0-1_amd64.deb":      "apt install ./gpuadm_0.0.1-1_" + runtime.GOARCH + ".deb", // the version that make packages makes
		"sudo apt install ./gpuadm_1.2.0-1_amd64.deb": "sudo apt install ./gpuadm_0.0.1-1_" + runtime.GOARCH + ".deb",
		"scp gpuadm_1.2.0-1_amd64.deb gpu-01:":        "scp gpuadm_0.0.1-1_" + runtime.GOARCH + ".deb gpu-01:",
	}
}

// readmeMachine is the lab's share of gpu-01's spec: the driver came with the machine's image,
// since hosts share their kernel; and the toolkit's packages come from the lab, since hosts have no
// network.
//
// It has no CDI, since its nvidia-ctk is a stand-in: see withoutCDI.
const readmeMachine = `format = 1
[driver]
owner = "other"
[runtime]
cdi = false
[toolkit.repo]
url = %q
key = %q
fingerprint = %q
`

// readmeDriver makes a driver that is loaded: its files in /proc and /sys, as in blindBoot of
// test/lab/kube.
//
//go:embed testdata/readme-driver.sh
var readmeDriver string

// blocks are the code blocks of a document's section, line by line.
func blocks(t *testing.T, file, section string) (all [][]string) {
	t.Helper()
	text := must.Get(os.ReadFile("../../" + file))(t)
	_, text2, found := strings.Cut(string(text), "\n## "+section+"\n")
	must.That(t, found, "%s has no section %q", file, section)
	text2, _, _ = strings.Cut(text2, "\n## ")
	fenced := false
	var block []string
	for line := range strings.Lines(text2) {
		line = strings.TrimSuffix(line, "\n")
		switch indented := strings.HasPrefix(line, "    "); {
		case line == "```" || !fenced && !indented && len(block) > 0:
			if len(block) > 0 {
				all = append(all, block)
			}
			block, fenced = nil, line == "```" && !fenced
		case fenced || indented:
			block = append(block, strings.TrimPrefix(line, "    "))
		}
	}

	return all
}

// TestLabReadme types README's quick start, line by line: from a laptop over ssh to a converged
// node and back, the check of a spec without a machine and without root, and the installation by a
// package.
func TestLabReadme(t *testing.T) {
	t.Parallel()
	wires := lab.NewSwitch(t)
	deb := repos.Deb(t, repos.Recipe{})
	built := must.Get(filepath.Abs("../../bin"))(t)
	pack := "gpuadm_0.0.1-1_" + runtime.GOARCH + ".deb"
	laptop := node{lab.Boot(t, lab.Options{Dist: "bookworm", SSH: true, Name: "laptop", Wire: wires.Wire(10), Files: map[string]string{
		"/home/alice/bin/gpuadm": built + "/gpuadm", "/home/alice/" + pack: built + "/packages/" + pack,
	}}), t}
	n := node{lab.Boot(t, lab.Options{
		Dist:  "bookworm",
		GPUs:  8,
		SSH:   true,
		Name:  "gpu-01",
		Wire:  wires.Wire(11),
		Repos: deb,
	}), t}
	repos.Show(n.Host, repos.Good)
	n.Must("rm", "/usr/bin/nvidia-container-runtime", "/usr/local/sbin/gpuadm") // the toolkit's package has the first, and README brings the second
	laptop.Must("rm", "/usr/local/sbin/gpuadm")
	parts := fakenvml.Build(t)
	for from, to := range map[string]string{
		parts.Library: "/usr/local/lib/" + fakenvml.Soname, parts.CUDA: "/usr/local/lib/" + fakenvml.CUDASoname,
		parts.Tool: "/usr/local/bin/fakenvml", parts.NvidiaSMI: "/usr/local/bin/nvidia-smi",
	} {
		data := must.Get(os.ReadFile(from))(t)
		n.Put(to, string(data), 0o755)
	}

	n.Must("sh", "-c", readmeDriver)
	n.Put("/etc/gpuadm/node.d/lab.toml", fmt.Sprintf(readmeMachine, repos.Mirror+"/"+repos.Toolkit+"/deb/amd64", repos.Key, repos.Fingerprint(t, deb)), 0o644)
	laptop.Must("sh", "-ec", `useradd --shell /bin/bash alice
mkdir -p -m 700 /home/alice/.ssh
ssh-keygen -q -t ed25519 -N '' -f /home/alice/.ssh/id_ed25519
printf 'Host gpu-01\n  HostName 10.201.0.11\n' >/home/alice/.ssh/config
ssh-keyscan 10.201.0.11 >/home/alice/.ssh/known_hosts
chown -R alice: /home/alice/.ssh; chown alice: /home/alice`)
	n.Must("sh", "-ec", `useradd --create-home --shell /bin/bash alice
echo "alice ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/alice
mkdir -m 700 /home/alice/.ssh; echo '`+strings.TrimSpace(laptop.Get("/home/alice/.ssh/id_ed25519.pub"))+`' >/home/alice/.ssh/authorized_keys
chown -R alice: /home/alice/.ssh`)
	n.answers()
	first := n.TreeOutsideCaches()

	there := "" // the machine of the shell that lines are typed in; "" is the laptop
	typed := func(line string) lab.Result {
		t.Helper()
		words, comment, _ := strings.Cut(line, "#")
		words = strings.TrimSpace(words)
		if other, differs := readmeDiffers()[words]; differs {
			line = other
		}
		if to, is := strings.CutPrefix(words, "ssh "); is && !strings.Contains(to, " ") {
			there, line = to, words+" true"
		} else if there != "" {
			line = "ssh " + there + " '" + strings.ReplaceAll(line, "'", `'\''`) + "'"
		}

		began := time.Now()
		r := laptop.Exec("runuser", "-u", "alice", "--", "env", "HOME=/home/alice", "sh", "-c", "cd && "+line)
		t.Logf("$ %s (%s), %.1f s\n%s", words, strings.TrimSpace(comment), time.Since(began).Seconds(), r)
		must.That(t, r.Exit == 0, "%s, want exit code 0: %s", words, r)
		return r
	}

	quick := blocks(t, "README.md", "Quick start on a node")
	must.That(t, len(quick) >= 3, "the quick start has %d blocks, want a node's by build and by package, and a laptop's: %q", len(quick), quick)
	for _, block := range quick[:2] {
		n.Must("rm", "-f", specFile) // the two are alternatives: each writes its own node.toml
		var last lab.Result
		for _, line := range block {
			last = typed(line)
		}
		says(t, last, "runs\n", "converged")
		check.Equal(t, n.Property(bootUnit, "UnitFileState"), "enabled", "%s is", bootUnit)
		typed("sudo gpuadm undo --to all")
		there = ""
	}

	n.Must("dpkg", "--purge", "gpuadm")
	check.None(t, ourOwn(first.Diff(n.TreeOutsideCaches())), "after README's undo:")
	there = ""
	for _, line := range quick[2] {
		typed(line)
	}
	install := blocks(t, "docs/install.md", "Install")[0][0]
	words, _, _ := strings.Cut(install, "  ")
	r := laptop.Exec("sh", "-c", "cd /home/alice && "+readmeDiffers()[words])
	check.That(t, r.Exit == 0, "%s: %s", install, r)
	typed("gpuadm version")
}
