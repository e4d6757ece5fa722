// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// needsTable has the repositories that NVIDIA's packages depend on.
//
//go:embed needs.tsv
var needsTable string

// A need is one of them, as a distribution has it.
type need struct {
	name    string
	system  string // ID of os-release; "*" for any
	ids     string // a regular expression of the repository's ids
	release string // the package that installs the file; "" for none
	file    string
	key     string
	enable  string // how an operator enables it
}

// needs fills in the table for a distribution's major version and architecture.
func needs(major, arch string) (all []need) {
	table := strings.NewReplacer("@MAJOR@", major, "@ARCH@", arch).Replace(needsTable)
	for line := range strings.Lines(table) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 7 {
			continue
		}
		all = append(all, need{
			name:    columns[0],
			system:  columns[1],
			ids:     columns[2],
			release: columns[3],
			file:    columns[4],
			key:     columns[5],
			enable:  columns[6],
		})
	}

	return all
}

// needOf returns the need of a name on a system; false if it is not a repository.
func needOf(s packages.System, name string) (need, bool) {
	major, _, _ := strings.Cut(s.Version, ".")
	for _, n := range needs(major, rpmArch(s.Arch)) {
		if n.name == name && (n.system == "*" || n.system == s.ID) {
			return n, true
		}
	}

	return need{}, false
}

// brings reports whether a package installs one of the files.
func brings(name string, files []string) bool {
	major := name[len(strings.TrimRight(name, "0123456789")):]
	return slices.ContainsFunc(needs(major, ""), func(n need) bool {
		return n.release == name && slices.Contains(files, n.file)
	})
}

// Lacking returns the repositories among the names that the system's files do not enable, and, as
// others, the names of no repositories.
func Lacking(s packages.System, names []string) (lacks []packages.Lack, others []string) {
	for _, name := range names {
		n, isRepository := needOf(s, name)
		if !isRepository {
			others = append(others, name)
			continue
		}
		if lack, ok := lackOf(s, n); ok {
			lacks = append(lacks, lack)
		}
	}
	return lacks, others
}

// subscribed is the file that subscription-manager writes: it overwrites the edits of others, and
// copies of it become outdated.
const subscribed = "/etc/yum.repos.d/redhat.repo"

// lackOf says how a repository can be enabled; false if it is enabled already.
func lackOf(sys packages.System, n need) (packages.Lack, bool) {
	on, off := sectionsOf(sys, n)
	lack := packages.Lack{Name: "the repository " + n.name}
	if n.release != "" {
		lack.Release = &packages.Release{
			Package: n.release,
			File:    n.file,
			Key:     n.key,
		}
	}

	for _, r := range on {
		if lack.Release == nil || lack.Release.File != r.file {
			return lack, false
		}
		lack.Enabled = true
	}

	switch plain := plainest(off); {
	case lack.Enabled:
	case len(off) == 0 && lack.Release != nil:
		lack.Try = "dnf install " + lack.Release.Package
	case len(off) == 0:
		lack.Try = n.enable
	case plain.file == subscribed:
		lack.Try = "subscription-manager repos --enable=" + plain.id
		lack.Release = nil
	case sys.ID == "rhel": // a cloud's, whose plugin knows them by their names
		lack.Try = "dnf config-manager --set-enabled " + plain.id
		lack.Release = nil
	default:
		lack.Try = "dnf config-manager --set-enabled " + plain.id
		lack.Release = nil
		id := packages.OurFiles + n.name
		lack.File = "/etc/yum.repos.d/" + id + ".repo"
		lack.Data = plain.enabledAs(id)
	}

	return lack, true
}

// plainest returns the section with the shortest id; an empty one of none. Red Hat's file also has
// variants for minor releases, which the machine may not be on:
// codeready-builder-for-rhel-9-x86_64-eus-rpms beside codeready-builder-for-rhel-9-x86_64-rpms.
func plainest(sections []repository) (plain repository) {
	for i, r := range sections {
		if i == 0 || len(r.id) < len(plain.id) {
			plain = r
		}
	}
	return plain
}

// sectionsOf returns the enabled and the disabled sections about a repository.
func sectionsOf(sys packages.System, n need) (on, off []repository) {
	ids := regexp.MustCompile(n.ids)
	for _, file := range packages.FilesIn(sys, "/etc/yum.repos.d", ".repo") {
		for _, r := range parseRepos(file, sys.Files[file]) {
			extra := strings.Contains(r.id, "-debug-") || strings.Contains(r.id, "-source-")
			switch {
			case extra || !ids.MatchString(r.id):
			case r.on:
				on = append(on, r)
			default:
				off = append(off, r)
			}
		}
	}

	return on, off
}

// enabledAs returns a file with the section enabled under another id.
func (r repository) enabledAs(id string) []byte {
	const form = "%s# As %s says of %s, which is disabled there.\n[%s]\n%s\nenabled=1\n"
	return fmt.Appendf(nil, form, packages.Header, r.file, r.id, id, strings.Join(r.lines, "\n"))
}

// Enabled wants the distribution's package that installs a repository's file.
func (dnf) Enabled(database *packages.Reading, l packages.Lack) []converge.Want {
	name := l.Release.Package
	set := packages.NewSet(database)
	if l.Enabled { // perhaps by another tool's file of that name
		set.AsFound = []string{name}
	}
	want := packages.Want(set, name, packages.State{Version: name + "=*"}, l.Why())
	if l.Release.Key == "" { // dnf imports the key with the first package, and never removes it
		return []converge.Want{want}
	}
	key := importedKey(database, l.Release.Key, l.Release.Key, "rpm checks packages with it")
	return []converge.Want{want, key}
}
