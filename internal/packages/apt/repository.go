// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func aptSource(r packages.Repository) string {
	return "/etc/apt/sources.list.d/gpuadm-" + r.ID + ".sources"
}

// Where apt reads pins, and how the names of gpuadm's begin.
const (
	pinFolder = "/etc/apt/preferences.d/"
	ourPins   = "00-gpuadm-"
)

func aptPins(r packages.Repository) string { return pinFolder + ourPins + r.ID }

// aptKeyring names a binary file, which every apt reads; a key that the spec names by its file's
// digest stays armored.
func aptKeyring(r packages.Repository) string {
	end := ".gpg"
	if strings.HasPrefix(r.Fingerprint, "sha256:") {
		end = ".asc"
	}
	return "/etc/apt/keyrings/gpuadm-" + r.ID + end
}

// Repositories wants a deb822 file for each repository, so that Signed-By can name its key: apt
// would trust a key in trusted.gpg.d for every repository. See sources.list(5), apt_preferences(5).
func (a apt) Repositories(database *packages.Reading, repos []packages.Repository, via host.Via) ([]converge.Want, error) {
	if len(repos) == 0 {
		return nil, nil
	}
	if i := slices.IndexFunc(repos, func(r packages.Repository) bool { return r.Signed == packages.SignedPackages }); i >= 0 {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot trust repository %s by its packages' signatures: apt checks those of the metadata", repos[i].URL),
			Try:  []string{`leave out signature = "packages"; have the mirror sign its Release file`},
		}
	}
	wants := things.Folders("/etc/apt/keyrings", "keys that are trusted for one repository each")
	for _, r := range repos {
		if keyring := aptKeyring(r); r.URL != "" {
			wants = append(wants,
				things.Key(keyring, r.Key, r.Fingerprint, via, "signs "+r.About),
				packages.Source(aptSource(r), deb822(r, keyring), database, r.About))
		}
		if len(r.Pins) > 0 {
			wants = append(wants, things.Exact(aptPins(r), preferences(r), 0o644, "apt keeps to the version wanted"))
		}
	}
	if conf := aptConf(via); conf != nil {
		wants = append(wants, things.Exact(aptProxy, conf, 0o644, "how apt reaches the network"))
	}
	contents := a.Contents(repos, via)
	return append(wants, a.readable(repos, contents), packages.Lists(a, slices.Sorted(maps.Keys(contents)))), nil
}

func (apt) Contents(repos []packages.Repository, _ host.Via) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range repos {
		if r.URL != "" {
			files[aptSource(r)] = deb822(r, aptKeyring(r))
		}
		if len(r.Pins) > 0 {
			files[aptPins(r)] = preferences(r)
		}
	}
	return files
}

func deb822(r packages.Repository, keyring string) []byte {
	return fmt.Appendf(nil, "%s# %s\nTypes: deb\nURIs: %s\nSuites: /\nSigned-By: %s\n", packages.Header, r.About, withSlash(r.URL), keyring)
}

// withSlash: a flat repository's suite is a path below its URL, which must end in a slash.
func withSlash(url string) string { return strings.TrimSuffix(url, "/") + "/" }

// preferences are the records of apt's pins.
func preferences(r packages.Repository) []byte {
	return fmt.Appendf([]byte(packages.Header), "%s", packages.PinRecords(r.Pins))
}

// aptProxy has apt's proxy and CA settings, if the spec has any.
const aptProxy = "/etc/apt/apt.conf.d/90gpuadm"

// aptConf writes apt's proxy and CA settings. See apt-transport-http(1), apt-transport-https(1).
func aptConf(via host.Via) []byte {
	var b strings.Builder
	for _, l := range []struct{ key, value string }{
		{"Acquire::http::Proxy", via.HTTP},
		{"Acquire::https::Proxy", via.HTTPS},
		{"Acquire::https::CAInfo", via.CAFile},
	} {
		if l.value != "" {
			fmt.Fprintf(&b, "%s %q;\n", l.key, l.value)
		}
	}
	for _, name := range via.No {
		if !strings.ContainsAny(name, "/*") && (via.HTTP != "" || via.HTTPS != "") {
			fmt.Fprintf(&b, "Acquire::http::Proxy::%s \"DIRECT\";\nAcquire::https::Proxy::%[1]s \"DIRECT\";\n", name)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return []byte(strings.Replace(packages.Header, "#", "//", 1) + b.String())
}

// Upgrades wants automatic upgrades to leave these packages alone. Where needrestart is installed,
// Upgrades also wants it to leave alone the daemons that node and pods depend on: it would restart
// containerd in the middle of an installation.
// Sources: unattended-upgrades' README, apt.conf(5); needrestart's README.batch.md and
// needrestart.conf.
func (apt) Upgrades(names []string, needrestart bool) []converge.Want {
	comment := strings.Replace(packages.Header, "#", "//", 1)
	b := []byte(comment + "Unattended-Upgrade::Package-Blacklist {\n")
	literally := strings.NewReplacer(".", `\\.`, "+", `\\+`)
	for _, n := range names {
		b = fmt.Appendf(b, "  \"^%s$\";\n", literally.Replace(n))
	}
	b = append(b, "};\n"...)
	wants := []converge.Want{things.Exact("/etc/apt/apt.conf.d/52gpuadm-hold", b, 0o644, "automatic upgrades leave the driver alone")}
	if needrestart {
		const conf = "$nrconf{override_rc}{qr(^(containerd|kubelet|nvidia-fabricmanager|nvidia-persistenced)\\.service$)} = 0;\n"
		wants = append(wants, things.Folders("/etc/needrestart/conf.d", "holds needrestart's settings")...)
		wants = append(wants, things.Exact("/etc/needrestart/conf.d/gpuadm.conf", []byte(packages.Header+conf), 0o644, "no daemon is restarted in the middle of an installation"))
	}
	return wants
}

// Enabled wants nothing: apt's files are gpuadm's.
func (apt) Enabled(*packages.Reading, packages.Lack) []converge.Want { return nil }

// Lacking returns the components that no entry of apt's names, as one Lack. gpuadm's own file then
// repeats the distribution's entries with the missing components.
func Lacking(sys packages.System, components []string) []packages.Lack {
	files := append([]string{"/etc/apt/sources.list"}, packages.FilesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources")...)
	var named []string
	var all, archive []source
	for _, file := range files {
		all = append(all, parseSources(file, sys.Files[file], func() string { return sys.Arch })...)
	}
	for _, s := range all {
		if s.ofDistribution() {
			archive = append(archive, s)
		}
	}
	for _, s := range all { // another vendor's archive may have a component of the same name
		if len(archive) == 0 || slices.ContainsFunc(archive, func(a source) bool { return a.uri == s.uri }) {
			named = append(named, s.components...)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(components), func(c string) bool { return slices.Contains(named, c) })
	if len(missing) == 0 {
		return nil
	}
	l := packages.Lack{Name: "the component " + missing[0], Try: fmt.Sprintf("add %s behind main in apt's sources, then apt-get update", strings.Join(missing, " "))}
	if len(missing) > 1 {
		l.Name = "the components " + strings.Join(missing, ", ")
	}
	if len(archive) == 0 {
		return []packages.Lack{l}
	}
	l.Try = strings.Replace(l.Try, "apt's sources", archive[0].file, 1)
	l.File, l.Data = "/etc/apt/sources.list.d/"+packages.OurFiles+"components.sources", []byte(packages.Header)
	for _, s := range archive {
		l.Data = fmt.Appendf(l.Data, "\n# %s\nTypes: deb\nURIs: %s\nSuites: %s\nComponents: %s\n", s.file, s.uri, s.suite, strings.Join(missing, " "))
		for _, name := range slices.Sorted(maps.Keys(s.options)) {
			l.Data = fmt.Appendf(l.Data, "%s: %s\n", name, s.options[name])
		}
	}
	return []packages.Lack{l}
}

// ofDistribution says whether an entry is of the distribution's own archive: it has the component
// main, and is signed by the archive's key, or by any key that apt trusts. The packages
// debian-archive-keyring and ubuntu-keyring install those keys. An entry with another key is
// another vendor's archive, which may have no such components.
func (s source) ofDistribution() bool {
	if !slices.Contains(s.components, "main") || len(s.signedBy) == 0 && s.options["signed-by"] != "" {
		return false
	}
	return len(s.signedBy) == 0 || slices.ContainsFunc(s.signedBy, func(key string) bool {
		return strings.HasPrefix(path.Base(key), "debian-archive-") || strings.HasPrefix(path.Base(key), "ubuntu-archive-")
	})
}

const (
	aptLists = "/var/lib/apt/lists"
	aptKeys  = "/etc/apt/keyrings/"
)

// Affects says that a changed key makes the lists stale.
func (apt) Affects(_ []string, by converge.Change) bool {
	return strings.HasPrefix(by.Name, aptKeys) || by.Form == packages.FormDeclared
}

// Stale compares the times at which files were stored, not their modification times: apt gives a
// list the repository's time. Equal times are no evidence that the list is the younger one: a
// kernel's clock for files has ticks of up to 10 ms.
//
// If gpuadm's files configure no repository, and only pin packages of the distribution, the
// youngest list counts: the repository of another tool may have failed for a long time.
func (apt) Stale(v host.View, files []string) (bool, error) {
	sources, err := sourcesIn(v, files)
	if err != nil {
		return false, err
	}
	for _, s := range sources {
		_, read := accepted(v, s)
		if read.IsZero() {
			return true, nil
		}
		for _, name := range slices.Concat(files, s.signedBy, packages.LocksOf(s.uri)) { // a mirror may have been written since
			if i, err := v.Stat(name); err == nil && !read.After(i.Ctime) {
				return true, nil
			}
		}
	}
	_, read := youngest(v)
	return len(sources) == 0 && slices.ContainsFunc(files, func(name string) bool {
		i, err := v.Stat(name)
		return err == nil && !read.After(i.Ctime)
	}), nil
}

// youngest returns the list that apt has read last.
func youngest(v host.View) (name string, read time.Time) {
	for _, n := range packages.ListOf(v, aptLists) { // empty before the first update
		if i, err := v.Stat(aptLists + "/" + n); err == nil && i.Mode.IsRegular() && n != "lock" && i.Ctime.After(read) {
			name, read = aptLists+"/"+n, i.Ctime
		}
	}
	return name, read
}

// accepted returns the list whose time says when apt last accepted a source's signature: the
// youngest index of packages, which apt stores after that, or else the file with the signature. The
// latter says only when apt verified the signature: apt changes the file's owner and mode for that,
// even if it then refuses the signature. Source: pkgAcqMetaClearSig and
// ChangeOwnerAndPermissionOfFile in apt-pkg/acquire-item.cc; tried with apt 2.6.1.
//
// Two kinds of source have no index of their own: of an empty repository apt stores none, and of a
// local folder (file:) it makes a symbolic link.
func accepted(v host.View, s source) (name string, read time.Time) {
	for _, n := range packages.ListOf(v, aptLists) {
		if rest, is := strings.CutPrefix(n, s.list()); !is || !isIndex(rest) {
			continue
		}
		index := aptLists + "/" + n
		if _, err := v.Readlink(index); err == nil {
			continue
		}
		if i, err := v.Stat(index); err == nil && i.Ctime.After(read) {
			name, read = index, i.Ctime
		}
	}
	if name == "" {
		return release(v, s)
	}
	return name, read
}

// isIndex reports whether the end of a list's name, behind the source's, is that of an index of
// packages: of a flat repository, or of one component for one architecture. The file may be
// compressed.
func isIndex(end string) bool {
	of, form, is := strings.Cut(end, "Packages")
	flat := of == ""
	component := strings.Count(of, "_") == 2 && strings.Contains(of, "_binary-")

	return is && (flat || component) && (form == "" || strings.HasPrefix(form, "."))
}

// release returns the file with the signature that apt has verified of a source's list, and when
// apt stored it. Where apt's settings allow a list without one, apt keeps neither file:
// debReleaseIndex::IsTrusted in apt-pkg/deb/debmetaindex.cc; tried with apt 2.6.1.
func release(v host.View, s source) (string, time.Time) {
	for _, end := range []string{"InRelease", "Release.gpg"} {
		name := aptLists + "/" + s.list() + end
		if i, err := v.Stat(name); err == nil {
			return name, i.Ctime
		}
	}
	return "", time.Time{}
}

// Update has apt read its lists. First it reads all, which include the distribution's lists that
// gpuadm's packages depend on. If that fails, it reads each of gpuadm's own files alone, and every
// one must succeed: a source that another tool broke does not stop gpuadm. Resolve then names a
// missing package.
func (a apt) Update(ctx context.Context, h host.Host, files []string) error {
	sources, err := sourcesIn(h, files)
	if err != nil {
		return err
	}
	// A mirror needs no list of the distribution, whose servers may be out of reach of a machine
	// with a mirror.
	mirrored := len(sources) > 0 && !slices.ContainsFunc(sources, func(s source) bool { return !packages.IsMirror(h, s.uri) })
	all := error(nil)
	if !mirrored {
		if all = a.refresh(ctx, h, strictly); all == nil {
			return touch(h, files)
		}
	}
	// If the network fails, lists that were read for the same sources suffice: a rollback needs no
	// newer lists.
	old, err := a.Stale(h, slices.DeleteFunc(slices.Clone(files), func(f string) bool { return path.Ext(f) != ".sources" }))
	if err != nil {
		return err
	}
	own := func() error {
		for i, s := range sources {
			if i > 0 && sources[i-1].file == s.file {
				continue
			}
			err := a.refresh(ctx, h, strictly, "-o", "Dir::Etc::sourcelist="+s.file, "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Get::List-Cleanup=0")
			if busy := (*packages.Locked)(nil); err != nil && (old || mirrored || errors.As(err, new(packages.Distrust)) || errors.As(err, &busy)) {
				return packages.Unread(h, err, s.uri, s.file)
			}
		}
		return nil
	}
	if err := own(); err != nil {
		return err
	}
	if errors.As(all, new(packages.Distrust)) {
		_ = a.refresh(ctx, h) // another tool's source has no signature: the machine's settings say whether apt reads it
		if err := own(); err != nil {
			return err // a signature that was there is gone
		}
	}
	if _, read := youngest(h); read.IsZero() {
		return all // there is no list at all
	}
	return touch(h, files)
}

// strictly has apt read no list without a signature, whatever the machine's settings allow:
// apt-secure(8).
const strictly = "-oAcquire::AllowInsecureRepositories=false"

// refresh runs apt-get update so that it fails if it cannot read a list. By default apt-get
// continues with the old list of a repository that was tampered with, and exits with 0.
func (a apt) refresh(ctx context.Context, h host.Host, options ...string) error {
	argv := append([]string{"apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=3"}, options...)
	_, err := packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) {
		out, err := h.Do(ctx, argv...)
		if err == nil && sayErr().Match(out) { // apt before 2.1 knows no Error-Mode
			err = &host.CommandError{Argv: argv, Stderr: string(out), Cause: errors.New("not every list could be read")}
		}
		return out, err
	})
	return err
}

// touch gives lists that apt found current, and so did not rewrite, a time after that of gpuadm's
// files.
func touch(h host.Host, files []string) error {
	sources, err := sourcesIn(h, files)
	if err != nil {
		return err
	}
	for _, s := range sources {
		name, _ := accepted(h, s)
		if name == "" {
			return &trouble.Error{
				What: fmt.Sprintf("cannot find the list of %s %s: apt-get update did not bring it to %s", s.uri, s.suite, aptLists),
				Try:  []string{"apt-config dump Dir, which shows whether a setting of another tool has moved apt's lists, sources or pins: gpuadm needs them in their places"},
			}
		}
		if err := packages.TouchList(h, name); err != nil {
			return err
		}
	}
	if name, _ := youngest(h); len(sources) == 0 && name != "" {
		return packages.TouchList(h, name)
	}
	return nil
}

// sayErr matches a list that apt could not read; apt before 2.1 knows no Error-Mode.
var sayErr = pattern.Of(`(?m)^Err:`)
