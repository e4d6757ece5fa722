// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// aptIndex is the list of the packages in the folder of a mirror.
const aptIndex = "Packages"

// apart is the machine for an apt with its own lists, sources, pins and database: the machine's files do not change.
type apart struct {
	host.Host
	conf string
}

func (a apart) argv(argv []string) []string {
	return append([]string{"env", "APT_CONFIG=" + a.conf}, argv...) // apt.conf(5)
}

func (a apart) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return a.Host.Ask(ctx, a.argv(argv)...)
}

func (a apart) Do(ctx context.Context, argv ...string) ([]byte, error) {
	return a.Host.Do(ctx, a.argv(argv)...)
}

func (a apart) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	return a.Host.AskAbout(ctx, files, a.argv(argv)...)
}

// Gather has apt itself resolve and fetch. It hides from apt all installed packages that a source has: so a machine with the
// distribution's smallest image, or less, finds all dependencies in the folder.
func (a apt) Gather(ctx context.Context, h host.Host, g packages.Gathering) ([]string, error) {
	p, err := a.apart(ctx, h, g)
	if err != nil {
		return nil, err
	}
	if err := a.refresh(ctx, p); err != nil {
		return nil, err
	}
	status, err := p.bare(ctx, g.Work+"/status")
	if err != nil {
		return nil, err
	}
	d := dpkg{packages: map[string]packages.State{}, native: architecture(h)}
	d.add(status)
	installed := d.packages
	g.Request.Changes = slices.Clone(g.Request.Changes)
	for i, c := range g.Request.Changes {
		g.Request.Changes[i].Before = installed[c.Name].String()
	}
	r, err := packages.Resolve(ctx, p, g.Request, installed, solver{a, d})
	if err != nil {
		return nil, err
	}
	var what []string
	for _, c := range packages.Due(r.Changes) {
		what = append(what, install(c.Name, packages.Parse(c.After)))
	}
	slices.Sort(what)
	archives, err := p.archives(ctx, what)
	if err != nil {
		return nil, err
	}
	if g.Keep {
		archives = append(archives, kept(h, g.Before, archives)...)
	}
	if err := p.fetch(ctx, g, archives); err != nil {
		return nil, err
	}
	var index []byte
	files := []string{aptIndex}
	for _, one := range archives {
		index = append(index, one.stanza...)
		files = append(files, one.Name)
	}
	return files, h.WriteFile(path.Join(g.Into, aptIndex), index, host.Attr{Mode: 0o644})
}

// apart writes the files for such an apt, and the machine's sources with those that the mirror is made from.
func (a apt) apart(ctx context.Context, h host.Host, g packages.Gathering) (p apart, err error) {
	p = apart{h, g.Work + "/apt.conf"}
	if _, err := h.Do(ctx, "mkdir", "-p", g.Work+"/state/lists/partial", g.Work+"/cache/archives/partial", g.Work+"/sources", g.Work+"/pins"); err != nil {
		return p, err
	}
	files := map[string][]byte{
		g.Work + "/status": nil,
		// With no package installed apt finds no order for immediate configuration. Nothing is configured here.
		p.conf: fmt.Appendf(nil, `Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Log "%[1]s";
Dir::Etc::sourceparts "%[1]s/sources";
Dir::Etc::preferencesparts "%[1]s/pins";
APT::Immediate-Configure "false";
%[2]s`, g.Work, aptConf(g.Via)),
	}
	const theirs = "/etc/apt/sources.list.d/"
	for _, name := range packages.ListOf(h, theirs) {
		if strings.HasPrefix(name, packages.OurFiles) {
			continue
		}
		if files[g.Work+"/sources/"+name], err = h.ReadFile(theirs + name); err != nil {
			return p, err
		}
	}
	for _, r := range g.Repos {
		// apt matches a pin that excludes packages with every package, which takes long. A mirror's other sources are the operator's choice.
		r.Pins = slices.DeleteFunc(slices.Clone(r.Pins), func(p packages.Pin) bool { return p.Priority < 0 })
		if len(r.Pins) > 0 {
			files[g.Work+"/pins/"+r.ID] = preferences(r)
		}
		if r.URL == "" {
			continue
		}
		keyring := g.Work + "/" + path.Base(aptKeyring(r))
		if err := things.Key(keyring, r.Key, r.Fingerprint, g.Via, "").Thing.Make(ctx, h, converge.State(r.Fingerprint)); err != nil {
			return p, err
		}
		files[g.Work+"/sources/"+path.Base(aptSource(r))] = deb822(r, keyring)
	}
	for name, data := range files {
		if err := h.WriteFile(name, data, host.Attr{Mode: 0o644}); err != nil {
			return p, err
		}
	}
	return p, nil
}

// bare writes a database in which only the packages are installed that no source has, without dependencies: a package that came
// from a file cannot be fetched from a source.
func (a apart) bare(ctx context.Context, file string) ([]byte, error) {
	out, err := a.Ask(ctx, "apt-cache", "--no-all-names", "pkgnames")
	if err != nil {
		return nil, explain(a, string(out), err)
	}
	known := map[string]bool{}
	for name := range strings.Lines(string(out)) {
		known[strings.TrimSpace(name)] = true
	}
	status, err := a.ReadFile(packages.DpkgStatus)
	if err != nil {
		return nil, fmt.Errorf("cannot read dpkg's database: %w", err)
	}
	var kept []byte
	for p := range paragraphs(status) {
		var one []byte
		name := ""
		for key, value := range fields(p) {
			switch string(key) {
			case "Package":
				name = string(value)
				fallthrough
			case "Status", "Version", "Architecture", "Multi-Arch", "Provides", "Maintainer", "Description":
				value, _, _ := bytes.Cut(value, []byte("\n"))
				one = fmt.Appendf(one, "%s: %s\n", key, value)
			}
		}
		if !known[name] {
			kept = append(append(kept, one...), '\n')
		}
	}
	return kept, a.WriteFile(file, kept, host.Attr{Mode: 0o644})
}

// A debFile is a package's file, as the signed list of its source describes it.
type debFile struct {
	packages.LockFile
	what    string // NAME=VERSION
	fetched string // as apt names it
	stanza  []byte // of the index
}

// archives returns the files for NAME=VERSION.
func (a apart) archives(ctx context.Context, what []string) (all []debFile, err error) {
	if len(what) == 0 {
		return nil, nil
	}
	out, err := a.Ask(ctx, slices.Concat([]string{"apt-cache", "show", "--"}, what)...)
	if err != nil {
		return nil, explain(a, string(out), err)
	}
	seen := map[string]bool{}
	for p := range paragraphs(out) {
		one := archiveOf(p)
		if one.SHA256 == "" {
			return nil, fmt.Errorf("cannot mirror package %s: its source does not say the SHA-256 digest of its file", one.what)
		}
		if !seen[one.what] && slices.Contains(what, one.what) {
			seen[one.what], all = true, append(all, one)
		}
	}
	for _, w := range what {
		if !seen[w] {
			return nil, fmt.Errorf("cannot mirror package %s: apt-cache show does not describe it", w)
		}
	}
	return all, nil
}

// archiveOf reads the fields of a package in an index: deb822(5). The file gets another name, and only its SHA-256 digest counts.
func archiveOf(paragraph []byte) (one debFile) {
	e := entryOf(paragraph)
	for key, value := range fields(paragraph) {
		if !slices.Contains([]string{"Filename", "MD5sum", "SHA1", "SHA512"}, string(key)) {
			one.stanza = fmt.Appendf(one.stanza, "%s: %s\n", key, value)
		}
	}
	own := e.version[bytes.IndexByte(e.version, ':')+1:]
	one.what = string(e.name) + "=" + string(e.version)
	one.fetched = fetchedName(string(e.name), string(e.version), string(e.arch))
	one.LockFile = packages.LockFile{Name: fmt.Sprintf("%s_%s_%s.deb", e.name, own, e.arch), Size: number(e.download), SHA256: string(e.sha256)} // as archives name it
	one.stanza = fmt.Appendf(one.stanza, "Filename: ./%s\n\n", one.Name)
	return one
}

// kept returns the packages of an earlier mirror, beside those that are wanted now. It leaves out damaged files, and packages
// that differ from a wanted package only by the epoch: the two files would have the same name.
func kept(v host.View, dir string, wanted []debFile) (all []debFile) {
	index, err := v.ReadFile(path.Join(dir, aptIndex))
	if err != nil {
		return nil // there is none
	}
	for p := range paragraphs(index) {
		one := archiveOf(p)
		if !slices.ContainsFunc(wanted, func(w debFile) bool { return w.Name == one.Name }) && one.In(v, dir) {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b debFile) int { return strings.Compare(a.what, b.what) })
	return all
}

// fetch gets files into the folder: it links those of an earlier run, and apt downloads the others.
func (a apart) fetch(ctx context.Context, g packages.Gathering, all []debFile) error {
	var want []debFile
	var what []string
	size := int64(0)
	for _, one := range all {
		if one.In(a, g.Into) {
			continue
		}
		if one.In(a, g.Before) {
			if _, err := a.Do(ctx, "ln", "-f", "--", path.Join(g.Before, one.Name), path.Join(g.Into, one.Name)); err == nil {
				continue
			}
		}
		want, what, size = append(want, one), append(what, one.what), size+one.Size
	}
	if len(want) == 0 {
		return nil
	}
	if err := packages.RoomFor(a, g.Into, size); err != nil {
		return err
	}
	g.Say(len(want), size)
	argv := slices.Concat([]string{"env", "-C", g.Into, "apt-get", "-q", "-o", "Acquire::Retries=3", "download", "--"}, what)
	if out, err := a.Do(ctx, argv...); err != nil {
		return explain(a, string(out), err)
	}
	for _, one := range want {
		if one.fetched != one.Name {
			// It may replace a different file that a killed run has left.
			if _, err := a.Do(ctx, "mv", "-fT", "--", path.Join(g.Into, one.fetched), path.Join(g.Into, one.Name)); err != nil {
				return err
			}
		}
		if is, err := packages.Digest(a, path.Join(g.Into, one.Name)); err != nil {
			return err
		} else if is != one.LockFile {
			return fmt.Errorf("cannot mirror package %s: apt fetched a file with the digest %s, and its source says %s", one.what, is.SHA256, one.SHA256)
		}
	}
	return nil
}

// Sign writes InRelease, which has the digest of the index: see https://wiki.debian.org/DebianRepository/Format and apt's
// apt-pkg/deb/debmetaindex.cc, which requires a date.
func (a apt) Sign(h host.Host, dir string, by things.Signer) ([]string, error) {
	is, err := packages.Digest(h, path.Join(dir, aptIndex))
	if err != nil {
		return nil, err
	}
	const name = "InRelease"
	signed, err := by.Clearsign(fmt.Appendf(nil, "Origin: %s\nLabel: %[1]s\nDate: %s\nArchitectures: %s\nSHA256:\n %s %d %s\n", packages.MirrorOrigin,
		h.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 UTC"), architecture(h), is.SHA256, is.Size, aptIndex), h.Now())
	if err != nil {
		return nil, err
	}
	return []string{name}, h.WriteFile(path.Join(dir, name), signed, host.Attr{Mode: 0o644})
}

// Configs unpacks headers. Headers of other builders' kernels may have no configuration: then the compiler is not known.
func (a apt) Configs(ctx context.Context, h host.Host, dir, work string, headers map[string]string) (map[string]string, error) {
	found := map[string]string{}
	for kernel, name := range headers {
		for _, file := range packages.ListOf(h, dir) {
			if !strings.HasPrefix(file, name+"_") {
				continue
			}
			if out, err := h.Do(ctx, "dpkg-deb", "-x", path.Join(dir, file), work); err != nil {
				return nil, explain(h, string(out), err)
			}
		}
		if config, err := h.ReadFile(work + "/usr/src/linux-headers-" + kernel + "/.config"); err == nil {
			found[kernel] = string(config)
		}
	}
	return found, nil
}
