// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// dnfRepos is the folder with the repositories' files.
const dnfRepos = "/etc/yum.repos.d"

// A repository is one section of a repository file: dnf.conf(5).
type repository struct {
	file, id string
	on       bool
	lines    []string          // all but the first line and the line with enabled
	values   map[string]string // by key
}

func parseRepos(file string, data []byte) (all []repository) {
	lastKey := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		if id, begins := headOf(line); begins {
			all = append(all, repository{
				file:   file,
				id:     id,
				on:     true,
				values: map[string]string{},
			})
			continue
		}

		if len(all) == 0 || strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}

		r := &all[len(all)-1]
		if line[0] == ' ' || line[0] == '\t' { // the value goes on
			r.lines = append(r.lines, line)
			r.values[lastKey] = strings.TrimSpace(r.values[lastKey] + " " + strings.TrimSpace(line))
			continue
		}

		key, value, _ := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		value = strings.TrimSpace(value)
		if key == "enabled" {
			r.on = isTrue(value)
			continue
		}
		r.lines = append(r.lines, line)
		r.values[key] = value
		lastKey = key
	}

	return all
}

// headOf reads the first line of a section, which a comment may follow: "[epel] # of our mirror".
// Source: IniParser::next in libdnf/utils/iniparser/iniparser.cpp of libdnf's tree.
func headOf(line string) (id string, ok bool) {
	rest, begins := strings.CutPrefix(strings.TrimSpace(line), "[")
	id, _, ends := strings.Cut(rest, "]")
	return id, begins && ends
}

// isTrue reads a boolean: dnf.conf(5).
func isTrue(value string) bool {
	switch strings.ToLower(value) {
	case "1", "yes", "true", "on":
		return true
	}
	return false
}

// enabled reads the repositories of a file that are not disabled.
func enabled(file string, data []byte) []repository {
	return slices.DeleteFunc(parseRepos(file, data), func(r repository) bool { return !r.on })
}

// repoFiles returns the machine's repository files whose names have this beginning. dnf reads no
// copy such as epel.repo.rpmnew: dnf.conf(5), reposdir.
func repoFiles(v host.View, begin string) (files []string) {
	for _, name := range packages.ListOf(v, dnfRepos) {
		if strings.HasPrefix(name, begin) && strings.HasSuffix(name, ".repo") {
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

// Disable sets enabled=0 in each section that names the URL of one of the repositories. A section
// with the id of gpuadm's own becomes a comment: of two such sections dnf reads the first alone,
// even if that is disabled (RepoDict.add in dnf/repodict.py).
func (dnf) Disable(file string, data []byte, repos []packages.Repository, sys packages.System) []byte {
	hasOurID := func(r repository) bool {
		same := func(ours packages.Repository) bool { return r.id == dnfID(ours) }
		return slices.ContainsFunc(repos, same)
	}

	hasOurURL := func(r repository) bool {
		same := func(ours packages.Repository) bool { return r.hasURL(ours.URL, sys) }
		return slices.ContainsFunc(repos, same)
	}

	var out strings.Builder
	for _, section := range sections(string(data)) {
		switch {
		case slices.ContainsFunc(parseRepos(file, []byte(section)), hasOurID):
			section = packages.DisabledAll(section)
		case slices.ContainsFunc(enabled(file, []byte(section)), hasOurURL):
			section = disabled(section)
		}

		out.WriteString(section)
	}

	return []byte(out.String())
}

// sections cuts the text of a file before each line that begins a section.
func sections(text string) (all []string) {
	section := ""
	for line := range strings.Lines(text) {
		if isHead(line) {
			all = append(all, section)
			section = ""
		}
		section += line
	}

	return append(all, section)
}

func isHead(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "[") }

// disabled returns a section with enabled=0, in the place of its own value or behind its first
// line.
func disabled(section string) string {
	lines := slices.Collect(strings.Lines(section))
	at := slices.IndexFunc(lines, func(line string) bool {
		key, _, _ := strings.Cut(line, "=")
		return strings.TrimSpace(key) == "enabled"
	})
	if at >= 0 {
		lines[at] = packages.Replacing(lines[at], "enabled=0")
	} else {
		head := slices.IndexFunc(lines, isHead)
		lines = slices.Insert(lines, head+1, packages.Replacing("", "enabled=0"))
	}

	return strings.Join(lines, "")
}

var variablesInURL = pattern.Of(`\$(?:\w+|\{\w+\})`)

// hasURL reports whether a section is of the repository at a URL: dnf.conf(5), baseurl
// and variables.
func (r repository) hasURL(url string, sys packages.System) bool {
	major, _, _ := strings.Cut(sys.Version, ".")
	want := plainURL(url, major, sys)
	same := func(u string) bool {
		return plainURL(u, major, sys) == want || plainURL(u, sys.Version, sys) == want
	}

	separates := func(c rune) bool { return c == ' ' || c == ',' }
	for _, key := range []string{"baseurl", "mirrorlist", "metalink"} {
		if slices.ContainsFunc(strings.FieldsFunc(r.values[key], separates), same) {
			return true
		}
	}

	// The list of a repository's mirrors may be a file of the machine.
	list := strings.TrimPrefix(cmp.Or(r.values["metalink"], r.values["mirrorlist"]), "file://")
	endsURL := func(c rune) bool { return strings.ContainsRune(" \t\n<>", c) }
	for _, word := range strings.FieldsFunc(string(sys.Files[list]), endsURL) {
		if same(strings.TrimSuffix(word, "/repodata/repomd.xml")) {
			return true
		}
	}

	return false
}

// plainURL fills dnf's variables in a URL, and writes it without a slash at its end.
func plainURL(url, release string, sys packages.System) string {
	major, _, _ := strings.Cut(sys.Version, ".")
	url = variablesInURL().ReplaceAllStringFunc(url, func(variable string) string {
		name := strings.Trim(variable, "${}")
		own := ""
		switch name {
		case "basearch", "arch":
			own = rpmArch(sys.Arch)
		case "releasever":
			own = release
		case "releasever_major":
			own = major
		}

		set := cmp.Or(string(sys.Files["/etc/dnf/vars/"+name]), string(sys.Files["/etc/yum/vars/"+name]))
		return cmp.Or(strings.TrimSpace(set), own, variable)
	})
	return strings.TrimRight(strings.Replace(url, "file:///", "file:/", 1), "/")
}
