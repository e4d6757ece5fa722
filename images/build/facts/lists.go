// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// list is what one record says of the GPUs of one driver.
type list struct {
	Source  string            // the record's name
	Version string            // the driver's
	Month   string            // when the record was written
	Names   map[string]string // by PCI device id, lower case; "" where the record has no name
	Open    map[string]bool   // by id: the open modules serve it; nil where the record does not say
	Closed  map[string]bool   // the proprietary ones do
}

var (
	readmeRow  = regexp.MustCompile(`^\|?\s*(\S.*?)\s*\|\s*([0-9A-F]{4})(?: [0-9A-F]{4} [0-9A-F]{4})?\s*\|?\s*$`)
	listedRow  = regexp.MustCompile(`^0x([0-9A-Fa-f]{4})\s*(.*?)\s*$`)
	installer  = regexp.MustCompile(`NVIDIA-Linux-\w+-([0-9.]+)\.run`)
	debianRow  = regexp.MustCompile(`(?m)^10DE([0-9A-F]{4})\b`)
	debianHead = regexp.MustCompile(`^nvidia-graphics-drivers \(([0-9.]+)-`)
	inName     = regexp.MustCompile(`-([0-9]{3}\.[0-9.]+?)(\.json)?$`)
)

// readmes reads the table of GPUs in the README of each release of the open modules.
func readmes(r records) (all []list, err error) {
	tags, err := r.tags()
	if err != nil {
		return nil, err
	}

	for _, tag := range tags {
		if !isRelease(tag) {
			continue
		}
		text, err := r.read(tag, "README.md")
		if err != nil {
			return nil, err
		}
		l := list{Source: "open-gpu-kernel-modules", Version: tag, Names: map[string]string{}}
		for line := range strings.Lines(string(text)) {
			row := readmeRow.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if row == nil {
				continue
			}
			id := strings.ToLower(row[2])
			if l.Names[id] == "" {
				l.Names[id] = row[1]
			}
		}
		if len(l.Names) == 0 {
			continue // 515.43.04, before the README had the table
		}

		l.Month, err = r.month(tag)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// eksLists reads the lists that Amazon makes of supported-gpus.json in NVIDIA's installer.
func eksLists(r records) (all []list, err error) {
	const folder = "templates/al2023/runtime/gpu/"
	files, err := r.files("HEAD", folder)
	if err != nil {
		return nil, err
	}

	for _, name := range files {
		if !strings.HasPrefix(path.Base(name), "nvidia-open-supported-devices-") {
			continue
		}
		commits, err := r.changes(name)
		if err != nil {
			return nil, err
		}
		for _, commit := range commits {
			text, err := r.read(commit, name)
			if err != nil {
				continue // the commit that removed or moved it
			}
			version := installer.FindStringSubmatch(string(text))
			if version == nil {
				continue
			}
			l := list{Source: "amazon-eks-ami", Version: version[1], Names: listedNames(string(text))}
			l.Month, err = r.month(commit)
			if err != nil {
				return nil, err
			}
			all = append(all, l)
		}
	}
	return all, nil
}

func listedNames(text string) map[string]string {
	names := map[string]string{}
	for line := range strings.Lines(text) {
		row := listedRow.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if row == nil {
			continue
		}
		id := strings.ToLower(row[1])
		if names[id] == "" {
			names[id] = row[2]
		}
	}
	return names
}

// suseLists reads openSUSE's lists, and NVIDIA's supported-gpus.json, which it carries since 570.
func suseLists(r records) (all []list, err error) {
	tags, err := r.tags()
	if err != nil {
		return nil, err
	}

	for _, commit := range append(tags, "HEAD") {
		files, err := r.files(commit, ".")
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			version := inName.FindStringSubmatch(name)
			isList := strings.HasPrefix(name, "pci_ids-") && !strings.HasPrefix(name, "pci_ids-unsupported")
			isJSON := strings.HasPrefix(name, "supported-gpus-")
			if version == nil || !isList && !isJSON {
				continue
			}

			text, err := r.read(commit, name)
			if err != nil {
				return nil, err
			}
			l := list{Source: "nvidia-open-driver-G06", Version: version[1], Names: listedNames(string(text))}
			if isJSON {
				err = l.readChips(text)
				if err != nil {
					return nil, fmt.Errorf("cannot read %s: %w", name, err)
				}
			}
			l.Month, err = r.month(commit)
			if err != nil {
				return nil, err
			}
			all = append(all, l)
		}
	}
	return all, nil
}

// readChips reads supported-gpus.json.
func (l *list) readChips(text []byte) error {
	var file struct {
		Chips []struct {
			ID       string   `json:"devid"`
			Name     string   `json:"name"`
			Features []string `json:"features"`
			Legacy   string   `json:"legacybranch"`
		} `json:"chips"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return err
	}

	l.Open = map[string]bool{}
	l.Closed = map[string]bool{}
	for _, chip := range file.Chips {
		if chip.Legacy != "" {
			continue // for an older branch
		}
		id := strings.ToLower(strings.TrimPrefix(chip.ID, "0x"))
		open := slices.Contains(chip.Features, "kernelopen")
		if l.Names[id] == "" {
			l.Names[id] = chip.Name
		}
		l.Open[id] = l.Open[id] || open
		l.Closed[id] = l.Closed[id] || !open || slices.Contains(chip.Features, "gsp_proprietary_supported")
	}
	return nil
}

// debianLists reads the ids that Debian's packaging takes from the README of the proprietary
// driver.
func debianLists(r records) (all []list, err error) {
	const name = "debian/nv-readme.ids"
	commits, err := r.changes(name)
	if err != nil {
		return nil, err
	}

	for _, commit := range commits {
		text, err := r.read(commit, name)
		if err != nil {
			continue // the commit that removed or moved it
		}
		changelog, err := r.read(commit, "debian/changelog")
		if err != nil {
			continue
		}
		head := debianHead.FindStringSubmatch(string(changelog))
		if head == nil || !isRelease(head[1]) {
			continue
		}

		l := list{Source: "nvidia-graphics-drivers", Version: head[1], Names: map[string]string{}}
		for _, row := range debianRow.FindAllStringSubmatch(string(text), -1) {
			l.Names[strings.ToLower(row[1])] = ""
		}
		l.Month, err = r.month(commit)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}
