// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2/files"
)

// file is one of a package: its name on the machine, and the file here with its content.
type file struct {
	name string // on the machine
	from string // here
	mode os.FileMode
	kind string // of nfpm
}

func (f file) content(at time.Time) *files.Content {
	info := &files.ContentFileInfo{
		Owner: "root",
		Group: "root",
		Mode:  f.mode,
		MTime: at,
	}
	return &files.Content{
		Source:      f.from,
		Destination: f.name,
		Type:        f.kind,
		FileInfo:    info,
	}
}

const (
	programName = "/usr/bin/gpuadm"
	unitDir     = "/usr/lib/systemd/system/"
	docDir      = "/usr/share/doc/gpuadm/"
	schemaDir   = "/usr/share/gpuadm/schema/" // cmd/gpuadm writes it into node.toml
	overrides   = "/usr/share/lintian/overrides/gpuadm"
	example     = "/etc/gpuadm/node.toml.example"
)

// generated has gpuadm write what it knows itself, into files of a scratch folder. It writes an
// example, and no node.toml: where that exists, the boot units converge the machine, and kubelet
// waits for them.
func generated(scratch string, programs []program) ([]file, error) {
	gpuadm, err := native(programs)
	if err != nil {
		return nil, err
	}

	var list []file
	write := func(name string, text []byte, kind string) {
		from := filepath.Join(scratch, fmt.Sprint(len(list)))
		if err == nil {
			err = os.WriteFile(from, text, 0o644)
		}
		list = append(list, file{name, from, 0o644, kind})
	}

	for _, c := range [...]struct{ shell, name string }{
		{"bash", "/usr/share/bash-completion/completions/gpuadm"},
		{"zsh", "/usr/share/zsh/vendor-completions/_gpuadm"}, // Debian's zsh reads this folder
		{"zsh", "/usr/share/zsh/site-functions/_gpuadm"},     // and other distributions' zsh this one
		{"fish", "/usr/share/fish/vendor_completions.d/gpuadm.fish"},
	} {
		script, failed := exec.Command(gpuadm, "completion", c.shell).Output()
		if failed != nil {
			return nil, fmt.Errorf("cannot ask gpuadm for its completions of %s: %w", c.shell, failed)
		}
		write(c.name, script, files.TypeFile)
	}

	spec, failed := exec.Command(gpuadm, "help", "spec").Output()
	if failed != nil {
		return nil, fmt.Errorf("cannot ask gpuadm for the description of its spec: %w", failed)
	}
	write(example, commented(spec), files.TypeConfigNoReplace)
	return list, err
}

// commented has each line of a text begin with a hash.
func commented(text []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		line = "# " + strings.TrimRight(line, "\n")
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}

	return []byte(out.String())
}

// files are those of the package of a program. SELinux labels them by their places: bin_t for
// /usr/bin, systemd_unit_file_t for /usr/lib/systemd/system, etc_t and usr_t for the rest, so no
// module of policy is needed. Sources: fedora-selinux/selinux-policy,
// policy/modules/system/systemd.fc and policy/modules/kernel/corecommands.fc; for bin_t
// SELinuxProject/refpolicy's corecommands.fc, too.
func (o options) files(p program, scratchFiles []file) ([]file, error) {
	at := func(name string) string { return filepath.Join(o.root, name) }
	list := append([]file{
		{programName, p.name, 0o755, files.TypeFile},
		{docDir + "copyright", p.name + ".copyright", 0o644, files.TypeRPMDoc},
		{docDir + "CHANGELOG.md", at("CHANGELOG.md"), 0o644, files.TypeRPMDoc},
		{docDir + "doctor.md", at("docs/doctor.md"), 0o644, files.TypeRPMDoc},
		{docDir + "gpuadm.cdx.json", p.name + ".cdx.json", 0o644, files.TypeRPMDoc},
		{overrides, at("images/packages/lintian-overrides"), 0o644, files.TypeFile},
	}, scratchFiles...)

	units, err := o.units(filepath.Dir(scratchFiles[0].from))
	if err != nil {
		return nil, err
	}
	list = append(list, units...)

	schemas, err := filepath.Glob(at("docs/schema/*.json"))
	if err == nil && len(schemas) == 0 {
		err = errors.New("cannot find the schemas: docs/schema has none")
	}
	for _, schema := range schemas {
		list = append(list, file{schemaDir + filepath.Base(schema), schema, 0o644, files.TypeFile})
	}
	if err != nil {
		return nil, err
	}

	pages, err := o.manPages(filepath.Dir(scratchFiles[0].from))
	return append(list, pages...), err
}

// manPages are the manual pages, compressed as both distributions want them.
// Sources: Debian policy 12.1; rpmlint's manpage-not-compressed.
func (o options) manPages(scratch string) ([]file, error) {
	pages, err := filepath.Glob(filepath.Join(o.root, "docs/man/*.[1-8]"))
	if err == nil && len(pages) == 0 {
		err = errors.New("cannot find the manual pages: docs/man has none")
	}

	var list []file
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, fmt.Errorf("cannot read a manual page: %w", err)
		}
		var out bytes.Buffer
		zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			return nil, err
		}
		_, err = zip.Write(text)
		err = errors.Join(err, zip.Close())
		if err != nil {
			return nil, fmt.Errorf("cannot compress a manual page: %w", err)
		}

		name := filepath.Base(page) + ".gz"
		zipped := filepath.Join(scratch, name)
		if err := os.WriteFile(zipped, out.Bytes(), 0o644); err != nil {
			return nil, fmt.Errorf("cannot write a manual page: %w", err)
		}
		section := path.Ext(page)[1:]
		installed := "/usr/share/man/man" + section + "/" + name
		list = append(list, file{installed, zipped, 0o644, files.TypeRPMDoc})
	}

	return list, err
}

// units are the boot units, and kubelet's drop-in, as images/systemd has them except the program's
// place. Those that apply --install makes in /etc have precedence over them: systemd.unit(5), "Unit
// File Load Path".
func (o options) units(scratch string) ([]file, error) {
	names, err := filepath.Glob(filepath.Join(o.root, "images/systemd/*gpuadm*"))
	if err == nil && len(names) == 0 {
		err = errors.New("cannot find the units: images/systemd has none")
	}

	var list []file
	for _, from := range names {
		text, err := os.ReadFile(from)
		if err != nil {
			return nil, fmt.Errorf("cannot read a unit: %w", err)
		}

		name := filepath.Base(from)
		moved := filepath.Join(scratch, name)
		text = bytes.ReplaceAll(text, []byte("/usr/local/sbin/gpuadm"), []byte(programName))
		if err := os.WriteFile(moved, text, 0o644); err != nil {
			return nil, fmt.Errorf("cannot write a unit: %w", err)
		}
		if name == "kubelet-gpuadm.conf" {
			name = "kubelet.service.d/50-gpuadm.conf"
		}
		list = append(list, file{unitDir + name, moved, 0o644, files.TypeFile})
	}

	return list, err
}

// archive makes the tar.gz: the program and what belongs to it, without the units, which apply
// --install makes.
func (o options) archive(p program, list []file) error {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}

	w := tar.NewWriter(zip)
	top := fmt.Sprintf("gpuadm-%s-linux-%s", o.version, p.arch)
	for _, f := range list {
		if strings.HasPrefix(f.name, unitDir) {
			continue
		}
		data, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		head := &tar.Header{
			Name:    top + f.name,
			Mode:    int64(f.mode),
			Size:    int64(len(data)),
			ModTime: o.time,
			Uname:   "root",
			Gname:   "root",
		}
		if err := w.WriteHeader(head); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}

	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return err
	}

	return os.WriteFile(filepath.Join(o.out, top+".tar.gz"), out.Bytes(), 0o644)
}
