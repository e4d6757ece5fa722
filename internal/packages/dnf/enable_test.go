// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Sections as distributions ship them.
const (
	rockyCRB  = "[crb]\nname=Rocky Linux $releasever - CRB\nmirrorlist=https://mirrors.rockylinux.org/mirrorlist?arch=$basearch&repo=CRB-$releasever$rltype\n#baseurl=http://dl.rockylinux.org/x\ngpgcheck=1\nenabled=0\ncountme=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9\n\n[crb-debug]\nname=x\nenabled=1\nbaseurl=y\n"
	redhatCRB = "[codeready-builder-for-rhel-9-x86_64-debug-rpms]\nenabled = 1\n[codeready-builder-for-rhel-9-x86_64-rpms]\nname = CodeReady\nbaseurl = https://cdn.redhat.com/x\nenabled = 0\nsslclientcert = /etc/pki/entitlement/1.pem\n"
	epel      = "[epel]\nname=EPEL\nmetalink=https://mirrors.fedoraproject.org/metalink?repo=epel-$releasever\nenabled=1\n[epel-debuginfo]\nenabled=0\n"
)

// textOf says how a repository that is lacking is enabled: TRY | FILE | PACKAGE.
func textOf(l packages.Lack) string {
	text := l.Try + "|" + l.File + "|"
	if l.Release != nil {
		text += l.Release.Package
	}
	if l.Enabled {
		text += " enabled"
	}
	return text
}

// TestLackingRepositories: a repository that is not enabled is named with the command of this
// distribution, or enabled by a file or a package.
func TestLackingRepositories(t *testing.T) {
	type files = map[string]string // of /etc/yum.repos.d
	epelAndCRB := []string{"epel", "crb"}
	epelOff := strings.Replace(epel, "enabled=1", "enabled=0", 1)
	off := func(name string) string { return "[" + name + "]\nenabled=0\nbaseurl=x\n" }
	const extended = "[codeready-builder-for-rhel-9-x86_64-eus-rpms]\nenabled = 0\n" + redhatCRB
	const rhui = "[codeready-builder-for-rhel-9-rhui-rpms]\nenabled=0\n[codeready-builder-for-rhel-9-rhui-source-rpms]\nenabled=1\n"

	for _, tt := range []struct {
		name, id, version string
		needs             []string
		files             files
		want              []string
	}{
		{"fresh Rocky 9", "rocky", "9.6", epelAndCRB, files{"rocky.repo": rockyCRB}, []string{
			"dnf install epel-release||epel-release",
			"dnf config-manager --set-enabled crb|/etc/yum.repos.d/gpuadm-crb.repo|",
		}},
		{"fresh Alma 8", "almalinux", "8.10", []string{"epel", "powertools"}, files{"almalinux-powertools.repo": off("powertools")}, []string{
			"dnf install epel-release||epel-release",
			"dnf config-manager --set-enabled powertools|/etc/yum.repos.d/gpuadm-powertools.repo|",
		}},
		{"CentOS Stream 10 that has both", "centos", "10", epelAndCRB, files{"centos.repo": "[crb]\nbaseurl=x\n", "company.repo": epel}, nil},
		{"the package's own file", "centos", "10", epelAndCRB, files{"centos.repo": "[crb]\nenabled=1\n", "epel.repo": epel}, []string{
			"||epel-release enabled",
		}},
		{"EPEL disabled", "rocky", "9.6", []string{"epel"}, files{"epel.repo": epelOff}, []string{
			"dnf config-manager --set-enabled epel|/etc/yum.repos.d/gpuadm-epel.repo|",
		}},
		{"fresh Oracle 9", "ol", "9.6", epelAndCRB, files{"oracle-linux-ol9.repo": off("ol9_codeready_builder")}, []string{
			"dnf install oracle-epel-release-el9||oracle-epel-release-el9",
			"dnf config-manager --set-enabled ol9_codeready_builder|/etc/yum.repos.d/gpuadm-crb.repo|",
		}},
		{"Oracle 10 with its EPEL disabled", "ol", "10.1", []string{"epel"}, files{"oracle-epel-ol10.repo": off("ol10_u1_developer_EPEL")}, []string{
			"dnf config-manager --set-enabled ol10_u1_developer_EPEL|/etc/yum.repos.d/gpuadm-epel.repo|",
		}},
		{"RHEL 9 with a subscription", "rhel", "9.6", epelAndCRB, files{"redhat.repo": redhatCRB}, []string{
			"dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-9.noarch.rpm||",
			"subscription-manager repos --enable=codeready-builder-for-rhel-9-x86_64-rpms||",
		}},
		{"RHEL 9 with variants", "rhel", "9.6", []string{"crb"}, files{"redhat.repo": extended}, []string{
			"subscription-manager repos --enable=codeready-builder-for-rhel-9-x86_64-rpms||",
		}},
		{"RHEL 9 of a cloud", "rhel", "9.6", []string{"crb"}, files{"redhat-rhui.repo": rhui}, []string{
			"dnf config-manager --set-enabled codeready-builder-for-rhel-9-rhui-rpms||",
		}},
		{"RHEL 10 without", "rhel", "10.0", []string{"crb"}, nil, []string{
			"subscription-manager repos --enable=codeready-builder-for-rhel-10-x86_64-rpms||",
		}},
		{"gpuadm's own file does not count", "rocky", "9.6", []string{"crb"}, files{"rocky.repo": rockyCRB, "gpuadm-crb.repo": "[gpuadm-crb]\nenabled=1\n"}, []string{
			"dnf config-manager --set-enabled crb|/etc/yum.repos.d/gpuadm-crb.repo|",
		}},
		{"AL2023", "amzn", "2023", []string{"amazonlinux-nvidia"}, nil, []string{
			"dnf install nvidia-release||nvidia-release",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			system := packages.System{
				ID:      tt.id,
				Version: tt.version,
				Arch:    "amd64",
				Files:   map[string][]byte{},
			}
			for name, text := range tt.files {
				system.Files["/etc/yum.repos.d/"+name] = []byte(text)
			}

			var got []string
			for _, l := range lacking(system, tt.needs...) {
				got = append(got, textOf(l))
				checkUnavailable(t, l)
			}

			check.That(t, slices.Equal(got, tt.want), "got %q\nwant %q", got, tt.want)
		})
	}
}

// checkUnavailable wants an error, with the operator's command, only of a repository that neither a
// file nor a package of gpuadm's enables.
func checkUnavailable(t *testing.T, l packages.Lack) {
	t.Helper()
	err := l.Unavailable()
	if !strings.HasSuffix(textOf(l), "||") {
		check.That(t, err == nil, "gpuadm enables it: %v", err)
		return
	}

	var refused *trouble.Error
	must.That(t, errors.As(err, &refused), "%v", err)
	check.Has(t, strings.Join(refused.Try, "\n"), l.Try, "it advises")
}

// TestCopiedSection: our file is the disabled section under our name, and dnf's list of it is found
// though only dnf knows its URL.
func TestCopiedSection(t *testing.T) {
	f := packages.System{
		ID:      "rocky",
		Version: "9.6",
		Files:   map[string][]byte{"/etc/yum.repos.d/rocky.repo": []byte(rockyCRB)},
	}
	l := lacking(f, "crb")[0]
	want := packages.Header + `# As /etc/yum.repos.d/rocky.repo says of crb, which is disabled there.
[gpuadm-crb]
name=Rocky Linux $releasever - CRB
mirrorlist=https://mirrors.rockylinux.org/mirrorlist?arch=$basearch&repo=CRB-$releasever$rltype
gpgcheck=1
countme=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9
enabled=1
`
	check.That(t, string(l.Data) == want, "got %s", l.Data)
	const list = "var/cache/dnf/gpuadm-crb-0123456789abcdef/repodata/repomd.xml"
	for files, stale := range map[string]bool{
		"": true,
		"-- " + strings.Replace(list, "gpuadm-crb", "gpuadm-crb-more", 1) + " ctime=2099-01-02T03:04:05Z --\n": true,
		"-- " + list + " --\n":                            true, // as old as the file of the repository
		"-- " + list + " ctime=2099-01-02T03:04:05Z --\n": false,
	} {
		n := must.Get(simhost.New([]byte("-- etc/yum.repos.d/gpuadm-crb.repo --\n" + want + files)))(t)
		is, err := New(nil).Stale(n, []string{l.File})
		check.That(t, is == stale && err == nil, "with %q: stale %v, %v", files, is, err)
	}
}

// TestEnabledWants: the release package is wanted as long as its file is what enables the
// repository, and not where another has written a file of that name.
func TestEnabledWants(t *testing.T) {
	f := packages.System{
		ID:      "rocky",
		Version: "9.6",
		Files:   map[string][]byte{},
	}
	state := func() (s string) {
		wants := must.Get(packages.NewReading(New(nil)).Enabled("dnf", lacking(f, "epel")))(t)
		for _, w := range wants {
			none, _ := w.To("")
			is, _ := w.To(converge.State(packages.State{Version: "9-7.el9"}.String()))
			name := strings.Join(append([]string{w.Ref().Name}, w.Ref().Reads...), " ")
			s += w.Ref().Kind + " " + name + ": " + string(none) + ", " + string(is) + "\n"
		}

		return s
	}

	const key = "package-key /etc/pki/rpm-gpg/RPM-GPG-KEY-EPEL-9 /etc/pki/rpm-gpg/RPM-GPG-KEY-EPEL-9: imported, imported\n"
	const list = "package-lists dnf /etc/yum.repos.d/epel.repo: fresh, fresh\n"
	got, want := state(), "package epel-release: epel-release=*, 9-7.el9\n"+key+list
	check.That(t, got == want, "before: %s", got)
	f.Files["/etc/yum.repos.d/epel.repo"] = []byte(epel)
	got, want = state(), "package epel-release: , 9-7.el9\n"+key+list
	check.That(t, got == want, "after: %s", got)
	l := packages.NewLists("dnf", []string{"/etc/yum.repos.d/epel.repo"}, packages.NewReading(New(nil))).(converge.Follower)
	check.Equal(t, l.Affected("fresh", converge.Change{
		Ref:   converge.Ref{Kind: "package", Name: "epel-release"},
		After: "9-7.el9",
	}), "stale", "the package leaves the lists")
	check.Equal(t, l.Affected("fresh", converge.Change{
		Ref:   converge.Ref{Kind: "package", Name: "dkms"},
		After: "3",
	}), "fresh", "any package makes the lists")
}

func lacking(s packages.System, needs ...string) []packages.Lack {
	lacks, _ := Lacking(s, needs)
	return lacks
}
