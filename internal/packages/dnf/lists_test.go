// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestParseRepos(t *testing.T) {
	r := packages.Repository{ID: "cuda", URL: "file:///srv/nvidia/compute/cuda/repos/rhel9/x86_64/", About: "x"}
	all := enabled("f", dnfRepo(r, "/etc/pki/rpm-gpg/k.asc", host.Via{}))
	if len(all) != 1 || all[0].id != "gpuadm-cuda" || all[0].url() != "file:///srv/nvidia/compute/cuda/repos/rhel9/x86_64" || all[0].values["gpgkey"] != "file:///etc/pki/rpm-gpg/k.asc" {
		t.Fatalf("got %+v", all)
	}
	all[0].id = "cuda" // what dnf 4.23 called the folder
	if got := all[0].list(nil); got != "/var/cache/dnf/cuda-993b405957239e4a/repodata/repomd.xml" {
		t.Errorf("dnf keeps the list at %s", got)
	}
	if all := enabled("f", []byte("[a]\nenabled=0\nbaseurl=x\n[b]\nbaseurl=y\n")); len(all) != 1 || all[0].url() != "y" {
		t.Errorf("one of two is disabled: %+v", all)
	}
	for signed, says := range map[packages.Signed]string{packages.SignedBoth: "gpgcheck=1\nrepo_gpgcheck=1", packages.SignedMetadata: "gpgcheck=0\nrepo_gpgcheck=1", packages.SignedPackages: "gpgcheck=1\nrepo_gpgcheck=0"} {
		r.Signed = signed
		if text := string(dnfRepo(r, "/k", host.Via{})); !strings.Contains(text, says) {
			t.Errorf("signed %q: %s", signed, text)
		}
	}
}

func TestDnfLeftovers(t *testing.T) {
	dir := t.TempDir()
	const cuda = "[%s]\nbaseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/\n"
	write(t, dir+dnfRepos+"/cuda-rhel9.repo", strings.ReplaceAll(cuda, "%s", "cuda"))
	write(t, dir+dnfRepos+"/gpuadm-driver.repo", strings.ReplaceAll(cuda, "%s", "gpuadm-driver"))
	write(t, dir+dnfRepos+"/old.repo", "[old]\nbaseurl=https://nvidia.github.io/nvidia-docker/centos7/x86_64\n")
	h := must.Get(host.Open(dir))(t)
	found := packages.NewReading(New()).Leftovers(h)
	if len(found) != 2 || !strings.Contains(found[0], "cuda-rhel9.repo, /etc/yum.repos.d/gpuadm-driver.repo: each names") || !strings.Contains(found[1], "old.repo: nvidia-docker") {
		t.Errorf("found %q", found)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must.OK(t, os.WriteFile(name, []byte(text), 0o644))
}
