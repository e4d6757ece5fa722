// SPDX-License-Identifier: Apache-2.0

// Package ubuntu is what Ubuntu 24.04 answers on a simulated node: apt, dpkg, dkms and kmod as
// programs. What the repositories have is made of the listings, as the lab's are (test/listings,
// test/lab/repos). All that the programs know lies in files of the node, so that a clone of it is a
// machine of its own:
//
//	/simulated-net/HOST/PATH/serves   the edition that this repository serves now, and the key that signs it
//	/simulated-net/nobuild            versions of the driver whose modules do not build
package ubuntu

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// An edition is what one repository has at one time.
type edition struct {
	origin   string
	label    string
	packages map[string][]*pkg // by name
}

// A pkg is a package, with its relations taken apart.
type pkg struct {
	repos.Package
	needs          [][]relation // alternatives
	gives, against []relation
}

func newPackage(p repos.Package) *pkg {
	one := &pkg{
		Package: p,
		gives:   relations(append(slices.Concat(p.Provides, p.Instead), p.Name+" (= "+p.Version+")")),
		against: relations(slices.Concat(p.Conflicts, p.Instead)),
	}
	for _, need := range slices.Concat(p.PreDepends, p.Depends) {
		one.needs = append(one.needs, relations(strings.Split(need, " | ")))
	}
	return one
}

// A relation is to a package by name, in a version or in any.
type relation struct{ name, op, version string }

var isRelation = regexp.MustCompile(`^([a-z0-9.+-]+)(?::any)?(?: \((=|>=|<=|<<|>>) ([^)]+)\))?$`)

func relations(texts []string) (all []relation) {
	for _, text := range texts {
		if m := isRelation.FindStringSubmatch(text); m != nil {
			all = append(all, relation{m[1], m[2], m[3]})
		}
	}
	return all
}

// editions are all that repositories of the simulated net can serve. "mirror" has the newest
// version of each branch alone.
var editions = sync.OnceValue(func() map[string]edition {
	pools, err := repos.Apt("ubuntu2404")
	if err != nil {
		panic(err)
	}

	all := map[string]edition{}
	for at, list := range pools {
		name, e := newEdition(at)
		for _, p := range list {
			e.add(newPackage(p))
		}
		all[name] = e
	}

	all["nvidia"].add(cudaToolkit())
	all["mirror"] = mirrorOf(all["nvidia"])
	return all
})

// newEdition is a repository without packages, and its name.
func newEdition(url string) (name string, e edition) {
	e.packages = map[string][]*pkg{}
	switch {
	case strings.HasPrefix(url, repos.Archive):
		e.origin = "Ubuntu"
		e.label = "Ubuntu"
		return "archive", e
	case strings.HasPrefix(url, repos.Toolkit):
		e.origin = "NVIDIA"
		return "toolkit", e
	}

	e.origin = "NVIDIA"
	e.label = "NVIDIA CUDA"
	return "nvidia", e
}

func (e edition) add(p *pkg) { e.packages[p.Name] = append(e.packages[p.Name], p) }

// cudaToolkit is a package of NVIDIA's repository that is not a driver's:
// https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/ lists it, and NVIDIA's
// CUDA installation guide for Linux installs it by this name.
func cudaToolkit() *pkg {
	return newPackage(repos.Package{
		Name:    "cuda-toolkit-12-8",
		Version: "12.8.1-1",
		Files:   map[string]repos.File{"/usr/local/cuda-12.8/version.json": {Text: "{}\n"}},
	})
}

// mirrorOf has two drivers, all that is not a driver, and modules that were built once.
func mirrorOf(nvidia edition) edition {
	drivers := []string{"580.159.04", "570.148.08"}
	kernels := []string{"6.8.0-88-generic", "6.8.0-90-generic", "6.8.0-91-generic"}

	mirror := edition{
		origin:   "NVIDIA",
		label:    "NVIDIA CUDA",
		packages: map[string][]*pkg{},
	}
	for _, list := range nvidia.packages {
		for _, p := range list {
			v := upstream(p.Version)
			isDriver := strings.HasPrefix(v, "5") || strings.HasPrefix(v, "6")
			if !isDriver || slices.Contains(drivers, v) {
				mirror.add(p)
			}
		}
	}
	for _, kernel := range kernels {
		for _, v := range drivers {
			mirror.add(newPackage(shared(v, kernel)))
		}
	}
	return mirror
}

// shared is the package of modules that gpuadm mirror has built for a kernel from NVIDIA's package for
// DKMS.
func shared(v, kernel string) repos.Package {
	branch, _, _ := strings.Cut(v, ".")
	p := repos.Package{
		Name:      "gpuadm-modules-open-" + kernel,
		Version:   v + "-0ubuntu1",
		Depends:   []string{"nvidia-kernel-common-" + branch},
		Conflicts: []string{"nvidia-dkms-" + branch + "-open"},
		Files:     map[string]repos.File{},
	}
	module := repos.File{Text: string(kmodule.Nvidia(v, "Dual MIT/GPL", kernel))}
	for _, name := range modules {
		p.Files["/lib/modules/"+kernel+"/updates/gpuadm/"+name+".ko"] = module
	}
	return p
}

// all is every package of the editions, by name and version.
var all = sync.OnceValue(func() map[[2]string]*pkg {
	found := map[[2]string]*pkg{}
	for _, e := range editions() {
		for name, list := range e.packages {
			for _, p := range list {
				found[[2]string{name, p.Version}] = p
			}
		}
	}

	return found
})

// providers are the packages that provide a name, by that name.
var providers = sync.OnceValue(func() map[string][]string {
	found := map[string][]string{}
	for _, p := range all() {
		for _, r := range p.gives {
			if r.name != p.Name && !slices.Contains(found[r.name], p.Name) {
				found[r.name] = append(found[r.name], p.Name)
			}
		}
	}

	for _, names := range found {
		slices.Sort(names)
	}
	return found
})

// known finds a package in any edition: what is installed, or lies in a file, may be gone from all
// sources.
func known(name, version string) *pkg {
	if p := all()[[2]string{name, version}]; p != nil {
		return p
	}
	return newPackage(repos.Package{Name: name, Version: version})
}

func upstream(version string) string {
	v, _, _ := strings.Cut(version, "-")
	return v
}

// Install puts Ubuntu's programs on a node.
func Install(n *simhost.Node) {
	for name, do := range programs() {
		n.Install(name, simhost.Program{
			Looks: looks,
			Run:   func(f *files.Files, argv []string) ([]byte, error) { return run(do, f, argv) },
		})
	}

	n.Install("env", simhost.Program{Looks: looks, Run: func(f *files.Files, argv []string) ([]byte, error) {
		argv, dir := inside(argv)
		do := programs()[path.Base(argv[0])]
		if do == nil {
			return nil, &host.CommandError{
				Argv:   argv,
				Code:   127,
				Stderr: "env: " + argv[0] + ": No such file or directory",
				Cause:  fs.ErrNotExist,
			}
		}

		return run(do, f, append(argv, dir...))
	}})
}

// inside is the command that env(1) runs, and as an option the folder that it runs in.
func inside(argv []string) (command, dir []string) {
	command = argv[1:]
	for len(command) > 0 {
		switch {
		case command[0] == "-C":
			dir = []string{"-o", "env-C=" + command[1]}
			command = command[2:]
		case strings.Contains(command[0], "="):
			command = command[1:]
		default:
			return command, dir
		}
	}
	return command, dir
}

func looks(argv []string) bool {
	if argv[0] == "env" {
		argv, _ = inside(argv)
	}
	return path.Base(argv[0]) == "apt-cache" || slices.Contains(argv, "--print-uris") || slices.Contains(argv, "status")
}

type program = func(m *machine, args []string) error

func programs() map[string]program {
	return map[string]program{
		"apt-get":   aptGet,
		"apt-cache": aptCache,
		"apt-mark":  aptMark,
		"dpkg":      dpkgProgram,

		"dkms":             dkms,
		"depmod":           depmod,
		"modprobe":         modprobe,
		"rmmod":            rmmod,
		"update-initramfs": initramfs,
		"nvidia-modprobe":  func(*machine, []string) error { return nil },
	}
}

// A machine is the node's files while a program runs.
type machine struct {
	*files.Files
	options map[string]string // of -o
	out     bytes.Buffer
	err     bytes.Buffer
}

// failure ends a program with an exit code.
type failure int

func (f failure) Error() string { return fmt.Sprintf("exit status %d", int(f)) }

func run(do program, f *files.Files, argv []string) ([]byte, error) {
	options, args := cutOptions(argv[1:])
	m := &machine{Files: f, options: options}
	err := do(m, args)
	if err == nil {
		return m.out.Bytes(), nil
	}

	code := failure(1)
	if !errors.As(err, &code) {
		fmt.Fprintf(&m.err, "E: %v\n", err)
	}
	return m.out.Bytes(), &host.CommandError{
		Argv:   argv,
		Code:   int(code),
		Stderr: strings.TrimSpace(m.err.String()),
		Cause:  code,
	}
}

// cutOptions takes each -o KEY=VALUE out of a program's arguments.
func cutOptions(argv []string) (options map[string]string, args []string) {
	options = map[string]string{}
	for len(argv) > 0 {
		if argv[0] == "-o" && len(argv) > 1 {
			key, value, _ := strings.Cut(argv[1], "=")
			options[key] = value
			argv = argv[2:]
			continue
		}
		args = append(args, argv[0])
		argv = argv[1:]
	}
	return options, args
}

// fail says why, and ends the program as apt ends.
func (m *machine) fail(format string, values ...any) error {
	fmt.Fprintf(&m.err, "E: "+format+"\n", values...)
	return failure(100)
}

// text is a file, "" where there is none.
func (m *machine) text(name string) string {
	data, _ := m.ReadFile(name)
	return string(data)
}

func (m *machine) has(name string) bool {
	_, err := m.Stat(name)
	return err == nil
}

// put writes a file with the folders on the way to it, unless it says that already.
func (m *machine) put(name, text string) error {
	if is, err := m.ReadFile(name); err == nil && string(is) == text {
		return nil
	}
	if err := m.folders(path.Dir(name)); err != nil {
		return err
	}
	return m.WriteFile(name, []byte(text), host.Attr{Mode: 0o644})
}

func (m *machine) folders(dir string) error {
	if dir == "/" || m.has(dir) {
		return nil
	}
	if err := m.folders(path.Dir(dir)); err != nil {
		return err
	}
	return m.Mkdir(dir, host.Attr{Mode: 0o755})
}

// drop removes files, and the folders above that are then empty, up to those of the system.
func (m *machine) drop(names ...string) error {
	for _, name := range names {
		if err := m.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for dir := path.Dir(name); isPackages(dir); dir = path.Dir(dir) {
			names, err := m.ReadDir(dir)
			if err != nil || len(names) > 0 {
				break
			}
			if err := m.Remove(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// isPackages reports whether a folder came with a package, and not with the system.
func isPackages(dir string) bool {
	isBelow := func(tops ...string) bool {
		return slices.ContainsFunc(tops, func(top string) bool { return strings.HasPrefix(dir, top) })
	}
	if isBelow("/etc/systemd", "/usr/lib/systemd") {
		return false
	}
	isDeep := strings.Count(dir, "/") > 3
	return isDeep || isBelow("/etc/nvidia", "/var/lib/dkms/", "/usr/src/", "/sys/module/")
}

// under are all files below a folder.
func (m *machine) under(dir string) (files []string) {
	names, _ := m.ReadDir(dir)
	for _, name := range names {
		name = path.Join(dir, name)
		if i, err := m.Lstat(name); err == nil && i.Mode.IsDir() {
			files = append(files, m.under(name)...)
		} else {
			files = append(files, name)
		}
	}

	return files
}

// dearmor is the bytes of a key, armored or not.
func dearmor(key string) string {
	_, body, armored := strings.Cut(key, "\n\n")
	if !armored || !strings.HasPrefix(key, "-----BEGIN") {
		return key
	}
	body, _, _ = strings.Cut(body, "\n-----END")
	if i := strings.LastIndex(body, "\n="); i >= 0 {
		body = body[:i]
	}
	raw, _ := base64.StdEncoding.DecodeString(strings.ReplaceAll(body, "\n", ""))
	return string(raw)
}
