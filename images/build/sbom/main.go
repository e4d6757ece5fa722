// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Command sbom prints the bill of materials of a Go program in CycloneDX's JSON: each module that is linked into it, with its
// version, its checksum and its licence. It is a module of its own, so that gpuadm's own list stays free of what it needs.
//
//	sbom PROGRAM
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// own is gpuadm's licence: the file LICENSE.
const own = "Apache-2.0"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: sbom PROGRAM")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("cannot read which modules %s holds: %w", args[0], err)
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		return fmt.Errorf("cannot load the licences that are known: %w", err)
	}
	bom := cdx.NewBOM()
	main := component(info.Main.Path, info.Main.Version, cdx.ComponentTypeApplication, own)
	bom.Metadata = &cdx.Metadata{Component: &main}
	all := []cdx.Component{component("std", info.GoVersion, cdx.ComponentTypeLibrary, "BSD-3-Clause")}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		found, err := licences(known, module.Path, module.Version)
		if err != nil {
			return err
		}
		c := component(module.Path, module.Version, cdx.ComponentTypeLibrary, found...)
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
		all = append(all, c)
	}
	bom.Components = &all
	return cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
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
	return cdx.Component{BOMRef: url, Type: kind, Name: path, Version: version, PackageURL: url, Licenses: &choices}
}

// licences are the SPDX names of a module's licences, by the files in its first folder.
func licences(c *classifier.Classifier, path, version string) (found []string, err error) {
	out, err := exec.Command("go", "mod", "download", "-json", path+"@"+version).Output()
	if err != nil {
		return nil, fmt.Errorf("cannot get module %s@%s: %w", path, version, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, fmt.Errorf("cannot read what go says of module %s: %w", path, err)
	}
	entries, err := os.ReadDir(module.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read module %s: %w", path, err)
	}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(module.Dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("cannot read the licence of module %s: %w", path, err)
		}
		for _, m := range c.Match(text).Matches {
			if m.MatchType == "License" && !slices.Contains(found, m.Name) {
				found = append(found, m.Name)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("cannot tell the licence of module %s@%s: see %s", path, version, module.Dir)
	}
	slices.Sort(found)
	return found, nil
}
