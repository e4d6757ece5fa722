// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// aptIndex is the list of the packages in the folder of a mirror.
const aptIndex = "Packages"

// Gather has apt itself resolve and fetch. It hides from apt all installed packages that a source
// has: so a machine with the distribution's smallest image, or less, finds all dependencies in the
// folder.
func (a apt) Gather(ctx context.Context, h host.Host, g packages.Gathering) ([]string, error) {
	machine, err := isolate(ctx, h, g)
	if err != nil {
		return nil, err
	}
	if err := a.refresh(ctx, machine, strictly); err != nil {
		return nil, err
	}
	status, err := machine.writeStatus(ctx, g.Work+"/status")
	if err != nil {
		return nil, err
	}

	d := dpkg{
		packages:   map[string]packages.State{},
		paragraphs: map[string][]byte{},
		native:     architecture(h),
	}
	d.add(status)
	a.pins = g.Work + "/pins/"
	g.Request.Changes = packages.WithBefore(d.packages, g.Request.Changes)
	r, err := packages.Resolve(ctx, machine, g.Request, d.packages, newSolver(a, d))
	if err != nil {
		return nil, err
	}

	var want []string // NAME=VERSION
	for _, c := range packages.Due(r.Changes) {
		to := packages.Parse(c.After)
		if to.Installed() { // a package that gives way has no file
			want = append(want, install(c.Name, to))
		}
	}
	slices.Sort(want)
	archives, err := machine.archives(ctx, want)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, archive := range archives {
		files = append(files, archive.Name)
	}
	return files, machine.fetch(ctx, g, archives)
}

// A debFile is a package's file, as the signed list of its source describes it.
type debFile struct {
	packages.LockFile
	pkg     string // NAME=VERSION
	fetched string // as apt names it
}

// archives returns the files for NAME=VERSION.
func (i isolated) archives(ctx context.Context, want []string) (all []debFile, err error) {
	if len(want) == 0 {
		return nil, nil
	}

	download := []string{"apt-get", "-q", "-o", "Acquire::ForceHash=SHA256", "download", "--print-uris", "--"}
	out, err := i.Ask(ctx, append(download, want...)...)
	if err != nil {
		return nil, explain(i, string(out), err)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 3 || line[0] != '\'' {
			continue
		}
		file, err := parseArchive(words)
		if err != nil {
			return nil, err
		}
		all = append(all, file)
	}

	return all, nil
}

// parseArchive reads what apt says of one file, 'URI' FILE SIZE DIGEST: RunDownload in
// apt-private/private-download.cc of its tree; Acquire::ForceHash chooses the digest:
// HashStringList::find in apt-pkg/contrib/hashes.cc. It names files NAME_VERSION_ARCH.deb, with %3a
// for a colon; parseArchive leaves out the epoch.
func parseArchive(words []string) (debFile, error) {
	file := words[1]
	name, rest, _ := strings.Cut(file, "_")
	version, arch, _ := strings.Cut(rest, "_")
	version = strings.ReplaceAll(version, "%3a", ":")
	pkg := name + "=" + version

	digest, ok := strings.CutPrefix(words[len(words)-1], "SHA256:")
	if !ok {
		return debFile{}, fmt.Errorf("cannot mirror package %s: its source does not say the SHA-256 digest of its file", pkg)
	}
	size, _ := strconv.ParseInt(words[2], 10, 64)
	return debFile{
		LockFile: packages.LockFile{
			Name:   name + "_" + packages.Unepoched(version) + "_" + arch,
			Size:   size,
			SHA256: digest,
		},
		pkg:     pkg,
		fetched: file,
	}, nil
}

// fetch gets files into the folder: it links those of an earlier run, and apt downloads the others.
func (i isolated) fetch(ctx context.Context, g packages.Gathering, all []debFile) error {
	var want []debFile
	size := int64(0)
	download := []string{"env", "-C", g.Into, "apt-get", "-q", "-o", "Acquire::Retries=3", "download", "--"}
	for _, file := range all {
		if file.In(i, g.Into) || i.linked(ctx, g, file) {
			continue
		}
		want = append(want, file)
		download = append(download, file.pkg)
		size += file.Size
	}

	if len(want) == 0 {
		return nil
	}

	if err := packages.RoomFor(i, g.Into, size); err != nil {
		return err
	}
	g.Say(len(want), size)
	if out, err := i.Do(ctx, download...); err != nil {
		return explain(i, string(out), err)
	}
	for _, file := range want {
		if file.fetched == file.Name {
			continue
		}
		// A killed run may have left another file of this name.
		from := path.Join(g.Into, file.fetched)
		to := path.Join(g.Into, file.Name)
		if _, err := i.Do(ctx, "mv", "-fT", "--", from, to); err != nil {
			return err
		}
	}

	return nil
}

// linked links a file that an earlier run has left, and reports whether it could.
func (i isolated) linked(ctx context.Context, g packages.Gathering, file debFile) bool {
	if !file.In(i, g.Before) {
		return false
	}
	_, err := i.Do(ctx, "ln", "-f", "--", path.Join(g.Before, file.Name), path.Join(g.Into, file.Name))
	return err == nil
}

// Index has what dpkg-deb says of the files: deb822(5).
func (apt) Index(ctx context.Context, h host.Host, g packages.Gathering, files []string) ([]string, error) {
	var index []byte
	for _, file := range slices.Sorted(slices.Values(files)) {
		if path.Ext(file) != ".deb" {
			continue
		}
		name := path.Join(g.Into, file)
		digest, err := packages.Digest(h, name)
		if err != nil {
			return nil, err
		}
		control, err := h.Ask(ctx, "dpkg-deb", "-f", name)
		if err != nil {
			return nil, err
		}

		const ofFile = "\nSize: %d\nSHA256: %s\nFilename: ./%s\n\n"
		index = append(index, bytes.TrimSpace(control)...)
		index = fmt.Appendf(index, ofFile, digest.Size, digest.SHA256, file)
	}

	return []string{aptIndex}, h.WriteFile(path.Join(g.Into, aptIndex), index, host.Attr{Mode: 0o644})
}

// Sign writes InRelease, which has the digest of the index: see
// https://wiki.debian.org/DebianRepository/Format and apt's apt-pkg/deb/debmetaindex.cc, which
// requires a date.
func (a apt) Sign(h host.Host, dir string, by things.Signer) ([]string, error) {
	index, err := packages.Digest(h, path.Join(dir, aptIndex))
	if err != nil {
		return nil, err
	}

	now := h.Now()
	date := now.UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC")
	release := fmt.Appendf(nil, "Origin: %s\nLabel: %[1]s\nDate: %s\n", packages.MirrorOrigin, date)
	release = fmt.Appendf(release, "Architectures: %s\n", architecture(h))
	release = fmt.Appendf(release, "SHA256:\n %s %d %s\n", index.SHA256, index.Size, aptIndex)
	signed, err := by.Clearsign(release, now)
	if err != nil {
		return nil, err
	}
	const name = "InRelease"
	return []string{name}, h.WriteFile(path.Join(dir, name), signed, host.Attr{Mode: 0o644})
}
