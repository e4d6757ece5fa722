// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

func dnfSource(r packages.Repository) string { return dnfRepos + "/gpuadm-" + r.ID + ".repo" }

func dnfKey(r packages.Repository) string { return dnfKeys + "RPM-GPG-KEY-gpuadm-" + r.ID + ".asc" }

func dnfID(r packages.Repository) string { return "gpuadm-" + r.ID }

// Repositories wants one file for each repository, which names the key. rpm cannot trust a key for
// one repository alone, so rpm's key is a thing of its own. See dnf.conf(5).
func (a dnf) Repositories(database *packages.Reading, repos []packages.Repository, via host.Via) ([]converge.Want, error) {
	repos = slices.DeleteFunc(slices.Clone(repos), func(r packages.Repository) bool { return r.URL == "" }) // dnf has no pins
	if len(repos) == 0 {
		return nil, nil
	}
	wants := things.Folders("/etc/pki/rpm-gpg", "keys that repositories name")
	wants = append(wants, things.Folders(dnfRepos, "dnf's repositories")[1:]...) // both have /etc
	seen := map[string]bool{}
	for _, r := range repos {
		key := dnfKey(r)
		wants = append(wants, things.Key(key, r.Key, r.Fingerprint, via, "signs "+r.About))
		if r.Signed != packages.SignedMetadata && !seen[r.Fingerprint] { // two repositories may have one key
			seen[r.Fingerprint] = true
			wants = append(wants, importedKey(database, r.Fingerprint, key, "rpm checks packages with it"))
		}
		wants = append(wants, packages.Source(dnfSource(r), dnfRepo(r, key, via), database, r.About))
	}
	return append(wants, packages.Lists(a, slices.Sorted(maps.Keys(a.Contents(repos, via))))), nil
}

func (dnf) Contents(repos []packages.Repository, via host.Via) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range repos {
		if r.URL != "" {
			files[dnfSource(r)] = dnfRepo(r, dnfKey(r), via)
		}
	}
	return files
}

// Upgrades wants nothing: dnf-automatic obeys the locks of versionlock.
func (dnf) Upgrades([]string, bool) []converge.Want { return nil }

// dnfRepo refuses to continue without the repository: dnf's default is to skip a repository whose
// signature is wrong.
func dnfRepo(r packages.Repository, key string, via host.Via) []byte {
	gpgcheck, metadata := 1, 1
	switch r.Signed {
	case packages.SignedMetadata:
		gpgcheck = 0
	case packages.SignedPackages:
		metadata = 0
	}
	var b strings.Builder
	b.WriteString(packages.Header)
	for _, p := range r.Pins { // dnf has no pins by version; a version that is new in the spec makes the lists stale
		if p.Version != "" {
			fmt.Fprintf(&b, "# for version %s\n", p.Version)
		}
	}
	fmt.Fprintf(&b, "[%s]\nname=%s\nbaseurl=%s\nenabled=1\ngpgcheck=%d\nrepo_gpgcheck=%d\ngpgkey=file://%s\nskip_if_unavailable=0\n",
		dnfID(r), r.About, strings.TrimSuffix(r.URL, "/"), gpgcheck, metadata, key)
	if r.Whole { // without a list of streams dnf refuses packages that are labelled as parts of one: dnf.conf(5)
		b.WriteString("module_hotfixes=1\n")
	}
	proxy := via.HTTPS
	if strings.HasPrefix(r.URL, "http:") {
		proxy = via.HTTP
	}
	if proxy != "" {
		fmt.Fprintf(&b, "proxy=%s\n", proxy)
	}
	if via.CAFile != "" {
		fmt.Fprintf(&b, "sslcacert=%s\n", via.CAFile)
	}
	return []byte(b.String())
}

// rpmKey is a public key in rpm's database, with which rpm verifies packages. dnf would import it
// unasked from the file that a repository names, and never remove it: as a thing of its own it is
// removed by undo.
type rpmKey struct {
	database *packages.Reading
	trusted  string // its fingerprint; or "sha256:" and its file's digest; or its file, which then has the fingerprint
	file     string
}

const imported = converge.State("imported")

// importedKey wants rpm to know the key in a file.
func importedKey(database *packages.Reading, trusted, file, why string) converge.Want {
	return converge.Want{Thing: rpmKey{database, trusted, file}, Why: why, To: func(converge.State) (converge.State, error) { return imported, nil }}
}

// NewKey builds the thing for undo; files has one file.
func NewKey(trusted string, files []string, database *packages.Reading) converge.Thing {
	return rpmKey{database, trusted, strings.Join(files, "")}
}

// Ref names the key by its fingerprint, by "sha256:DIGEST", or by its file if a package installs
// it. An undo of an undo needs the key's file.
func (k rpmKey) Ref() converge.Ref {
	return converge.Ref{Kind: "package-key", Name: k.trusted, Reads: []string{k.file}}
}

func (k rpmKey) Look(ctx context.Context, v host.View) (converge.State, error) {
	names, err := k.packages(ctx, v)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return imported, nil
}

// packages returns what rpm calls the key.
func (k rpmKey) packages(ctx context.Context, v host.View) ([]string, error) {
	fingerprints := k.fingerprints(v)
	if len(fingerprints) == 0 {
		return nil, nil
	}
	all, err := k.database.Read(ctx, v)
	return among(all, fingerprints), err
}

// fingerprints returns the key's fingerprints; none if only the file has them and the file is
// missing or has another key: then gpuadm has not imported the key from that file.
func (k rpmKey) fingerprints(v host.View) []string {
	if !strings.HasPrefix(k.trusted, "sha256:") && k.trusted != k.file {
		return []string{k.trusted}
	}
	_, data := k.key(v)
	found, _ := things.Fingerprints(data, strings.TrimPrefix(k.trusted, k.file)) // none if the data is no key
	return found
}

// key returns the key and its file; undo imports a key before it restores the key's file.
func (k rpmKey) key(v host.View) (file string, data []byte) {
	if k.trusted == k.file { // a package installs the file: any key counts
		data, _ = v.ReadFile(k.file)
		return k.file, data
	}
	return things.KeyFile(v, k.file, k.trusted)
}

// among returns which of all packages are the keys.
func among(all map[string]packages.State, fingerprints []string) (names []string) {
	for name, state := range all {
		if strings.HasPrefix(name, rpmKeyName+"-") && slices.Contains(fingerprints, state.Version) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (k rpmKey) Make(ctx context.Context, h host.Host, to converge.State) error {
	defer k.database.Forget()
	if to == imported {
		file, _ := k.key(h)
		if _, err := h.Do(ctx, "rpm", "--import", cmp.Or(file, k.file)); err != nil {
			return fmt.Errorf("cannot have rpm trust the key in %s: %w", k.file, err)
		}
		return nil
	}
	names, err := k.packages(ctx, h)
	if err != nil || len(names) == 0 {
		return err
	}
	if _, err := h.Do(ctx, append([]string{"rpm", "-e"}, names...)...); err != nil {
		return fmt.Errorf("cannot take key %s out of rpm's database: %w", k.trusted, err)
	}
	return nil
}

// needsTable has the repositories that NVIDIA's packages depend on.
//
//go:embed needs.tsv
var needsTable string

// A need is one of them, as a distribution has it.
type need struct{ name, system, ids, release, file, key, enable string }

// needs fills in the table for a distribution's major version and architecture.
func needs(major, arch string) (all []need) {
	for line := range strings.Lines(strings.NewReplacer("@MAJOR@", major, "@ARCH@", arch).Replace(needsTable)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(f) == 7 {
			all = append(all, need{f[0], f[1], f[2], f[3], f[4], f[5], f[6]})
		}
	}
	return all
}

// needOf returns the need of a name on a system; false if it is no repository.
func needOf(s packages.System, name string) (need, bool) {
	major, _, _ := strings.Cut(s.Version, ".")
	all := needs(major, map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[s.Arch])
	i := slices.IndexFunc(all, func(n need) bool { return n.name == name && (n.system == "*" || n.system == s.ID) })
	if i < 0 {
		return need{}, false
	}
	return all[i], true
}

// brings says whether a package installs one of the files.
func brings(name string, files []string) bool {
	major := name[len(strings.TrimRight(name, "0123456789")):]
	return slices.ContainsFunc(needs(major, ""), func(n need) bool { return n.release == name && slices.Contains(files, n.file) })
}

// subscribed is the file that subscription-manager writes: it overwrites the edits of others, and
// copies of it become outdated.
const subscribed = "/etc/yum.repos.d/redhat.repo"

func lackingRepository(sys packages.System, n need) (packages.Lack, bool) {
	is := regexp.MustCompile(n.ids)
	var off []repository
	var by *packages.Release
	if n.release != "" {
		by = &packages.Release{Package: n.release, File: n.file, Key: n.key}
	}
	l := packages.Lack{Name: "the repository " + n.name, Release: by}
	for _, file := range packages.FilesIn(sys, "/etc/yum.repos.d", ".repo") {
		for _, s := range parseRepos(file, sys.Files[file]) {
			switch {
			case !is.MatchString(s.id) || strings.Contains(s.id, "-debug-") || strings.Contains(s.id, "-source-"):
			case s.on && (by == nil || by.File != file):
				return l, false
			case s.on:
				l.Enabled = true
			default:
				off = append(off, s)
			}
		}
	}
	switch {
	case l.Enabled:
	case len(off) > 0 && off[0].file == subscribed:
		l.Try, l.Release = "subscription-manager repos --enable="+off[0].id, nil
	case len(off) > 0 && sys.ID == "rhel": // a cloud's, whose plugin knows them by their names
		l.Try, l.Release = "dnf config-manager --set-enabled "+off[0].id, nil
	case len(off) > 0:
		id := packages.OurFiles + n.name
		l.Try = "dnf config-manager --set-enabled " + off[0].id
		l.File, l.Release = "/etc/yum.repos.d/"+id+".repo", nil
		l.Data = fmt.Appendf(nil, "%s# As %s says of %s, which is disabled there.\n[%s]\n%s\nenabled=1\n", packages.Header, off[0].file, off[0].id, id, strings.Join(off[0].lines, "\n"))
	case by != nil:
		l.Try = "dnf install " + by.Package
	default:
		l.Try = n.enable
	}
	return l, true
}

// Lacking returns the repositories among the names that the system's files do not enable, and, as
// others, the names of no repositories.
func Lacking(s packages.System, names []string) (lacks []packages.Lack, others []string) {
	for _, name := range names {
		if n, is := needOf(s, name); !is {
			others = append(others, name)
		} else if l, is := lackingRepository(s, n); is {
			lacks = append(lacks, l)
		}
	}
	return lacks, others
}

// Enabled wants the distribution's package that installs a repository's file.
func (dnf) Enabled(database *packages.Reading, l packages.Lack) []converge.Want {
	w := packages.Want(packages.NewSet(database), l.Release.Package, packages.State{Version: l.Release.Package + "=*"}, l.Why())
	if to := w.To; l.Enabled { // perhaps by another tool's file of that name
		w.AsFound = true
		w.To = func(found converge.State) (converge.State, error) {
			if !packages.Parse(found).Installed() {
				return found, nil
			}
			return to(found)
		}
	}
	if l.Release.Key == "" { // dnf imports the key with the first package, and never removes it
		return []converge.Want{w}
	}
	return []converge.Want{w, importedKey(database, l.Release.Key, l.Release.Key, "rpm checks packages with it")}
}
