// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// Every recorded machine has a plan for a driver, or a refusal that says what to do.
func TestDriverPlans(t *testing.T) {
	planned := 0
	for _, m := range machines(t) {
		n := m.boot(t)
		if facts.PackagerOf(n).Name != "apt" {
			continue // rpm's answers were not recorded
		}
		planned++
		for _, text := range []string{
			"[driver]\nversion = \"580\"\n",
			"[driver]\nversion = \"580.95.05\"\nmodules = \"open\"\n[toolkit]\nversion = \"1.18.0\"\n",
			"[driver]\nversion = \"580.95.05\"\nowner = \"other\"\n",
		} {
			p := plan(t, n, engine(t, text))
			must.That(t, n.Touches() <= 0 && len(n.Violations()) == 0, "%s: %d touches, %v", m.name, n.Touches(), n.Violations())
			for _, c := range p.Cannot() {
				check.That(t, strings.HasPrefix(c.Cannot, "cannot ") && len(c.Try) > 0, "%s: a refusal without a fix: %s: %s %q", m.name, c, c.Cannot, c.Try)
			}
		}
	}

	check.That(t, planned >= 5, "only %d machines were planned for", planned)
}

// A refusal in which several stages agree is said once.
func TestRefusalIsSaidOnce(t *testing.T) {
	m := recordedAs(t, "kubeadm-8xh100")
	n := m.boot(t)
	_, err := engine(t, "[driver]\nversion = \"123.45.67\"\n").Apply(context.Background(), n)
	told := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &told) && len(told.Try) > 0, "%s: no refusal with a fix: %v", m.name, err)
	sentences := append([]string{told.What}, told.Because...)
	for i := range sentences {
		sentences[i] = strings.TrimPrefix(sentences[i], "also: ")
	}
	for _, list := range [][]string{sentences, told.Try} {
		slices.Sort(list)
		check.That(t, len(slices.Compact(slices.Clone(list))) >= len(list), "said twice: %q", list)
	}
}

// A part of the driver that is missing is what the stage packages installs: the check of the stage
// modules must not refuse the plan that does. Here nvidia-utils was removed by hand, or
// persistenced was turned on.
func TestMissingPartIsRepaired(t *testing.T) {
	m := recordedAs(t, "ubuntu24-h100")
	n := m.boot(t)
	const lib = "/usr/lib/x86_64-linux-gnu/"
	must.OK(t, n.Mkdir("/usr/lib/x86_64-linux-gnu", host.Attr{Mode: 0o755}))
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		must.OK(t, n.WriteFile(lib+name+".580.95.05", nil, host.Attr{Mode: 0o644}))
		must.OK(t, n.Symlink(lib+name+".1", name+".580.95.05"))
	}

	p := plan(t, n, engine(t, "[driver]\nversion = \"580.95.05\"\nfabricmanager = \"off\"\n"))
	pending := 0
	for _, c := range p.Changes {
		if c.Kind == "package" {
			pending++
		}
	}

	for _, c := range p.Cannot() {
		check.That(t, !strings.Contains(c.Cannot, "was not found"), "%d packages are pending, and the apply is refused: %s", pending, c.Cannot)
	}
}

// image makes a root folder of a distribution with one kernel, and a public key in it.
func image(t *testing.T, osRelease string, database map[string]string) (dir, fingerprint string) {
	t.Helper()
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Fatal("gpg is not installed: apt-get install gpg")
	}
	dir = t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must.OK(t, os.MkdirAll(filepath.Dir(dir+name), 0o755))
		must.OK(t, os.WriteFile(dir+name, []byte(text), 0o644))
	}

	write("/etc/os-release", osRelease)
	write("/lib/modules/6.1.0-41-amd64/modules.dep", "")
	for name, text := range database {
		write(name, text)
	}
	home, err := os.MkdirTemp("", "gpg") // gpg's sockets need a short path
	must.OK(t, err)
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		os.RemoveAll(home)
	})
	gpg := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--passphrase", ""}, args...)...).Output()
		must.That(t, err == nil, "gpg %v: %v", args, err)
		return string(out)
	}

	gpg("--quick-gen-key", "test <t@example.invalid>", "ed25519", "sign", "1d")
	write("/etc/gpuadm/key.asc", gpg("--armor", "--export"))
	for line := range strings.Lines(gpg("--list-keys", "--with-colons")) {
		if f := strings.Split(line, ":"); f[0] == "fpr" {
			return dir, f[9]
		}
	}

	t.Fatal("gpg lists no key")
	return "", ""
}

// A plan of a root folder and its apply agree: packages wait for first boot, and what can be
// written is written.
func TestRootFolderWithADriver(t *testing.T) {
	for name, c := range map[string]struct {
		osRelease string
		database  map[string]string
	}{
		"debian": {"ID=debian\nVERSION_ID=12\n", map[string]string{"/var/lib/dpkg/status": "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n\n", "/var/lib/dpkg/arch": "amd64\n", "/etc/apt/apt.conf.d/00": "", "/etc/apt/sources.list.d/x.list": "", "/etc/apt/preferences.d/x": ""}},
		"rocky":  {"ID=rocky\nVERSION_ID=9.6\nID_LIKE=\"rhel centos fedora\"\n", map[string]string{"/var/lib/rpm/rpmdb.sqlite": "x", "/usr/bin/dnf": "", "/etc/dnf/modules.d/x": "", "/lib64/ld-linux-x86-64.so.2": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, fingerprint := image(t, c.osRelease, c.database)
			h := must.Get(local.Open(dir))(t)
			e := engine(t, "[driver]\nversion = \"580.95.05\"\n[driver.repo]\nurl = \"https://mirror.example/debian12\"\nkey = \"/etc/gpuadm/key.asc\"\nfingerprint = \""+fingerprint+"\"\n")
			p, err := e.Plan(context.Background(), h)
			must.That(t, err == nil && len(p.Cannot()) == 0 && p.Now() != 0, "the plan: %+v, %v", p.Changes, err)
			res, err := e.Apply(context.Background(), h)
			must.That(t, err == nil, "apply: %v", err)
			check.That(t, len(res.Made) == p.Now() && len(res.Deferred) == p.Deferred,
				"the plan has %d changes and %d deferred ones, apply made %d and deferred %d", p.Now(), p.Deferred, len(res.Made), len(res.Deferred))
			for _, made := range res.Made {
				check.That(t, made.Kind != "package" && made.Kind != "package-lists", "apply made %s in a folder", made)
			}
			again, err := e.Apply(context.Background(), h)
			check.That(t, err == nil && again.Run == "", "the second apply made %v, %v", again.Made, err)
		})
	}
}
