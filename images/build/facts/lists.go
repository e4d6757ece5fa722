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

// versionsOf makes a list of each version of a file, at commits or tags; ok is false for a version
// that is no list. versionsOf skips a commit without the file: it removed or moved the file.
func versionsOf(
	r records, source, name string, commits []string,
	read func(commit string, text []byte) (l list, ok bool, err error),
) (all []list, err error) {
	for _, commit := range commits {
		files, err := r.files(commit, name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(files, name) {
			continue
		}
		text, err := r.read(commit, name)
		if err != nil {
			return nil, err
		}
		l, ok, err := read(commit, text)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", name, err)
		}
		if !ok {
			continue
		}

		l.Source = source
		l.Month, err = r.month(commit)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// readmes reads the table of GPUs in the README of each release of the open modules.
func readmes(r records) (all []list, err error) {
	tags, err := r.tags()
	if err != nil {
		return nil, err
	}
	isOther := func(tag string) bool { return !isRelease(tag) }
	tags = slices.DeleteFunc(tags, isOther)
	return versionsOf(r, "open-gpu-kernel-modules", "README.md", tags, readmeList)
}

// readmeList reads a release's README; that of 515.43.04 has no table yet.
func readmeList(tag string, text []byte) (list, bool, error) {
	l := list{Version: tag, Names: map[string]string{}}
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

	return l, len(l.Names) > 0, nil
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
		lists, err := versionsOf(r, "amazon-eks-ami", name, commits, eksList)
		if err != nil {
			return nil, err
		}
		all = append(all, lists...)
	}

	return all, nil
}

func eksList(_ string, text []byte) (list, bool, error) {
	version := installer.FindStringSubmatch(string(text))
	if version == nil {
		return list{}, false, nil
	}
	return list{Version: version[1], Names: listedNames(string(text))}, true, nil
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

			read := func(_ string, text []byte) (l list, ok bool, err error) {
				l = list{Version: version[1], Names: listedNames(string(text))}
				if isJSON {
					err = l.readChips(text)
				}
				return l, true, err
			}

			lists, err := versionsOf(r, "nvidia-open-driver-G06", name, []string{commit}, read)
			if err != nil {
				return nil, err
			}
			all = append(all, lists...)
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

	read := func(commit string, text []byte) (l list, ok bool, err error) {
		changelog, err := r.read(commit, "debian/changelog")
		if err != nil {
			return l, false, err
		}
		head := debianHead.FindStringSubmatch(string(changelog))
		if head == nil || !isRelease(head[1]) {
			return l, false, nil
		}
		l = list{Version: head[1], Names: map[string]string{}}
		for _, row := range debianRow.FindAllStringSubmatch(string(text), -1) {
			l.Names[strings.ToLower(row[1])] = ""
		}
		return l, true, nil
	}

	return versionsOf(r, "nvidia-graphics-drivers", name, commits, read)
}
