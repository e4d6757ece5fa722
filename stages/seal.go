// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Sealable refuses to seal an image that is not converged, or that needs the network at first boot.
func Sealable(s converge.Status) error {
	var open []string
	for _, ch := range s.Changes {
		if ch.Deferred == "" || Needs(ch.Change) == theNetwork {
			open = append(open, ch.String())
		}
	}

	if len(open) == 0 && s.Unfinished == "" {
		return nil
	}

	return &trouble.Error{
		What:    "cannot seal the image: some changes are not made, and at first boot there may be no network",
		Because: trouble.Few(open, 6),
		Try:     []string{trouble.Command("bake") + " without --seal, which says why"},
	}
}

// Seal removes from the image what belongs to one machine, and returns what it removed. It is
// idempotent.
func Seal(
	ctx context.Context, h host.Host, s spec.Spec, is converge.Status, version string, hostKeys bool,
) (removed []string, err error) {
	unlock, err := h.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := writeManifest(h, is, version); err != nil {
		return nil, err
	}

	c := cleaner{h: h}
	c.empty("/etc/machine-id")
	for _, name := range filesToRemove() {
		c.file(name)
	}
	folders := foldersToEmpty()
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		c.folder(dir, folders[dir])
	}
	if hostKeys {
		isOther := func(name string) bool {
			return !strings.HasPrefix(path.Base(name), "ssh_host_")
		}
		c.folder("/etc/ssh", isOther)
	}

	slices.Sort(c.removed)
	if c.err != nil {
		return c.removed, c.err
	}
	return c.removed, noPrivateKey(h)
}

// noPrivateKey refuses an image with the private key that DKMS's settings name: an administrator's
// own key, in a place of their choice.
func noPrivateKey(h host.View) error {
	t, err := facts.ReadTrust(h)
	if err != nil || t.BuildKey == "" {
		return err
	}

	return &trouble.Error{
		What:    "cannot seal the image: the private key " + t.BuildKey + " lies in it",
		Because: []string{"DKMS's settings name it, and a private key that all machines have protects none of them"},
		Try: []string{
			"take it out of the image, and out of /etc/dkms/framework.conf and /etc/dkms/framework.conf.d",
			trouble.Command("bake --module-key FILE --module-cert FILE") + ", which signs and leaves no key",
		},
	}
}

// filesToRemove belong to one machine, or to this bake. Sources: machine-id(5);
// https://systemd.io/BUILDING_IMAGES/, for the random seed and the credentials' key; prepare_mok in
// dkms.in of https://github.com/dkms-project/dkms, for DKMS's key.
func filesToRemove() []string {
	return []string{
		"/var/lib/dbus/machine-id", "/var/lib/systemd/random-seed", "/var/lib/systemd/credential.secret",
		"/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub",
		"/var/log/dpkg.log", "/var/log/alternatives.log",
		"/var/log/dnf.log", "/var/log/dnf.rpm.log", "/var/log/dnf.librepo.log", "/var/log/hawkey.log",
		"/var/cache/apt/pkgcache.bin", "/var/cache/apt/srcpkgcache.bin",
	}
}

// foldersToEmpty has for each folder a function that says which files stay. Of package lists those
// files stay by which gpuadm sees that the lists were read: an image boots without a network.
// Ubuntu's key for modules is in shim-signed/mok: update-secureboot-policy.
func foldersToEmpty() map[string]func(name string) bool {
	none := func(string) bool { return false }
	return map[string]func(string) bool{
		converge.Home:              none, // the journal: a new one begins on the node
		"/var/lib/shim-signed/mok": none,
		"/var/log/apt":             none,
		"/var/cache/apt/archives":  func(name string) bool { return !strings.HasSuffix(name, ".deb") },
		"/var/lib/apt/lists":       isAptRelease,
		"/var/cache/dnf":           func(name string) bool { return path.Base(name) == "repomd.xml" },
	}
}

func isAptRelease(name string) bool {
	return strings.HasSuffix(name, "Release") || path.Base(name) == "lock"
}
