// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func (m *machine) lists() converge.State {
	m.t.Helper()
	s := must.Get(packages.NewLists("apt", []string{ourSource}, reading()).Look(m.t.Context(), m))(m.t)
	return s
}

func (m *machine) read() error {
	return packages.NewLists("apt", []string{ourSource}, reading()).Make(m.t.Context(), m, "fresh")
}

// touchSource changes our source, so that its lists are old.
func (m *machine) touchSource() {
	m.t.Helper()
	data := must.Get(os.ReadFile(m.dir + ourSource))(m.t)
	m.write(ourSource, string(data))
}

func TestLists(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{name: "a", version: "1"})
	m.repo.publish()
	check.Equal(t, m.lists(), "stale", "lists that were never read are")
	if err := m.read(); err != nil || m.lists() != "fresh" {
		t.Fatalf("read: %v, %s", err, m.lists())
	}
	m.packagers()
	err := m.read()
	check.That(t, err == nil && len(m.packagers()) == 0, "fresh lists were read again: %v", err)
	// The repository is as it was, so apt keeps the list with its old time.
	m.touchSource()
	check.Equal(t, m.lists(), "stale", "lists older than their source are")
	if err := m.read(); err != nil || m.lists() != "fresh" {
		t.Fatalf("read again: %v, %s", err, m.lists())
	}
	// What others have broken does not stop us.
	m.write("/etc/apt/sources.list.d/theirs.list", "deb [trusted=yes] http://127.0.0.1:1/gone ./\n")
	m.touchSource()
	if err := m.read(); err != nil || m.lists() != "fresh" {
		t.Errorf("beside a broken source: %v, %s", err, m.lists())
	}
	must.OK(t, os.Remove(m.dir+ourSource))
	check.Equal(t, m.lists(), "fresh", "lists of no source are")
}

// apt does not sync its lists. A power cut leaves them empty, with the repository's time: apt then
// refuses all work, and asks the server only for what is newer. They are read again.
func TestListsAfterPowerCut(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"*InRelease", "*Release *Packages*"} {
		m := newMachine(t)
		m.repo.add(deb{name: "a", version: "1"})
		m.repo.publish()
		must.OK(t, m.read())

		const empty = `cd /var/lib/apt/lists
for list in $1; do
  [ -e "$list" ] || continue
  touch -r "$list" /tmp/time; : >"$list"; touch -r /tmp/time "$list"
done`
		m.must("sh", "-ec", empty, "sh", lost)
		check.Equal(t, m.lists(), "stale", "lists of which %s are empty are", lost)
		if err := m.read(); err != nil || m.lists() != "fresh" {
			t.Errorf("%s: read again: %v, %s", lost, err, m.lists())
		}
		check.Has(t, m.must("apt-cache", "policy", "a"), "Candidate: 1", "%s:", lost)
	}
}

// The translations that the machine has of its packages' descriptions stay: whether apt reads them
// is the machine's setting.
func TestTranslationsStay(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{name: "a", version: "1"})
	m.repo.publish()
	const english = "Package: a\nDescription-md5: d41d8cd98f00b204e9800998ecf8427e\nDescription-en: of a\n\n"
	put(t, m.repo.dir+"/en", english, 0o644)
	m.repo.sign(string(must.Get(os.ReadFile(m.repo.home+"/Release"))(t)) + fmt.Sprintf(" %x %d en\n", sha256.Sum256([]byte(english)), len(english)))
	const which = "ls /var/lib/apt/lists | grep _en$"
	m.must("apt-get", "update")
	before := m.must("sh", "-c", which)
	m.touchSource()
	must.OK(t, m.read())
	check.Equal(t, m.must("sh", "-c", which), before, "the translations are")
}

func TestDistrustedLists(t *testing.T) {
	t.Parallel()
	newMachine(t).distrusts()
	m := newMachine(t)
	m.write("/etc/apt/apt.conf.d/99others", "Acquire::AllowInsecureRepositories \"true\";\nAcquire::AllowDowngradeToInsecureRepositories \"true\";\nAPT::Get::AllowUnauthenticated \"true\";\n")
	m.distrusts()
}

// distrusts wants the lists refused whose signature is not what it should be.
func (m *machine) distrusts() {
	t := m.t
	t.Helper()
	m.repo.add(deb{name: "a", version: "1"})
	m.repo.publish()
	release := m.repo.dir + "/InRelease"
	good := must.Get(os.ReadFile(release))(t)
	refused := func(what string, parts ...string) {
		t.Helper()
		err := m.read()
		if err == nil {
			t.Errorf("%s: the lists were taken", what)
			return
		}
		contains(t, wordsOf(err), append(parts, "cannot read repository "+m.repo.url, ourSource)...)
		check.Equal(t, m.lists(), "stale", "%s: the lists are", what)
	}

	put(t, release, strings.Replace(string(good), "Origin: test", "Origin: evil", 1), 0o644)
	refused("tampered", "is not accepted", "BADSIG ", "no proxy rewrites")

	put(t, release, string(good), 0o644)
	other := newRepo(t)
	key := must.Get(os.ReadFile(other.key))(t)
	mine := must.Get(os.ReadFile(m.repo.key))(t)
	m.write("/etc/apt/keyrings/gpuadm-test.gpg", string(key))
	refused("wrong key", "is not accepted", "NO_PUBKEY ", "fingerprint")

	m.write("/etc/apt/keyrings/gpuadm-test.gpg", string(mine))
	m.repo.sign("Origin: test\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nValid-Until: Tue, 02 Jan 2024 00:00:00 UTC\nSHA256:\n " + strings.Repeat("0", 64) + " 0 Packages\n")
	refused("expired", "has expired, ", " ago", "clock", "mirror it again")

	m.repo.publish()
	put(t, m.repo.dir+"/Packages", "Package: evil\n", 0o644)
	refused("another size", "File has unexpected size", "being synchronised")

	m.repo.publish()
	if err := m.read(); err != nil || m.lists() != "fresh" {
		t.Errorf("fixed: %v, %s", err, m.lists())
	}
	// An old list is no reason to trust a tampered one: apt by itself would go on with the old and
	// exit with 0.
	put(t, release, strings.Replace(string(good), "Origin: test", "Origin: evil", 1), 0o644)
	m.touchSource()
	refused("tampered later", "is not accepted", "BADSIG ")

	// The signature of a key that has expired, and of one that was revoked since, is right and
	// counts for nothing.
	const then = "--faked-system-time=20240101T000000!"
	m.repo.gpg(then, "--quick-gen-key", "old <old@example.invalid>", "ed25519", "sign", "1d")
	m.repo.sign(string(must.Get(os.ReadFile(m.repo.home+"/Release"))(t)), then, "--local-user", "old")
	m.trustRepo()
	refused("expired key", "is not accepted", "EXPKEYSIG ", "fingerprint")
	m.repo.publish()
	m.repo.revoke()
	m.trustRepo()
	refused("revoked key", "is not accepted", "REVKEYSIG ", "fingerprint")
}

// trustRepo replaces the machine's key file with what the repository's owner has now.
func (m *machine) trustRepo() {
	m.t.Helper()
	m.repo.gpg("--output", m.repo.key, "--export")
	m.write("/etc/apt/keyrings/gpuadm-test.gpg", string(must.Get(os.ReadFile(m.repo.key))(m.t)))
}

// TestRevokedUnchanged: the key is revoked, and the repository has nothing new. apt asks for the
// list and gets "not modified", verifies the list that it has, and refuses it. Since apt changes
// the list's owner and mode on the way, the list's time is later than the key's.
func TestRevokedUnchanged(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.add(deb{name: "a", version: "1"})
	m.repo.publish()
	must.OK(t, m.read())

	m.repo.revoke()
	m.trustRepo()
	check.Equal(t, m.lists(), "stale", "after the key was changed the lists are")

	_, _ = m.Do(t.Context(), "apt-get", "-q", "update") // another process, such as apt-daily.service
	check.Equal(t, m.lists(), "stale", "after another process tried the lists are")

	contains(t, wordsOf(m.read()), "is not accepted", "REVKEYSIG ")
	check.Equal(t, m.lists(), "stale", "after gpuadm tried the lists are")
	check.That(t, m.read() != nil, "the second attempt accepted the lists")
}

// sameTick shows all files as changed in one tick of the kernel's clock.
type sameTick struct{ host.View }

func (s sameTick) Stat(name string) (host.Info, error) {
	i, err := s.View.Stat(name)
	i.Ctime = time.Unix(1, 0)
	return i, err
}

// TestSameTick: the clock for files has ticks of 1 to 10 ms. A list that is as old as its source or
// key may have been read before these were changed.
func TestSameTick(t *testing.T) {
	t.Parallel()
	const (
		file = "/etc/apt/sources.list.d/gpuadm-driver.sources"
		key  = "/etc/apt/keyrings/gpuadm-driver.gpg"
	)
	dir := t.TempDir()
	put(t, dir+file, "Types: deb\nURIs: http://x.example/\nSuites: /\nSigned-By: "+key+"\n", 0o644)
	put(t, dir+key, "key", 0o644)
	put(t, dir+aptLists+"/x.example_InRelease", "signed", 0o644)
	put(t, dir+aptLists+"/x.example_Packages", "Package: a", 0o644)

	h := must.Get(local.Open(dir))(t)
	is := must.Get(New().Stale(sameTick{h}, []string{file}))(t)
	check.That(t, is, "lists of the same tick are fresh")
}

func TestIsIndex(t *testing.T) {
	t.Parallel()
	for end, want := range map[string]bool{
		"Packages":                       true,
		"Packages.lz4":                   true,
		"main_binary-amd64_Packages":     true,
		"v1.2_binary-all_Packages.xz":    true,
		"InRelease":                      false,
		"main_i18n_Translation-en":       false,
		"dists_x_main_binary-a_Packages": false, // of another source, whose address begins with this one's
	} {
		check.Equal(t, isIndex(end), want, "%s", end)
	}
}

func TestUnsettledLists(t *testing.T) {
	t.Parallel()
	l := packages.NewLists("apt", []string{"/etc/apt/sources.list.d/a.sources"}, reading()).(converge.Follower)
	source := converge.Change{
		Ref:   converge.Ref{Kind: "file", Name: "/etc/apt/sources.list.d/a.sources"},
		After: "0644 0:0 x 1",
	}
	gone := source
	gone.Before = source.After
	gone.After = ""
	for _, c := range []struct {
		found converge.State
		by    converge.Change
		want  converge.State
	}{
		{"fresh", source, "stale"},
		{"fresh", gone, "fresh"},
		{"", gone, "stale"}, // the engine asks whether it settles at all
		{"fresh", converge.Change{Ref: converge.Ref{Name: "/etc/apt/keyrings/a.gpg"}, After: "x"}, "stale"},
		{"fresh", converge.Change{Ref: converge.Ref{Name: "/etc/hosts"}, After: "x"}, "fresh"},
		{"", converge.Change{Ref: converge.Ref{Name: "/etc/hosts"}, After: "x"}, ""},
	} {
		check.Equal(t, l.Affected(c.found, c.by), c.want, "%q after %+v:", c.found, c.by)
	}
}

// counting counts how often a file is read.
type counting struct {
	host.View
	reads map[string]int
}

func (c counting) Live() bool { return true }
func (c counting) Runs() bool { return true }

func (c counting) ReadFile(name string) ([]byte, error) {
	c.reads[name]++
	return c.View.ReadFile(name)
}

// Stat shows apt's lists as younger than the files that a test has written in the same tick of the
// clock.
func (c counting) Stat(name string) (host.Info, error) {
	i, err := c.View.Stat(name)
	if strings.HasPrefix(name, aptLists) {
		i.Ctime = i.Ctime.Add(time.Second)
	}
	return i, err
}

// A converged apply looks whether lists are fresh: that must not read dpkg's database of some
// megabytes for each file of sources.
func TestStaleReadsTheDatabaseOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"/etc/apt/sources.list.d", "/var/lib/dpkg", "/etc/apt/preferences.d"} {
		must.OK(t, os.MkdirAll(dir+d, 0o755))
	}
	for i := range 8 {
		put(t, fmt.Sprintf("%s/etc/apt/sources.list.d/r%d.list", dir, i), fmt.Sprintf("deb http://r%d.example/ stable main\n", i), 0o644)
	}
	put(t, dir+"/etc/apt/sources.list.d/gpuadm-driver.sources", "Types: deb\nURIs: http://x.example/\nSuites: /\n", 0o644)
	put(t, dir+facts.DpkgStatus, strings.Repeat("Package: p\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\n", 50), 0o644)
	h := must.Get(local.Open(dir))(t)
	put(t, dir+aptLists+"/x.example_InRelease", "signed", 0o644)
	c := counting{h, map[string]int{}}
	old, err := New().Stale(c, []string{"/etc/apt/sources.list.d/gpuadm-driver.sources"})
	must.That(t, err == nil && !old, "stale: %v, %v", old, err)
	n := c.reads[facts.DpkgStatus]
	check.That(t, n <= 1, "dpkg's database was read %d times", n)
}

// Where our files only pin, and no repository of the machine has a signed list (deb [trusted=yes]
// of a flat folder), the lists settle.
func TestPinsOnlyOverUnsignedRepository(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.repo.branches()
	m.repo.publish()
	for _, f := range []string{"Release", "Release.gpg", "InRelease"} {
		m.repo.run("rm", "-f", m.repo.dir+"/"+f)
	}
	m.repo.run("rm", "-f", m.dir+ourSource)
	m.write("/etc/apt/sources.list", "deb [trusted=yes] "+m.repo.url+"/ ./\n")
	m.must("apt-get", "-q", "update")
	want := func(*packages.Set) []converge.Want {
		wants, err := reading().Repositories("apt", []packages.Repository{{
			ID:    "driver",
			About: "x",
			Pins:  []packages.Pin{packages.KeepAt("580.95.05", "*nvidia*")},
		}}, host.Via{})
		must.OK(t, err)
		return wants
	}

	m.apply(want)
	m.idle(want)
}

// runs is a machine with another kernel than the test's.
type runs struct {
	*machine
	kernel string
}

func (r runs) ReadFile(name string) ([]byte, error) {
	if name == "/proc/sys/kernel/osrelease" {
		return []byte(r.kernel + "\n"), nil
	}
	return r.machine.ReadFile(name)
}

func TestWithoutHeaders(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	words := packages.WithoutHeaders(runs{m, "6.1"}, "6.1")
	check.That(t, !strings.Contains(words, "remove") && strings.Contains(words, "reboot into it, or install the headers of 6.1"), "of the kernel that runs: %s", words)
	check.Has(t, packages.WithoutHeaders(runs{m, "6.2"}, "6.1"), "remove kernel 6.1", "of another:")
}
