// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// repositoryIDs are what distributions call the repositories that NVIDIA's packages depend on. Those with debug symbols and
// sources have longer names. Sources: the distributions' .repo files in Azure/azhpc-images
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

// subscribed is the file that subscription-manager writes: what others write there, or copy from it, does not last.
const subscribed = "/etc/yum.repos.d/redhat.repo"

func lackingRepository(sys packages.System, need string) (packages.Lack, bool) {
	is := regexp.MustCompile(repositoryIDs()[need])
	var off []repository
	by := releaseOf(sys, need)
	l := packages.Lack{Name: "the repository " + need, Release: by}
	for _, file := range packages.FilesIn(sys, "/etc/yum.repos.d", ".repo") {
		for _, s := range parseRepos(file, sys.Files[file]) {
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
		id := packages.OurFiles + need
		l.Try = "dnf config-manager --set-enabled " + off[0].id
		l.File, l.Release = "/etc/yum.repos.d/"+id+".repo", nil
		l.Data = fmt.Appendf(nil, "%s# As %s says of %s, which is disabled there.\n[%s]\n%s\nenabled=1\n", packages.Header, off[0].file, off[0].id, id, strings.Join(off[0].lines, "\n"))
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
func releaseOf(s packages.System, need string) *packages.Release {
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

func bringing(name, key string) *packages.Release {
	return &packages.Release{Package: name, File: broughtBy(name), Key: key}
}

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
func elsewhere(s packages.System, need string) string {
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

// Lacking returns the repositories among the needs that a system's files do not enable, and the needs that are no repositories.
func Lacking(s packages.System, needs []string) (lacks []packages.Lack, others []string) {
	for _, need := range needs {
		if _, is := repositoryIDs()[need]; !is {
			others = append(others, need)
		} else if l, is := lackingRepository(s, need); is {
			lacks = append(lacks, l)
		}
	}
	return lacks, others
}

// Enabled wants our files, and the distribution's packages that bring such files.
func (dnf) Enabled(database *packages.Reading, lacks []packages.Lack) (wants []converge.Want) {
	for _, l := range lacks {
		wants = append(wants, l.Enabling()...)
		if l.Release == nil {
			continue
		}
		w := packages.Want(packages.NewSet().Sharing(database), l.Release.Package, packages.State{Version: l.Release.Package + "=*"}, l.Why())
		if to := w.To; l.Enabled { // by what may be another's file of that name
			w.AsFound = true
			w.To = func(found converge.State) (converge.State, error) {
				if !packages.Parse(found).Installed() {
					return found, nil
				}
				return to(found)
			}
		}
		wants = append(wants, w)
		if l.Release.Key != "" { // else dnf imports it with the first package, and it stays
			wants = append(wants, importedKey(database, l.Release.Key, l.Release.Key, "rpm checks packages with it"))
		}
	}
	return wants
}
