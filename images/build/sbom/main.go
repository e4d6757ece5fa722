// SPDX-License-Identifier: Apache-2.0

// Command sbom writes next to a Go program its bill of materials in CycloneDX's JSON,
// PROGRAM.cdx.json: each module that is linked into it, with its version, its checksum and its
// licence; and the texts of these licences, PROGRAM.copyright, which most of them want to go with
// the program. It is a module of its own, so that gpuadm's own list stays free of what it needs.
//
//	go list -deps -f FORM ./cmd/gpuadm | sbom PROGRAM
//
// FORM prints of each package its module, the module's folder, and its own folder: see the
// Makefile.
package main

import (
	"bufio"
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: go list -deps -f FORM ./cmd/gpuadm | sbom PROGRAM")
	}
	program := args[0]
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("cannot read which modules %s holds: %w", program, err)
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		return fmt.Errorf("cannot load the licences that are known: %w", err)
	}

	folders := foldersOf(os.Stdin)
	var bill, texts bytes.Buffer
	var all []cdx.Component
	std := &debug.Module{Path: "std", Version: info.GoVersion}
	for _, module := range append([]*debug.Module{&info.Main, std}, info.Deps...) {
		if module.Replace != nil {
			module = module.Replace
		}
		found, text, err := licences(known, module.Path, folders[module.Path])
		if err != nil {
			return err
		}
		fmt.Fprintf(&texts, "%s %s\n\n%s\n", module.Path, module.Version, text)

		c := component(module.Path, module.Version, cdx.ComponentTypeLibrary, found...)
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:"))
		if err == nil && len(sum) > 0 {
			c.Hashes = &[]cdx.Hash{{
				Algorithm: cdx.HashAlgoSHA256,
				Value:     hex.EncodeToString(sum),
			}}
		}

		all = append(all, c)
	}

	all[0].Type = cdx.ComponentTypeApplication
	rest := all[1:]
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &all[0]}
	bom.Components = &rest
	if err := cdx.NewBOMEncoder(&bill, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}

	return errors.Join(
		os.WriteFile(program+".cdx.json", bill.Bytes(), 0o644),
		os.WriteFile(program+".copyright", texts.Bytes(), 0o644))
}

// foldersOf are the folders of each module's linked packages and those above them, by the module's
// path: a package may be under another licence than its module.
func foldersOf(list io.Reader) map[string][]string {
	all := map[string][]string{}
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) != 3 {
			continue
		}
		module, top := fields[0], fields[1]
		for dir := fields[2]; len(dir) >= len(top); dir = filepath.Dir(dir) {
			all[module] = append(all[module], dir)
		}
	}

	for path, folders := range all {
		slices.Sort(folders)
		all[path] = slices.Compact(folders)
	}

	return all
}

func component(path, version string, kind cdx.ComponentType, licences ...string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	var choices cdx.Licenses
	for _, id := range licences {
		l := &cdx.License{ID: id}
		if id == "XZ" { // SPDX has no name for it
			l = &cdx.License{Name: "public domain, as XZ Utils"}
		}
		choices = append(choices, cdx.LicenseChoice{License: l})
	}

	return cdx.Component{
		BOMRef:     url,
		Type:       kind,
		Name:       path,
		Version:    version,
		PackageURL: url,
		Licenses:   &choices,
	}
}

// licences are the SPDX names of a module's licences, and their texts, by the files in folders. The
// first folder is the module's own.
func licences(
	c *classifier.Classifier, path string, folders []string,
) (found []string, texts string, err error) {
	for _, dir := range folders {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, "", fmt.Errorf("cannot read module %s: %w", path, err)
		}
		for _, e := range entries {
			if e.IsDir() || !isLicence(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, "", fmt.Errorf("cannot read the licence of module %s: %w", path, err)
			}
			texts += string(text) + "\n"
			for _, m := range c.Match(text).Matches {
				if m.MatchType == "License" && !slices.Contains(found, m.Name) {
					found = append(found, m.Name)
				}
			}
		}
	}

	if len(found) == 0 {
		return nil, "", fmt.Errorf("cannot tell the licence of module %s: no file in %v says it", path, folders)
	}
	slices.Sort(found)

	return found, texts, nil
}

// isLicence reports whether a file's name is one of those that licences have.
func isLicence(name string) bool {
	begins := func(prefix string) bool {
		return strings.HasPrefix(strings.ToUpper(name), prefix)
	}
	return slices.ContainsFunc([]string{"LICEN", "COPYING", "NOTICE", "PATENTS"}, begins)
}
