// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// slowSpec asks for what Debian itself has.
const slowSpec = `format = 1
[driver]
version = "535"
source = "distro"
modules = "open"
build = "dkms"
[driver.parameters]
NVreg_RestrictProfilingToAdminUsers = 0
`

// debianAt is where a host that has no network finds Debian's archive.
const debianAt = "127.0.0.1:8099"

// serveDebian answers a host's apt with this machine's Debian archive. apt checks what it gets by
// Debian's keys.
func serveDebian(t *testing.T, h *lab.Host) {
	t.Helper()
	mirror := must.Get(parts.DebianMirror(t.Context()))(t)
	to := must.Get(url.Parse(strings.TrimSuffix(mirror, "/debian")))(t)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
	}}
	listener := h.Listen(debianAt)
	go func() { _ = server.Serve(listener) }() // ends with the listener
	h.Put("/etc/apt/sources.list", "deb http://"+debianAt+"/debian bookworm main contrib non-free non-free-firmware\n", 0o644)
}

// recorded runs gpuadm in a terminal of 80 columns on the host, for longer than a command of a test
// may take, and wants it to exit with 4, since the kernel that has the driver does not run. It
// returns what the terminal showed and when: an asciicast of version 2,
// https://docs.asciinema.org/manual/asciicast/v2/.
func (n node) recorded(limit time.Duration, line string) string {
	n.t.Helper()
	const unit, output, timing = "long.service", "/root/output", "/root/timing"
	began := time.Now()
	n.Must("systemd-run", "--quiet", "--no-block", "--unit", unit, "--property=Type=oneshot", "--property=RemainAfterExit=yes", "--property=TimeoutStartSec=infinity",
		"--setenv=TERM=xterm-256color", "script", "--quiet", "--return", "--log-out", output, "--log-timing", timing, "--command", "stty rows 24 cols 80; "+line)
	for end := began.Add(limit); !strings.Contains("active failed", n.Property(unit, "ActiveState")); time.Sleep(time.Second) {
		if time.Now().After(end) {
			n.t.Fatalf("%s: not done after %s: %s", line, limit, n.Get(output))
		}
	}

	if code := n.Property(unit, "ExecMainStatus"); code != "4" {
		n.t.Fatalf("%s: exit %s: %s", line, code, n.Get(output))
	}
	event := func(at float64, text string) string {
		return string(must.Get(json.Marshal([]any{at, "o", text}))(n.t)) + "\n"
	}
	cast := fmt.Sprintf("{\"version\": 2, \"width\": 80, \"height\": 24, \"timestamp\": %d}\n", began.Unix()) + event(0, "# "+line+"\r\n")
	_, shown, _ := strings.Cut(n.Get(output), "\n") // the first line is script's own
	at, from := 0.0, 0
	for row := range strings.Lines(n.Get(timing)) {
		var after float64
		var size int
		must.Get(fmt.Sscan(row, &after, &size))(n.t)
		if at += after; utf8.ValidString(shown[:from+size]) {
			cast, shown, from, size = cast+event(math.Round(at*100)/100, shown[:from+size]), shown[from+size:], 0, 0
		}
		from += size
	}

	return cast
}

// slowPlace is the disk of the host that TestSlowDebianDriver made, in the cache.
func slowPlace(t *testing.T) string {
	t.Helper()
	below, err := lab.Rootfs("bookworm")
	lab.Have(t, err)
	return filepath.Join(filepath.Dir(below[0]), "slow-1-"+filepath.Base(below[0]))
}

// TestSlowDebianDriver: Debian's own driver, from Debian's archive, compiled by dkms for Debian's
// kernel, which is not the running one. That takes minutes and is done once: later runs find the
// disk in the cache, and check it again.
func TestSlowDebianDriver(t *testing.T) {
	lab.Asked(t)
	place := slowPlace(t)
	if _, err := os.Stat(place); err != nil {
		makeSlow(t, place)
	}
	n := node{lab.Boot(t, lab.Options{
		Dist: "bookworm",
		GPUs: 1,
		Over: place,
	}), t}
	kernel := strings.TrimSpace(n.Must("ls", "/lib/modules"))
	running := strings.TrimSpace(n.Must("uname", "-r"))
	must.That(t, running != kernel && !strings.Contains(kernel, "\n"), "want one kernel, which does not run: %q, and %q runs", kernel, running)
	version, _, _ := strings.Cut(strings.TrimSpace(n.Must("dpkg-query", "--show", "--showformat=${Version}", "nvidia-open-kernel-dkms")), "-")
	t.Logf("nvidia-open-kernel-dkms %s, for kernel %s", version, kernel)
	n.compiled(kernel, version)
	for name, is := range lab.Only(n.AptState(), "nvidia-open-kernel-dkms", "firmware-nvidia-gsp", "libcuda1", "nvidia-smi") {
		check.That(t, is == version+"-1 held" || is == version+"-1 held auto", "package %s is %q", name, is)
	}
	serveDebian(t, n.Host)
	n.gpuadm(0, "apply") // this gpuadm may want something that the one that made the disk did not
	says(t, n.gpuadm(0, "apply"), "Nothing to do.")

	object := "/lib/modules/" + kernel + "/updates/dkms/nvidia-current-open.ko"
	n.Must("mv", object, "/root/away.ko")
	says(t, n.gpuadm(0, "plan", "-v"), "dkms nvidia/"+version+" "+kernel)
	n.Must("mv", "/root/away.ko", object)

	n.gpuadm(0, "undo", "--to", "all")
	left := lab.Only(n.AptState(), "*nvidia*", "dkms", "libcuda1", "linux-headers*", "gcc")
	check.That(t, len(left) == 0, "undo of all left packages: %v", left)
	check.None(t, n.Must("find", "/lib/modules/"+kernel, "/var/lib/dkms", "-name", "*.ko", "-path", "*dkms*"), "undo of all left modules:")
}

// compiled wants modules that are what dkms, modinfo and modprobe say, without gpuadm. Debian's
// packages call the files nvidia-current-open; modprobe gets there from NVIDIA's names, and takes
// the parameters along.
func (n node) compiled(kernel, version string) {
	n.t.Helper()
	out := n.Must("dkms", "status")
	check.That(n.t, strings.HasPrefix(out, "nvidia-current-open/"+version+", "+kernel+", ") && strings.HasSuffix(out, ": installed\n"), "dkms status: %s", out)
	cert := must.Get(x509.ParseCertificate([]byte(n.Get("/var/lib/dkms/mok.pub"))))(n.t)
	for _, part := range []string{"", "-uvm", "-modeset", "-drm", "-peermem"} {
		name := "nvidia-current-open" + part
		check.Equal(n.t, modinfo(n.Host, kernel, "version", name), version, "%s: version", name)
		is := modinfo(n.Host, kernel, "vermagic", name)
		check.That(n.t, strings.HasPrefix(is, kernel+" "), "%s: vermagic %q", name, is)
		key := strings.ToLower(strings.ReplaceAll(modinfo(n.Host, kernel, "sig_key", name), ":", ""))
		serial := fmt.Sprintf("%x", cert.SerialNumber.Bytes())
		check.That(n.t, key == serial, "%s: signed by key %s, and dkms's is %s", name, key, serial)
		out := n.Must("modprobe", "--set-version", kernel, "--show-depends", "nvidia"+part)
		check.That(n.t, strings.Contains(out, name) && (part == "") == strings.Contains(out, "NVreg_RestrictProfilingToAdminUsers=0"), "modprobe nvidia%s: %s", part, out)
	}

	check.Equal(n.t, modinfo(n.Host, kernel, "license", "nvidia-current-open"), "Dual MIT/GPL", "license")
}

// makeSlow has gpuadm do it all on a host with Debian's kernel, and saves the host's disk.
func makeSlow(t *testing.T, place string) {
	t.Helper()
	n := node{lab.Boot(t, lab.Options{Dist: "bookworm", GPUs: 1}), t}
	serveDebian(t, n.Host)
	n.Must("apt-get", "-q", "update")
	n.Must("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends", "install", "linux-image-amd64")
	n.Put(specFile, slowSpec, 0o644)
	began := time.Now()
	cast := n.recorded(40*time.Minute, "gpuadm apply")
	for _, phase := range []string{"download", "dpkg"} {
		live := regexp.MustCompile(`… \d+ packages   `+phase+` \d+%, (\d+m)?\d+s`).FindAllString(cast, -1)
		check.That(t, len(live) > 1, "the live line says %q of the phase %s", live, phase)
	}

	t.Logf("gpuadm apply took %s", time.Since(began).Round(time.Second))
	must.OK(t, os.WriteFile("../../bin/install.cast", []byte(cast), 0o644))
	n.Must("apt-get", "clean")
	must.OK(t, n.Save(t.Context(), place))
}
