// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// from asks for a driver from another place than the mirror's, which has the same key.
func (n driverNode) from(variant repos.Variant, version string) string {
	return strings.ReplaceAll(n.spec(version, ""), repos.Mirror, "file://"+lab.RepoDir+"/"+string(variant))
}

// TestLabSourceMoves: a driver moves to a mirror that lacks the version that was there. Undo brings
// that back from the files that were kept, also where the first mirror is gone; undo of all leaves
// nothing, and needs no mirror.
func TestLabSourceMoves(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	first, files := n.AptState(), n.TreeOutsideCaches()
	n.wants(0, n.from(repos.Good, repos.Gone))
	was, source := n.AptState(), n.Get("/etc/apt/sources.list.d/gpuadm-driver.sources")
	n.wants(0, n.from(repos.Vanished, "590.48.01"))
	n.has("590.48.01")
	n.gpuadm(0, "undo", "--yes")
	for _, d := range differ(n.AptState(), was) {
		t.Errorf("after undo, %s", d)
	}
	check.Equal(t, n.Get("/etc/apt/sources.list.d/gpuadm-driver.sources"), source, "after undo the source is")
	n.wants(0, n.from(repos.Vanished, "590.48.01"))
	n.Must("sh", "-c", "rm -rf /var/lib/apt/lists/*") // removing needs no source
	n.gpuadm(0, "undo", "--to", "all")
	for _, d := range differ(n.AptState(), first) {
		t.Errorf("after undo of all, %s", d)
	}
	check.None(t, ourOwn(n.TreeOutsideCaches().Diff(files)), "undo of all left:")
}

// TestLabSourceBuilds: the driver of another mirror installs, and has no module for the kernel. The
// first mirror's packages, pins, source, modules and DKMS's state come back.
func TestLabSourceBuilds(t *testing.T) {
	t.Parallel()
	n, kernel := bootDKMS(t, "bookworm")
	n.wants(0, n.from(repos.Good, repos.Gone), "apply")
	n.built(kernel, repos.Gone)
	n.Put("/etc/dkms/nvidia-590.48.01.conf", "BUILD_EXCLUSIVE_KERNEL=\"^never$\"\n", 0o644) // dkms(8): the package installs, and builds nothing
	before := n.snapshot()
	says(t, n.wants(1, n.from(repos.Vanished, "590.48.01"), "apply"), "undone", "package nvidia-kernel-open-dkms", "file /etc/apt/sources.list.d/gpuadm-driver.sources")
	n.same(before, "/usr/lib/modules", "/var/lib/dkms", "/boot/initrd.img-"+kernel) // rebuilt
	n.built(kernel, repos.Gone)
	n.wants(0, n.from(repos.Good, repos.Gone), "apply")
}

// TestLabSourceOfDistribution: from NVIDIA's repository to the distribution's archive and back, and
// to no driver.
func TestLabSourceOfDistribution(t *testing.T) {
	t.Parallel()
	n := bootListed(t, "ubuntu2404")
	first := n.AptState()
	n.once(n.of("580.95.05"))
	was, pins := n.AptState(), n.Get("/etc/apt/preferences.d/00-gpuadm-driver")
	n.wants(0, ofDistro("580"))
	n.gpuadm(0, "undo", "--yes")
	for _, d := range differ(n.AptState(), was) {
		t.Errorf("after undo, %s", d)
	}
	check.Equal(t, n.Get("/etc/apt/preferences.d/00-gpuadm-driver"), pins, "after undo the pins are")
	n.wants(0, ofDistro("580"))
	n.gpuadm(0, "undo", "--to", "all")
	for _, d := range differ(n.AptState(), first) {
		t.Errorf("after undo of all, %s", d)
	}
}

// TestLabDnfPairs: the driver as one spec asks for it, then as each other one does, which may change
// the source or fail; undo of that, and the next one; undo of all.
func TestLabDnfPairs(t *testing.T) {
	t.Parallel()
	const below = "/compute/cuda/repos/rhel9/x86_64"
	d := newDnfDriver(t)
	first, tree := d.RpmState(), d.TreeOutsideCaches()
	at := func(variant repos.Variant) string {
		return "file://" + lab.RepoDir + "/" + string(variant) + below
	}
	type spec struct {
		version, url string
		fails        bool
	}
	specs := []spec{
		{repos.Gone, at(repos.Good), false},
		{"580.178.04", at(repos.Vanished), false},
		{"595.71.05", repos.Mirror + below, false},
		{"570.172.08", at(repos.Good), false},
		{repos.BadDriver, repos.Mirror + below, true}, // its script fails
	}
	for i, a := range specs {
		if a.fails {
			continue
		}
		second := slices.DeleteFunc(slices.Clone(specs), func(b spec) bool { return a == b })
		if !check.All() {
			second = second[i%len(second):][:1]
		}

		d.at(a.version, a.url, "both")
		d.apply(0)
		was := d.RpmState()
		for _, b := range second {
			if d.at(b.version, b.url, "both"); b.fails {
				d.apply(1, "undone")
			} else {
				d.apply(0)
				d.onlyOf(b.version)
				d.Must("sh", "-c", "rm -rf /var/cache/dnf/*")
				d.gpuadm(0, nil, "undo", "--yes")
			}

			for _, diff := range differ(d.RpmState(), was) {
				t.Errorf("%v, then %v, undone: %s", a, b, diff)
			}
		}

		d.Must("rm", "-rf", "/etc/gpuadm")
		d.gpuadm(0, nil, "undo", "--to", "all")
		d.Must("rm", "-rf", "/var/lib/gpuadm")
		d.same(first, tree)
	}
}

// TestLabDeclared: the repositories are declared already, as NVIDIA's cuda-keyring and the
// container toolkit's page do. gpuadm's own declarations take their place until undo; in an image,
// too, apt can read its lists afterwards.
func TestLabDeclared(t *testing.T) {
	t.Parallel()
	n := bootDriver(t, lab.Options{Dist: "bookworm"})
	const keyring = "/usr/share/keyrings/cuda-archive-keyring.gpg"
	n.Must("cp", repos.Keyring, keyring)
	lists := strings.SplitAfter(repos.AptSources(repos.Mirror, "bookworm", keyring), "\n")
	for _, root := range []string{"", "/srv/image"} {
		n.Put(root+"/etc/apt/sources.list.d/cuda-debian12-x86_64.list", lists[0], 0o644)
		n.Put(root+"/etc/apt/sources.list.d/toolkit.sources", "Types: deb\nURIs: "+strings.Fields(lists[1])[2]+"/\nSuites: /\nSigned-By: "+keyring+"\n", 0o644)
	}

	n.Must("apt-get", "update")
	first, files := n.AptState(), n.TreeOutsideCaches()
	n.wants(0, n.spec("580.65.06", "1.18.0"))
	n.has("580.65.06")
	n.Must("apt-get", "update", "-o", "APT::Update::Error-Mode=any")
	says(t, n.wants(0, n.spec("580.65.06", "1.18.0")), "Nothing to do.")
	n.gpuadm(0, "undo", "--to", "all")
	n.Must("apt-get", "update")
	for _, d := range differ(n.AptState(), first) {
		t.Errorf("after undo of all, %s", d)
	}
	check.None(t, ourOwn(n.TreeOutsideCaches().Diff(files)), "undo of all left:")

	n.Must("sh", "-ec", "cd /srv/image; mkdir -p var/lib/dpkg usr/lib etc/apt/preferences.d etc/apt/apt.conf.d srv/repo usr/share/keyrings lib/modules/"+emptyKernel+`
		cp -L /etc/os-release etc/; cp /var/lib/dpkg/status var/lib/dpkg/; cp `+repos.Key+` srv/repo/; touch etc/apt/sources.list`)
	n.Put("/srv/image"+specFile, n.spec("580.65.06", "1.18.0"), 0o644)
	read := []string{"apt-get", "-o", "Dir::Etc=/srv/image/etc/apt", "-o", "Dir::State::lists=/tmp", "update", "--print-uris"}
	before := n.Must(read...)
	n.gpuadm(0, "apply", "sources", "packages", "--root", "/srv/image")
	after := n.Must(read...)
	check.That(t, strings.Contains(after, "srv/nvidia"), "apt reads of the image:\n%s, and read before:\n%s", after, before)
	n.gpuadm(0, "undo", "--to", "all", "--root", "/srv/image")
	after = n.Must(read...)
	check.That(t, after == before, "apt reads of the image after undo:\n%s, and read before:\n%s", after, before)
}

// TestLabDeclaredDnf is the same for dnf: also of a list of mirrors, and of an entry with the id of
// gpuadm's, which dnf would read instead.
func TestLabDeclaredDnf(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	d.Put("/etc/yum.repos.d/cuda-rhel9.repo", repos.DnfRepos(repos.Mirror, repos.Key), 0o644)
	d.Put("/srv/mirrors", repos.Mirror+"/compute/cuda/repos/rhel9/x86_64\n", 0o644)
	d.Put("/etc/yum.repos.d/by-mirrors.repo", "[by-mirrors]\nname=x\nmirrorlist=file:///srv/mirrors\n", 0o644)
	d.Put("/etc/yum.repos.d/another.repo", "[gpuadm-driver]\nname=x\nbaseurl=file:///srv/none\nenabled=0\n", 0o644)
	state, tree := d.RpmState(), d.TreeOutsideCaches()
	d.spec("580.65.06")
	d.apply(0, "file /etc/yum.repos.d/cuda-rhel9.repo", "file /etc/yum.repos.d/by-mirrors.repo", "file /etc/yum.repos.d/another.repo")
	d.installed("580.65.06")
	out := d.Must("dnf", "repolist")
	check.That(t, !strings.Contains(out, "cuda-rhel9") && !strings.Contains(out, "by-mirrors"), "both are enabled: %s", out)
	d.Must("rm", "-rf", "/etc/gpuadm")
	d.gpuadm(0, nil, "undo", "--to", "all")
	d.Must("rm", "-rf", "/var/lib/gpuadm")
	d.same(state, tree)
}

// TestLabKeys: of each key apt of Debian 13, which verifies with sqv, says what the plan says of
// it. It accepts what gpuadm mirror signs.
func TestLabKeys(t *testing.T) {
	t.Parallel()
	n := boot(t, lab.Options{Dist: "trixie", GPUs: 1})
	n.Put("/etc/apt/sources.list", "", 0o644)
	rows := must.Get(txtar.ParseFile("../../internal/things/testdata/refused.txtar"))(t).Files
	signer, _, err := things.NewSigner()
	must.OK(t, err)
	_, release, _ := strings.Cut(string(rows[1].Data), "\n\n")
	release, _, _ = strings.Cut(release, "-----BEGIN")
	rows = append(rows, txtar.File{
		Name: "mirror accepted",
		Data: must.Get(signer.Public())(t),
	},
		txtar.File{Data: must.Get(signer.Clearsign([]byte(release), time.Now()))(t)})
	for i := 0; i < len(rows); i += 2 {
		name, said, _ := strings.Cut(rows[i].Name, " ")
		dir := "/srv/" + name
		n.Put(dir+"/key.asc", string(rows[i].Data), 0o644)
		n.Put(dir+"/InRelease", string(rows[i+1].Data), 0o644)
		n.Put(dir+"/Packages", "", 0o644)
		n.Put("/tmp/x.list", "deb [signed-by="+dir+"/key.asc] file:"+dir+" /\n", 0o644)
		r := n.Exec("apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any", "-o", "Dir::Etc::sourcelist=/tmp/x.list")
		check.That(t, (r.Exit == 0) == (said == "accepted"), "apt says of %s, which sqv %s: %s", name, said, r)
		key := must.Get(things.Fingerprints(rows[i].Data, ""))(t)[0]
		n.Put(specFile, fmt.Sprintf("format = 1\n[toolkit]\nversion = \"1.18.0\"\n[toolkit.repo]\nurl = \"file://%s\"\nkey = \"%[1]s/key.asc\"\nfingerprint = %q\n", dir, key), 0o644)
		r = n.Exec("gpuadm", "plan")
		check.That(t, strings.Contains(r.Stdout+r.Stderr, "refuses its key") == (said == "refused"), "gpuadm says of %s, which sqv %s: %s", name, said, r)
	}
}
