// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestHalfDone: of a dnf that was killed all counts that came in its transaction, and what it did
// not come to remove.
func TestHalfDone(t *testing.T) {
	out := "kernel\t0\t5.14.0\t1\tx86_64\t50\t50\t(none)\nkernel\t0\t5.14.0\t2\tx86_64\t101\t100\t(none)\nlibnvidia-ml\t3\t580.65.06\t1.el9\tx86_64\t50\t50\t(none)\n" +
		"libnvidia-ml\t3\t580.105.08\t1.el9\tx86_64\t103\t100\t(none)\ndkms\t0\t3.0\t1\tnoarch\t99\t99\t(none)\n" +
		"gpg-pubkey\t0\td42d0685\t62589a51\t(none)\t102\t102\t(none)\nlater\t0\t1\t1\tnoarch\t300\t300\t(none)\n"
	d := parseRPM(out)
	d.fill()
	got := d.packages["libnvidia-ml"].Version
	check.That(t, nativeRPM() != "x86_64" || got == "3:580.105.08-1.el9", "of two versions %s counts", got)
	got = d.packages["kernel-5.14.0-1."+nativeRPM()].Version
	check.That(t, nativeRPM() != "x86_64" || got == "5.14.0-1", "the older kernel: %q", got)
	check.That(t, d.doubles() == nil && d.halfDone() == nil, "without a dnf that was killed nothing is half done")
	d.cut = time.Unix(100, 5e8)
	if got, want := d.halfDone(), []rpmPackage{{"kernel", "5.14.0-2", "x86_64"}, {"libnvidia-ml", "3:580.105.08-1.el9", "x86_64"}}; !slices.Equal(got, want) {
		t.Errorf("half done: %v", got)
	}
	check.List(t, d.doubles(), []rpmPackage{{"libnvidia-ml", "3:580.65.06-1.el9", "x86_64"}}, "installed twice:")
	if d.cut = time.Unix(301, 0); d.halfDone() != nil || d.doubles() != nil {
		t.Errorf("it was killed before it had installed anything: %v", d.halfDone())
	}
}

// TestCutShort: dnf's lock of a process that is gone is what a killed dnf leaves; that of one at
// work is none of it.
func TestCutShort(t *testing.T) {
	for text, cut := range map[string]bool{
		"":                                      false,
		"-- var/lib/dnf/rpmdb_lock.pid --\n7\n": true,
		"-- var/lib/dnf/rpmdb_lock.pid --\n7\n-- proc/7/cmdline --\n/usr/bin/python3 /usr/bin/dnf install x\n": false,
		"-- var/lib/dnf/rpmdb_lock.pid --\n7\n-- proc/7/cmdline --\nsshd\n":                                    true,
	} {
		n := must.Get(simhost.New([]byte("-- usr/bin/dnf --\n" + text)))(t)
		check.Equal(t, !cutShort(n).IsZero(), cut, "%q: cut short:", text)
		_, err := dnf{}.Audit(t.Context(), n, nil)
		check.Equal(t, errors.As(err, new(*packages.Locked)), strings.Contains(text, "bin/dnf"), "%q: another dnf is at work:", text)
	}
}

// TestRepairFails: where dnf cannot finish what a killed dnf has left, the advice is the command
// that does. dnf check says nothing of it.
func TestRepairFails(t *testing.T) {
	n := must.Get(simhost.New([]byte(`
-- etc/os-release --
ID=rocky
ID_LIKE="rhel centos fedora"
-- usr/bin/dnf --
-- var/lib/rpm/rpmdb.sqlite --
x
-- var/lib/dnf/rpmdb_lock.pid ctime=2026-01-01T00:00:00Z --
7
`)))(t)
	const begun = "1767225610" // ten seconds after the lock
	n.Install("rpm", simhost.Program{
		Looks: func([]string) bool { return true },
		Run: func(*files.Files, []string) ([]byte, error) {
			return []byte("libnvidia-ml\t3\t580.65.06\t1.el9\tnoarch\t" + begun + "\t" + begun + "\t(none)\n"), nil
		},
	})
	n.Install("env", simhost.Program{ // env OMP_NUM_THREADS=1 dnf -y reinstall
		Looks: func([]string) bool { return false },
		Run: func(_ *files.Files, argv []string) ([]byte, error) {
			return nil, &host.CommandError{Argv: argv, Code: 1, Stderr: "Error: Transaction failed"}
		},
	})

	database := packages.NewDatabase("rpm", packages.NewReading(New(nil)))
	err := database.Make(t.Context(), n, "clean")
	check.Has(t, wordsOf(err), "dnf reinstall libnvidia-ml, once its cause is gone", "it says")
}

// TestUnmet: what rpm 4.20.1 said of two packages that lack a third, recorded on a host of the lab.
// Below the first package it also lists a requirement of the second.
func TestUnmet(t *testing.T) {
	const keeps, plain = "keeps-3:580.65.06-1.el9.x86_64", "plain-0:1-1.el9.noarch"
	const first = "Unsatisfied dependencies for keeps-3:580.65.06-1.el9.x86_64:\n" +
		"\tlost = 3:580.65.06 is needed by (installed) keeps-3:580.65.06-1.el9.x86_64\n" +
		"\t(lost if keeps) is needed by (installed) plain-1-1.el9.noarch\n"
	const second = "Unsatisfied dependencies for plain-1-1.el9.noarch:\n" +
		"\t(lost if keeps) is needed by (installed) plain-1-1.el9.noarch\n" +
		"\tlost is needed by (installed) plain-1-1.el9.noarch\n"

	found, others := parseUnmet(first + second)
	check.Equal(t, len(found)+len(others), 2, "packages, and other lines:")
	check.List(t, found[keeps], []string{"lost = 3:580.65.06"}, "the first lacks:")
	check.List(t, found[plain], []string{"(lost if keeps)", "lost"}, "the second lacks:")

	_, others = parseUnmet(first + "package gone-0:1-1.x86_64 is not installed\n")
	check.List(t, others, []string{"package gone-0:1-1.x86_64 is not installed"}, "other lines:")

	d := rpmDatabase{lacks: map[string][]string{"a": {"y >= 1", "x(x86-64) = 2"}, "b": {"x(x86-64) = 2", "z"}, "c": {"(v >= 1 if w)"}}}
	lost := d.lostBy([]string{"a", "b", "c"}, map[string]bool{"z": true})
	check.List(t, lost, []string{"v", "x(x86-64) = 2", "y >= 1"}, "lost beside z, which is installed anyway:")
}

// TestUnmetOfAnUpgrade: dnf is asked for what a package lacks only where the package stays in its
// version. What the old version required conflicts with the new one.
func TestUnmetOfAnUpgrade(t *testing.T) {
	const old = "3:580.65.06-1.el9"
	s := solver{d: rpmDatabase{lacks: map[string][]string{"driver": {"cfg = " + old}}}}
	n := must.Get(simhost.New(nil))(t)
	for to, want := range map[string][]string{
		old:                 {"driver-" + old, "cfg = " + old},
		"3:580.95.05-1.el9": {"driver-3:580.95.05-1.el9"},
	} {
		before := packages.State{Version: old, Held: true, Broken: packages.Incomplete}
		after := packages.State{Version: to, Held: true}
		asked := s.task(n, []converge.Change{{
			Ref:    converge.Ref{Kind: "package", Name: "driver"},
			Before: before.String(),
			After:  after.String(),
		}}, nil)
		check.List(t, asked.install, want, "to %s dnf is asked for", to)
	}
}

// TestFilesOfNone: where no package has the driver's version, as beside the files of a runfile,
// none lists a file. rpm would fail without a name.
func TestFilesOfNone(t *testing.T) {
	n := must.Get(simhost.New([]byte(`
-- sim.toml --
[[command]]
argv = ["rpm", "-q"]
prefix = true
exit = 1
stderr = "rpm: no arguments given for query"
`)))(t)
	found, err := dnf{}.FilesOf(t.Context(), n, nil)
	check.That(t, err == nil && len(found) == 0, "files: %v, %v", found, err)
}

func TestNamed(t *testing.T) {
	for _, c := range [][3]string{
		{"nvlsm", "2025.06.11-1", "nvlsm-0:2025.06.11-1"},
		{"libnvidia-ml", "3:580.95.05-1.el9", "libnvidia-ml-3:580.95.05-1.el9"},
		{"libnvidia-ml.i686", "3:580.95.05-1.el9", "libnvidia-ml-3:580.95.05-1.el9.i686"},
		{"kernel-devel-5.14.0-427.el9.x86_64", "5.14.0-427.el9", "kernel-devel-5.14.0-427.el9.x86_64"},
		{"python3.11", "3.11.9-1.el9", "python3.11-0:3.11.9-1.el9"},
	} {
		if got := named(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s is named %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

func TestRPMFile(t *testing.T) {
	for file, want := range map[string]rpmPackage{
		"kmod-nvidia-open-dkms-580.65.06-1.el9.x86_64.rpm": {"kmod-nvidia-open-dkms", "580.65.06-1.el9", "x86_64"},
		"libnvidia-ml-580.65.06-1.el9.i686.rpm":            {"libnvidia-ml", "580.65.06-1.el9", "i686"},
		"transaction":                                      {}, "a-1.rpm": {}, "a.b-1.rpm": {}, "": {},
	} {
		got, ok := rpmFile(file)
		check.That(t, got == want && ok == (want.name != ""), "%q: %+v, %v", file, got, ok)
	}
}

// A dnf that was killed before it installed anything leaves its lock. What others install later by
// rpm itself is not its work.
func TestStaleLockAndALaterInstallation(t *testing.T) {
	d := parseRPM("bash\t0\t5.1\t9.el9\tx86_64\t1700000000\t1700000000\t(none)\nagent\t0\t1.0\t1\tx86_64\t1700500000\t1700500000\t(none)\n")
	d.cut = time.Unix(1700100000, 0) // killed four days before the agent came by rpm -i
	half := d.halfDone()
	check.That(t, len(half) == 0, "half-installed: %v", half)
}

// FuzzRPM gives rpm's output: each package is known by a name of its own, and a key by its whole
// fingerprint or not at all.
func FuzzRPM(f *testing.F) {
	const key = "gpg-pubkey\t0\t5b4af876\t6b0188f4\t(none)\t1\t1\t"
	f.Add("bash\t0\t5.1\t9.el9\tx86_64\t1\t1\t(none)\n" + key + "mDMEawGI9BYJKwYBBAHaRw8BAQdA\n1v1e\n")
	f.Add(key + strings.Repeat("A\n", manyTimes))
	f.Add(strings.Repeat(key+"A\n", manyTimes))
	f.Add(strings.Repeat("\t\t\t\t\t\t\t\n", manyTimes))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			d := parseRPM(out)
			d.fill()
			for p, key := range d.keys {
				if p.name != rpmKeyName || key != packages.Nowhere && len(key) != 40 && len(key) != 64 {
					t.Errorf("the key of %v is %q", p, key)
				}
			}

			d.halfDone()
			d.doubles()
		})
	})
}

// manyTimes is how often what is hostile once is there in a seed: what grows with the square of the
// input shows.
const manyTimes = 20_000

// TestRPMKeys: rpm's database calls public keys packages, by names that hold only the end of a
// fingerprint: a planted key may have the same end, so the key itself says which it is.
func TestRPMKeys(t *testing.T) {
	const trusted, shared = "F22CC24F7F742054127646D9354FB98A5B4AF876", "5b4af876"
	ours, others := inRPM(t, "../../things/testdata/ed25519.asc"), inRPM(t, "../../things/testdata/rsa2048.gpg")
	record := func(id, made, key string) string {
		return "gpg-pubkey\t0\t" + id + "\t" + made + "\t(none)\t1\t1\t" + key + "\n"
	}
	const before, after = "bash\t0\t5.2.26\t4.el10\tx86_64\t1\t1\t(none)\n", "zsh\t0\t5.9\t1\tx86_64\t1\t1\t(none)\n"
	for what, tt := range map[string]struct {
		keys string
		want []string
	}{
		"imported":                       {record(shared, "62589a51", ours), []string{"gpg-pubkey-5b4af876-62589a51"}},
		"imported by rpm 6":              {record(strings.ToLower(trusted), "62589a51", ours), []string{"gpg-pubkey-" + strings.ToLower(trusted) + "-62589a51"}},
		"planted with the same end":      {record(shared, "62589a51", others), nil},
		"both":                           {record(shared, "62589a52", others) + record(shared, "62589a51", ours), []string{"gpg-pubkey-5b4af876-62589a51"}},
		"two keys in one":                {record(shared, "62589a51", inRPM(t, "../../things/testdata/both.asc")), nil},
		"a key that cannot be read":      {record(shared, "62589a51", "bm8ga2V5"), nil},
		"a record without a key":         {record(shared, "62589a51", "(none)"), nil},
		"a fingerprint where a key goes": {record(trusted, "62589a51", trusted), nil},
	} {
		d := parseRPM(before + tt.keys + after)
		d.fill()
		check.List(t, among(d.packages, []string{trusted}), tt.want, "%s:", what)
		check.That(t, d.packages["bash"].Installed() && d.packages["zsh"].Installed(), "%s: the packages around it: %v", what, d.packages)
	}
}

// inRPM is a key file as rpm's database has it: base64 in lines of 64 characters.
func inRPM(t *testing.T, name string) string {
	t.Helper()
	data := fileOf(t, name)
	if _, armored, ok := strings.Cut(string(data), "\n\n"); ok {
		armored, _, _ = strings.Cut(armored, "\n=")
		return armored
	}
	var lines []string
	for part := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), 64) {
		lines = append(lines, string(part))
	}
	return strings.Join(lines, "\n")
}

// TestKeyOfRPMByFile: where only the file says the fingerprint, that is what rpm is asked for.
func TestKeyOfRPMByFile(t *testing.T) {
	const file = "/etc/pki/rpm-gpg/x.asc"
	n := must.Get(simhost.New([]byte("-- etc/pki/rpm-gpg/ --\n")))(t)
	key := fileOf(t, "../../things/testdata/ed25519.asc")
	put := func(data []byte) {
		must.OK(t, n.WriteFile(file, data, host.Attr{Mode: 0o644}))
	}
	read := new(packages.Reading)
	for _, trusted := range []string{"sha256:" + fmt.Sprintf("%x", sha256.Sum256(key)), file} {
		k := NewKey(trusted, []string{file}, new(packages.Reading)).(rpmKey)
		check.That(t, k.trusted == trusted && k.file == file, "built again as %+v", k)
		f := k.fingerprints(n)
		check.That(t, len(f) == 0, "%s, no file: %v", trusted, f)
		put(key)
		f = k.fingerprints(n)
		check.That(t, slices.Equal(f, []string{"F22CC24F7F742054127646D9354FB98A5B4AF876"}), "%s: %v", trusted, f)
		must.OK(t, n.Remove(file))
	}

	put([]byte("another"))
	f := (rpmKey{read, "sha256:" + fmt.Sprintf("%x", sha256.Sum256(key)), file}).fingerprints(n)
	check.That(t, len(f) == 0, "another file: %v", f)
}

// TestOtherKeyIsNotImported: if the file has another key by now, rpm must not be told to trust it.
func TestOtherKeyIsNotImported(t *testing.T) {
	const file = "/etc/pki/rpm-gpg/x.asc"
	n := must.Get(simhost.New([]byte("-- etc/pki/rpm-gpg/ --\n-- sim.toml --\n[[command]]\nargv = [\"rpm\", \"--import\", \"/etc/pki/rpm-gpg/x.asc\"]\n")))(t)
	key := fileOf(t, "../../things/testdata/ed25519.asc")
	must.OK(t, n.WriteFile(file, key, host.Attr{Mode: 0o644}))
	touched := n.Touches()

	const fingerprint = "EB693B3035CD5710E231E123A4B469963BF863CC"
	err := NewKey(fingerprint, []string{file}, new(packages.Reading)).Make(t.Context(), n, imported)
	check.Has(t, fmt.Sprint(err), "cannot have rpm trust key "+fingerprint+": "+file+" does not have it", "another key:")
	check.That(t, n.Touches() == touched, "rpm was run")
}

func fileOf(t *testing.T, name string) []byte {
	t.Helper()
	data := must.Get(os.ReadFile(name))(t)
	return data
}
