// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Mirror has the arguments of gpuadm mirror.
type Mirror struct {
	For    string   // ubuntu-24.04
	Models []string // GPUs, as the operator named them
	Dir    string   // absolute
	Key    string   // the file with the secret key that signs
	Binary []byte   // of gpuadm
	Shared Shared
	Keep   bool // packages that the spec no longer asks for stay in the folder

	Say  func(files int, size int64) // shows the progress: files to fetch, and their bytes
	Note func(text string)           // shows a note to the operator
}

// The files of a mirror that are not packages.
const (
	mirrorKey    = "key.asc"
	mirrorBinary = "gpuadm"
	mirrorSpec   = "mirror.toml"
	mirrorSigned = packages.MirrorLock + ".asc"
	mirrorWork   = ".gpuadm" // what the packager needs while the mirror is made
)

// Mirrored is what Make has done.
type Mirrored struct {
	Lock    packages.Lock
	Changed bool    // false: the folder has the same content already
	Failed  []error // of modules that did not build
	Stays   bool    // the old folder stays, with the failures: it has other modules for these kernels
}

// Make fills a mirror's folder with all that a machine with these facts needs for a spec. It makes
// a new folder next to the old one, and replaces the old one at the end.
func (m Mirror) Make(
	ctx context.Context, h host.Host, s spec.Spec, f facts.Facts,
) (made Mirrored, err error) {
	packager := f.OS.Packager().Name
	from, ok := packagers(nil).Named(packager).(packages.Gatherer)
	if !ok {
		return made, &trouble.Error{
			What: fmt.Sprintf("cannot mirror for %s: neither apt nor dnf manages its packages", m.For),
			Try:  []string{`set owner = "other" in [driver], if another tool installs the driver`},
		}
	}

	if err := m.begin(ctx, h); err != nil {
		return made, err
	}
	signer, err := m.signer(h)
	if err != nil {
		return made, err
	}
	public, err := signer.Public()
	if err != nil {
		return made, err
	}

	lock := packages.Lock{
		Format:  1,
		For:     m.For,
		Arch:    f.Arch,
		Kernels: f.Kernel.Installed,
		GPUs:    m.Models,
		Key:     signer.Fingerprint(),
	}
	if len(m.Shared.Kernels) > 0 {
		s.Driver.Build = "dkms" // on this machine
	}
	own := map[string][]byte{
		mirrorKey:    public,
		mirrorBinary: m.Binary,
		mirrorSpec:   m.spec(s, packager, lock.Key),
	}
	if err := m.writeOwn(h, own); err != nil {
		return made, err
	}
	names, failed, err := m.fill(ctx, h, from, s, f, &lock)
	if err != nil {
		return made, err
	}

	made.Failed = failed
	if m.losesModules(h, lock) {
		made.Stays = true
		made.Lock, made.Changed, err = m.learn(h, signer, lock.Failed)
		if err != nil {
			return made, err
		}
		return made, removeAll(ctx, h, m.newFolder())
	}

	if err := removeAll(ctx, h, path.Join(m.newFolder(), mirrorWork)); err != nil {
		return made, err
	}
	names = slices.AppendSeq(names, maps.Keys(own))
	if err := listFiles(h, &lock, m.newFolder(), names); err != nil {
		return made, err
	}
	old, same := m.same(h, lock)
	if same {
		made.Lock = old
		return made, removeAll(ctx, h, m.newFolder())
	}
	made.Lock, err = m.publish(ctx, h, from, signer, lock)
	made.Changed = err == nil
	return made, err
}

// removeAll removes files and folders with all that is in them.
func removeAll(ctx context.Context, h host.Host, names ...string) error {
	_, err := h.Do(ctx, append([]string{"rm", "-rf", "--"}, names...)...)
	return err
}

// newFolder is where the mirror is made, and oldFolder where the old one is while the new one
// replaces it: two folders next to the mirror. Their names are fixed, since a run may be killed
// before it writes into them, or while it removes them.
func (m Mirror) newFolder() string { return m.temporary("new") }
func (m Mirror) oldFolder() string { return m.temporary("old") }

func (m Mirror) temporary(which string) string {
	return path.Join(path.Dir(m.Dir), ".gpuadm-"+path.Base(m.Dir)+"-"+which)
}

// begin prepares the new folder, which may be that of a killed run. It refuses a mirror's folder
// that gpuadm has not made.
func (m Mirror) begin(ctx context.Context, h host.Host) error {
	if err := h.Trusted(m.Dir, m.newFolder(), m.oldFolder(), m.Key); err != nil {
		return faults.Untrusted(h.Root(), err)
	}
	names, err := h.ReadDir(m.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(names) > 0 && !slices.Contains(names, packages.MirrorLock) {
		return &trouble.Error{
			What: fmt.Sprintf("cannot write the mirror to %s: it has other files", m.Dir),
			Try:  []string{"name a new folder with -o, or remove " + m.Dir},
		}
	}

	if err := m.restoreOld(h); err != nil {
		return err
	}

	_, err = packages.ReadLock(h, m.Dir)
	if m.Keep && err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &trouble.Error{
			What: "cannot keep the packages of the mirror: " + err.Error(),
			Try:  []string{"the same command without --keep, which writes the mirror without them"},
			Err:  err,
		}
	}

	work := path.Join(m.newFolder(), mirrorWork)
	if err := removeAll(ctx, h, m.oldFolder(), work); err != nil {
		return fmt.Errorf("cannot write the mirror: %w", err)
	}
	if _, err := h.Do(ctx, "mkdir", "-p", "--", work); err != nil {
		return fmt.Errorf("cannot write the mirror: %w", err)
	}
	return nil
}

// restoreOld puts the old folder back where a run was killed between its two renames.
func (m Mirror) restoreOld(h host.Host) error {
	_, err := h.Lstat(m.Dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	err = h.Rename(m.oldFolder(), m.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// writeOwn writes the mirror's own files, first of all: a full disk is named before anything is
// fetched or built.
func (m Mirror) writeOwn(h host.Host, own map[string][]byte) error {
	for name, data := range own {
		mode := fs.FileMode(0o644)
		if name == mirrorBinary {
			mode = 0o755
		}
		if err := h.WriteFile(path.Join(m.newFolder(), name), data, host.Attr{Mode: mode}); err != nil {
			return err
		}
	}
	return nil
}

// spec is a part of node.toml that names the mirror.
func (m Mirror) spec(s spec.Spec, packager, fingerprint string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by gpuadm mirror. Copy it to /etc/gpuadm/node.d on the nodes, which have the folder as %s.\nformat = 1\n", m.Dir)
	for _, section := range []string{"driver", "toolkit"} {
		if !s.Has(section) {
			continue
		}
		fmt.Fprintf(&b, "[%s.repo]\nurl = \"file://%s\"\n", section, m.Dir)
		fmt.Fprintf(&b, "key = \"%s/%s\"\n", m.Dir, mirrorKey)
		fmt.Fprintf(&b, "fingerprint = %q\n", fingerprint)
		if packager == "dnf" { // the packages have their vendors' signatures
			b.WriteString("signature = \"metadata\"\n")
		}
	}

	if s.Driver.Runfile.URL != "" {
		fmt.Fprintf(&b, "[driver.runfile]\nurl = \"file://%s/%s\"\n", m.Dir, path.Base(s.Driver.Runfile.URL))
	}
	return b.Bytes()
}

// listFiles writes the files' names, sizes and digests into the lock.
func listFiles(h host.View, lock *packages.Lock, dir string, names []string) error {
	slices.Sort(names)
	lock.Files = nil
	for _, name := range slices.Compact(names) {
		file, err := packages.Digest(h, path.Join(dir, name))
		if err != nil {
			return err
		}
		file.Name = name
		lock.Files = append(lock.Files, file)
	}

	return nil
}

// same says whether the mirror has just these files already, apart from signatures.
func (m Mirror) same(h host.View, lock packages.Lock) (old packages.Lock, same bool) {
	old, err := packages.ReadLock(h, m.Dir)
	if err != nil {
		return old, false
	}
	problem, err := old.Verify(h, m.Dir, packages.Digest)
	if err != nil || problem != "" {
		return old, false
	}

	isSignature := func(f packages.LockFile) bool {
		return slices.Contains(packages.Signatures(), f.Name)
	}
	unsigned := old
	unsigned.Files = slices.DeleteFunc(slices.Clone(old.Files), isSignature)
	before, err1 := json.Marshal(unsigned)
	now, err2 := json.Marshal(lock)
	return old, cmp.Or(err1, err2) == nil && bytes.Equal(before, now)
}

// publish signs the new folder, writes its lock, and replaces the old one by it.
func (m Mirror) publish(
	ctx context.Context, h host.Host, from packages.Gatherer, signer things.Signer, lock packages.Lock,
) (packages.Lock, error) {
	next := m.newFolder()
	names, err := from.Sign(h, next, signer)
	if err != nil {
		return lock, err
	}
	for _, f := range lock.Files {
		names = append(names, f.Name)
	}
	if err := listFiles(h, &lock, next, slices.Clone(names)); err != nil {
		return lock, err
	}
	if err := m.writeLock(h, signer, next, lock); err != nil {
		return lock, err
	}

	if err := m.removeStrange(ctx, h, names); err != nil {
		return lock, err
	}
	if err := m.replaceOld(h); err != nil {
		return lock, err
	}
	return lock, removeAll(ctx, h, m.oldFolder())
}

// replaceOld puts the new folder in the place of the old one, if there is an old one.
func (m Mirror) replaceOld(h host.Host) error {
	err := h.Rename(m.Dir, m.oldFolder())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return h.Rename(m.newFolder(), m.Dir)
}

// writeLock writes the lock and its signature: Gatherer.Sign covers the packages alone.
func (m Mirror) writeLock(h host.Host, signer things.Signer, dir string, lock packages.Lock) error {
	data, err := json.MarshalIndent(lock, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	signature, err := signer.Detached(data, h.Now())
	if err != nil {
		return err
	}

	files := map[string][]byte{packages.MirrorLock: data, mirrorSigned: signature}
	for name, data := range files {
		if err := h.WriteFile(path.Join(dir, name), data, host.Attr{Mode: 0o644}); err != nil {
			return err
		}
	}

	return nil
}

// removeStrange removes from the new folder what a killed run with another spec has left there.
func (m Mirror) removeStrange(ctx context.Context, h host.Host, names []string) error {
	names = append(slices.Clone(names), packages.MirrorLock, mirrorSigned)
	all, err := h.ReadDir(m.newFolder())
	if err != nil {
		return err
	}

	for _, name := range all {
		within := func(file string) bool {
			return file == name || strings.HasPrefix(file, name+"/")
		}
		if slices.ContainsFunc(names, within) {
			continue
		}
		if err := removeAll(ctx, h, path.Join(m.newFolder(), name)); err != nil {
			return err
		}
	}

	return nil
}
