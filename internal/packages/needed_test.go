// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Sections as distributions ship them.
const (
	rockyCRB  = "[crb]\nname=Rocky Linux $releasever - CRB\nmirrorlist=https://mirrors.rockylinux.org/mirrorlist?arch=$basearch&repo=CRB-$releasever$rltype\n#baseurl=http://dl.rockylinux.org/x\ngpgcheck=1\nenabled=0\ncountme=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9\n\n[crb-debug]\nname=x\nenabled=1\nbaseurl=y\n"
	redhatCRB = "[codeready-builder-for-rhel-9-x86_64-debug-rpms]\nenabled = 1\n[codeready-builder-for-rhel-9-x86_64-rpms]\nname = CodeReady\nbaseurl = https://cdn.redhat.com/x\nenabled = 0\nsslclientcert = /etc/pki/entitlement/1.pem\n"
	epel      = "[epel]\nname=EPEL\nmetalink=https://mirrors.fedoraproject.org/metalink?repo=epel-$releasever\nenabled=1\n[epel-debuginfo]\nenabled=0\n"
)

// TestLackingRepositories: what is not enabled is named with the command of this distribution, or enabled by a file or package.
func TestLackingRepositories(t *testing.T) {
	both := []string{"epel", "crb"}
	for _, x := range []struct {
		what, id, version string
		needs             []string
		files             map[string]string
		want              []string // TRY | FILE | PACKAGE
	}{
		{"fresh Rocky 9", "rocky", "9.6", both, map[string]string{"rocky.repo": rockyCRB}, []string{"dnf install epel-release||epel-release", "dnf config-manager --set-enabled crb|/etc/yum.repos.d/gpuadm-crb.repo|"}},
		{"fresh Alma 8", "almalinux", "8.10", []string{"epel", "powertools"}, map[string]string{"almalinux-powertools.repo": "[powertools]\nenabled=0\nbaseurl=x\n"}, []string{"dnf install epel-release||epel-release", "dnf config-manager --set-enabled powertools|/etc/yum.repos.d/gpuadm-powertools.repo|"}},
		{"CentOS Stream 10 that has both", "centos", "10", both, map[string]string{"centos.repo": "[crb]\nbaseurl=x\n", "company.repo": epel}, nil},
		{"the package's own file", "centos", "10", both, map[string]string{"centos.repo": "[crb]\nenabled=1\n", "epel.repo": epel}, []string{"||epel-release enabled"}},
		{"EPEL disabled", "rocky", "9.6", []string{"epel"}, map[string]string{"epel.repo": strings.Replace(epel, "enabled=1", "enabled=0", 1)}, []string{"dnf config-manager --set-enabled epel|/etc/yum.repos.d/gpuadm-epel.repo|"}},
		{"fresh Oracle 9", "ol", "9.6", both, map[string]string{"oracle-linux-ol9.repo": "[ol9_codeready_builder]\nenabled=0\nbaseurl=x\n"}, []string{"dnf install oracle-epel-release-el9||oracle-epel-release-el9", "dnf config-manager --set-enabled ol9_codeready_builder|/etc/yum.repos.d/gpuadm-crb.repo|"}},
		{"Oracle 10 with its EPEL disabled", "ol", "10.1", []string{"epel"}, map[string]string{"oracle-epel-ol10.repo": "[ol10_u1_developer_EPEL]\nenabled=0\nbaseurl=x\n"}, []string{"dnf config-manager --set-enabled ol10_u1_developer_EPEL|/etc/yum.repos.d/gpuadm-epel.repo|"}},
		{"RHEL 9 with a subscription", "rhel", "9.6", both, map[string]string{"redhat.repo": redhatCRB}, []string{"dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-9.noarch.rpm||", "subscription-manager repos --enable=codeready-builder-for-rhel-9-x86_64-rpms||"}},
		{"RHEL 9 of a cloud", "rhel", "9.6", []string{"crb"}, map[string]string{"redhat-rhui.repo": "[codeready-builder-for-rhel-9-rhui-rpms]\nenabled=0\n[codeready-builder-for-rhel-9-rhui-source-rpms]\nenabled=1\n"}, []string{"dnf config-manager --set-enabled codeready-builder-for-rhel-9-rhui-rpms||"}},
		{"RHEL 10 without", "rhel", "10.0", []string{"crb"}, nil, []string{"subscription-manager repos --enable=codeready-builder-for-rhel-10-x86_64-rpms||"}},
		{"ours does not count", "rocky", "9.6", []string{"crb"}, map[string]string{"rocky.repo": rockyCRB, "gpuadm-crb.repo": "[gpuadm-crb]\nenabled=1\n"}, []string{"dnf config-manager --set-enabled crb|/etc/yum.repos.d/gpuadm-crb.repo|"}},
		{"AL2023", "amzn", "2023", []string{"amazonlinux-nvidia"}, nil, []string{"dnf install nvidia-release||nvidia-release"}},
	} {
		f := System{ID: x.id, Version: x.version, Arch: "amd64", Files: map[string][]byte{}}
		for name, data := range x.files {
			f.Files["/etc/yum.repos.d/"+name] = []byte(data)
		}
		var got []string
		for _, l := range Lacking(f, x.needs) {
			s := l.Try + "|" + l.File + "|"
			if l.Release != nil {
				s += l.Release.Package
			}
			if l.Enabled {
				s += " enabled"
			}
			got = append(got, s)
			if err := l.Unavailable(); (err != nil) != strings.HasSuffix(s, "||") || err != nil && !strings.Contains(strings.Join(err.(*converge.Trouble).Try, "\n"), l.Try) {
				t.Errorf("%s: %v", x.what, err)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s:\n got %q\nwant %q", x.what, got, x.want)
		}
	}
}

// TestCopiedSection: our file is the disabled section under our name, and dnf's list of it is found though only dnf knows its URL.
func TestCopiedSection(t *testing.T) {
	f := System{ID: "rocky", Version: "9.6", Files: map[string][]byte{"/etc/yum.repos.d/rocky.repo": []byte(rockyCRB)}}
	l := Lacking(f, []string{"crb"})[0]
	want := header + `# As /etc/yum.repos.d/rocky.repo says of crb, which is disabled there.
[gpuadm-crb]
name=Rocky Linux $releasever - CRB
mirrorlist=https://mirrors.rockylinux.org/mirrorlist?arch=$basearch&repo=CRB-$releasever$rltype
gpgcheck=1
countme=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9
enabled=1
`
	if string(l.Data) != want {
		t.Errorf("got %s", l.Data)
	}
	const list = "var/cache/dnf/gpuadm-crb-0123456789abcdef/repodata/repomd.xml"
	for files, stale := range map[string]bool{
		"": true,
		"-- " + strings.Replace(list, "gpuadm-crb", "gpuadm-crb-more", 1) + " --\n": true,
		"-- " + list + " --\n": false,
	} {
		n, err := simhost.New([]byte("-- etc/yum.repos.d/gpuadm-crb.repo --\n" + want + files))
		if err != nil {
			t.Fatal(err)
		}
		if is, err := newDnf().stale(n, []string{l.File}); is != stale || err != nil {
			t.Errorf("with %q: stale %v, %v", files, is, err)
		}
	}
}

// TestLackingComponents: both forms of apt's sources, and entries of others that are left alone.
func TestLackingComponents(t *testing.T) {
	const deb822 = "Types: deb\nURIs: http://debian.example/debian\nSuites: trixie trixie-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\nTypes: deb\nURIs: https://apt.example/\nSuites: trixie\nComponents: main\nSigned-By: /usr/share/keyrings/example.gpg\n"
	for _, x := range []struct {
		what, file, data string
		needs            []string
		try, has, not    string
	}{
		{"one line", "/etc/apt/sources.list", "deb [arch=amd64,i386 trusted=yes] http://debian.example/debian bookworm main\n# deb x y contrib\n", []string{"contrib"}, "add contrib behind main in /etc/apt/sources.list, then apt-get update", "URIs: http://debian.example/debian\nSuites: bookworm\nComponents: contrib\narchitectures: amd64 i386\ntrusted: yes\n", "Components: main"},
		{"deb822", "/etc/apt/sources.list.d/debian.sources", deb822, []string{"contrib", "non-free"}, "add contrib non-free behind main in /etc/apt/sources.list.d/debian.sources", "Suites: trixie-updates\nComponents: contrib non-free\nsigned-by: /usr/share/keyrings/debian-archive-keyring.gpg\n", "apt.example"},
		{"all there", "/etc/apt/sources.list", "deb http://debian.example/debian bookworm main contrib\n", []string{"contrib"}, "", "", ""},
		{"another's alone", "/etc/apt/sources.list.d/x.sources", strings.SplitN(deb822, "\n\n", 2)[1], []string{"contrib"}, "add contrib behind main in apt's sources", "", "apt.example"},
	} {
		f := System{ID: "debian", Arch: "amd64", Files: map[string][]byte{x.file: []byte(x.data)}}
		all := Lacking(f, x.needs)
		if len(all) == 0 {
			all = []Lack{{}}
		}
		l := all[0]
		if !strings.HasPrefix(l.Try, x.try) || (l.Try == "") != (x.try == "") || !strings.Contains(string(l.Data), x.has) || x.not != "" && strings.Contains(string(l.Data), x.not) {
			t.Errorf("%s: %q\n%s", x.what, l.Try, l.Data)
		}
		if (l.Unavailable() == nil) != (x.has != "") && x.try != "" {
			t.Errorf("%s: %v", x.what, l.Unavailable())
		}
	}
}

// TestEnabledWants: the release package is wanted as long as its file is what enables the repository, and not where another has
// written a file of that name.
func TestEnabledWants(t *testing.T) {
	f := System{ID: "rocky", Version: "9.6", Files: map[string][]byte{}}
	state := func() (s string) {
		wants, err := Enabled(new(Reading), "dnf", Lacking(f, []string{"epel"}))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range wants {
			none, _ := w.To("")
			is, _ := w.To(converge.State(State{Version: "9-7.el9"}.String()))
			name := w.Name()
			if r, reads := w.Thing.(converge.Reader); reads {
				name += " " + strings.Join(r.Reads(), " ")
			}
			s += w.Kind() + " " + name + ": " + string(none) + ", " + string(is) + "\n"
		}
		return s
	}
	const key = "package-key /etc/pki/rpm-gpg/RPM-GPG-KEY-EPEL-9 /etc/pki/rpm-gpg/RPM-GPG-KEY-EPEL-9: imported, imported\n"
	const list = "package-lists dnf /etc/yum.repos.d/epel.repo: fresh, fresh\n"
	if got, want := state(), "package epel-release: epel-release=*, 9-7.el9\n"+key+list; got != want {
		t.Errorf("before: %s", got)
	}
	f.Files["/etc/yum.repos.d/epel.repo"] = []byte(epel)
	if got, want := state(), "package epel-release: , 9-7.el9\n"+key+list; got != want {
		t.Errorf("after: %s", got)
	}
	l := lists{"dnf", []string{"/etc/yum.repos.d/epel.repo"}}
	if s := l.Unsettled(fresh, converge.Change{Kind: "package", Name: "epel-release", After: "9-7.el9"}); s != stale {
		t.Errorf("the package leaves the lists %s", s)
	}
	if s := l.Unsettled(fresh, converge.Change{Kind: "package", Name: "dkms", After: "3"}); s != fresh {
		t.Errorf("any package makes the lists %s", s)
	}
}

// TestAdvised: a refusal about packages says what to enable, one about a lock does not.
func TestAdvised(t *testing.T) {
	s := NewSet().Advising([]Lack{{Name: "the repository epel", Try: "dnf install epel-release"}, {Name: "x", Try: "y", Enabled: true}})
	refused := &converge.Trouble{What: "cannot install dkms", Try: []string{"dnf makecache"}}
	said := (*converge.Trouble)(nil)
	if err := s.advised(refused); !errors.As(err, &said) || !slices.Equal(said.Try, []string{"enable the repository epel, which the driver's packages depend on: dnf install epel-release", "dnf makecache"}) || len(refused.Try) != 1 {
		t.Errorf("%+v", said)
	}
	busy := &converge.Trouble{What: "locked", Err: &locked{errors.New("x"), "y"}}
	if err := s.advised(busy); err != error(busy) {
		t.Errorf("%v", err)
	}
}

// TestKeyOfRPMByFile: where only the file says the fingerprint, that is what rpm is asked for.
func TestKeyOfRPMByFile(t *testing.T) {
	const file = "/etc/pki/rpm-gpg/x.asc"
	n, err := simhost.New([]byte("-- etc/pki/rpm-gpg/ --\n"))
	if err != nil {
		t.Fatal(err)
	}
	key := fileOf(t, "../things/testdata/ed25519.asc")
	put := func(data []byte) {
		if err := n.WriteFile(file, data, host.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	read := new(Reading)
	for _, trusted := range []string{"sha256:" + fmt.Sprintf("%x", sha256.Sum256(key)), file} {
		k := NewKey(trusted, []string{file}).(rpmKey)
		if k.trusted != trusted || k.file != file {
			t.Errorf("built again as %+v", k)
		}
		if f, err := k.fingerprints(n); len(f) != 0 || err != nil {
			t.Errorf("%s, no file: %v, %v", trusted, f, err)
		}
		put(key)
		if f, err := k.fingerprints(n); err != nil || !slices.Equal(f, []string{"F22CC24F7F742054127646D9354FB98A5B4AF876"}) {
			t.Errorf("%s: %v, %v", trusted, f, err)
		}
		if err := n.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	put([]byte("another"))
	if f, err := (rpmKey{read, "sha256:" + fmt.Sprintf("%x", sha256.Sum256(key)), file}).fingerprints(n); len(f) != 0 || err != nil {
		t.Errorf("another file: %v, %v", f, err)
	}
}

func fileOf(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
