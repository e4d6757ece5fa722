// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
)

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
	release := "debian12"
	if dist == "trixie" {
		release = "debian13"
	}
	line := func(at string) string {
		return fmt.Sprintf("deb [signed-by=%s] %s/%s /\n", keyring, mirror, at)
	}
	return line(debCUDA(release)) + line(debToolkit)
}

// ArchiveSource is a line of sources.list for the archive of a distribution, with all of its
// components.
func ArchiveSource(distro string) string {
	components := "main contrib non-free non-free-firmware"
	if strings.HasPrefix(distro, "ubuntu") {
		components = "main restricted multiverse"
	}
	url := Mirror + "/" + Archive + "/" + distro
	return fmt.Sprintf("deb [signed-by=%s] %s %s %s\n", Keyring, url, suite(distro), components)
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
func Fails(h *lab.Host, when, name string) {
	h.Put(Switches+"/"+when+"."+name+".fail", "", 0o644)
}

// Heal ends all Fails and Waits.
func Heal(h *lab.Host) { h.Must("rm", "-rf", Switches) }

// Waits makes a package's script wait until Heal, a power cut, or goOn. there returns once the
// script waits.
func Waits(h *lab.Host, when, name string) (there, goOn func()) {
	file := Switches + "/" + when + "." + name
	h.Put(file+".wait", "", 0o644)

	there = func() { h.WaitFor(file + ".pid") }
	goOn = func() { h.Must("rm", "-f", file+".wait") }
	return there, goOn
}

// DebVersion is a driver's or toolkit's version as Debian's packages write it.
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
