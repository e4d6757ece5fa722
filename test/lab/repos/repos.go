// SPDX-License-Identifier: Apache-2.0

// Package repos builds signed package repositories for the lab's hosts: small packages with the
// names, versions, dependencies and maintainer scripts of NVIDIA's, made by the real tools of both
// formats, and what goes wrong with repositories beside them. They lie in the lab's cache.
//
//	h := lab.Boot(t, lab.Options{Dist: "bookworm", Repos: repos.Deb(t, repos.Recipe{})})
//	repos.AddApt(h)                                       // as a person would: keyring, sources, apt-get update
//	h.Must("apt-get", "install", "-y", "nvidia-open")     // a real apt, a real dpkg
//	repos.Show(h, repos.Vanished)                         // the same URL, without 580.95.05
//	repos.Fails(h, "after", "nvidia-persistenced")        // its postinst exits with 10 from now on
//	there, goOn := repos.Waits(h, "after", "libcuda1")    // …and this one waits: there() returns once it does
//
// A host sees one Variant of the repositories at a time, below At, with the paths they have on
// NVIDIA's servers.
package repos

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/listings"
)

// Recipe says of what to make the packages, where it can be chosen.
type Recipe struct {
	// NVML is a file to ship as libnvidia-ml.so.VERSION; "" for a library that only has a name.
	NVML string
	// CTK is a program to ship as nvidia-ctk; "" for one that only says its version.
	CTK string
}

// Variant is one state of the repositories.
type Variant string

const (
	Good       Variant = "good"
	Vanished   Variant = "vanished"   // the driver Gone, and the oldest toolkit, are not there any more
	Lagging    Variant = "lagging"    // a newer driver is there, its companions (fabric manager, …) not yet
	Expired    Variant = "expired"    // Release was valid until yesterday's year; for apt alone
	Tampered   Variant = "tampered"   // a signed file was changed afterwards
	WrongKey   Variant = "wrong-key"  // signed by a key that is not the published one
	Unsigned   Variant = "unsigned"   // no signature at all
	Mismatched Variant = "mismatched" // the index is not the one that Release has the hash of
	Corrupt    Variant = "corrupt"    // the package files do not have the hashes of the index
)

// At is where a host has the variant that it sees; CUDA and Toolkit are URLs of the repositories
// for Debian below it.
const (
	At      = "/srv/nvidia"
	Mirror  = "file://" + At // three slashes: librepo makes nonsense of one
	CUDA    = "compute/cuda/repos"
	Toolkit = "libnvidia-container/stable"
	// Key is the public key, armored; Keyring is the same for apt's signed-by.
	Key     = lab.RepoDir + "/key.asc"
	Keyring = lab.RepoDir + "/keyring.gpg"
)

// keyNames are the files that NVIDIA has the public key in, beside the repositories that it signs.
func keyNames() []string {
	list := []string{
		"libnvidia-container/gpgkey",
		CUDA + "/ubuntu2604/x86_64/60DF8A40.pub",
		CUDA + "/debian12/x86_64/8793F200.pub",
		CUDA + "/rhel10/x86_64/CDF6BA43.pub",
	}
	for _, distro := range []string{"debian12", "ubuntu2204", "ubuntu2404"} {
		list = append(list, CUDA+"/"+distro+"/x86_64/3bf863cc.pub")
	}
	for _, distro := range []string{"rhel8", "rhel9", "amzn2023", "azl3"} {
		list = append(list, CUDA+"/"+distro+"/x86_64/D42D0685.pub")
	}
	return list
}

// publishKey links the public key to where NVIDIA has it, in all variants below a folder which have
// these repositories.
func publishKey(into string, variants []Variant) error {
	for _, variant := range variants {
		for _, name := range keyNames() {
			place := filepath.Join(into, string(variant), name)
			if _, err := os.Stat(filepath.Dir(place)); err != nil {
				continue
			}
			if err := os.Link(filepath.Join(into, "key.asc"), place); err != nil {
				return fmt.Errorf("cannot publish the key: %w", err)
			}
		}
	}
	return nil
}

// Fingerprint is that of the key which signs the repositories of a folder: 40 hexadecimal digits.
func Fingerprint(t testing.TB, dir string) string {
	t.Helper()
	key := filepath.Join(dir, "key.asc")
	out, err := command(t.Context(), "", "gpg", "--batch", "--no-options", "--homedir", t.TempDir(),
		"--show-keys", "--with-colons", key)
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(line, ":"); f[0] == "fpr" { // doc/DETAILS in gnupg's tree
			return f[9]
		}
	}
	t.Fatalf("cannot tell the fingerprint of the key in %s: %v", dir, err)
	return ""
}

//go:embed *.go module daemon
var source embed.FS

// place is where the repositories of a recipe lie: what is built depends on the recipe and this
// package alone.
func place(kind string, r Recipe) (string, error) {
	cache, err := lab.CacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	err = fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := source.ReadFile(name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
		return err
	})
	fmt.Fprintf(sum, "%v", listings.All()) // maps are printed in order
	for _, name := range []string{r.NVML, r.CTK} {
		var text []byte
		if name != "" && err == nil {
			text, err = os.ReadFile(name)
		}
		fmt.Fprintf(sum, "\n%d\n%s", len(text), text)
	}
	if err != nil {
		return "", fmt.Errorf("cannot tell which repositories to take: %w", err)
	}
	return filepath.Join(cache, fmt.Sprintf("repos-%s-%x", kind, sum.Sum(nil)[:6])), nil
}

// Distros are those that there are repositories for, as the listings call them; -archive is the
// distribution's own archive.
func Distros() []string {
	return []string{
		"ubuntu2204", "ubuntu2404", "ubuntu2604", "debian12", "debian12-archive", "debian13-archive",
		"rhel8", "rhel9", "rhel10", "amzn2023", "azl3",
	}
}

// Build builds the repositories of a distribution unless they are there, and returns their folder
// for lab.Options.Repos.
func Build(ctx context.Context, distro string, r Recipe) (string, error) {
	if !slices.Contains(Distros(), distro) {
		return "", fmt.Errorf("cannot build repositories for %s: known are %s", distro, strings.Join(Distros(), ", "))
	}
	make := buildDnf
	if strings.HasPrefix(distro, "ubuntu") || strings.HasPrefix(distro, "debian") {
		make = buildApt
	}
	into, err := place(distro, r)
	if err != nil {
		return "", err
	}
	err = lab.Cached(into, func(into string) (err error) {
		scratch, err := os.MkdirTemp(filepath.Dir(into), ".repos-") // on the cache's file system, so that links do
		if err != nil {
			return fmt.Errorf("cannot make a scratch folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
		in, err := makeParts(ctx, r, scratch)
		if err != nil {
			return err
		}
		return make(ctx, distro, in, scratch, into)
	})
	return into, err
}

// For is Build for a test.
func For(t testing.TB, distro string, r Recipe) string {
	t.Helper()
	lab.Asked(t)
	dir, err := Build(context.Background(), distro, r) // not the test's: others wait for the same
	lab.Have(t, err)
	return dir
}

// Deb is For Debian 12 and 13, which have the same packages.
func Deb(t testing.TB, r Recipe) string {
	t.Helper()
	return For(t, "debian12", r)
}

// Show lets a host see another variant at the same URLs, as if the servers had changed. All
// variants are newer than Good: a packager that has seen one of them takes Good for an old copy and
// keeps what it has, so back at Good it is made to forget the lists.
func Show(h *lab.Host, v Variant) {
	if v == Good {
		h.Must("sh", "-c", "rm -rf /var/lib/apt/lists/* /var/cache/dnf/*")
	}
	h.Must("test", "-d", lab.RepoDir+"/"+string(v))
	h.Must("ln", "-sfn", lab.RepoDir+"/"+string(v), At)
}

// AptSources are lines of sources.list for both repositories below a mirror, such as Mirror.
func AptSources(mirror, dist, keyring string) string {
	release := map[string]string{"bookworm": "debian12", "trixie": "debian13"}[dist]
	line := func(at string) string { return fmt.Sprintf("deb [signed-by=%s] %s/%s /\n", keyring, mirror, at) }
	return line(debCUDA(release)) + line(debToolkit)
}

// ArchiveSource is a line of sources.list for the archive of a distribution, with all of its
// components.
func ArchiveSource(distro string) string {
	components := "main contrib non-free non-free-firmware"
	if strings.HasPrefix(distro, "ubuntu") {
		components = "main restricted multiverse"
	}
	return fmt.Sprintf("deb [signed-by=%s] %s/%s/%s %s %s\n", Keyring, Mirror, Archive, distro, suite(distro), components)
}

// AddApt makes a host see the good repositories, and tells its apt of them.
func AddApt(h *lab.Host) {
	Show(h, Good)
	h.Put("/etc/apt/sources.list.d/nvidia.list", AptSources(Mirror, h.Options.Dist, Keyring), 0o644)
	h.Must("apt-get", "update")
}

// Fails makes a package's script exit with 10 until the host's next boot, or until Heal. when is
// "before" (it is unpacked), "after" (when it is configured) or "gone" (before it is removed or
// upgraded).
func Fails(h *lab.Host, when, name string) { h.Put(Switches+"/"+when+"."+name+".fail", "", 0o644) }

// Heal takes back all Fails and Waits.
func Heal(h *lab.Host) { h.Must("rm", "-rf", Switches) }

// Waits makes a package's script wait until Heal, a power cut, or the returned function, which lets
// it go on.
func Waits(h *lab.Host, when, name string) (at func(), goOn func()) {
	file := Switches + "/" + when + "." + name
	h.Put(file+".wait", "", 0o644)
	return func() { h.WaitFor(file + ".pid") }, func() { h.Must("rm", "-f", file+".wait") }
}

// Version is a driver's or toolkit's version as Debian's packages write it.
func DebVersion(version string) string { return version + "-1" }

// DebSet names packages in one version for apt-get install.
func DebSet(version string, names ...string) []string {
	var list []string
	for _, name := range names {
		list = append(list, strings.TrimSpace(name)+"="+DebVersion(version))
	}
	return list
}

// DnfRepos are repository files for both repositories below a mirror, such as Mirror, checked in
// all ways there are.
func DnfRepos(mirror, key string) string {
	part := func(id, at string) string {
		return fmt.Sprintf("[%s]\nname=%[1]s\nbaseurl=%s/%s\nenabled=1\n", id, mirror, at) +
			fmt.Sprintf("gpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://%s\nmetadata_expire=0\n\n", key)
	}
	return part("cuda-rhel9-x86_64", rpmCUDA("rhel9")) + part("nvidia-container-toolkit", rpmToolkit)
}

// RPM is For RHEL 9.
func RPM(t testing.TB, r Recipe) string {
	t.Helper()
	return For(t, "rhel9", r)
}

// Serve serves a variant over HTTP at an address in the host's own network, until the host reboots
// or the test ends. The returned function lists the URLs that clients have asked for so far: whole
// ones, with a host name, from clients that use it as a proxy.
func Serve(h *lab.Host, address string, v Variant) (asked func() []string) {
	files := http.FileServer(http.Dir(filepath.Join(h.Options.Repos, string(v))))
	var lock sync.Mutex
	var list []string
	serve := func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		list = append(list, r.RequestURI)
		lock.Unlock()
		files.ServeHTTP(w, r)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(serve)}
	listener := h.Listen(address)
	go func() { _ = server.Serve(listener) }() // ends with the listener
	return func() []string {
		lock.Lock()
		defer lock.Unlock()
		return slices.Clone(list)
	}
}
