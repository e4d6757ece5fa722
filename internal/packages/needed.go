// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// SourceFolders hold the files of the machine that say where packages come from.
func SourceFolders() []string {
	return []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/", "/etc/yum.repos.d/"}
}

// A System is what a distribution says of itself, its architecture (amd64, arm64) and the contents of its files about sources:
// see SourceFolders.
type System struct {
	ID, Version, Arch string
	Files             map[string][]byte
}

// A Lack is something that packages depend on and that no file of the machine enables: a repository of dnf's, or
// components of apt's archive.
type Lack struct {
	Name    string // epel; contrib, non-free
	Enabled bool   // by the distribution's package in Release, which is to stay
	Try     string // what enables it: a command, or what to edit

	File    string // one of ours that enables it as well, with Data; "" where there can be none
	Data    []byte
	Release *Release // the package that enables it as well; nil where there is none
}

// A Release is a package of the distribution that brings the file of a repository.
type Release struct{ Package, File, Key string }

// Lacking returns what of the needs is not enabled by the files about sources of a system.
func Lacking(s System, needs []string) (lacks []Lack) {
	var components []string
	for _, need := range needs {
		if _, is := repositoryIDs()[need]; !is {
			components = append(components, need)
		} else if l, is := lackingRepository(s, need); is {
			lacks = append(lacks, l)
		}
	}
	if l, is := lackingComponents(s, components); is {
		lacks = append(lacks, l)
	}
	return lacks
}

// Unavailable says that a repository cannot be enabled by us; nil if it can.
func (l Lack) Unavailable() error {
	if l.File != "" || l.Release != nil {
		return nil
	}
	return &converge.Trouble{
		What: fmt.Sprintf("cannot enable %s: the files of this machine do not say where it is, or its owner manages them", l.Name),
		Try:  []string{l.Try, "take enable_needed = true out of [driver.repo], if the driver's packages find what they depend on without it"},
	}
}

// repositoryIDs are what distributions call the repositories that NVIDIA's packages depend on. Those with debug symbols and
// sources have longer names. Sources: the .repo files of the distributions as they are used in Azure/azhpc-images
// (AlmaLinux, Rocky), NVIDIA/gpu-driver-container (RHEL 10) and EM-GeekLab/nvidia-driver-installer (RHEL, Rocky, Oracle);
// Amazon's user guide of AL2023, nvidia-drivers.html, and awslabs/amazon-eks-ami.
func repositoryIDs() map[string]string {
	const builder = `^(crb|powertools|PowerTools|ol[0-9]+_codeready_builder|codeready-builder-for-rhel-[0-9]+-.*rpms)$`
	return map[string]string{
		"epel":               `^(epel|ol[0-9]+(_u[0-9]+)?_developer_EPEL)$`,
		"crb":                builder,
		"powertools":         builder,
		"amazonlinux-nvidia": `^amazonlinux-nvidia$`,
	}
}

// A section is one repository in a file of dnf's.
type section struct {
	file, id string
	lines    []string // all but the first, and what says whether it is enabled
	on       bool
}

func sections(file string, data []byte) (all []section) {
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		if id, is := strings.CutSuffix(strings.TrimSpace(line), "]"); is && strings.HasPrefix(id, "[") {
			all = append(all, section{file: file, id: id[1:], on: true})
			continue
		}
		if len(all) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		s := &all[len(all)-1]
		if key, value, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "enabled" {
			s.on = slices.Contains([]string{"1", "yes", "true", "on"}, strings.ToLower(strings.TrimSpace(value)))
		} else if strings.TrimSpace(line) != "" {
			s.lines = append(s.lines, line)
		}
	}
	return all
}

// ourFiles begins the names of our files about sources.
const ourFiles = "gpuadm-"

// subscribed is the file that subscription-manager writes: what others write there, or copy from it, does not last.
const subscribed = "/etc/yum.repos.d/redhat.repo"

func lackingRepository(sys System, need string) (Lack, bool) {
	is := regexp.MustCompile(repositoryIDs()[need])
	var off []section
	by := releaseOf(sys, need)
	l := Lack{Name: "the repository " + need, Release: by}
	for _, file := range filesIn(sys, "/etc/yum.repos.d", ".repo") {
		for _, s := range sections(file, sys.Files[file]) {
			switch {
			case !is.MatchString(s.id) || strings.Contains(s.id, "-debug-") || strings.Contains(s.id, "-source-"):
			case s.on && (by == nil || by.File != file):
				return l, false
			case s.on:
				l.Enabled = true
			default:
				off = append(off, s)
			}
		}
	}
	switch {
	case l.Enabled:
	case len(off) > 0 && off[0].file == subscribed:
		l.Try, l.Release = "subscription-manager repos --enable="+off[0].id, nil
	case len(off) > 0 && sys.ID == "rhel": // a cloud's, whose plugin knows them by their names
		l.Try, l.Release = "dnf config-manager --set-enabled "+off[0].id, nil
	case len(off) > 0:
		id := ourFiles + need
		l.Try = "dnf config-manager --set-enabled " + off[0].id
		l.File, l.Release = "/etc/yum.repos.d/"+id+".repo", nil
		l.Data = fmt.Appendf(nil, "%s# As %s says of %s, which is disabled there.\n[%s]\n%s\nenabled=1\n", header, off[0].file, off[0].id, id, strings.Join(off[0].lines, "\n"))
	case by != nil:
		l.Try = "dnf install " + by.Package
	default:
		l.Try = elsewhere(sys, need)
	}
	return l, true
}

// releaseOf is the distribution's package that brings a repository; nil where it has none. Red Hat has none of EPEL.
// Sources: rocky-linux/documentation and Azure/azhpc-images (Rocky, AlmaLinux), EM-GeekLab/nvidia-driver-installer and
// Oracle's yum.oracle.com/getting-started (Oracle), Amazon's user guide of AL2023. The key's name: EPEL's own .repo file.
func releaseOf(s System, need string) *Release {
	major, _, _ := strings.Cut(s.Version, ".")
	switch {
	case need == "amazonlinux-nvidia":
		return bringing("nvidia-release", "")
	case need != "epel" || s.ID == "rhel":
		return nil
	case s.ID == "ol":
		return bringing("oracle-epel-release-el"+major, "")
	}
	return bringing("epel-release", dnfKeys+"RPM-GPG-KEY-EPEL-"+major)
}

func bringing(name, key string) *Release { return &Release{name, broughtBy(name), key} }

// broughtBy is the repository's file that a package of a distribution brings; "" for a package that is no such.
func broughtBy(name string) string {
	major, oracle := strings.CutPrefix(name, "oracle-epel-release-el")
	switch {
	case oracle:
		return "/etc/yum.repos.d/oracle-epel-ol" + major + ".repo"
	case name == "epel-release":
		return "/etc/yum.repos.d/epel.repo"
	case name == "nvidia-release":
		return "/etc/yum.repos.d/amazonlinux-nvidia.repo"
	}
	return ""
}

// elsewhere is the command for a repository that no file of the machine has.
func elsewhere(s System, need string) string {
	major, _, _ := strings.Cut(s.Version, ".")
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[s.Arch]
	switch {
	case need == "epel":
		return "dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-" + major + ".noarch.rpm"
	case s.ID == "rhel":
		return "subscription-manager repos --enable=codeready-builder-for-rhel-" + major + "-" + arch + "-rpms"
	case s.ID == "ol":
		return "dnf config-manager --set-enabled ol" + major + "_codeready_builder"
	}
	return "dnf config-manager --set-enabled " + need
}

// filesIn are the names of others' files in a folder that end in one of the ends.
func filesIn(s System, folder string, ends ...string) (names []string) {
	for name := range s.Files {
		if path.Dir(name) == folder && slices.Contains(ends, path.Ext(name)) && !strings.HasPrefix(path.Base(name), ourFiles) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// archiveKeys are the keys that sign the archives of Debian and Ubuntu: their packages debian-archive-keyring and
// ubuntu-keyring. What has another key is another's archive, which may have no such components.
func archiveKeys() []string { return []string{"debian-archive-", "ubuntu-archive-"} }

// lackingComponents looks which components no entry of apt's names. Ours then says of the distribution's entries what they
// say, with the components that they lack.
func lackingComponents(sys System, components []string) (Lack, bool) {
	files := append([]string{"/etc/apt/sources.list"}, filesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources")...)
	var named []string
	var all, archive []source
	for _, file := range files {
		all = append(all, parseSources(file, sys.Files[file], sys.Arch)...)
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
		return Lack{}, false
	}
	l := Lack{Name: "the component " + missing[0], Try: fmt.Sprintf("add %s behind main in apt's sources, then apt-get update", strings.Join(missing, " "))}
	if len(missing) > 1 {
		l.Name = "the components " + strings.Join(missing, ", ")
	}
	if len(archive) == 0 {
		return l, true
	}
	l.Try = strings.Replace(l.Try, "apt's sources", archive[0].file, 1)
	l.File, l.Data = "/etc/apt/sources.list.d/"+ourFiles+"components.sources", []byte(header)
	for _, s := range archive {
		l.Data = fmt.Appendf(l.Data, "\n# %s\nTypes: deb\nURIs: %s\nSuites: %s\nComponents: %s\n", s.file, s.uri, s.suite, strings.Join(missing, " "))
		for _, name := range slices.Sorted(maps.Keys(s.options)) {
			l.Data = fmt.Appendf(l.Data, "%s: %s\n", name, s.options[name])
		}
	}
	return l, true
}

// ofDistribution says whether an entry is of the archive that the system itself comes from: it has main, and is signed by the
// archive's key, or by any that apt trusts.
func (s source) ofDistribution() bool {
	if !slices.Contains(s.components, "main") || len(s.signedBy) == 0 && s.options["signed-by"] != "" {
		return false
	}
	return len(s.signedBy) == 0 || slices.ContainsFunc(s.signedBy, func(key string) bool {
		return slices.ContainsFunc(archiveKeys(), func(begin string) bool { return strings.HasPrefix(path.Base(key), begin) })
	})
}
