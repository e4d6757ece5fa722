// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	dnfCache = "/var/cache/dnf"
	dnfKeys  = "/etc/pki/rpm-gpg/"
)

// Affects says that a changed key, or a package that installs a repository's file, makes the lists
// stale.
func (dnf) Affects(files []string, by converge.Change) bool {
	return strings.HasPrefix(by.Name, dnfKeys) || by.Form == packages.FormDeclared || by.Kind == "package" && brings(by.Name, files)
}

// A repository is one section of a repository file: dnf.conf(5).
type repository struct {
	file, id string
	on       bool
	lines    []string          // all but the first line and the line with enabled
	values   map[string]string // by key
}

func parseRepos(file string, data []byte) (all []repository) {
	last := "" // key
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		if id, is := strings.CutSuffix(strings.TrimSpace(line), "]"); is && strings.HasPrefix(id, "[") {
			all = append(all, repository{file: file, id: id[1:], on: true, values: map[string]string{}})
			continue
		}
		if len(all) == 0 || strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		r := &all[len(all)-1]
		if line[0] == ' ' || line[0] == '\t' { // the value goes on
			r.lines, r.values[last] = append(r.lines, line), strings.TrimSpace(r.values[last]+" "+strings.TrimSpace(line))
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if key == "enabled" {
			r.on = says(value)
			continue
		}
		r.lines, r.values[key], last = append(r.lines, line), value, key
	}
	return all
}

// says reads a boolean: dnf.conf(5).
func says(value string) bool {
	return slices.Contains([]string{"1", "yes", "true", "on"}, strings.ToLower(value))
}

// enabled reads the repositories of a file that are not disabled.
func enabled(file string, data []byte) []repository {
	return slices.DeleteFunc(parseRepos(file, data), func(r repository) bool { return !r.on })
}

// repoFiles returns the machine's repository files whose names have this beginning and end.
func repoFiles(v host.View, begin, end string) (files []string) {
	for _, name := range packages.ListOf(v, dnfRepos) {
		if strings.HasPrefix(name, begin) && strings.HasSuffix(name, end) {
			files = append(files, dnfRepos+"/"+name)
		}
	}
	return files
}

// reposIn reads files of repositories.
func reposIn(v host.View, files []string) ([]repository, error) {
	return packages.ReadAll(v, files, enabled)
}

// url returns the address of a repository, or of the list of its mirrors.
func (r repository) url() string {
	return cmp.Or(r.values["metalink"], r.values["mirrorlist"], r.values["baseurl"])
}

// list returns the file of the signed list that dnf keeps of a repository, in a folder named after
// its id and URL. If only dnf knows the URL, with its variables filled in, list returns the
// youngest file.
// Source: Repo::Impl::getHash in libdnf/repo/Repo.cpp of libdnf's tree.
func (r repository) list(v host.View) string {
	if strings.Contains(r.url(), "$") {
		var youngest time.Time
		found := dnfCache + "/" + r.id
		for _, name := range packages.ListOf(v, dnfCache) {
			hash, is := strings.CutPrefix(name, r.id+"-")
			list := dnfCache + "/" + name + "/repodata/repomd.xml"
			if i, err := v.Stat(list); is && len(hash) == 16 && strings.Trim(hash, "0123456789abcdef") == "" && err == nil && i.Ctime.After(youngest) {
				found, youngest = list, i.Ctime
			}
		}
		return found
	}
	sum := sha256.Sum256([]byte(r.url()))
	return fmt.Sprintf("%s/%s-%x/repodata/repomd.xml", dnfCache, r.id, sum[:8])
}

// Stale compares the times at which files were stored, not their modification times. Equal times
// are no evidence that the list is the younger one: see the same function of apt.
func (dnf) Stale(v host.View, files []string) (bool, error) {
	repos, err := reposIn(v, files)
	if err != nil {
		return false, err
	}
	for _, r := range repos {
		read, err := v.Stat(r.list(v))
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		} else if err != nil {
			return false, err
		}
		for _, name := range append(packages.LocksOf(r.url()), r.file, strings.TrimPrefix(r.values["gpgkey"], "file://")) {
			if i, err := v.Stat(name); err == nil && !read.Ctime.After(i.Ctime) {
				return true, nil
			}
		}
	}
	return false, nil
}

// Update has dnf read its lists. First it reads all, which include the distribution's lists that
// gpuadm's packages depend on. If that fails, it reads gpuadm's alone, and every one must succeed:
// a repository that another tool broke does not stop gpuadm.
func (a dnf) Update(ctx context.Context, h host.Host, files []string) error {
	ours, err := reposIn(h, files)
	if err != nil {
		return err
	}
	if _, err := a.run(ctx, h, "makecache", "--refresh"); err != nil {
		for _, r := range ours {
			if _, err := a.run(ctx, h, "makecache", "--refresh", "--disablerepo=*", "--enablerepo="+r.id); err != nil {
				return packages.Unread(h, err, r.url(), r.file)
			}
		}
	}
	for _, r := range ours {
		// A list that dnf found current, and so did not rewrite, gets a time after that of gpuadm's
		// files.
		if err := packages.TouchList(h, r.list(h)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot find the list of %s: dnf makecache did not bring %s; dnf's cachedir must be its own", r.url(), r.list(h))
		} else if err != nil {
			return err
		}
	}
	return nil
}

const dnfRepos = "/etc/yum.repos.d"

// Disable sets enabled=0 in each section that names the URL of one of the repositories. A section
// with the id of gpuadm's own becomes a comment: of two such sections dnf reads the first alone,
// even if that is disabled (RepoDict.add in dnf/repodict.py).
func (dnf) Disable(file string, data []byte, repos []packages.Repository, sys packages.System) []byte {
	var out strings.Builder
	section := ""
	end := func() {
		if slices.ContainsFunc(parseRepos(file, []byte(section)), func(r repository) bool {
			return slices.ContainsFunc(repos, func(o packages.Repository) bool { return r.id == dnfID(o) })
		}) {
			section = packages.DisabledAll(section)
		} else if slices.ContainsFunc(enabled(file, []byte(section)), func(r repository) bool {
			return slices.ContainsFunc(repos, func(o packages.Repository) bool { return r.names(o.URL, sys) })
		}) {
			section = disabled(section)
		}
		out.WriteString(section)
		section = ""
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimSpace(line), "[") {
			end()
		}
		section += line
	}
	end()
	return []byte(out.String())
}

func disabled(section string) string {
	lines := slices.Collect(strings.Lines(section))
	at := slices.IndexFunc(lines, func(l string) bool {
		key, _, _ := strings.Cut(l, "=")
		return strings.TrimSpace(key) == "enabled"
	})
	if at >= 0 {
		lines[at] = packages.Replacing(lines[at], "enabled=0")
	} else {
		head := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "[") })
		lines = slices.Insert(lines, head+1, packages.Replacing("", "enabled=0"))
	}
	return strings.Join(lines, "")
}

var sayVariable = pattern.Of(`\$(?:\w+|\{\w+\})`)

// names says whether a section is of a URL: dnf.conf(5), baseurl and variables.
func (r repository) names(url string, sys packages.System) bool {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[sys.Arch]
	major, _, _ := strings.Cut(sys.Version, ".")
	plain := func(u, release string) string {
		known := map[string]string{"basearch": arch, "arch": arch, "releasever": release, "releasever_major": major}
		u = sayVariable().ReplaceAllStringFunc(u, func(said string) string {
			name := strings.Trim(said, "${}")
			theirs := cmp.Or(string(sys.Files["/etc/dnf/vars/"+name]), string(sys.Files["/etc/yum/vars/"+name]))
			return cmp.Or(strings.TrimSpace(theirs), known[name], said)
		})
		return strings.TrimRight(strings.Replace(u, "file:///", "file:/", 1), "/")
	}
	is := plain(url, major)
	same := func(u string) bool { return plain(u, major) == is || plain(u, sys.Version) == is }
	for _, key := range []string{"baseurl", "mirrorlist", "metalink"} {
		if slices.ContainsFunc(strings.FieldsFunc(r.values[key], func(c rune) bool { return c == ' ' || c == ',' }), same) {
			return true
		}
	}
	list := sys.Files[strings.TrimPrefix(cmp.Or(r.values["metalink"], r.values["mirrorlist"]), "file://")]
	return slices.ContainsFunc(strings.FieldsFunc(string(list), func(c rune) bool { return strings.ContainsRune(" \t\n<>", c) }), func(u string) bool {
		return same(strings.TrimSuffix(u, "/repodata/repomd.xml"))
	})
}

// driverModule is dnf's module with NVIDIA's driver packages for RHEL 8 and 9: dnf hides them until
// one of its streams is enabled, and then shows only that stream's packages.
const driverModule = "nvidia-driver"

// moduleFolder is where dnf keeps which streams are enabled: one file for each module, written as
// dnf writes it.
const moduleFolder = "/etc/dnf/modules.d"

// stream is dnf's choice of a module's stream. Its state is the stream that is enabled; "" if none
// is, or off.
type stream string

// off is the state of a module after dnf module disable: dnf(8).
const off = "disabled"

// Stream wants a stream of dnf's module nvidia-driver to be enabled. It refuses to switch from
// another stream that was enabled outside gpuadm: that may replace or remove packages from it.
func Stream(name, why string) converge.Want {
	return converge.Want{Thing: stream(driverModule), Why: why, To: func(found converge.State) (converge.State, error) {
		if found == "" || found == converge.State(name) {
			return converge.State(name), nil
		}
		t := &trouble.Error{
			What: fmt.Sprintf("cannot enable stream %s of dnf's module %s: the module was disabled outside gpuadm", name, driverModule),
			Try:  []string{fmt.Sprintf("dnf module reset %s, if that is no longer meant; then run the same command again", driverModule)},
		}
		if found != off {
			t.What = strings.Replace(t.What, "the module was disabled", string(found)+" was enabled", 1)
			t.Because = []string{"dnf hides the packages of all other streams, and switching may replace what is installed from this one"}
			t.Try = append(t.Try, "or ask for a driver version of stream "+string(found))
		}
		return "", t
	}}
}

// NewStream builds the thing from its name, for undo.
func NewStream(name string) converge.Thing { return stream(name) }

func (s stream) Ref() converge.Ref { return converge.Ref{Kind: "package-stream", Name: string(s)} }

func (s stream) Look(_ context.Context, v host.View) (converge.State, error) {
	is, err := readStream(v, string(s))
	return converge.State(is), err
}

func (s stream) Make(_ context.Context, h host.Host, to converge.State) error {
	name := s.file()
	if to == "" {
		if err := h.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return h.WriteFile(name, s.text(string(to)), host.Attr{Mode: 0o644})
}

func (s stream) text(of string) []byte {
	return fmt.Appendf(nil, "[%s]\nname=%[1]s\nstream=%s\nprofiles=\nstate=enabled\n", s, of)
}

func (s stream) file() string { return moduleFolder + "/" + string(s) + ".module" }

func readStream(v host.View, module string) (string, error) {
	data, err := v.ReadFile(stream(module).file())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return map[string]string{"enabled": values["stream"], off: off}[values["state"]], nil
}

// streamed returns nil if the packages' stream is enabled. Until then it verifies only that the
// versions are available.
func (a dnf) streamed(ctx context.Context, v host.View, ask packages.Request, d rpmDatabase) error {
	if ask.Stream == "" {
		return nil
	}
	is, err := readStream(v, driverModule)
	if err != nil || is == ask.Stream {
		return err
	}
	if _, err := packages.Begin(ctx, v, ask, d.packages, solver{a.unfiltered(), d}); err != nil {
		return err
	}
	return host.Later{Until: fmt.Sprintf("stream %s of %s is enabled", ask.Stream, driverModule)}
}
