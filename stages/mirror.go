// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/apt"
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
	Say    func(files int, size int64)
	Note   func(text string) // shows a note to the operator
}

// Files of a mirror beside the packages.
const (
	mirrorKey    = "key.asc"
	mirrorBinary = "gpuadm"
	mirrorSpec   = "mirror.toml"
	mirrorSigned = packages.MirrorLock + ".asc"
	mirrorWork   = ".gpuadm" // what the packager needs while the mirror is made
)

// Make fills a mirror's folder with all that a machine with these facts needs for a spec. It makes
// the new folder beside the old one, which it replaces at the end. changed is false if the old one
// has the same content: then it stays.
func (m Mirror) Make(ctx context.Context, h host.Host, s spec.Spec, f facts.Facts) (lock packages.Lock, changed bool, err error) {
	from, ok := packagers().Named(f.OS.Packager().Name).(packages.Gatherer)
	if !ok {
		return lock, false, &trouble.Error{
			What: fmt.Sprintf("cannot mirror for %s: neither apt nor dnf manages its packages", m.For),
			Try:  []string{`set owner = "other" in [driver], if another tool installs the driver`},
		}
	}
	next := m.beside("new")
	if err := m.begin(ctx, h, next); err != nil {
		return lock, false, err
	}
	lock = packages.Lock{Format: 1, For: m.For, Arch: f.Arch, Kernels: f.Kernel.Installed, GPUs: m.Models}
	signer, err := m.signer(h)
	if err != nil {
		return lock, false, err
	}
	public, err := signer.Public()
	if err != nil {
		return lock, false, err
	}
	lock.Key = signer.Fingerprint()
	if len(m.Shared.Kernels) > 0 {
		s.Driver.Build = "dkms" // here
	}
	own := map[string][]byte{mirrorKey: public, mirrorBinary: m.Binary, mirrorSpec: m.spec(s, f.OS.Packager().Name, lock.Key)}
	for name, data := range own { // a full disk is named before anything is fetched or built
		mode := fs.FileMode(0o644)
		if name == mirrorBinary {
			mode = 0o755
		}
		if err := h.WriteFile(path.Join(next, name), data, host.Attr{Mode: mode}); err != nil {
			return lock, false, err
		}
	}
	names, err := m.fill(ctx, h, from, s, f, &lock)
	if err != nil {
		return lock, false, err
	}
	names = slices.AppendSeq(names, maps.Keys(own))
	if _, err := h.Do(ctx, "rm", "-rf", "--", path.Join(next, mirrorWork)); err != nil {
		return lock, false, err
	}
	if err := seal(h, &lock, next, names); err != nil {
		return lock, false, err
	}
	if old, same := m.same(h, lock); same {
		_, err := h.Do(ctx, "rm", "-rf", "--", next)
		return old, false, err
	}
	return m.publish(ctx, h, from, signer, lock, next)
}

// signer reads the key, or makes one. The key is outside the folder, which operators copy to nodes.
func (m Mirror) signer(h host.Host) (things.Signer, error) {
	if i, err := h.Stat(m.Key); err == nil && i.Mode&0o044 != 0 {
		return things.Signer{}, &trouble.Error{
			What: fmt.Sprintf("cannot sign with the key in %s: other users can read it, so any of them can sign what nodes install", m.Key),
			Try:  []string{"remove it, and have gpuadm make another; or, if no other user has used this machine: chmod 600 " + host.ShellWord(m.Key)},
		}
	}
	secret, err := h.ReadFile(m.Key)
	if errors.Is(err, fs.ErrNotExist) {
		s, secret, err := things.NewSigner()
		if err != nil {
			return s, fmt.Errorf("cannot make a key: %w", err)
		}
		return s, h.WriteFile(m.Key, secret, host.Attr{Mode: 0o600})
	} else if err != nil {
		return things.Signer{}, err
	}
	s, err := things.ReadSigner(secret)
	if err != nil {
		return s, &trouble.Error{
			What: fmt.Sprintf("cannot sign with the key in %s: %v", m.Key, err), Err: err,
			Try: []string{"name a file that gpuadm mirror wrote, or an RSA key: openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072"},
		}
	}
	return s, nil
}

// beside is a temporary folder beside the mirror: the "new" one while it is made, the "old" one
// while the new one replaces it. Their names are fixed, since a run may be killed before it writes
// into them, or while it removes them.
func (m Mirror) beside(which string) string {
	return path.Join(path.Dir(m.Dir), ".gpuadm-"+path.Base(m.Dir)+"-"+which)
}

// begin prepares the new folder, which may be that of a killed run. It refuses a mirror's folder
// that gpuadm has not made.
func (m Mirror) begin(ctx context.Context, h host.Host, next string) error {
	if err := h.Trusted(m.Dir, next, m.beside("old"), m.Key); err != nil {
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
	// A run that was killed between its two renames has left the old folder as beside("old").
	if _, err := h.Lstat(m.Dir); errors.Is(err, fs.ErrNotExist) {
		if err := h.Rename(m.beside("old"), m.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if _, err := packages.ReadLock(h, m.Dir); m.Keep && err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &trouble.Error{What: "cannot keep the packages of the mirror: " + err.Error(), Err: err, Try: []string{"the same command without --keep, which writes the mirror without them"}}
	}
	for _, argv := range [][]string{{"rm", "-rf", "--", m.beside("old"), path.Join(next, mirrorWork)}, {"mkdir", "-p", "--", path.Join(next, mirrorWork)}} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return fmt.Errorf("cannot write the mirror: %w", err)
		}
	}
	return nil
}

// fill gets packages, modules and their list into the new folder, and returns the names of the
// files.
func (m Mirror) fill(ctx context.Context, h host.Host, from packages.Gatherer, s spec.Spec, f facts.Facts, lock *packages.Lock) ([]string, error) {
	next := m.beside("new")
	g := packages.Gathering{Via: via(s), Work: path.Join(next, mirrorWork), Into: next, Before: m.Dir, Say: m.Say, Note: m.Note}
	names, err := m.gather(ctx, h, from, g, s, f)
	if err != nil {
		return nil, err
	}
	if lock.Modules, err = m.share(ctx, h, from, g, s, f, names); err != nil {
		return nil, err
	}
	names = slices.AppendSeq(names, maps.Keys(lock.Modules))
	if names, err = m.kept(ctx, h, lock, names); err != nil {
		return nil, err
	}
	list, err := from.Index(ctx, h, g, names)
	return append(names, list...), err
}

// kept links the packages of the folder that an earlier run has written, beside those that are
// wanted now. Damaged ones go.
func (m Mirror) kept(ctx context.Context, h host.Host, lock *packages.Lock, names []string) ([]string, error) {
	old, err := packages.ReadLock(h, m.Dir)
	if !m.Keep || err != nil { // there is none: see begin
		return names, nil
	}
	argv := []string{"ln", "-f", "-t", m.beside("new"), "--"}
	for _, file := range old.Files {
		if ext := path.Ext(file.Name); (ext == ".deb" || ext == ".rpm") && !slices.Contains(names, file.Name) && file.In(h, m.Dir) {
			names, argv = append(names, file.Name), append(argv, path.Join(m.Dir, file.Name))
			if is, built := old.Modules[file.Name]; built {
				lock.Modules[file.Name] = is
			}
		}
	}
	if argv[len(argv)-1] != "--" {
		_, err = h.Do(ctx, argv...)
	}
	return names, err
}

// gather gets the packages and the runfile into the folder, and returns the names of the files.
func (m Mirror) gather(ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, s spec.Spec, f facts.Facts) ([]string, error) {
	names, w, err := m.packages(ctx, h, from, g, s, f)
	if err != nil {
		return nil, err
	}
	// DKMS builds modules with the compiler that built the kernel; the kernel's headers name it,
	// but those of other builders. In dnf's distributions compilers have no packages of their own.
	f.Modules = &facts.Modules{}
	for _, kernel := range slices.Sorted(maps.Keys(w.headers)) {
		for _, file := range names {
			if strings.HasPrefix(file, w.headers[kernel]+"_") {
				if _, err := from.Open(ctx, h, path.Join(g.Into, file), g.Work+"/headers"); err != nil {
					return nil, err
				}
			}
		}
		if config, err := h.ReadFile(g.Work + "/headers/usr/src/linux-headers-" + kernel + "/.config"); err == nil {
			f.Modules.Kernels = append(f.Modules.Kernels, facts.KernelModules{Kernel: kernel, Compiler: facts.CompilerIn(string(config))})
		}
	}
	if again, err := wantedPackages(drivers.New(), s, f); err != nil {
		return nil, err
	} else if !slices.Equal(again.names(), w.names()) {
		if names, _, err = m.packages(ctx, h, from, g, s, f); err != nil {
			return nil, err
		}
	}
	c, asked, err := drivers.New().Choose(s, f)
	if err != nil || !asked || c.Source != drivers.SourceRunfile {
		return names, err
	}
	runfile := path.Base(c.Repo.URL)
	file := path.Join(g.Into, runfile)
	for _, dir := range []string{g.Into, m.Dir} {
		if is, err := packages.Digest(h, path.Join(dir, runfile)); err != nil || !strings.EqualFold(is.SHA256, s.Driver.Runfile.SHA256) {
			continue
		}
		if dir == m.Dir {
			_, err = h.Do(ctx, "ln", "-f", "--", path.Join(dir, runfile), file)
		}
		return append(names, runfile), err
	}
	m.Say(1, 0)
	request := host.Request{URL: c.Repo.URL, SHA256: s.Driver.Runfile.SHA256, Max: drivers.MaxRunfile, Via: via(s)}
	return append(names, runfile), h.Download(ctx, request, file, host.Attr{Mode: 0o644})
}

// packages gets the packages that a spec asks for into the folder.
func (m Mirror) packages(
	ctx context.Context, h host.Host, from packages.Gatherer, g packages.Gathering, s spec.Spec, f facts.Facts,
) (names []string, w wanted, err error) {
	if w, err = wantedPackages(drivers.New(), s, f); err != nil {
		return nil, w, err
	}
	if len(w.all()) == 0 {
		return nil, w, &trouble.Error{What: "cannot write the mirror: the spec asks for no packages", Try: []string{"write [driver] with a version, or [toolkit]"}}
	}
	ask := packages.Request{Stream: w.stream}
	if w.family != nil {
		family := *w.family
		family.Exclude = "" // see Gather
		ask.Family = &family
	}
	for _, name := range w.names() {
		ask.Changes = append(ask.Changes, converge.Change{Ref: converge.Ref{Kind: "package", Name: name}, After: w.all()[name].String()})
	}
	g.Repos, g.Request = w.repos, ask
	names, err = from.Gather(ctx, h, g)
	return names, w, err
}

// spec is a part of node.toml that names the mirror.
func (m Mirror) spec(s spec.Spec, manager, fingerprint string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by gpuadm mirror. Copy it to /etc/gpuadm/node.d on the nodes, which have the folder as %s.\nformat = 1\n", m.Dir)
	for _, section := range []string{"driver", "toolkit"} {
		if s.Has(section) {
			fmt.Fprintf(&b, "[%s.repo]\nurl = \"file://%s\"\nkey = \"%[2]s/%s\"\nfingerprint = %q\n", section, m.Dir, mirrorKey, fingerprint)
			if manager == "dnf" { // the packages have their vendors' signatures
				b.WriteString("signature = \"metadata\"\n")
			}
		}
	}
	if s.Driver.Runfile.URL != "" {
		fmt.Fprintf(&b, "[driver.runfile]\nurl = \"file://%s/%s\"\n", m.Dir, path.Base(s.Driver.Runfile.URL))
	}
	return b.Bytes()
}

// seal writes the files' names, sizes and digests into the lock.
func seal(h host.View, l *packages.Lock, dir string, names []string) error {
	slices.Sort(names)
	l.Files = nil
	for _, name := range slices.Compact(names) {
		is, err := packages.Digest(h, path.Join(dir, name))
		if err != nil {
			return err
		}
		is.Name = name
		l.Files = append(l.Files, is)
	}
	return nil
}

// same says whether the mirror has just these files already, apart from signatures.
func (m Mirror) same(h host.View, lock packages.Lock) (old packages.Lock, same bool) {
	old, err := packages.ReadLock(h, m.Dir)
	if err != nil {
		return old, false
	}
	if problem, err := old.Verify(h, m.Dir, packages.Digest); err != nil || problem != "" {
		return old, false
	}
	bare := old
	bare.Files = slices.DeleteFunc(slices.Clone(old.Files), func(f packages.LockFile) bool { return slices.Contains(packages.Signatures(), f.Name) })
	is, err := json.Marshal(bare)
	now, failed := json.Marshal(lock)
	return old, cmp.Or(err, failed) == nil && bytes.Equal(is, now)
}

// publish signs the new folder, writes its lock, and replaces the old one by it.
func (m Mirror) publish(
	ctx context.Context, h host.Host, from packages.Gatherer, by things.Signer, lock packages.Lock, next string,
) (packages.Lock, bool, error) {
	signed, err := from.Sign(h, next, by)
	if err != nil {
		return lock, false, err
	}
	names := slices.Clone(signed)
	for _, f := range lock.Files {
		names = append(names, f.Name)
	}
	if err := seal(h, &lock, next, names); err != nil {
		return lock, false, err
	}
	data, err := json.MarshalIndent(lock, "", "  ")
	data = append(data, '\n')
	signature, failed := by.Detached(data, h.Now()) // from.Sign covers the packages alone
	if err = cmp.Or(err, failed); err != nil {
		return lock, false, err
	}
	for name, data := range map[string][]byte{packages.MirrorLock: data, mirrorSigned: signature} {
		if err := h.WriteFile(path.Join(next, name), data, host.Attr{Mode: 0o644}); err != nil {
			return lock, false, err
		}
	}
	all, err := h.ReadDir(next)
	if err != nil {
		return lock, false, err
	}
	for _, name := range all { // left by a killed run with another spec
		of := func(file string) bool { return file == name || strings.HasPrefix(file, name+"/") }
		if name != packages.MirrorLock && name != mirrorSigned && !slices.ContainsFunc(names, of) {
			if _, err := h.Do(ctx, "rm", "-rf", "--", path.Join(next, name)); err != nil {
				return lock, false, err
			}
		}
	}
	for _, move := range [][2]string{{m.Dir, m.beside("old")}, {next, m.Dir}} {
		if err := h.Rename(move[0], move[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return lock, false, err
		}
	}
	_, err = h.Do(ctx, "rm", "-rf", "--", m.beside("old"))
	return lock, true, err
}

// AptHook is the verb by which apt runs gpuadm.
const AptHook = apt.HookVerb

// VerifyApt is what that verb does: see apt.Verify.
func VerifyApt(getenv func(string) string, announced io.Reader, answer io.Writer) error {
	return apt.Verify(getenv, announced, answer)
}
