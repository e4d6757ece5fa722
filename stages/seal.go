// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	theNetwork = "the network"
	aGPU       = "a GPU"
)

// Needs says what a deferred change needs that an image does not have.
func Needs(ch converge.Change) string {
	switch ch.Kind {
	case "package", "package-lists", "package-key", "package-stream", "package-database", "runfile":
		return theNetwork
	case "module", "fabric", "mig", "cdi", "device-links", "paused":
		return aGPU
	case "node", "guard", "registered", "joined":
		return "the cluster"
	case "restart", "daemon", "unit", "unit-files":
		return "systemd"
	}
	switch ch.Stage {
	case "join", "joined", "ready":
		return "the cluster"
	case "mig", "modules", "gpus":
		return aGPU
	}
	return "the running machine"
}

// Sealable refuses to seal an image that is not converged, or that needs the network at first boot.
func Sealable(s converge.Status) error {
	var open []string
	for _, ch := range s.Changes {
		if ch.Deferred == "" || Needs(ch) == theNetwork {
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
func Seal(ctx context.Context, h host.Host, s spec.Spec, is converge.Status, version string, hostKeys bool) (removed []string, err error) {
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
	for _, name := range own() {
		c.file(name)
	}
	all := folders()
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		c.top(dir, all[dir])
	}
	if hostKeys {
		c.top("/etc/ssh", func(name string) bool { return !strings.HasPrefix(path.Base(name), "ssh_host_") })
	}
	slices.Sort(c.removed)
	if c.err != nil {
		return c.removed, c.err
	}
	return c.removed, noPrivateKey(h)
}

// OtherKubelet is the path of a kubelet's credentials in another distribution of Kubernetes, which
// configures that kubelet itself; "" if there are none. Sources: pkg/constant of
// https://github.com/k0sproject/k0s and its docs/backup.md; snap/hooks of
// https://github.com/canonical/microk8s and its CIS page (check 4.1.5).
func OtherKubelet(v host.View) string {
	for _, name := range []string{"/var/lib/k0s/kubelet.conf", "/var/snap/microk8s/current/credentials/kubelet.config"} {
		if _, err := v.Stat(name); err == nil {
			return name
		}
	}
	return ""
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
		Try:     []string{"take it out of the image, and out of /etc/dkms/framework.conf and /etc/dkms/framework.conf.d", trouble.Command("bake --module-key FILE --module-cert FILE") + ", which signs and leaves no key"},
	}
}

// own are the files to remove: they belong to one machine, or to this bake. Sources: machine-id(5);
// https://systemd.io/BUILDING_IMAGES/, for the random seed and the credentials' key; prepare_mok in
// dkms.in of https://github.com/dkms-project/dkms, for DKMS's key.
func own() []string {
	return []string{
		"/var/lib/dbus/machine-id", "/var/lib/systemd/random-seed", "/var/lib/systemd/credential.secret",
		"/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub",
		"/var/log/dpkg.log", "/var/log/alternatives.log", "/var/log/dnf.log", "/var/log/dnf.rpm.log", "/var/log/dnf.librepo.log", "/var/log/hawkey.log",
		"/var/cache/apt/pkgcache.bin", "/var/cache/apt/srcpkgcache.bin",
	}
}

// folders are the folders to empty, each with a function that says which files stay. Of package
// lists the parts stay by which gpuadm sees that the lists were read: an image boots without a
// network. Ubuntu's key for modules is in shim-signed/mok: update-secureboot-policy.
func folders() map[string]func(name string) bool {
	none := func(string) bool { return false }
	return map[string]func(string) bool{
		converge.Home:              none, // the journal: a new one begins on the node
		"/var/lib/shim-signed/mok": none,
		"/var/log/apt":             none,
		"/var/cache/apt/archives":  func(name string) bool { return !strings.HasSuffix(name, ".deb") },
		"/var/lib/apt/lists":       func(name string) bool { return strings.HasSuffix(name, "Release") || path.Base(name) == "lock" },
		"/var/cache/dnf":           func(name string) bool { return path.Base(name) == "repomd.xml" },
	}
}

// A cleaner removes files, and notes which. It stops at the first error.
type cleaner struct {
	h       host.Host
	removed []string
	err     error
}

// empty leaves a file without content, if it is there.
func (c *cleaner) empty(name string) {
	i, err := c.h.Lstat(name)
	if c.err != nil || errors.Is(err, fs.ErrNotExist) || err == nil && (i.Size == 0 || !i.Mode.IsRegular()) {
		return
	}
	if err == nil {
		err = c.h.WriteFile(name, nil, i.Attr())
	}
	c.note(name, err)
}

// file removes a file, and leaves a link: its target is no secret.
func (c *cleaner) file(name string) {
	i, err := c.h.Lstat(name)
	if c.err != nil || errors.Is(err, fs.ErrNotExist) || err == nil && !i.Mode.IsRegular() {
		return
	}
	if err == nil {
		err = c.h.Remove(name)
	}
	c.note(name, err)
}

// top cleans a folder, or the target of a link to one.
func (c *cleaner) top(name string, keep func(name string) bool) {
	dir, err := c.h.Resolve(name)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if i, err := c.h.Stat(name); err == nil && !i.Mode.IsDir() {
		return
	}
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("cannot seal the image: %w", err)
	}
	c.within(dir, keep)
}

// within removes the files of a folder and of those in it, and its empty folders. The folder itself
// stays.
func (c *cleaner) within(dir string, keep func(name string) bool) {
	if c.err != nil {
		return
	}
	names, err := c.h.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.err = fmt.Errorf("cannot seal the image: %w", err)
	}
	for _, n := range names {
		name := path.Join(dir, n)
		if i, err := c.h.Lstat(name); err != nil || !i.Mode.IsDir() {
			if !keep(name) {
				c.file(name) // which reports the error of Lstat
			}
			continue
		}
		c.within(name, keep)
		if left, err := c.h.ReadDir(name); err == nil && len(left) == 0 && !keep(name) && c.err == nil {
			c.err = c.h.Remove(name)
		}
	}
}

func (c *cleaner) note(name string, err error) {
	if err != nil {
		c.err = fmt.Errorf("cannot seal the image: %w", err)
		return
	}
	c.removed = append(c.removed, name)
}

// Prune removes kept packages and installers that no undo needs any more.
func Prune(ctx context.Context, h host.Host, needed []converge.Change) error {
	return host.Join(packagers().Prune(ctx, h, needed), drivers.PruneRunfiles(ctx, h, needed), things.PruneKeys(h, needed))
}
