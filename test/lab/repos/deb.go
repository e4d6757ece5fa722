// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

func (p Package) arch() string {
	if p.Arch == "" {
		return runtime.GOARCH
	}
	return p.Arch
}

// file is the name of its file.
func (p Package) file() string {
	return fmt.Sprintf("%s_%s_%s.deb", p.Name, strings.ReplaceAll(p.Version, ":", "%3a"), p.arch())
}

func (p Package) control() string {
	var text strings.Builder
	section := "libs"
	if p.Component != "" && p.Component != "main" {
		section = p.Component + "/libs"
	}
	fmt.Fprintf(&text, "Package: %s\nVersion: %s\nArchitecture: %s\nSection: %s\nMaintainer: lab <lab@example.invalid>\n",
		p.Name, p.Version, p.arch(), section)
	for _, f := range []struct {
		field string
		names []string
	}{
		{"Pre-Depends", p.PreDepends},
		{"Depends", p.Depends},
		{"Provides", slices.Concat(p.Provides, p.Instead)},
		{"Conflicts", slices.Concat(p.Conflicts, p.Instead)},
		{"Replaces", p.Instead},
	} {
		if len(f.names) > 0 {
			fmt.Fprintf(&text, "%s: %s\n", f.field, strings.Join(f.names, ", "))
		}
	}
	fmt.Fprintf(&text, "Description: is NVIDIA's %s in tests\n", p.Name)
	return text.String()
}

// scripts are the maintainer scripts: deb-postinst(5) and its like tell with what words they are called.
func (p Package) scripts() map[string]string {
	when := func(words, name, body string) string {
		return "#!/bin/sh\nset -e\ncase \"$1\" in " + words + ") ;; *) exit 0 ;; esac\n" + script(p, name, body)
	}
	return map[string]string{
		"preinst":  when("install|upgrade", "before", p.Before),
		"postinst": when("configure", "after", p.After),
		"prerm":    when("remove|upgrade", "gone", p.Gone),
	}
}

// buildDebs builds packages into a folder.
func buildDebs(ctx context.Context, list []Package, scratch, into string) error {
	errs := make(chan error, len(list))
	work := make(chan Package)
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			for p := range work {
				errs <- buildDeb(ctx, p, scratch, into)
			}
		})
	}
	for _, p := range list {
		work <- p
	}
	close(work)
	workers.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func buildDeb(ctx context.Context, p Package, scratch, into string) error {
	file := p.file()
	root := filepath.Join(scratch, file+".d")
	if err := p.lay(root); err != nil {
		return err
	}
	if err := (File{Text: p.control()}).lay(filepath.Join(root, "DEBIAN", "control")); err != nil {
		return fmt.Errorf("cannot write the control file of %s: %w", p.Name, err)
	}
	var conffiles string
	for name := range p.Files {
		if strings.HasPrefix(name, "/etc/") {
			conffiles += name + "\n"
		}
	}
	if conffiles != "" {
		if err := (File{Text: conffiles}).lay(filepath.Join(root, "DEBIAN", "conffiles")); err != nil {
			return fmt.Errorf("cannot write the conffiles of %s: %w", p.Name, err)
		}
	}
	for name, text := range p.scripts() {
		if err := (File{Text: text, Mode: 0o755}).lay(filepath.Join(root, "DEBIAN", name)); err != nil {
			return fmt.Errorf("cannot write the %s of %s: %w", name, p.Name, err)
		}
	}
	_, err := command(ctx, "", "dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", root, filepath.Join(into, file))
	if err != nil {
		return err
	}
	return os.RemoveAll(root)
}
