// SPDX-License-Identifier: Apache-2.0

package apt

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

//go:embed testdata/status
var status string

func TestDpkgDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir+facts.DpkgStatus, status, 0o644)
	put(t, dir+dpkgUpdates+"/0000", "Package: fresh\nStatus: install ok unpacked\nArchitecture: amd64\nVersion: 4\n", 0o644)
	put(t, dir+dpkgUpdates+"/tmp.i", "#padding\n", 0o644)
	put(t, dir+aptExtStates, "Package: libfoo\nArchitecture: i386\nAuto-Installed: 1\n\nPackage: gone\nArchitecture: amd64\nAuto-Installed: 1\n", 0o644)
	h := must.Get(local.Open(dir))(t)
	d := must.Get(readDpkg(h))(t)
	got := map[string]string{}
	for name, p := range d.packages {
		got[name] = string(p.String())
	}
	want := map[string]string{
		"dpkg": "1.21.22", "libfoo:i386": "1.0-1 held auto", "gone": "2 config-files", "never": "- held", "half": "3 half-installed", "fresh": "4 unpacked",
	}
	check.That(t, reflect.DeepEqual(got, want) && d.interrupted && d.native == "amd64" && d.details("dpkg").essential, "%v, %+v", got, d)
}

// TestTornBeforeGpuadm: dpkg --configure -a does nothing about a package whose unpacking was cut
// short in another installation; its archive helps. So says the plan, and a repair that leaves it.
func TestTornBeforeGpuadm(t *testing.T) {
	n := must.Get(simhost.New([]byte(`
-- etc/os-release --
ID=debian
-- var/lib/dpkg/status --
Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1

Package: failed
Status: install ok half-configured
Architecture: amd64
Version: 1

Package: other
Status: install reinstreq half-installed
Architecture: amd64
Version: 1
`)))(t)
	n.Install("env", simhost.Program{ // env OMP_NUM_THREADS=1 dpkg --configure -a
		Looks: func([]string) bool { return false },
		Run:   func(*files.Files, []string) ([]byte, error) { return nil, nil },
	})
	want := packages.Database(packages.NewSet(packages.NewReading(New())), "apt", "")
	found := must.Get(want.Look(t.Context(), n))(t)
	check.Equal(t, found, "torn failed other", "the database is")

	_, planErr := want.To(found)
	for _, err := range []error{planErr, want.Make(t.Context(), n, "clean")} {
		contains(t, wordsOf(err), "failed other is not wholly installed, and gpuadm did not install it",
			"apt-get install --reinstall failed other", "dpkg --purge --force-remove-reinstreq failed other")
		check.That(t, !strings.Contains(wordsOf(err), "--configure"), "it advises %s", wordsOf(err))
	}
}

func FuzzDpkg(f *testing.F) {
	f.Add([]byte(status))
	f.Add([]byte("Package: a\nStatus: install ok installed\n\n\n\n :\n"))
	f.Add([]byte(strings.Repeat("Package: a\nStatus: install ok installed\nVersion: 1\n\n", many)))
	f.Add([]byte(strings.Repeat("a:\n", many)))
	for _, text := range odd() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d := dpkg{packages: map[string]packages.State{}, paragraphs: map[string][]byte{}, native: "amd64"}
		alloc.Most(t, 400, len(text), func() {
			d.texts = [][]byte{text}
			d.add(text)
			d.mark(text)
		})
		for name, p := range d.packages {
			if name == "" || p.Installed() && p.Version == "" {
				t.Errorf("%q: %+v", name, p)
			}
		}

		asPlain(t, d, string(text))
		d.markIncomplete()
	})
}

func BenchmarkDatabase(b *testing.B) {
	dir := b.TempDir()
	for name, text := range realDatabase(700) {
		must.OK(b, os.MkdirAll(filepath.Dir(dir+name), 0o755))
		must.OK(b, os.WriteFile(dir+name, []byte(text), 0o644))
	}

	h := must.Get(local.Open(dir))(b)
	b.ReportAllocs()
	for b.Loop() {
		must.Get(New().Installed(b.Context(), h))(b)
	}
}

// odd are databases as no dpkg writes them, and some as it does.
func odd() []string {
	const one = "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
	return []string{
		strings.ReplaceAll(one+"\n"+one, "\n", "\r\n"),
		strings.TrimSuffix(one, "\n"),
		one + "\n\n\n" + strings.ReplaceAll(one, "Package: a", "Package: b") + "\n\n",
		"\n" + one + "\n\n\n\n" + one,
		"\n\n " + one,
		strings.ReplaceAll(one, "Version: 1", "Version:\n 1\n 2\n#c\n\t3"),
		"# a comment\n" + one + "# at the end\n\n# alone\n\n",
		strings.ToLower(one), strings.ToUpper(one),
		strings.ReplaceAll(one, ":", " :"), strings.ReplaceAll(one, ": ", ":"), strings.ReplaceAll(one, ": ", ":\t\u0085"),
		one + "\n" + strings.ReplaceAll(one, "Version: 1", "Version: 2\nInstalled-Size: 7"),                    // twice
		one + "Version: 3\nPackage: c\nEssential: yes\nProtected: no\n",                                        // fields twice
		one + "\n" + strings.ReplaceAll(one, "amd64", "i386") + "\n" + strings.ReplaceAll(one, "amd64", "all"), // foreign
		one + "Conffiles:\n /etc/a 1\n\nPackage: d\nConffiles",
		one + "Package", one + "Package:", "Package:\n" + one, "Status: hold ok installed\n\n" + one,
		strings.ReplaceAll(one, "install ok installed", "install  ok installed") + "\n" + strings.ReplaceAll(one, "Version: 1\n", ""),
		"Package: a\nStatus: install ok half-installed\n\nPackage: b\nStatus: hold ok not-installed\n\nPackage: c\nStatus: x\n",
		one + "\nPackage: a\nArchitecture: amd64\nAuto-Installed: 1\n",
		one + "Auto-Installed: 1\n\nPackage: a\nAuto-Installed: 0\n",
		"Package: dpkg\nArchitecture: all\n\nPackage: x\nArchitecture: arm64\n", one + "\n:\n\nPackage: dpkg\nArchitecture: all\n",
		":\n\n::\n \n\t\n\n#\n", " \n \n\n" + one, "",
	}
}

// plain reads each field of a paragraph line by line, with its continuations, whatever that costs:
// deb822(5).
func plain(text string) (all [][][2]string) {
	for p := range strings.SplitSeq(text, "\n\n") {
		if strings.TrimSpace(p) == "" {
			continue
		}
		var raw []string
		for line := range strings.Lines(p) {
			if len(raw) == 0 || !strings.ContainsAny(line[:1], " \t#") {
				raw = append(raw, "")
			}
			raw[len(raw)-1] += line
		}

		fields := [][2]string{}
		for _, f := range raw {
			if key, value, ok := strings.Cut(f, ":"); ok && !strings.ContainsAny(f[:1], " \t#") {
				fields = append(fields, [2]string{key, strings.TrimSpace(value)})
			}
		}

		all = append(all, fields)
	}
	return all
}

// last returns the last field of a name.
func last(fields [][2]string, name string) (value string) {
	for _, f := range fields {
		if f[0] == name {
			value = f[1]
		}
	}
	return value
}

// asPlain has the test fail where a database of a native amd64 that was read from a text, which has
// marks too, is not what reading it line by line finds.
func asPlain(t *testing.T, d dpkg, text string) {
	t.Helper()
	states, details, key := map[string]packages.State{}, map[string]string{}, func(f [][2]string) string {
		name, arch := last(f, "Package"), last(f, "Architecture")
		if name == "" || arch == "" || arch == "all" || arch == "amd64" {
			return name
		}
		return name + ":" + arch
	}
	for _, f := range plain(text) {
		if key(f) == "" {
			continue
		}
		essential, conffiles := false, false
		for _, one := range f {
			switch one[0] {
			case "Essential", "Protected", "Important":
				essential = essential || one[1] == "yes"
			case "Conffiles":
				conffiles = true
			}
		}

		states[key(f)] = dpkgState(last(f, "Version"), []byte(" "+last(f, "Status"))) // without its short way
		details[key(f)] = fmt.Sprint(last(f, "Architecture"), essential, conffiles)
	}

	for _, f := range plain(text) {
		if s := states[key(f)]; last(f, "Auto-Installed") == "1" && s.Installed() {
			s.Auto = true
			states[key(f)] = s
		}
	}

	check.That(t, len(d.packages) == len(states), "%q: %d packages, want %d", text, len(d.packages), len(states))
	looked := 0
	for name, want := range states {
		check.That(t, d.packages[name] == want, "%q: %q is %+v, want %+v", text, name, d.packages[name], want)
		if looked++; looked > 8 { // each is looked up in the whole text
			continue
		}
		e := d.details(name)
		check.Equal(t, fmt.Sprint(string(e.arch), e.essential, e.conffiles), details[name], "%q: %q has", text, name)
	}

	arch := ""
	for _, f := range plain(text) {
		if of := last(f, "Architecture"); of != "all" {
			arch = of
		}
		if last(f, "Package") == "dpkg" {
			break
		}
	}

	check.Equal(t, nativeArch(noFiles{}, []byte(text)), arch, "%q: native is", text)
}

// noFiles is a machine without dpkg's list of architectures.
type noFiles struct{ host.View }

func (noFiles) ReadFile(string) ([]byte, error) { return nil, errors.ErrUnsupported }

// realDatabase has files in the form in which dpkg and apt write them, with n packages of a length
// that is usual in Debian 12.
func realDatabase(n int) map[string]string {
	var status, marks strings.Builder
	for i := range n {
		name := fmt.Sprintf("lib%c-package%d", 'a'+i*26/n, i)
		if i == n/6 {
			name = "dpkg"
		}
		wanted := "install"
		if i%28 == 1 { // as many as a driver has
			wanted = "hold"
		}
		fmt.Fprintf(&status, "Package: %s\nStatus: %s ok installed\nPriority: optional\nSection: libs\nInstalled-Size: %d\n", name, wanted, i)
		status.WriteString("Maintainer: Debian OpenSSL Team <pkg-openssl-devel@alioth-lists.debian.net>\nArchitecture: amd64\nMulti-Arch: same\n")
		fmt.Fprintf(&status, "Source: package%d\nVersion: 3.0.%d-1~deb12u2\nDepends: libc6 (>= 2.34), libgcc-s1 (>= 3.0), libstdc++6 (>= 11)\n", i, i)
		if i%10 == 0 {
			fmt.Fprintf(&status, "Conffiles:\n /etc/%s.conf 3a2d7f6f1c5a5d0f2b7e8a9f4c6d1e0b\n", name)
		}
		status.WriteString("Description: Secure Sockets Layer toolkit - shared libraries\n")
		status.WriteString(strings.Repeat(" This package is part of the project's implementation of the protocols\n", 5))
		status.WriteString("Homepage: https://www.example.org/\n\n")
		if i%8 > 0 {
			fmt.Fprintf(&marks, "Package: %s\nArchitecture: amd64\nAuto-Installed: 1\n\n", name)
		}
	}

	return map[string]string{facts.DpkgStatus: status.String(), aptExtStates: marks.String()}
}
