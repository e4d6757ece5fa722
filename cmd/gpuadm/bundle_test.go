// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/local"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// says makes a program that answers the same to all questions.
func says(text string) simhost.Program {
	return simhost.Program{
		Looks: func([]string) bool { return true },
		Run:   func(*files.Files, []string) ([]byte, error) { return []byte(text), nil },
	}
}

// leakyJournal has secrets in the forms in which programs log them.
const leakyJournal = `2026-11-23T04:00:01+00:00 node containerd[811]: time="2026-11-23T04:00:01Z" level=error msg="failed to resolve: https://robot:planted-resolve@registry.example/v2/: 401"
2026-11-23T04:00:02+00:00 node kubelet[902]: I1123 04:00:02.000001 flags.go:64] FLAG: --bootstrap-token="planted-flag"
2026-11-23T04:00:03+00:00 node kubelet[902]: E1123 request failed, Authorization: Bearer planted-bearer
2026-11-23T04:00:04+00:00 node dockerd[700]: {"auths":{"registry.example":{"auth":"planted-auth"}}}
2026-11-23T04:00:05+00:00 node gpuadm[12]: cannot fetch https://u:planted-fetch@mirror.example/x?sig=planted-sig
2026-11-23T04:00:06+00:00 node cloud-init[500]: export HTTPS_PROXY=http://me:planted-proxy@proxy.example:3128 password=planted-word
2026-11-23T04:00:07+00:00 node kernel: NVRM: loading NVIDIA UNIX Open Kernel Module
`

// onNode runs gpuadm on a simulated machine.
func onNode(t *testing.T, n *simhost.Node, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	e := envOn(n, &stdout)
	e.stderr = &stderr
	code = run(context.Background(), e, args)
	return code, stdout.String(), stderr.String()
}

// unpacked is a bundle's files, by name.
func unpacked(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	gz := must.Get(gzip.NewReader(bytes.NewReader(packed)))(t)
	files := map[string]string{}
	for archive := tar.NewReader(gz); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		} else if err != nil {
			t.Fatal(err)
		}

		data := must.Get(io.ReadAll(archive))(t)
		check.That(t, len(files) > 0 || head.Name == bundleFolder+"index.txt", "the first file is %s", head.Name)
		files[strings.TrimPrefix(head.Name, bundleFolder)] = string(data)
	}
}

// TestBundleHasNoSecret packs a machine that has secrets wherever gpuadm reads, and what it has
// done there.
func TestBundleHasNoSecret(t *testing.T) {
	n, corpus := leakyNode(t)
	plantFile(t, n, "/root/.docker/config.json", `{"auths":{"registry.example":{"auth":"planted-docker"}}}`)
	plantFile(t, n, "/etc/rancher/k3s/config.yaml", "token: planted-token\nagent-token: planted-agent\ndatastore-endpoint: mysql://u:planted-db@tcp(db.example:3306)/k3s\netcd-s3-secret-key: planted-s3\n")
	plantFile(t, n, "/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock --bootstrap-token=planted-kubeadm\"\nPLAIN=planted-plain\n")
	plantFile(t, n, "/etc/docker/daemon.json", `{"proxies":{"https-proxy":"http://me:planted-daemon@proxy.example:3128"}}`)
	n.Install("journalctl", says(leakyJournal))
	onNode(t, n, "apply") // the journal has a failed run
	code, packed, errs := onNode(t, n, "bundle", "-o", "-")
	must.That(t, code == 0, "exit code %d: %s", code, errs)
	files := unpacked(t, []byte(packed))
	for name, text := range files {
		for _, secret := range append(corpus, "planted-") {
			check.That(t, !strings.Contains(text, secret), "%s has %s:\n%s", name, secret, lineWith(text, secret))
		}
	}

	for name, want := range map[string]string{
		"journal/containerd.service.txt": "(masked)", "journal/gpuadm.txt": "mirror.example", "kernel.txt": "loading NVIDIA UNIX Open Kernel Module",
		"plan.json": `"changes":[{`, "facts.txtar": "-- etc/containerd/config.toml", "units.txt": "kubelet.service",
		"status.json": `"runs":[{`, "doctor.json": `"checks":`, "versions.txt": "gpuadm devel",
	} {
		check.That(t, strings.Contains(files[name], want), "%s lacks %s:\n%s", name, want, files[name])
		check.That(t, strings.Contains(files["index.txt"], name), "the index does not name %s:\n%s", name, files["index.txt"])
	}
}

// TestBundleOfABrokenMachine: nothing answers, there is no spec, the journal of gpuadm is damaged.
// What there is comes, the rest is named.
func TestBundleOfABrokenMachine(t *testing.T) {
	n := recordedNode(t, "ubuntu24-h100")
	n.Install("journalctl", says(strings.Repeat("2026-11-23T04:00:01+00:00 node kernel: nvidia: line\n", 40_000)))
	plantFile(t, n, "/var/lib/gpuadm/journal.jsonl", "garbage\n")
	plantFile(t, n, "/tmp/there.tar.gz", "another's")
	code, out, errs := onNode(t, n, "bundle", "-o", "/tmp/a.tar.gz")
	must.That(t, code == 0, "exit code %d: %s%s", code, out, errs)
	packed := must.Get(n.ReadFile("/tmp/a.tar.gz"))(t)
	i, err := n.Stat("/tmp/a.tar.gz")
	check.That(t, err == nil && i.Mode.Perm() == 0o600, "the mode is %v (%v)", i.Mode, err)
	files := unpacked(t, packed)
	size := 0
	for _, text := range files {
		size += len(text)
	}
	check.That(t, size <= bundleMost+1<<20 && len(files["kernel.txt"]) <= partMost+1<<10 && strings.HasPrefix(files["kernel.txt"], "(the beginning is left out)\n2026"),
		"%d bytes, of them %d in kernel.txt, which begins with %.60q", size, len(files["kernel.txt"]), files["kernel.txt"])
	for _, name := range []string{"plan.json", "packages.txt"} {
		_, packed := files[name]
		at := strings.Index(files["index.txt"], "\nNot in it:\n")
		check.That(t, !packed && at >= 0 && strings.Contains(files["index.txt"][at:], name) && strings.Contains(out, name),
			"%s is not named as missing:\n%s\n%s", name, files["index.txt"], out)
	}

	check.That(t, strings.Contains(files["facts.txtar"], "-- sim.toml --"), "no recording:\n%s", files["index.txt"])
	for _, there := range []string{"/tmp/a.tar.gz", "/tmp/there.tar.gz"} {
		before, _ := n.ReadFile(there)
		code, _, errs := onNode(t, n, "bundle", "-o", there)
		check.That(t, code == 1 && strings.Contains(errs, "the file exists") && strings.Contains(errs, "try "), "exit code %d: %s", code, errs)
		after, _ := n.ReadFile(there)
		check.That(t, bytes.Equal(before, after), "%s was overwritten", there)
	}
}

// TestBundleBecomesATest does what docs/bundle.md says with the bundles of recorded machines: the
// recording taken out by one command gives the same facts.
func TestBundleBecomesATest(t *testing.T) {
	doc := must.Get(os.ReadFile("../../docs/bundle.md"))(t)
	const command = "tar -xzOf BUNDLE gpuadm-bundle/facts.txtar > test/hosts/NAME.txtar"
	must.That(t, strings.Contains(string(doc), command), "docs/bundle.md does not have the command %s", command)
	hosts, err := filepath.Glob("../../test/hosts/*.txtar")
	must.That(t, err == nil && len(hosts) >= 15, "%v: %v", hosts, err)
	for _, host := range hosts {
		name := strings.TrimSuffix(filepath.Base(host), ".txtar")
		t.Run(name, func(t *testing.T) {
			n := recordedNode(t, name)
			code, packed, errs := onNode(t, n, "bundle", "-o", "-")
			must.That(t, code == 0, "exit code %d: %s", code, errs)
			f := must.Get(facts.Gather(t.Context(), n.View(), facts.Everything))(t)
			units := []string{f.Kubelet.Unit}
			for _, e := range f.Engines {
				units = append(units, e.Unit)
			}
			for _, unit := range units {
				check.That(t, !n.Live() || strings.Contains("\n"+unpacked(t, []byte(packed))["units.txt"], "\n"+unit), "the bundle lacks %s", unit)
			}
			dir := t.TempDir()
			must.OK(t, os.MkdirAll(filepath.Join(dir, "test/hosts"), 0o755))
			must.OK(t, os.WriteFile(filepath.Join(dir, "BUNDLE"), []byte(packed), 0o600))
			cmd := exec.Command("sh", "-c", command)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
			archive := must.Get(os.ReadFile(filepath.Join(dir, "test/hosts/NAME.txtar")))(t)
			again, err := simhost.New(archive)
			must.That(t, err == nil, "%v\n%s", err, archive)
			check.None(t, cmp.Diff(factLines(t, n), factLines(t, again)), "other facts:")
		})
	}
}

func factLines(t *testing.T, n *simhost.Node) []string {
	t.Helper()
	f := must.Get(facts.Gather(t.Context(), n.View(), facts.Everything))(t)
	text := must.Get(json.MarshalIndent(f, "", " "))(t)
	lines := slices.Collect(strings.SplitSeq(string(text), "\n"))
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, `"instanceID"`) }) // an identity leaves no machine
}

// TestBundleWithoutSystemd: the reason is a sentence about the machine, not about a later time.
func TestBundleWithoutSystemd(t *testing.T) {
	var out bytes.Buffer
	e := envOn(nil, &out)
	e.open = local.OpenFollowed
	run(t.Context(), e, []string{"bundle", "--root", t.TempDir(), "-o", filepath.Join(t.TempDir(), "a.tar.gz")})
	check.That(t, strings.Contains(out.String(), "units.txt: systemd does not run here\n"), "units.txt has another reason:\n%s", out.String())
	text := out.String()
	check.That(t, !strings.Contains(text, "first boot") && strings.Contains(text, "kernel.txt: the machine does not run"),
		"a folder may be the disk of a machine that has booted:\n%s", text)
}

// silentUnit is a machine whose systemd does not answer for one unit.
type silentUnit struct {
	*simhost.Node
	name string
}

func (s silentUnit) Unit(ctx context.Context, name string) (host.Unit, error) {
	if name == s.name {
		return host.Unit{}, errors.New("systemd does not answer")
	}
	return s.Node.Unit(ctx, name)
}

// TestBundleNamesUnreadUnit: a bundle names a unit that gpuadm could not look at. It leaves out only
// a unit that the machine does not have.
func TestBundleNamesUnreadUnit(t *testing.T) {
	n := recordedNode(t, "ubuntu24-h100")
	var out bytes.Buffer
	run(t.Context(), envOn(silentUnit{n, "cloud-final.service"}, &out), []string{"bundle", "-o", "-"})
	units := unpacked(t, out.Bytes())["units.txt"]
	check.Has(t, units, "containerd.service", "units.txt")
	check.That(t, strings.Contains(lineWith(units, "cloud-final.service"), "systemd does not answer"),
		"the unit is not named:\n%s", units)
}
