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
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// MirrorLock is the file of a mirror that has the digests of all others.
const MirrorLock = "gpuadm-mirror.json"

// A Lock says what a mirror is for, and which files it has.
type Lock struct {
	Format  int        `json:"format"`
	For     string     `json:"for"` // ubuntu-24.04
	Arch    string     `json:"arch"`
	Kernels []string   `json:"kernels"`
	GPUs    []string   `json:"gpus"`
	Key     string     `json:"key"` // fingerprint
	Files   []LockFile `json:"files"`

	// Modules are the kernel modules that were built once, for all nodes, by their package's file.
	Modules map[string]SharedModules `json:"modules,omitempty"`

	// Failed are those that did not build where the mirror was written.
	Failed []SharedModules `json:"failed,omitempty"`
}

// A LockFile is one file of a mirror.
type LockFile struct {
	Name   string `json:"name"` // in the folder: Packages, repodata/repomd.xml
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Signatures returns the files of mirrors that differ after each signing, since they have a time.
func Signatures() []string { return []string{"InRelease", "repodata/repomd.xml.asc"} }

// FolderOf returns the folder that a file: URL names; "" for other URLs. It decodes the path, as apt
// does (2.6.2): a folder's name may have a space.
func FolderOf(address string) string {
	rest, ok := strings.CutPrefix(address, "file:")
	if !ok {
		return ""
	}
	decoded, err := url.PathUnescape(rest)
	if err == nil {
		rest = decoded
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

// IsMirror reports whether the URL is that of a mirror: it has all that its packages depend on.
func IsMirror(v host.View, url string) bool {
	return slices.ContainsFunc(LocksOf(url), func(name string) bool {
		_, err := v.Stat(name)
		return err == nil
	})
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
func (l Lock) Verify(
	v host.View,
	dir string,
	digest func(v host.View, name string) (LockFile, error),
) (problem string, err error) {
	for _, want := range l.Files {
		name := path.Join(dir, want.Name)
		found, err := digest(v, name)
		found.Name = want.Name
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("%s is missing, and %s lists it", name, MirrorLock), nil
		case err != nil:
			return "", err
		case found != want:
			return fmt.Sprintf("%s differs from %s: it has %d bytes with the digest %s, and should have %d bytes with the digest %s",
				name, MirrorLock, found.Size, found.SHA256, want.Size, want.SHA256), nil
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
	file := io.NewSectionReader(host.Part{View: v, Name: name}, 0, info.Size)
	// The structs hide ReadFrom and WriteTo, with which CopyBuffer would not use the buffer.
	_, err = io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{file}, make([]byte, 1<<20))
	if err != nil {
		return LockFile{}, err
	}
	return LockFile{path.Base(name), info.Size, hex.EncodeToString(sum.Sum(nil))}, nil
}

// In reports whether a folder has the file.
func (f LockFile) In(v host.View, dir string) bool {
	found, err := Digest(v, path.Join(dir, f.Name))
	return err == nil && found == f
}

// digest is Digest, from memory while the file is unchanged.
func (r *Reading) digest(v host.View, name string) (LockFile, error) {
	info, err := v.Stat(name)
	if err != nil {
		return LockFile{}, err
	}
	id := identity{name, info.Size, info.Ctime}
	if known, ok := r.digests.Load(id); ok {
		return known.(LockFile), nil
	}

	digest, err := Digest(v, name)
	if err == nil {
		r.digests.Store(id, digest)
	}
	return digest, err
}

// Mirrored wants the files of a mirror to agree with its lock. It reads them only while a wanted
// package is missing: otherwise nothing is installed from the mirror.
func (r *Reading) Mirrored(dir string, want map[string]State) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		installed, err := r.Meets(ctx, v, want)
		if installed || err != nil {
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

	const why = "packages are installed from a mirror only if each of its files has its digest"
	return things.Check("mirror "+dir, look, why,
		"copy the folder again from where gpuadm mirror wrote it",
		"sha256sum "+host.ShellWord(dir+"/FILE")+", which shows the digest of a file")
}
