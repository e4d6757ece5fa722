// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"encoding/base64"
	"errors"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
)

func TestStateText(t *testing.T) {
	for text, want := range map[converge.State]State{
		"":                           {},
		"580.95.05-0ubuntu1 held":    {Version: "580.95.05-0ubuntu1", Held: true},
		"3:580.95.05-1.el9 auto":     {Version: "3:580.95.05-1.el9", Auto: true},
		"1 held auto half-installed": {Version: "1", Held: true, Auto: true, Broken: "half-installed"},
		"driver=580.* held":          {Version: "driver=580.*", Held: true},
		"- held":                     {Version: nowhere, Held: true},
		"1.0 config-files":           {Version: "1.0", Broken: configFiles},
	} {
		if got := Parse(text); got != want || want.String() != text {
			t.Errorf("%q: parsed %+v, written %q", text, got, want.String())
		}
	}
}

// TestToIsIdempotent goes through how a package may stand: the second To changes nothing.
func TestToIsIdempotent(t *testing.T) {
	set := NewSet()
	for _, wanted := range []State{{Version: "driver=580.*", Held: true}, {Version: "580.1-1"}, {Version: "driver=*", Auto: true}} {
		want := Want(set, "x", wanted, "")
		for _, found := range []converge.State{"", "580.1-1", "580.1-1 auto", "580.1-1 held", "570.1-1", "580.1-1 half-configured", "580.1-1 config-files"} {
			once, err := want.To(found)
			if err != nil {
				continue
			}
			if twice, err := want.To(once); err != nil || twice != once {
				t.Errorf("wanted %q, found %q: %q, then %q, %v", wanted.String(), found, once, twice, err)
			}
		}
	}
	if _, err := Want(set, "x", State{Version: "driver=580.*", Held: true}, "").To("- held"); err == nil {
		t.Error("a package that is held as not installed would be installed")
	}
	if to, _ := Want(set, "x", State{Version: "driver=580.*"}, "").To("580.1-1 auto"); to != "580.1-1" {
		t.Errorf("an automatic package that is wanted becomes %q", to)
	}
}

func TestOwnVersions(t *testing.T) {
	for _, c := range []struct {
		pattern, version string
		want             bool
	}{
		{"580.95.05", "580.95.05-0ubuntu1", true},
		{"580.95.05", "3:580.95.05-1.el9", true},
		{"580.95.05", "580.95.050-1", false},
		{"580.*", "580.95.05-1", true},
		{"580.*", "5800.1-1", false},
		{"580.*", "580-1", true},
		{"*", "1", true},
		{"1.18.0~rc.1", "1.18.0~rc.1-1", true},
	} {
		if got := matches(c.pattern, c.version); got != c.want {
			t.Errorf("%s matches %s: %v", c.pattern, c.version, got)
		}
	}
}

func TestCompareLikeDpkg(t *testing.T) {
	need(t, "dpkg")
	versions := []string{"1", "1.0", "1.0-1", "1.0-1~", "1.0~rc1-1", "1:0.5", "1.0+b1", "1.0a", "580.95.05-0ubuntu1", "580.95.05-1ubuntu1", "580.105.08-0ubuntu1", "580.9-1", "09", "9", "1.0-0", "1.0.0-1.el9", "1.A", "1.a"}
	for _, a := range versions {
		for _, b := range versions {
			want := 0
			if exec.Command("dpkg", "--compare-versions", a, "lt", b).Run() == nil {
				want = -1
			} else if exec.Command("dpkg", "--compare-versions", a, "gt", b).Run() == nil {
				want = 1
			}
			if got := sign(compareDebian(a, b)); got != want {
				t.Errorf("%s and %s: %d, dpkg says %d", a, b, got, want)
			}
		}
	}
}

func sign(n int) int { return min(1, max(-1, n)) }

func FuzzCompare(f *testing.F) {
	f.Add("1.0-1", "1.0~rc-1")
	f.Add("1:2", "")
	f.Add("\x00", "\x001") // no version, and no reason to hang
	f.Fuzz(func(t *testing.T, a, b string) {
		if sign(compareDebian(a, b)) != -sign(compareDebian(b, a)) || compareDebian(a, a) != 0 {
			t.Errorf("%q and %q", a, b)
		}
	})
}

// Of apt 2.6.2 on Debian 12.
const policy = `bash:
  Installed: 5.2.15-2+b8
  Candidate: 5.2.15-2+b13
  Version table:
     5.2.15-2+b13 500
        500 http://debian.example/debian bookworm/main amd64 Packages
 *** 5.2.15-2+b8 100
        100 /var/lib/dpkg/status
nvidia-driver:
  Installed: (none)
  Candidate: 580.95.05-1
  Version table:
     580.95.05-1 1001
        500 http://127.0.0.1:33977  Packages
     535.247.01-1~deb12u1 500 (phased 20%)
        500 http://debian.example/debian bookworm/non-free amd64 Packages
        500 http://debian.example/debian-security bookworm-security/non-free amd64 Packages
`

func TestPolicy(t *testing.T) {
	want := map[string][]offer{
		"bash": {{"5.2.15-2+b13", 500, []string{"http://debian.example/debian bookworm/main amd64"}}},
		"nvidia-driver": {
			{"580.95.05-1", 1001, []string{"http://127.0.0.1:33977"}},
			{"535.247.01-1~deb12u1", 500, []string{"http://debian.example/debian bookworm/non-free amd64", "http://debian.example/debian-security bookworm-security/non-free amd64"}},
		},
	}
	if got := parsePolicy(policy); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add(policy)
	f.Add("a:\n *** \n     \n        x")
	f.Add(strings.Repeat("a:\n *** 1 1\n  1 x\n", many))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for name, offers := range parsePolicy(out) {
				for _, o := range offers {
					if o.version == "" || len(o.from) == 0 {
						t.Errorf("%q: %+v", name, o)
					}
				}
			}
		})
	})
}

// One source has all members in one version: the other source's newer revision of one of them is left alone.
func TestChooseFromOneSource(t *testing.T) {
	cuda, ubuntu := []string{"https://nvidia /"}, []string{"http://ubuntu noble/main"}
	offers := map[string][]offer{
		"a": {{"580.2-0ubuntu9", 500, ubuntu}, {"580.2-0ubuntu1", 500, cuda}, {"580.1-0ubuntu1", 500, cuda}},
		"b": {{"580.2-0ubuntu1", 500, cuda}, {"580.1-0ubuntu1", 500, cuda}},
	}
	got, _, ok := choose([]string{"a", "b"}, "580.*", offers)
	if !ok || got["a"] != "580.2-0ubuntu1" || got["b"] != "580.2-0ubuntu1" {
		t.Errorf("%v, %v", got, ok)
	}
	offers["b"] = offers["b"][1:]
	if got, _, ok := choose([]string{"a", "b"}, "580.*", offers); !ok || got["a"] != "580.1-0ubuntu1" {
		t.Errorf("the newest that both have: %v, %v", got, ok)
	}
	if got, _, ok := choose([]string{"a", "b"}, "580.2", offers); ok {
		t.Errorf("chosen: %v", got)
	}
}

const simulation = `NOTE: This is only a simulation!
Reading package lists...
Remv nvidia-kernel-open [580.1-1] [nvidia-driver:amd64 ]
Inst libc6 [2.36-9+deb12u8] (2.36-9+deb12u13 Debian:12.12/oldstable, Debian-Security:12/oldstable-security [amd64]) []
Inst libfoo:i386 (1.0-1 test:127.0.0.1 [i386])
Inst huge (1 test:127.0.0.1 [amd64])
Inst local [1.0] (0.9 local-deb [amd64])
Purg gone [2]
Conf libc6 (2.36-9+deb12u13 Debian:12.12/oldstable [amd64])
`

func TestSimulation(t *testing.T) {
	want := []move{{"nvidia-kernel-open", ""}, {"libc6", "2.36-9+deb12u13"}, {"libfoo:i386", "1.0-1"}, {"huge", "1"}, {"local", "0.9"}, {"gone", ""}}
	if got := parseSimulation(simulation, "amd64"); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func FuzzSimulation(f *testing.F) {
	f.Add(simulation)
	f.Add(strings.Repeat("Inst a (1 b)\n", many))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for _, m := range parseSimulation(out, "amd64") {
				if m.name == "" && !strings.Contains(out, "Inst :amd64") && !strings.Contains(out, " :amd64") {
					t.Errorf("a move of nothing: %+v", m)
				}
			}
		})
	})
}

const status = `Package: dpkg
Essential: yes
Status: install ok installed
Architecture: amd64
Version: 1.21.22
Description: x
 Package: not-this-one

Package: libfoo
Status: hold ok installed
Architecture: i386
Installed-Size: 12
Version: 1.0-1

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 2
Conffiles:
 /etc/gone 0123

Package: never
Status: hold ok not-installed
Architecture: amd64

Package: half
Status: install reinstreq half-installed
Architecture: amd64
Version: 3
`

func TestDpkgDatabase(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+dpkgStatus, status, 0o644)
	put(t, dir+dpkgUpdates+"/0000", "Package: fresh\nStatus: install ok unpacked\nArchitecture: amd64\nVersion: 4\n", 0o644)
	put(t, dir+dpkgUpdates+"/tmp.i", "#padding\n", 0o644)
	put(t, dir+aptExtStates, "Package: libfoo\nArchitecture: i386\nAuto-Installed: 1\n\nPackage: gone\nArchitecture: amd64\nAuto-Installed: 1\n", 0o644)
	h, err := host.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := readDpkg(h)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, p := range d.packages {
		got[name] = string(p.String())
	}
	want := map[string]string{
		"dpkg": "1.21.22", "libfoo:i386": "1.0-1 held auto", "gone": "2 config-files", "never": "- held", "half": "3 half-installed", "fresh": "4 unpacked",
	}
	if !reflect.DeepEqual(got, want) || !d.interrupted || d.native != "amd64" || !d.packages["dpkg"].essential {
		t.Errorf("%v, %+v", got, d)
	}
}

func FuzzDpkg(f *testing.F) {
	f.Add([]byte(status))
	f.Add([]byte("Package: a\nStatus: install ok installed\n\n\n\n :\n"))
	f.Add([]byte(strings.Repeat("Package: a\nStatus: install ok installed\nVersion: 1\n\n", many)))
	f.Add([]byte(strings.Repeat("a:\n", many)))
	f.Fuzz(func(t *testing.T, text []byte) {
		d := dpkg{packages: map[string]debian{}, native: "amd64"}
		alloc.Most(t, 400, len(text), func() {
			d.add(text)
			d.mark(text)
		})
		for name, p := range d.packages {
			if name == "" || p.Installed() && p.Version == "" {
				t.Errorf("%q: %+v", name, p)
			}
		}
	})
}

func TestSources(t *testing.T) {
	for _, c := range []struct {
		file, text string
		want       []string // names of lists
		keys       []string
	}{
		{
			"cuda.list", "# x\ndeb [signed-by=/usr/share/keyrings/cuda.gpg arch=amd64] https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/ /\n",
			[]string{"developer.download.nvidia.com_compute_cuda_repos_ubuntu2204_x86%5f64_"},
			[]string{"/usr/share/keyrings/cuda.gpg"},
		},
		{"toolkit.list", "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n", []string{"nvidia.github.io_libnvidia-container_stable_deb_amd64_"}, nil},
		{
			"debian.sources", "Types: deb\nURIs: http://debian.example/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\nSigned-By: /a.gpg\n\nEnabled: no\nTypes: deb\nURIs: http://x\nSuites: y\n",
			[]string{"debian.example_debian_dists_bookworm_", "debian.example_debian_dists_bookworm-updates_"},
			[]string{"/a.gpg"},
		},
		{"file.list", "deb file:/srv/repo stable main\n", []string{"_srv_repo_dists_stable_"}, nil},
		{"user.list", "deb http://me:secret@host:8077/r ./\n", []string{"host:8077_r_._"}, nil},
	} {
		var got []string
		for _, s := range parseSources(c.file, []byte(c.text), "amd64") {
			got = append(got, s.list())
			if !slices.Equal(s.signedBy, c.keys) {
				t.Errorf("%s: keys %v", c.file, s.signedBy)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.file, got, c.want)
		}
	}
}

func FuzzSources(f *testing.F) {
	f.Add("Types: deb\nURIs: x y\nSuites: /\n", true)
	f.Add("deb [signed-by=/a] http://x y\n", false)
	f.Add("Types:"+strings.Repeat(" deb", 300)+"\nURIs:"+strings.Repeat(" x", 300)+"\nSuites:"+strings.Repeat(" y", 300)+"\nComponents: z\n", true)
	f.Add("URIs:\n"+strings.Repeat(" x\n", many), true)
	f.Fuzz(func(t *testing.T, text string, deb822 bool) {
		file := "a.list"
		if deb822 {
			file = "a.sources"
		}
		var all []source
		alloc.Most(t, 400, len(text), func() { all = parseSources(file, []byte(text), "amd64") })
		for _, s := range all {
			if strings.ContainsAny(s.list(), "/ \n") {
				t.Errorf("%q", s.list())
			}
		}
	})
}

func TestExplain(t *testing.T) {
	h, err := host.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for said, want := range map[string]string{
		"dpkg: error processing archive /var/cache/apt/archives/x.deb (--unpack):\n cannot copy extracted data for './a' to '/a.dpkg-new': failed to write (No space left on device)": "the disk is full",
		"E: You don't have enough free space in /var/cache/apt/archives/.":                                                                                          "the disk is full",
		"E: Sub-process /usr/bin/dpkg exited unexpectedly":                                                                                                          "Sub-process /usr/bin/dpkg exited unexpectedly",
		"E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4194304 (apt-get)":                                                                "process 4194304 holds /var/lib/dpkg/lock-frontend",
		"dpkg: error: dpkg frontend lock was locked by another process with pid 4194304\nNote: removing the lock is wrong":                                          "process 4194304 holds dpkg's lock",
		"E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4194304 (apt-get)\nN: Be aware":                                                       "holds /var/lib/apt/lists/lock",
		"E: Version '9' for 'x' was not found":                                                                                                                      "Version '9' for 'x' was not found",
		"W: GPG error: file:/srv InRelease: The following signatures were invalid: BADSIG 7C21842EBE06E8C1\nE: The repository 'file:/srv InRelease' is not signed.": "is not accepted",
		"W: OpenPGP signature verification failed: http://a InRelease: Sub-process /usr/bin/sqv returned an error code (1), error message is: Missing key 9FDD":     "is not accepted",
		"E: Release file for http://a/InRelease is expired (invalid since 1d 2h 3min 4s). Updates for this repository will not be applied.":                         "is not accepted",
		"E: The repository 'http://a/ InRelease' does not have a Release file.":                                                                                     "cannot install packages: The repository 'http://a/ InRelease' does not have a Release file",
	} {
		err := explain(h, "", &host.CommandError{Argv: []string{"apt-get"}, Code: 100, Stderr: said, Cause: errors.New("exit status 100")})
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nsays: %v", said, err)
		}
	}
}

func TestFits(t *testing.T) {
	one := "       Avail Mounted on\n5000000 /\n5000000 /\n"
	two := "       Avail Mounted on\n5000000 /\n9000000 /var\n"
	for _, c := range []struct {
		df            string
		usr, archives int64
		ok            bool
	}{{one, 2e6, 2e6, true}, {one, 3e6, 3e6, false}, {two, 3e6, 3e6, true}, {two, 6e6, 1, false}, {"rubbish", 1e12, 1, true}, {one, -1e6, 5e6, true}} {
		if err := fits(c.df, c.usr, c.archives); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// BenchmarkDatabase reads this machine's own, as each converged apply does.
func BenchmarkDatabase(b *testing.B) {
	h, err := host.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := readDpkg(h); err != nil {
			b.Skip(err)
		}
	}
}

// TestRPMKeys: rpm's database calls public keys packages, by names that hold only the end of a fingerprint: a planted key may have
// the same end, so the key itself says which it is.
func TestRPMKeys(t *testing.T) {
	const trusted, shared = "F22CC24F7F742054127646D9354FB98A5B4AF876", "5b4af876"
	ours, others := inRPM(t, "../things/testdata/ed25519.asc"), inRPM(t, "../things/testdata/rsa2048.gpg")
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
		"two keys in one":                {record(shared, "62589a51", inRPM(t, "../things/testdata/both.asc")), nil},
		"a key that cannot be read":      {record(shared, "62589a51", "bm8ga2V5"), nil},
		"a record without a key":         {record(shared, "62589a51", "(none)"), nil},
		"a fingerprint where a key goes": {record(trusted, "62589a51", trusted), nil},
	} {
		d := parseRPM(before + tt.keys + after)
		d.fill()
		if got := among(d.packages, []string{trusted}); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", what, got, tt.want)
		}
		if !d.packages["bash"].Installed() || !d.packages["zsh"].Installed() {
			t.Errorf("%s: the packages around it: %v", what, d.packages)
		}
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
