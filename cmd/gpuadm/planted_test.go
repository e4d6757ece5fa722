// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// leaky has secrets where gpuadm looks: it edits containerd's configuration and repeats kubelet's
// command line, and apt fails with one in its words.
//
//go:embed testdata/planted.txtar
var leaky string

// leakyNode is a machine with secrets wherever gpuadm reads, and those of them that do not begin
// with planted-.
func leakyNode(t *testing.T) (*simhost.Node, []string) {
	t.Helper()
	n := recordedNode(t, "ubuntu24-h100")
	head := regexp.MustCompile(`(?m)^-- (\S+) --\n`)
	at := head.FindAllStringSubmatchIndex(leaky, -1)
	for i, m := range at {
		end := len(leaky)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		plantFile(t, n, "/"+leaky[m[2]:m[3]], leaky[m[1]:end])
	}

	return n, corpusSecrets(t, n)
}

func recordedNode(t *testing.T, name string) *simhost.Node {
	t.Helper()
	archive := must.Get(os.ReadFile("../../test/hosts/" + name + ".txtar"))(t)
	n := must.Get(simhost.New(archive))(t)
	return n
}

// No output of gpuadm has a secret of the machine.
func TestPlantedSecrets(t *testing.T) {
	n, corpus := leakyNode(t)

	said := func(want int, args ...string) string {
		code, out := onHost(t, n, args...)
		check.That(t, code == want, "%v ends with %d:\n%s", args, code, out)
		for _, secret := range append(corpus, "planted-") {
			check.None(t, lineWith(out, secret), "%v prints %s:", args, secret)
		}
		return out
	}

	out := said(0, "facts", "--record")
	check.That(t, strings.Contains(out, "(masked)") && strings.Contains(out, "--kubeconfig=/var/lib/kubelet/kubeconfig"),
		"the recording has no mark, or no longer what is of use:\n%s", out)
	said(0, "facts")
	said(0, "facts", "-v")
	said(3, "status", "--diff")
	said(0, "facts", "-o", "json")
	check.Has(t, said(0, "plan", "-v"), "(masked)", "no file with a secret is in the plan:")
	said(0, "plan", "-o", "json")
	said(3, "status")
	said(3, "status", "-o", "json")
	said(1, "apply", "-o", "json") // no driver answers: an error is printed as well
	said(0, "undo", "--dry-run")
	said(0, "undo", "--dry-run", "-o", "json")
	said(0, "undo", "--yes")
	said(1, "apply", "-v")
	plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[runtime]\nengine = \"containerd\"\npassword = \"planted-spec\"\n")
	said(2, "plan")
	said(2, "plan", "-o", "json")
}

func lineWith(text, part string) string {
	for line := range strings.Lines(text) {
		if at := strings.Index(line, part); at >= 0 {
			return line[max(0, at-200):min(len(line), at+200)]
		}
	}
	return ""
}

func plantFile(t *testing.T, n *simhost.Node, name, text string) {
	t.Helper()
	dir := "/"
	for part := range strings.SplitSeq(strings.Trim(path.Dir(name), "/"), "/") {
		dir = path.Join(dir, part)
		if _, err := n.Stat(dir); err != nil {
			must.OK(t, n.Mkdir(dir, host.Attr{Mode: 0o755}))
		}
	}

	must.OK(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
}

// corpusSecrets puts the masker's corpus of planted secrets where gpuadm reads files of all forms,
// and returns the secrets.
func corpusSecrets(t *testing.T, n *simhost.Node) (secrets []string) {
	t.Helper()
	data := must.Get(os.ReadFile("../../internal/mask/testdata/planted.txt"))(t)
	for i, part := range strings.Split(string(data), "\n== ")[1:] {
		first, text, _ := strings.Cut(part, "\n")
		for _, m := range regexp.MustCompile(`(?s)«(.*?)»`).FindAllStringSubmatch(text, -1) {
			for _, word := range strings.Fields(m[1]) {
				if len(word) > 5 {
					secrets = append(secrets, word)
				}
			}
		}

		text = strings.NewReplacer("«", "", "»", "").Replace(text)
		switch {
		case strings.Contains(first, ".service"):
			plantFile(t, n, fmt.Sprintf("/etc/systemd/system/containerd.service.d/%03d.conf", i), strings.ReplaceAll(text, "ExecStart=", "ExecStopPost="))
		case strings.HasPrefix(first, "/etc/apt/sources.list"), strings.HasPrefix(first, "/etc/yum"):
			plantFile(t, n, fmt.Sprintf("/etc/apt/sources.list.d/%03d.list", i), text)
		default:
			plantFile(t, n, fmt.Sprintf("/etc/modprobe.d/%03d.conf", i), text)
		}
	}

	return secrets
}
