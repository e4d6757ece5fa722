// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
)

// set enables, disables, masks or unmasks a unit by its links, as systemctl does in a chroot.
func (u unitFiles) set(name, change string) error {
	var err error
	switch change {
	case "", "read": // systemd reads all files when it starts
	case "enable":
		err = u.enable(name, map[string]bool{})
	case "disable":
		err = u.disable(name, map[string]bool{})
	case "mask":
		err = u.mask(name)
	case "unmask":
		err = u.unmask(name)
	default:
		err = errors.New("no such change")
	}

	if err != nil {
		return &host.UnitError{Verb: change, Unit: name, Cause: err}
	}

	return nil
}

func (u unitFiles) enable(name string, done map[string]bool) error {
	if done[name] {
		return nil
	}

	done[name] = true
	found, err := u.read(name)
	switch {
	case err != nil:
		return err
	case found.Load == "masked":
		return errors.New("it is masked")
	case found.Load != "loaded":
		return fmt.Errorf("its unit file is not there: %w", fs.ErrNotExist)
	}

	links := found.enablingLinks(name)
	for _, link := range links {
		if err := u.mayLink(link, found.link); err != nil {
			return err
		}
	}
	for _, link := range links {
		if err := u.mkdir(path.Dir(link)); err != nil {
			return err
		}
		if err := u.Symlink(link, found.link); err != nil {
			return err
		}
	}

	for _, other := range found.install["Also"] {
		err := u.enable(other, done)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}

	if len(links) == 0 && len(found.install["Also"]) == 0 {
		return errNoInstall
	}
	return nil
}

// enablingLinks lists the links that the [Install] section asks for.
func (f unitFile) enablingLinks(name string) (links []string) {
	for _, by := range []struct{ key, suffix string }{
		{"WantedBy", ".wants/" + name},
		{"RequiredBy", ".requires/" + name},
		{"UpheldBy", ".upholds/" + name},
		{"Alias", ""},
	} {
		for _, other := range f.install[by.key] {
			links = append(links, path.Join(unitFolder, other+by.suffix))
		}
	}
	return links
}

var errNoInstall = errors.New("its file has no [Install] section, so other units or sockets start it")

func (u unitFiles) disable(name string, done map[string]bool) error {
	if done[name] {
		return nil
	}

	done[name] = true
	links, err := u.links(name)
	if err != nil {
		return err
	}
	own := path.Join(unitFolder, name)
	if to, err := u.Readlink(own); err == nil && to != "/dev/null" {
		links = append(links, own)
	}
	found, err := u.read(name) // before its links go: one of them may be how it is found
	if err != nil {
		return err
	}

	for _, link := range links {
		if err := u.removeLink(link); err != nil {
			return err
		}
	}

	for _, other := range found.install["Also"] {
		if err := u.disable(other, done); err != nil {
			return err
		}
	}

	return nil
}

// removeLink removes a link, and its .wants folder if that was its last link, as systemctl does.
func (u unitFiles) removeLink(link string) error {
	if err := u.Remove(link); err != nil {
		return err
	}
	folder := path.Dir(link)
	if folder == unitFolder {
		return nil
	}

	err := u.Remove(folder)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

func (u unitFiles) mask(name string) error {
	at := path.Join(unitFolder, name)
	if err := u.mayLink(at, "/dev/null"); err != nil {
		return err
	}
	if err := u.mkdir(unitFolder); err != nil {
		return err
	}
	return u.Symlink(at, "/dev/null")
}

// mayLink refuses to make a link in the place of a file, or of a link to something else, as systemctl
// does without --force. A link to the same file in another folder is not something else: /lib and
// /usr/lib are one on most machines.
func (u unitFiles) mayLink(at, target string) error {
	i, err := u.Plain(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return host.Failed("stat", at, err)
	case i.Mode&fs.ModeSymlink == 0:
		return fmt.Errorf("%s is a file of its own: %w", at, fs.ErrExist)
	}

	found, err := u.Readlink(at)
	if err != nil {
		return err
	}
	if path.Base(found) != path.Base(target) {
		return fmt.Errorf("%s is a link to %s: %w", at, found, fs.ErrExist)
	}
	return nil
}

func (u unitFiles) unmask(name string) error {
	at := path.Join(unitFolder, name)
	if to, err := u.Readlink(at); err != nil || path.Clean(to) != "/dev/null" {
		return nil
	}
	return u.Remove(at)
}

// mkdir makes a folder and those above it, each with the owner of the one it lies in.
func (u unitFiles) mkdir(folder string) error {
	if i, err := u.Stat(folder); err == nil && i.Mode.IsDir() {
		return nil
	}

	above := path.Dir(folder)
	if err := u.mkdir(above); err != nil {
		return err
	}

	i, err := u.Stat(above)
	if err != nil {
		return err
	}
	return u.Mkdir(folder, host.Attr{Mode: 0o755, UID: i.UID, GID: i.GID})
}
