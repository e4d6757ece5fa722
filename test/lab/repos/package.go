// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Package is a package of either format before it is built. Relations to others are as the package
// manager writes them.
type Package struct {
	Name      string
	Version   string // whole: 580.95.05-0ubuntu1, 3:580.95.05-1.el9
	Arch      string // all, noarch; "" is this machine's
	Component string // of an archive that has components

	PreDepends []string // for apt alone
	Depends    []string
	Provides   []string
	Conflicts  []string
	Obsoletes  []string // for dnf alone
	// Instead are names that only one installed package can have: the package manager removes
	// another package with such a name when it installs this one.
	Instead []string

	Files map[string]File

	// Lines of shell. What an upgrade does to the old version is not among them.
	Before string // run before the package is unpacked
	After  string // run when it is configured
	Gone   string // run before it is removed

	// Stream is the module stream of dnf that alone has the package; "" is decided by name and
	// branch.
	Stream string
}

// upstream is a package's version without epoch and revision.
func upstream(version string) string { return split(version)[1] }

// split takes a version into epoch, upstream version and revision.
func split(version string) [3]string {
	epoch, rest, hasEpoch := strings.Cut(version, ":")
	if !hasEpoch {
		epoch = ""
		rest = version
	}
	i := strings.LastIndex(rest, "-")
	if i < 0 {
		return [3]string{epoch, rest, ""}
	}
	return [3]string{epoch, rest[:i], rest[i+1:]}
}

// File is a file of a package.
type File struct {
	Text string
	From string      // a file of this machine that comes before Text
	Link string      // where a symbolic link leads; the file is then nothing else
	Mode os.FileMode // 0 means 0644
}

// Switches is the folder of files that tell the scripts of packages what to do:
// SCRIPT.PACKAGE.fail, .wait, and .pid, which a waiting script leaves; SCRIPT is before, after or
// gone.
const Switches = "/run/gpuadm-lab"

// script puts the switches of every script of these packages before its own lines.
func script(p Package, name, body string) string {
	at := Switches + "/" + name + "." + p.Name
	return fmt.Sprintf(`if [ -e %[1]s.wait ]; then
	echo $$ > %[1]s.pid
	while [ -e %[1]s.wait ]; do sleep 0.1; done
	rm -f %[1]s.pid
fi
if [ -e %[1]s.fail ]; then
	echo "%[2]s of %[3]s %[4]s: told to fail" >&2
	exit 10
fi
%[5]s`, at, name, p.Name, upstream(p.Version), body)
}

// lay writes the package's files into a folder.
func (p Package) lay(root string) error {
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if err := p.Files[name].lay(filepath.Join(root, name)); err != nil {
			return fmt.Errorf("cannot lay out %s: %w", p.Name, err)
		}
	}
	return nil
}

func (f File) lay(place string) error {
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return os.Symlink(f.Link, place)
	}

	text := []byte(f.Text)
	if f.From != "" {
		program, err := os.ReadFile(f.From)
		if err != nil {
			return err
		}
		text = append(program, text...)
	}

	return os.WriteFile(place, text, cmp.Or(f.Mode, 0o644))
}

// unit is a systemd unit that runs a program.
func unit(what, program string) File {
	return File{Text: "[Unit]\nDescription=" + what + "\n" +
		"[Service]\nExecStart=" + program + "\nRestart=no\n" +
		"[Install]\nWantedBy=multi-user.target\n"}
}

// branch is the first number of a driver's version.
func branch(version string) string {
	number, _, _ := strings.Cut(version, ".")
	return number
}

// decorated is what follows the word that tells the role in a name: branch, flavour, version.
var decorated = regexp.MustCompile(`(-\d{3})?(-server)?(-open)?(-\d{3}(\.\d+)+)?$`)

// base is the word in a name that tells the role, for Ubuntu's names: libnvidia-compute-580-server
// is libnvidia-compute.
func base(name string) string { return decorated.ReplaceAllString(name, "") }

// decoration is the branch and the flavour of Ubuntu's in a name: "-580-server" of
// nvidia-dkms-580-server-open.
func decoration(name string) string {
	return strings.TrimSuffix(decorated.FindString(name), "-open")
}

func isOpen(name string) bool { return strings.HasSuffix(name, "-open") }

// license of a module: all that tells NVIDIA's open ones from the others.
func license(open bool) string {
	if open {
		return "Dual MIT/GPL"
	}
	return "NVIDIA"
}
