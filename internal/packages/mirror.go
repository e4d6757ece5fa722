// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// MirrorLock is the file of a mirror that has the digests of all others.
const MirrorLock = "gpuadm-mirror.json"

// MirrorOrigin is the Origin in the signed list of a mirror, which apt's pins name.
const MirrorOrigin = "gpuadm-mirror"

// A Lock says what a mirror is for, and which files it has.
type Lock struct {
	Format  int        `json:"format"`
	For     string     `json:"for"` // ubuntu-24.04
	Arch    string     `json:"arch"`
	Kernels []string   `json:"kernels"`
	GPUs    []string   `json:"gpus"`
	Key     string     `json:"key"` // fingerprint
	Files   []LockFile `json:"files"`

	Modules map[string]facts.SharedModules `json:"modules,omitempty"` // that were built once, for the nodes, by their package's file
}

// A LockFile is one file of a mirror.
type LockFile struct {
	Name   string `json:"name"` // in the folder: Packages, repodata/repomd.xml
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// A Gathering says which packages a packager puts into the folder of a mirror.
type Gathering struct {
	Repos   []Repository
	Via     host.Via
	Request Request
	Work    string                      // a folder for the packager's own files, which is removed afterwards
	Into    string                      // where the packages' files go
	Before  string                      // where an earlier run may have left some of them
	Say     func(files int, size int64) // called before the files are fetched
	Note    func(text string)           // called for each note to the operator
}

// A Gatherer is a packager that can fill a mirror.
type Gatherer interface {
	Packager
	// Gather fetches the packages of a request and all their dependencies, and returns the names of
	// the files.
	Gather(ctx context.Context, h host.Host, g Gathering) (files []string, err error)
	// Open unpacks a package's file, and returns its version and its relations in lines as
	// deb-control(5) has them: Version, Depends, Provides.
	Open(ctx context.Context, h host.Host, file, into string) (said []byte, err error)
	// Pack writes a package of modules, and returns its file below g.Work. The same content gives
	// the same bytes.
	Pack(ctx context.Context, h host.Host, g Gathering, p ModulePackage) (file string, err error)
	// Index writes the list of the packages in the folder, and returns the names of its files.
	Index(ctx context.Context, h host.Host, g Gathering, files []string) ([]string, error)
	// Sign makes of the folder a signed repository. It returns the names of the signatures.
	Sign(h host.Host, dir string, by things.Signer) (files []string, err error)
}

// A ModuleSource is the package by which DKMS builds modules.
type ModuleSource struct {
	Name, File, Version string   // nvidia-kernel-open-dkms; in the folder; whole: 580.65.06-1, 3:580.65.06-1.el9
	Depends, Provides   []string // its relations; of SourceOf: on what has the driver's version, firmware and support files
	Folder              string   // absolute: .../nvidia-580.65.06
}

// ModulePackage is a package of modules before it is written.
type ModulePackage struct {
	Name, Kernel string
	From         ModuleSource
	Root         string // the folder with its files, as they will lie below /
}

// Built is the time of what is built for a mirror, so that it is the same each time: 2026-01-01, in
// seconds.
// Source: https://reproducible-builds.org/specs/source-date-epoch/
const Built = "1767225600"

// Fill fills in a text that a package is made of, which has names in @. needs are its relations
// beside those of From: it runs depmod, of kmod.
func (p ModulePackage) Fill(text string, needs []string, more ...string) []byte {
	list := func(first string, more ...string) string { return strings.Join(append([]string{first}, more...), ", ") }
	return []byte(strings.NewReplacer(append(more, "@NAME@", p.Name, "@KERNEL@", p.Kernel, "@DKMS@", p.From.Name, "@ROOT@", p.Root,
		"@DEPENDS@", list("kmod", append(needs, p.From.Depends...)...), "@PROVIDES@", list("gpuadm-modules", p.From.Provides...))...).Replace(text))
}

// SourceOf unpacks below g.Work what DKMS builds modules from: that of the named package, or of a
// package that it depends on in its version, as Ubuntu has it. files are those of the folder.
func SourceOf(ctx context.Context, h host.Host, from Gatherer, g Gathering, files []string, name string) (s ModuleSource, err error) {
	open := func(name string) (p ModuleSource, err error) {
		i := slices.IndexFunc(files, func(file string) bool {
			return strings.HasPrefix(file, name+"_") || path.Ext(file) == ".rpm" && strings.HasPrefix(file, name+"-")
		})
		if i < 0 {
			return p, &trouble.Error{What: "cannot build modules: the mirror has no package " + name, Try: []string{`write source = "nvidia" in [driver], which has modules for DKMS`}}
		}
		root := g.Work + "/source"
		said, err := from.Open(ctx, h, path.Join(g.Into, files[i]), root)
		has := map[string][]string{}
		for line := range strings.Lines(string(said)) {
			if key, value, _ := strings.Cut(strings.Join(strings.Fields(line), " "), ": "); value != "" {
				has[key] = append(has[key], strings.Split(value, ", ")...)
			}
		}
		p = ModuleSource{Name: name, File: files[i], Version: strings.Join(has["Version"], ""), Depends: has["Depends"], Provides: has["Provides"]}
		for _, of := range ListOf(h, root+"/usr/src") {
			dir := path.Join(root, "usr/src", of)
			if _, err := h.Stat(dir + "/dkms.conf"); err == nil && strings.HasSuffix(of, "-"+Own(p.Version)) {
				p.Folder = dir
			}
		}
		return p, err
	}
	if s, err = open(name); err != nil {
		return s, err
	}
	all := s.Depends
	s.Depends = nil
	for _, clause := range all {
		if !strings.Contains(clause, Own(s.Version)) {
			continue
		}
		if s.Folder == "" {
			of, _, _ := strings.Cut(clause, " ")
			other, err := open(of)
			if err != nil {
				return s, err
			}
			if s.Folder = other.Folder; s.Folder != "" {
				continue // of the source alone
			}
		}
		s.Depends = append(s.Depends, clause)
	}
	s.Provides = slices.DeleteFunc(s.Provides, func(clause string) bool { return strings.Contains(clause, name) })
	if s.Folder == "" {
		err = fmt.Errorf("cannot build modules: package %s has no source for DKMS", name)
	}
	return s, err
}

// Signatures returns the files of mirrors that differ after each signing, since they have a time.
func Signatures() []string { return []string{"InRelease", "repodata/repomd.xml.asc"} }

// FolderOf returns the folder that a file: URL names; "" for other URLs.
func FolderOf(url string) string {
	rest, is := strings.CutPrefix(url, "file:")
	if !is {
		return ""
	}
	return path.Clean("/" + strings.TrimLeft(rest, "/"))
}

// LocksOf returns the file with the digests of the mirror at a URL; none if the URL names no
// folder.
func LocksOf(url string) []string {
	if dir := FolderOf(url); dir != "" {
		return []string{path.Join(dir, MirrorLock)}
	}
	return nil
}

// IsMirror says whether the URL is that of a mirror: it has all that its packages depend on.
func IsMirror(v host.View, url string) bool {
	return slices.ContainsFunc(LocksOf(url), func(name string) bool { _, err := v.Stat(name); return err == nil })
}

// ReadLock reads the lock of a mirror.
func ReadLock(v host.View, dir string) (l Lock, err error) {
	name := path.Join(dir, MirrorLock)
	data, err := v.ReadFile(name)
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("cannot read %s: %w", name, err)
	}
	if l.Format != 1 {
		return l, fmt.Errorf("cannot read %s: it has format %d, and this gpuadm knows format 1", name, l.Format)
	}
	for _, f := range l.Files {
		if !fs.ValidPath(f.Name) || f.Name == "." {
			return l, fmt.Errorf("cannot read %s: %q names no file of the folder", name, f.Name)
		}
	}
	return l, nil
}

// Verify names the first file that differs from the lock; "" where all agree.
func (l Lock) Verify(v host.View, dir string, digest func(host.View, string) (LockFile, error)) (problem string, err error) {
	for _, want := range l.Files {
		name := path.Join(dir, want.Name)
		is, err := digest(v, name)
		is.Name = want.Name
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("%s was not found, and %s has it", name, MirrorLock), nil
		case err != nil:
			return "", err
		case is != want:
			return fmt.Sprintf("%s differs from %s: it has %d bytes with the digest %s, and should have %d bytes with the digest %s",
				name, MirrorLock, is.Size, is.SHA256, want.Size, want.SHA256), nil
		}
	}
	return "", nil
}

// Digest reads a file of any size. The result's name is relative to the file's folder.
func Digest(v host.View, name string) (LockFile, error) {
	info, err := v.Stat(name)
	if err != nil {
		return LockFile{}, err
	}
	sum := sha256.New()
	in := io.NewSectionReader(host.Part{View: v, Name: name}, 0, info.Size)
	if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{in}, make([]byte, 1<<20)); err != nil {
		return LockFile{}, err
	}
	return LockFile{path.Base(name), info.Size, hex.EncodeToString(sum.Sum(nil))}, nil
}

// In says whether a folder has the file.
func (f LockFile) In(v host.View, dir string) bool {
	is, err := Digest(v, path.Join(dir, f.Name))
	return err == nil && is == f
}

// digest is Digest, from memory while the file is unchanged.
func (r *Reading) digest(v host.View, name string) (LockFile, error) {
	i, err := v.Stat(name)
	if err != nil {
		return LockFile{}, err
	}
	id := identity{name, i.Size, i.Ctime}
	if known, is := r.digests.Load(id); is {
		return known.(LockFile), nil
	}
	known, err := Digest(v, name)
	if err == nil {
		r.digests.Store(id, known)
	}
	return known, err
}

// Mirrored wants the files of a mirror to agree with its lock. It reads them only while a wanted
// package is missing: otherwise nothing is installed from the mirror.
func (r *Reading) Mirrored(dir string, want map[string]State) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		if done, err := r.Meets(ctx, v, want); done || err != nil {
			return "", err
		}
		lock, err := ReadLock(v, dir)
		if err != nil {
			return "", err
		}
		problem, err := lock.Verify(v, dir, r.digest)
		if err != nil || problem == "" {
			return "", err
		}
		return "cannot use the mirror: " + problem, nil
	}
	return things.Check("mirror "+dir, look, "packages are installed from a mirror only if each of its files has its digest",
		"copy the folder again from where gpuadm mirror wrote it", "sha256sum "+dir+"/FILE, which shows the digest of a file")
}

// RoomFor refuses files that do not fit into the file system of a folder.
func RoomFor(v host.View, dir string, size int64) error {
	room, err := v.Room(dir)
	if err != nil {
		return err
	}
	if room.Bytes >= uint64(size) {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot write the mirror: the disk is full: its files need %d MB in %s, which has %d MB free", size/1e6+1, dir, room.Bytes/1e6),
		Try:  []string{"make room there, or name another folder with -o, then run the same command again: it continues"},
	}
}
