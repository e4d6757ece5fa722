// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// env is a command's access to the system; tests replace it.
type env struct {
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer
	getenv  func(string) string
	args    []string // the command line, without the program
	typedAs string   // the word by which an operator runs this program, for printed commands; "" is gpuadm
	root    bool     // whether it may change the live machine
	ended   *ending  // the result of the command's run

	impatient  bool                 // an operator waits: say that gpuadm works, where it prints nothing
	isTerminal func(io.Writer) bool // whether a stream is a terminal; nil: asks the kernel

	// open opens a machine; image opens an image for bake. follow receives what programs print that
	// make changes; may be nil.
	open  func(root string, follow commands.Follow) (host.Host, error)
	image func(
		root string, sign *local.ModuleKey, follow commands.Follow,
	) (h host.Host, done func(), err error)

	// read reads a file named on the command line. stat has its owner and mode; may be nil. public
	// says whether the calling user can read it; nil: yes.
	read   func(name string) ([]byte, error)
	stat   func(name string) (fs.FileInfo, error)
	public func(name string) bool

	unit        func() string              // the systemd service in which gpuadm runs; may be nil
	told        func(line string)          // called for each printed command line of gpuadm; may be nil
	confined    func() []string            // what keeps root from what root may do; may be nil
	restartSelf func(more ...string) error // replaces this process, once, by one with more flags; may be nil
	// readOnlyMount is the mount of a file that the machine has read-only; may be nil.
	readOnlyMount func(name string) (commands.Mount, bool)
}

// tty says whether w is a terminal that can rewrite its last line.
func (e env) tty(w io.Writer) bool {
	is := terminal
	if e.isTerminal != nil {
		is = e.isTerminal
	}
	return is(w) && e.getenv("TERM") != "dumb"
}

func terminal(w io.Writer) bool {
	f, ok := file(w)
	return ok && term.IsTerminal(int(f.Fd()))
}

// asks says whether gpuadm can ask the operator: on a terminal for both the question and the
// answer.
func (e env) asks() bool {
	in, ok := e.stdin.(*os.File)
	return ok && term.IsTerminal(int(in.Fd())) && e.tty(e.stderr)
}

// specHome is the folder of a machine's own spec.
const specHome = "/etc/gpuadm"

// spec reads the files named with -f, or the machine's own.
func (e env) spec(v host.View, files []string) (spec.Spec, error) {
	s, _, err := e.placedSpec(v, files)
	return s, err
}

// placedSpec is spec. It also returns where the files state each key.
func (e env) placedSpec(v host.View, files []string) (spec.Spec, spec.Places, error) {
	all, err := e.specFiles(v, files)
	if err != nil {
		return spec.Spec{}, spec.Places{}, err
	}

	var own []string
	if len(files) == 0 {
		for _, f := range all {
			own = append(own, f.Name)
		}
		own = append(own, path.Join(specHome, "node.d"))
	}

	if err := trust(v, own...); err != nil {
		return spec.Spec{}, spec.Places{}, err
	}

	s, places, err := spec.Read(all...)
	if err != nil {
		return s, places, e.unquoted(v, files, err)
	}
	return s, places, trust(v, s.Files()...)
}

// machine opens the machine, and reads the files named with -f, or its own. follow hears what the
// machine's programs print.
func (c *common) machine(follow commands.Follow) (h host.Host, s spec.Spec, err error) {
	h, err = c.open(c.rootDir, follow)
	if err != nil {
		return h, s, err
	}
	s, err = c.spec(h, c.files)
	return h, s, err
}

// asker returns the user who started gpuadm with another user's rights by sudo, run0, pkexec or
// doas; "" if gpuadm has its caller's own rights. Sources: sudo(8), run0(1), pkexec(1) and doas(1),
// each under ENVIRONMENT.
func asker(getenv func(string) string) string {
	return cmp.Or(getenv("SUDO_UID"), getenv("PKEXEC_UID"), getenv("DOAS_USER"))
}

// unquoted removes from errors the quotes of files that the calling user may be unable to read:
// those of -f, and the machine's own.
func (e env) unquoted(v host.View, named []string, err error) error {
	faults := trouble.Faults(nil)
	if !errors.As(err, &faults) {
		return err
	}
	return faults.Unquoted(func(file string) bool {
		if slices.Contains(named, file) {
			return file == "-" || e.public == nil || e.public(file)
		}
		return asker(e.getenv) == "" || host.Public(v, file)
	})
}

// readable says whether the calling user can read a file of this machine. With the user's own
// rights gpuadm has read it already; under sudo the file must be the user's, or readable for every
// user. A pipe such as a shell's <(…) is the user's; a device is not.
func readable(name string) bool {
	by := asker(os.Getenv)
	if by == "" || owns(by, name) {
		return true
	}

	absolute, err := filepath.Abs(name)
	if err != nil {
		return false
	}
	v, err := local.Open("/")
	return err == nil && host.Public(v, absolute)
}

// owns says whether a user, by its number, owns a file.
func owns(user, name string) bool {
	info, err := os.Stat(name)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && strconv.Itoa(int(stat.Uid)) == user
}

// specFiles returns the files named with -f, or the machine's own.
func (e env) specFiles(v host.View, files []string) ([]spec.File, error) {
	if len(files) == 0 {
		return machineSpec(v)
	}

	if err := oneStdin(files); err != nil {
		return nil, err
	}
	var all []spec.File
	for _, name := range files {
		data, err := e.file(name)
		if err != nil {
			return nil, usage{cannotRead(name, err)}
		}
		all = append(all, spec.File{Name: name, Data: data})
	}

	return all, nil
}

// self returns this program's own file.
func (e env) self() ([]byte, error) {
	name, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program's own file: %w", err)
	}
	data, err := e.read(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, cause(err))
	}
	return data, nil
}

// errNoSpec says that the machine has no spec.
var errNoSpec = errors.New("file not found")

// machineSpec returns the machine's own spec: node.toml, and the files of node.d.
func machineSpec(v host.View) ([]spec.File, error) {
	main := path.Join(specHome, "node.toml")
	data, err := v.ReadFile(main)
	if errors.Is(err, fs.ErrNotExist) {
		if err := dangling(v, specHome, main); err != nil {
			return nil, err
		}
		where := ""
		if v.Root() != "/" {
			where = " in " + v.Root()
		}
		missing := fmt.Errorf("cannot read %s%s: %w", main, where, errNoSpec)
		initVerb := trouble.Command("init")
		return nil, usage{fmt.Errorf("%w; write one (%s) or name another with -f", missing, initVerb)}
	}

	if err != nil {
		return nil, err
	}

	all := []spec.File{{Name: main, Data: data}}
	folder := path.Join(specHome, "node.d")
	names, err := v.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return all, dangling(v, folder)
	}
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if !spec.Reads(n) {
			continue
		}
		name := path.Join(folder, n)
		data, err := v.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, spec.File{Name: name, Data: data})
	}

	return all, nil
}

// dangling refuses a link to what is not there: the disk that has the spec may not be mounted, and
// less than the whole spec is another spec.
func dangling(v host.View, names ...string) error {
	for _, name := range names {
		target, err := v.Readlink(name)
		isNoLink := errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrInvalid)
		switch {
		case isNoLink, host.NotExist(err):
			continue
		case err != nil:
			return err
		}

		if _, err := v.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot read %s: it is a link to %s, which is not there", name, target)
		}
	}
	return nil
}

// unread names what lies where an operator may expect gpuadm to read it, and that gpuadm does not
// read: node.d/10-pool.conf, or 10-pool.toml beside node.toml.
func (c *common) unread(v host.View) (notes []string) {
	if len(c.files) > 0 {
		return nil
	}

	folder := path.Join(specHome, "node.d")
	names, _ := v.ReadDir(folder) // machineSpec has reported an error
	for _, n := range names {
		isHidden := strings.HasPrefix(n, ".")
		isTOML := strings.HasSuffix(n, ".toml")
		switch {
		case spec.Reads(n), strings.HasPrefix(n, "README"):
		case isHidden && isTOML:
			notes = append(notes, path.Join(folder, n)+" is not read: its name begins with a dot")
		case !isHidden:
			notes = append(notes, path.Join(folder, n)+" is not read: gpuadm reads the files in node.d whose names end in .toml")
		}
	}

	names, _ = v.ReadDir(specHome)
	for _, n := range names {
		isFolder := strings.HasPrefix(n, "node.") && strings.HasSuffix(n, ".d") && n != "node.d"
		if spec.Reads(n) && n != "node.toml" || isFolder {
			notes = append(notes, path.Join(specHome, n)+" is not read: gpuadm reads node.toml, then the files in "+folder)
		}
	}

	return notes
}
