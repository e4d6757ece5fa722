// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/explain"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/mig"
)

func ofExitCode(word string) []explanation {
	for _, x := range exitCodes() {
		if strconv.Itoa(x.code) == word {
			return []explanation{{
				Word: word, Is: "an exit code of gpuadm", What: x.means, From: "every verb exits with it",
				Try: []string{"gpuadm help exit: all codes, and a script that acts by them"},
			}}
		}
	}
	return nil
}

// ofCheck knows the codes of doctor.
func ofCheck(word string) []explanation {
	for _, c := range doctor.Checks() {
		if !strings.EqualFold(c.Code, word) {
			continue
		}
		e := explanation{
			Word: c.Code, Is: "a code of gpuadm doctor", What: c.Title, Matters: c.Meaning, From: "doctor reads " + c.Reads,
			Try: []string{c.Fix, "that interrupts: " + c.Interrupts}, Source: strings.Join(c.Sources, " "),
		}
		switch {
		case c.NoRepair == "":
			e.Try = append(e.Try, "sudo gpuadm repair "+c.Code)
		case c.Command != "" && c.RPM == "":
			e.Try = append(e.Try, c.Command)
		}
		if c.RPM != "" { // explain knows no machine
			e.Try = append(e.Try, "by hand on Debian and Ubuntu: "+c.Command, "by hand on RHEL, Rocky Linux and others with dnf: "+c.RPM)
		}
		if c.NoRepair != "" {
			e.Try = append(e.Try, "gpuadm has no repair: "+c.NoRepair)
		}
		return []explanation{e}
	}
	return nil
}

func checkCodes() (codes []string) {
	for _, c := range doctor.Checks() {
		codes = append(codes, c.Code)
	}
	return codes
}

// ofKey knows keys of node.toml as section.key or key, and sections.
func ofKey(word string) (all []explanation) {
	word = strings.NewReplacer("[", "", "]", "").Replace(word)
	var below []string
	for _, k := range spec.Keys() {
		if k.Section == word && word != "" {
			below = append(below, k.Name+": "+k.Doc)
		}
		full := keyName(k)
		if word == full || word == k.Name {
			all = append(all, ofOneKey(k, full))
		}
	}
	if len(below) > 0 {
		var rows []string
		for _, row := range below {
			rows = append(rows, wrapped(row, 70)...)
		}
		all = append(all, explanation{
			Word: "[" + word + "]", Is: "a section of node.toml", What: "It has these keys. Without the section its stage changes nothing.", Where: rows,
			Try: []string{"gpuadm explain " + word + ".KEY"},
		})
	}
	return all
}

func ofOneKey(k spec.Key, full string) explanation {
	m := explanation{Word: full, Is: "a key of node.toml", What: k.Doc, Matters: "It is a " + k.Type + "."}
	switch k.Default {
	case "":
		m.Matters += " It must be given."
	case `""`, "[]", "{}":
	default:
		m.Matters += " Without it: " + k.Default + "."
	}
	if len(k.Allowed) > 0 {
		m.Matters += " One of " + strings.Join(k.Allowed, ", ") + "."
	}
	example := k.Default
	switch {
	case len(k.Allowed) > 1:
		example = strconv.Quote(k.Allowed[1])
	case k.Default == "true":
		example = "false"
	case k.Default == "false":
		example = "true"
	case example == "":
		example = "…"
	case example == `""`:
		example = `"…"`
	}
	m.From = "/etc/gpuadm/node.toml and node.d/*.toml, the file that is last in name order wins"
	line := k.Name + " = " + example
	if k.Section != "" {
		line += " below [" + k.Section + "]"
	}
	m.Try = []string{line, "then: gpuadm plan"}
	return m
}

func keyName(k spec.Key) string {
	if k.Section == "" {
		return k.Name
	}
	return k.Section + "." + k.Name
}

func keyNames() (names []string) {
	for _, k := range spec.Keys() {
		names = append(names, keyName(k), k.Name, k.Section)
	}
	return unique(slices.DeleteFunc(names, func(n string) bool { return n == "" }))
}

func ofLabel(word string) []explanation {
	key, _, _ := strings.Cut(word, "=") // as kubectl shows labels and taints
	key, _, _ = strings.Cut(key, ":")
	k, ok := node.Know(key)
	if !ok {
		return nil
	}
	return []explanation{{Word: key, Is: "a " + k.Is + " of the Node", What: k.What, From: "It is written by: " + k.By, Try: strings.Split(k.Try, "; ")}}
}

func labelNames() (names []string) {
	for _, k := range node.KnownKeys() {
		if !strings.Contains(k.Key, "*") {
			names = append(names, k.Key)
		}
	}
	return names
}

// profileOf is the name of a profile as tables have it: labels write a dot for the plus, and resources begin with mig-.
func profileOf(word string) string {
	word = strings.TrimPrefix(strings.TrimPrefix(word, "nvidia.com/"), "mig-")
	if at := strings.LastIndex(word, "gb."); at > 0 {
		word = word[:at+2] + "+" + word[at+3:]
	}
	return word
}

func ofProfile(word string) []explanation {
	name := profileOf(word)
	var rows []string
	var one host.Profile
	for _, m := range mig.Models() {
		for _, p := range m.Profiles {
			if p.Name != name {
				continue
			}
			one = p
			var starts []string
			for _, at := range p.Places {
				starts = append(starts, strconv.Itoa(at.Start))
			}
			row := fmt.Sprintf("%-24s at most %d", m.Name, p.Max)
			if p.Memory > 0 {
				row += fmt.Sprintf(", of %.2f GiB", float64(p.Memory)/(1<<30))
			}
			if p.ID >= 0 { // of other profiles only the driver knows where they begin
				row += ", from memory slice " + strings.Join(starts, ", ")
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	what := fmt.Sprintf("A part of a GPU with %d of its compute slices, and about so many GB of memory as its name says.", one.Slices)
	if one.Slices > 0 && strings.Contains(name, "+") {
		what += " What follows the plus has engines that not every partition can have: me media, gfx graphics, all all of them."
	}
	return []explanation{{
		Word: name, Is: "a MIG profile", What: what, Matters: "A GPU with MIG gives each pod its own memory and compute; how many fit depends on the GPU and on what else is on it.",
		Where: rows, From: "[mig] in node.toml asks for it; pods ask for nvidia.com/mig-" + strings.ReplaceAll(name, "+", ".") + " with the strategy mixed",
		Try: []string{"[[mig.gpu]] layout = { \"" + name + "\" = 1 }, then: gpuadm plan mig", "gpuadm mig fit and gpuadm mig profiles show what fits beside it"},
	}}
}

func profileNames() (names []string) {
	for _, m := range mig.Models() {
		for _, p := range m.Profiles {
			names = append(names, p.Name)
		}
	}
	return unique(names)
}

// ofText finds an error text in what was pasted, or by its name. Of several the most specific is explained, the others are named.
func ofText(word string) []explanation {
	found := explain.Find(word)
	for _, t := range explain.Texts() {
		if t.Name == word {
			found = []explain.Text{t}
		}
	}
	if len(found) == 0 {
		return nil
	}
	t := found[0]
	m := explanation{Word: t.Name, Is: "an error of " + t.By, What: t.What, Matters: t.Matters, Try: t.Try, Source: strings.Join(t.Sources, " ")}
	for _, more := range found[1:] {
		m.Try = append(m.Try, "the text also has "+more.Name+": gpuadm explain "+more.Name)
	}
	return []explanation{m}
}

func textNames() (names []string) {
	for _, t := range explain.Texts() {
		names = append(names, t.Name)
	}
	return names
}
