// SPDX-License-Identifier: Apache-2.0

// Command packages makes what a release of gpuadm consists of, except the image: a deb, an rpm and
// a tar.gz for each architecture that it gets a program for, and the list of checksums of all files
// in the folder. The same programs give the same bytes. It is a module of its own, so that gpuadm's
// own list stays free of what it needs.
//
//	packages [flags] ARCHITECTURE=PROGRAM…
//
// PROGRAM is gpuadm; its bill of materials and its licences, which images/build/sbom writes, lie
// beside it. One PROGRAM must run on this machine. SOURCE_DATE_EPOCH is the time of all files
// (https://reproducible-builds.org/specs/source-date-epoch/). Flags: -help.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

// options are the flags, and the time that the environment says.
type options struct {
	out, version  string
	root, formats string
	time          time.Time
}

const maintainer = "The gpuadm authors <gpuadm@users.noreply.github.com>"

// program is gpuadm for one architecture.
type program struct {
	arch string
	name string // its file
}

func main() {
	o := options{}
	flag.StringVar(&o.out, "out", "dist", "write to the folder `DIR`")
	flag.StringVar(&o.version, "version", "devel", "gpuadm's `VERSION`")
	flag.StringVar(&o.root, "root", "../../..", "gpuadm's source is in `DIR`")
	flag.StringVar(&o.formats, "formats", "deb rpm tar.gz", "the `FORMS` of packages")
	flag.Parse()

	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

func run(o options, args []string) error {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("cannot use SOURCE_DATE_EPOCH as a time: %w", err)
	}
	o.time = time.Unix(epoch, 0).UTC()
	o.version = versionOf(o.version)
	programs, err := parse(args)
	if err != nil {
		return err
	}

	scratch, err := os.MkdirTemp("", "packages-")
	if err != nil {
		return fmt.Errorf("cannot make a scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("cannot make the folder of packages: %w", err)
	}
	scratchFiles, err := generated(scratch, programs)
	if err != nil {
		return err
	}

	for _, p := range programs {
		list, err := o.files(p, scratchFiles)
		if err != nil {
			return err
		}
		for _, form := range strings.Fields(o.formats) {
			if err := o.pack(form, p, list); err != nil {
				return fmt.Errorf("cannot make the %s for %s: %w", form, p.arch, err)
			}
		}
	}

	return o.sum()
}

// versionOf is a version as deb and rpm sort it: a dash would begin the package's revision, and
// what follows a tilde is older than without it. Sources: deb-version(7); rpm-version(7).
func versionOf(v string) string {
	if v == "devel" {
		return "0~devel"
	}
	return strings.ReplaceAll(strings.TrimPrefix(v, "v"), "-", "~")
}

func parse(args []string) ([]program, error) {
	var list []program
	for _, arg := range args {
		arch, name, ok := strings.Cut(arg, "=")
		if !ok || arch != "amd64" && arch != "arm64" {
			return nil, fmt.Errorf("cannot use the argument %q: want ARCHITECTURE=PROGRAM, of amd64 or arm64", arg)
		}
		list = append(list, program{arch, name})
	}

	if len(list) == 0 {
		return nil, fmt.Errorf("cannot make packages of nothing: name a program")
	}

	return list, nil
}

// native is the program that runs on this machine: it writes the completions and the description of
// the spec for all.
func native(programs []program) (string, error) {
	for _, p := range programs {
		if p.arch == runtime.GOARCH {
			return p.name, nil
		}
	}

	return "", fmt.Errorf("cannot ask gpuadm for its completions: no program is for this machine's %s", runtime.GOARCH)
}

// info is what a package says about itself.
func (o options) info(p program) *nfpm.Info {
	script := func(name string) string {
		return filepath.Join(o.root, "images/packages", name)
	}
	return &nfpm.Info{
		Name:          "gpuadm",
		Arch:          p.arch,
		Platform:      "linux",
		Version:       o.version,
		VersionSchema: "none",
		Release:       "1",

		Section:    "admin",
		Priority:   "optional",
		License:    "Apache-2.0",
		Maintainer: maintainer,
		Vendor:     "The gpuadm authors",
		Homepage:   "https://github.com/gpuadm/gpuadm",
		Description: "Turns a machine with NVIDIA GPUs into a Kubernetes node.\n" +
			"It installs the driver, configures the container engine, makes MIG\n" +
			"partitions and joins the node, as /etc/gpuadm/node.toml says, and verifies\n" +
			"it before kubelet starts at every boot.",

		MTime:           o.time,
		DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Scripts: nfpm.Scripts{
				PostInstall: script("postinst"),
				PreRemove:   script("prerm"),
				PostRemove:  script("postrm"),
			},
			RPM: nfpm.RPM{
				BuildHost: "localhost",
				Group:     "System Environment/Base",
				Summary:   "Turns a machine with NVIDIA GPUs into a Kubernetes node",
			},
		},
	}
}

// pack makes one package. Dependencies: the program is linked for glibc 2.28 (images/build/oldlibc
// verifies it), whose rpm provides its symbols' version under this name on all distributions.
func (o options) pack(form string, p program, list []file) error {
	if form == "tar.gz" {
		return o.archive(p, list)
	}

	info := o.info(p)
	var packager nfpm.Packager
	switch form {
	case "deb":
		packager = deb.Default
		info.License = "" // a deb has it in copyright, and dpkg knows no such field
		info.Depends = []string{"libc6 (>= 2.28)"}
	case "rpm":
		packager = rpm.DefaultRPM
		info.Depends = []string{"libc.so.6(GLIBC_2.28)(64bit)", "/bin/sh"}
	default:
		return fmt.Errorf("the form is not known: want deb, rpm or tar.gz")
	}

	changelog, err := o.changelog()
	if err != nil {
		return err
	}
	defer os.Remove(changelog)
	info.Changelog = changelog

	for _, f := range list {
		if form == "deb" && f.kind == files.TypeRPMDoc {
			f.kind = files.TypeFile // nfpm leaves an rpm's documentation out of a deb
		}
		info.Contents = append(info.Contents, f.content(o.time))
	}

	if err := nfpm.PrepareForPackager(nfpm.WithDefaults(info), form); err != nil {
		return err
	}

	out, err := os.Create(filepath.Join(o.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, out); err != nil {
		return err
	}

	return out.Close()
}

// changelog writes the package's own list of changes: what changes from release to release is in
// CHANGELOG.md. Source of the form: https://github.com/goreleaser/chglog.
func (o options) changelog() (name string, err error) {
	f, err := os.CreateTemp("", "changelog-*.yaml")
	if err != nil {
		return "", fmt.Errorf("cannot write the list of changes: %w", err)
	}
	_, err = fmt.Fprintf(f, "- semver: %q\n"+
		"  date: %q\n"+
		"  packager: %q\n"+
		"  deb: {urgency: medium, distributions: [unstable]}\n"+
		"  changes:\n"+
		"    - note: %q\n",
		o.version+"-1", o.time.Format(time.RFC3339), maintainer, "New release: see "+docDir+"CHANGELOG.md.")
	return f.Name(), errors.Join(err, f.Close())
}

// sum writes the checksums of all files in the folder.
func (o options) sum() error {
	entries, err := os.ReadDir(o.out)
	if err != nil {
		return fmt.Errorf("cannot list the packages: %w", err)
	}

	var sums strings.Builder
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "SHA256SUMS") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(o.out, e.Name()))
		if err != nil {
			return fmt.Errorf("cannot read a package: %w", err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), e.Name())
	}

	name := filepath.Join(o.out, "SHA256SUMS")
	if err := os.WriteFile(name, []byte(sums.String()), 0o644); err != nil {
		return fmt.Errorf("cannot write the checksums: %w", err)
	}

	return nil
}
