// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestUnverified: a repository is named that has some of the files, and of which neither its own section nor dnf.conf says that dnf
// verifies anything.
func TestUnverified(t *testing.T) {
	repos := withMain(enabled("a.repo", []byte(`[signed]
gpgcheck=1
[listed]
gpgcheck=0
repo_gpgcheck=True
[plain]
gpgcheck=0
[silent]
[unused]
gpgcheck=0
`)), parseRepos("dnf.conf", []byte("[main]\nrepo_gpgcheck=0\n")))
	files := map[string]rpmFetched{"a.rpm": {from: []string{"signed", "plain"}}, "b.rpm": {from: []string{"listed"}}, "c.rpm": {from: []string{"silent"}}}
	if got, want := slices.Sorted(maps.Keys(unverified(repos, files))), []string{"plain", "silent"}; !slices.Equal(got, want) {
		t.Errorf("unverified: %v, want %v", got, want)
	}
}

// TestMirrored: dnf reads no other repository where all of gpuadm's are mirrors, and each one otherwise. A mirror that was written since
// makes the lists old.
func TestMirrored(t *testing.T) {
	const lock, alone = "-- srv/mirror/" + packages.MirrorLock + " --\n{}\n", "--enablerepo=gpuadm-*"
	mirror := string(dnfRepo(packages.Repository{ID: "driver", URL: "file:///srv/mirror", Signed: packages.SignedMetadata, Whole: true}, "/k", host.Via{}))
	if !strings.Contains(mirror, "gpgcheck=0\nrepo_gpgcheck=1\n") || !strings.Contains(mirror, "\nmodule_hotfixes=1\n") {
		t.Errorf("a mirror's repository:\n%s", mirror)
	}
	for files, want := range map[string]bool{
		"": false,
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror:                                                                                                false, // a folder that is no mirror
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror + "-- etc/yum.repos.d/base.repo --\n[base]\nbaseurl=https://x\n" + lock:                        true,
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror + "-- etc/yum.repos.d/gpuadm-toolkit.repo --\n[gpuadm-toolkit]\nbaseurl=https://x\n" + lock:    false,
		"-- etc/yum.repos.d/gpuadm-driver.repo --\n" + mirror + "-- etc/yum.repos.d/gpuadm-crb.repo --\n[gpuadm-crb]\nbaseurl=https://x\nenabled=0\n" + lock: true,
	} {
		n := must.Get(simhost.New([]byte(files)))(t)
		if got := slices.Contains(New().(dnf).options(n), alone); got != want {
			t.Errorf("other repositories are left out: %v, want %v, with\n%s", got, want, files)
		}
	}
}
