// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// comesWithout says whether a new kernel would have no module: DKMS builds one if the kernel's headers come with it, which
// is what metapackages of headers are for; dnf brings kernel-devel along where one is installed, since both are of the kind
// that is installed beside its older self. The distribution's signed modules are built after its kernel.
func comesWithout(c Choice, f facts.Facts) bool {
	if c.Precompiled {
		return true
	}
	status := f.Files[dpkgStatus]
	if status == nil {
		return f.Modules == nil || len(f.Modules.WithHeaders()) == 0
	}
	for paragraph := range strings.SplitSeq(string(status), "\n\n") {
		name, rest, _ := strings.Cut(strings.TrimLeft(paragraph, "\n"), "\n")
		name, rest = strings.TrimPrefix(name, "Package: "), "\n"+rest
		if strings.HasPrefix(name, headersPrefix) && strings.Contains(rest, "\nStatus: install ok installed\n") {
			_, depends, _ := strings.Cut(rest, "\nDepends: ")
			depends, _, _ = strings.Cut(depends, "\n")
			if headersFollow(name, depends, f.Kernel) {
				return false
			}
		}
	}
	return true
}

const headersPrefix = "linux-headers-"

var (
	// kernelBuild is what all flavours of one build have in common: 6.8.0-88 of 6.8.0-88-generic, 6.12.48+deb13 of
	// 6.12.48+deb13-cloud-amd64, 6.5.0-0.deb12.1 of Debian's backports.
	kernelBuild = pattern.Of(`^[0-9][0-9.]*(?:-[0-9]+(?:\.deb[0-9.]*[0-9])?)?(?:\+[a-z0-9]+)*`)
	// headersOf are the kernels whose headers a package depends on.
	headersOf = pattern.Of(`(?:^|[ ,|])linux-headers-([0-9][^ ,:(]*)`)
	// metaLine is what Ubuntu adds to a flavour where it has several lines of its kernel: -hwe-24.04, -lts-22.04, -6.8, -edge.
	metaLine = pattern.Of(`^(?:-(?:hwe|lts|edge|[0-9]+\.[0-9]+[a-z]?))*$`)
)

// flavour is what a kernel's release has behind its build: generic, aws, cloud-amd64; "" where there is none.
func flavour(release string) string {
	return strings.TrimPrefix(strings.TrimPrefix(release, kernelBuild().FindString(release)), "-")
}

// headersFollow says whether a package brings the headers of the next kernel: it is a metapackage of the flavour that runs,
// and of its line. linux-headers-generic depends on those of 6.8 where linux-image-generic-hwe-24.04 has brought 6.11.
func headersFollow(name, depends string, k facts.Kernel) bool {
	meta := strings.TrimPrefix(name, headersPrefix)
	of := flavour(k.Running)
	if meta == "" || meta[0] >= '0' && meta[0] <= '9' || of == "" {
		return false // of one kernel, not the next
	}
	if all := headersOf().FindAllStringSubmatch(depends, -1); all != nil {
		for _, m := range all {
			if flavour(m[1]) == of && (m[1] == k.Running || k.Newer(m[1])) {
				return true
			}
		}
		return false
	}
	if rest, ok := strings.CutPrefix(meta, "virtual"); ok && of == "generic" { // with fewer modules, and the same headers
		return metaLine().MatchString(rest)
	}
	rest, ok := strings.CutPrefix(meta, of)
	return ok && metaLine().MatchString(rest)
}
