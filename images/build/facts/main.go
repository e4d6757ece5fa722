// SPDX-License-Identifier: Apache-2.0

// Command facts makes the tables of facts about NVIDIA's drivers from published records: which
// driver is the first for a GPU, by branch; which drivers do not build on a kernel; which drivers a
// security bulletin is about. It shows what changes.
//
//	make facts DIR=records
//
// The folder has the records, each under its name: Git repositories, bare ones too, and in debian/
// changelogs of Debian's packages of the driver. Without an argument the command says how to get
// them.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 || os.Args[1] == "" {
		fmt.Fprint(os.Stderr, usage())
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func usage() string {
	text := "usage: make facts DIR=FOLDER\nThe folder's records:\n"
	for _, name := range slices.Sorted(maps.Keys(repositories)) {
		text += "  git clone --bare " + repositories[name] + " FOLDER/" + name + "\n"
	}
	return text + "  FOLDER/debian: changelogs of Debian's packages, changelog.Debian.gz under any name\n"
}

// run makes all tables.
func run(folder string) error {
	exceptions, err := readExceptions("internal/gputable/exceptions.tsv")
	if err != nil {
		return err
	}
	lists, err := readLists(folder)
	if err != nil {
		return err
	}
	err = write("internal/gputable/drivers.tsv", gpuTable(merge(lists, exceptions), lists))
	if err != nil {
		return err
	}
	if err := makeKernels(folder); err != nil {
		return err
	}
	return makeBulletins(folder)
}

// readLists reads all lists of GPUs.
func readLists(folder string) (all []list, err error) {
	readers := []struct {
		name string
		read func(records) ([]list, error)
	}{
		{"open-gpu-kernel-modules", readmes},
		{"amazon-eks-ami", eksLists},
		{"nvidia-open-driver-G06", suseLists},
		{"nvidia-graphics-drivers", debianLists},
	}
	for _, reader := range readers {
		r, err := open(folder, reader.name)
		if err != nil {
			return nil, err
		}
		lists, err := reader.read(r)
		if err != nil {
			return nil, err
		}
		if len(lists) == 0 {
			return nil, fmt.Errorf("cannot use %s: no list of GPUs was found in it", r)
		}
		all = append(all, lists...)
	}

	return all, nil
}

// readExceptions reads the typed rows: id, first drivers, reason, source, month.
func readExceptions(name string) (all []exception, err error) {
	rows, err := readRows(name, 5)
	for _, row := range rows {
		all = append(all, exception{row[0], row[1], row[2]})
	}
	return all, err
}

// readRows reads a table that people write: columns with tabs between, and comments that
// begin with #.
func readRows(name string, columns int) (rows [][]string, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(row) != columns {
			return nil, fmt.Errorf("cannot read %s: %q has %d columns, not %d", name, line, len(row), columns)
		}
		rows = append(rows, row)
	}

	return rows, nil
}

// gpuTable writes the rows as text.
func gpuTable(rows []gpu, lists []list) string {
	newest := map[string]list{}
	for _, l := range lists {
		if compare(l.Version, newest[l.Source].Version) >= 0 {
			newest[l.Source] = l
		}
	}

	var b strings.Builder
	b.WriteString(`# SPDX-License-Identifier: Apache-2.0
#
# Made by make facts: do not edit. What the records have wrong, or do not say, is a row of exceptions.tsv.
# The first driver of each branch that serves a GPU. 570.169 575.64 580+: in branch 570 from 570.169 on, in 575 from
# 575.64 on, and in all branches from 580 on. A branch between that is not named does not have the GPU; one before
# the first does not either, but for 515+, of which nothing older is said: 515 is the first branch with open modules.
#
# Records by their short names, and the newest driver of each:
`)
	for _, source := range slices.Sorted(maps.Keys(newest)) {
		l := newest[source]
		name, repository := shortNames[source], repositories[source]
		fmt.Fprintf(&b, "#   %s: %s, to %s (%s)\n", name, repository, l.Version, l.Month)
	}

	b.WriteString("#\n# id\tname\tmodules\tfirst\tsources\tmonth\n")

	for _, g := range rows {
		sources := make([]string, len(g.Sources))
		for i, source := range g.Sources {
			sources[i] = shortNames[source]
		}
		if g.Why != "" {
			sources = append(sources, "exceptions")
		}
		fields := []string{
			g.ID, g.Name, g.Modules, strings.Join(g.First, " "), strings.Join(sources, " "), g.Month,
		}
		for i, field := range fields {
			fields[i] = cmp.Or(field, "-")
		}
		b.WriteString(strings.Join(fields, "\t") + "\n")
	}

	return b.String()
}

// shortNames are the records' names in the rows.
var shortNames = map[string]string{
	"open-gpu-kernel-modules": "readme",
	"amazon-eks-ami":          "ami",
	"nvidia-open-driver-G06":  "suse",
	"nvidia-graphics-drivers": "debian",
}

// write writes a table, and shows what changes by it.
func write(name, text string) error {
	before, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if bytes.Equal(before, []byte(text)) {
		fmt.Printf("%s: no change\n", name)
		return nil
	}

	fmt.Printf("%s:\n", name)
	was := rowsOf(string(before))
	is := rowsOf(text)
	for _, row := range was {
		if !slices.Contains(is, row) {
			fmt.Printf("- %s\n", row)
		}
	}

	for _, row := range is {
		if !slices.Contains(was, row) {
			fmt.Printf("+ %s\n", row)
		}
	}

	return os.WriteFile(filepath.Clean(name), []byte(text), 0o644)
}

func rowsOf(text string) (rows []string) {
	for line := range strings.Lines(text) {
		rows = append(rows, strings.TrimRight(line, "\n"))
	}
	return rows
}
