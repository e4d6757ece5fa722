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

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// aptIndex is the list of the packages in the folder of a mirror.
const aptIndex = "Packages"

// apart is the machine for an apt with its own lists, sources, pins and database: the machine's
// files do not change.
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

// Gather has apt itself resolve and fetch. It hides from apt all installed packages that a source
// has: so a machine with the distribution's smallest image, or less, finds all dependencies in the
// folder.
func (a apt) Gather(ctx context.Context, h host.Host, g packages.Gathering) ([]string, error) {
	p, err := a.apart(ctx, h, g)
	if err != nil {
		return nil, err
	}
	if err := a.refresh(ctx, p, strictly); err != nil {
		return nil, err
	}
	a.pins = g.Work + "/pins/"
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
	var files []string
	for _, one := range archives {
		files = append(files, one.Name)
	}
	return files, p.fetch(ctx, g, archives)
}

// Index has what dpkg-deb says of the files: deb822(5).
func (apt) Index(ctx context.Context, h host.Host, g packages.Gathering, files []string) ([]string, error) {
	var index []byte
	for _, file := range slices.Sorted(slices.Values(files)) {
		if path.Ext(file) != ".deb" {
			continue
		}
		name := path.Join(g.Into, file)
		is, err := packages.Digest(h, name)
		if err != nil {
			return nil, err
		}
		said, err := h.Ask(ctx, "dpkg-deb", "-f", name)
		if err != nil {
			return nil, err
		}
		index = fmt.Appendf(index, "%s\nSize: %d\nSHA256: %s\nFilename: ./%s\n\n", bytes.TrimSpace(said), is.Size, is.SHA256, file)
	}
	return []string{aptIndex}, h.WriteFile(path.Join(g.Into, aptIndex), index, host.Attr{Mode: 0o644})
}

// apart writes the files for such an apt, and the machine's sources with those that the mirror is
// made from.
func (a apt) apart(ctx context.Context, h host.Host, g packages.Gathering) (p apart, err error) {
	p = apart{h, g.Work + "/apt.conf"}
	if _, err := h.Do(ctx, "mkdir", "-p", g.Work+"/state/lists/partial", g.Work+"/cache/archives/partial", g.Work+"/sources", g.Work+"/pins"); err != nil {
		return p, err
	}
	files := map[string][]byte{
		g.Work + "/status": nil,
		// With no package installed apt finds no order for immediate configuration. Nothing is
		// configured here.
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
		// apt matches a pin that excludes packages with every package, which takes long. A mirror's
		// other sources are the operator's choice.
		r.Pins = slices.DeleteFunc(slices.Clone(r.Pins), func(p packages.Pin) bool { return p.Priority < 0 })
		if len(r.Pins) > 0 {
			files[g.Work+"/pins/"+path.Base(aptPins(r))] = preferences(r)
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

// bare writes a database in which only the packages are installed that no source has, without
// dependencies: a package that came from a file cannot be fetched from a source.
func (a apart) bare(ctx context.Context, file string) ([]byte, error) {
	out, err := a.Ask(ctx, "apt-cache", "--no-all-names", "pkgnames")
	if err != nil {
		return nil, explain(a, string(out), err)
	}
	known := map[string]bool{}
	for name := range strings.Lines(string(out)) {
		known[strings.TrimSpace(name)] = true
	}
	status, err := a.ReadFile(facts.DpkgStatus)
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
}

// archives returns the files for NAME=VERSION. apt says 'URI' FILE SIZE DIGEST: RunDownload in
// apt-private/private-download.cc of its tree; Acquire::ForceHash chooses the digest:
// HashStringList::find in apt-pkg/contrib/hashes.cc. It names files NAME_VERSION_ARCH.deb, with %3a
// for a colon; archives leave out the epoch.
func (a apart) archives(ctx context.Context, what []string) (all []debFile, err error) {
	if len(what) == 0 {
		return nil, nil
	}
	argv := slices.Concat([]string{"apt-get", "-q", "-o", "Acquire::ForceHash=SHA256", "download", "--print-uris", "--"}, what)
	out, err := a.Ask(ctx, argv...)
	if err != nil {
		return nil, explain(a, string(out), err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 || line[0] != '\'' {
			continue
		}
		digest, is := strings.CutPrefix(f[len(f)-1], "SHA256:")
		name, rest, _ := strings.Cut(f[1], "_")
		version, arch, _ := strings.Cut(rest, "_")
		version = strings.ReplaceAll(version, "%3a", ":")
		one := debFile{what: name + "=" + version, fetched: f[1]}
		if !is {
			return nil, fmt.Errorf("cannot mirror package %s: its source does not say the SHA-256 digest of its file", one.what)
		}
		one.LockFile = packages.LockFile{Name: name + "_" + packages.Unepoched(version) + "_" + arch, SHA256: digest}
		one.Size, _ = strconv.ParseInt(f[2], 10, 64)
		all = append(all, one)
	}
	return all, nil
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
	}
	return nil
}

// Sign writes InRelease, which has the digest of the index: see
// https://wiki.debian.org/DebianRepository/Format and apt's apt-pkg/deb/debmetaindex.cc, which
// requires a date.
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
