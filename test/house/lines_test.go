// SPDX-License-Identifier: Apache-2.0

package house

import (
	"flag"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// widest is the column at which a line of code ends; a tab counts four.
const widest = 110

const longLinesFile = "testdata/long-lines.txt"

var update = flag.Bool("update", false, "write "+longLinesFile)

// TestLines: the number of lines that are too long never rises. A line may be long by one string, or
// as the row of a table.
func TestLines(t *testing.T) {
	found := map[string]int{}
	walkGo(t, func(name string, source []byte) {
		part := "product"
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/") {
			part = "tests"
		}
		lines := strings.Split(string(source), "\n")
		free := longStrings(source)
		for i, line := range lines {
			if columns(line) > widest && !free[i+1] && !isRow(lines, i) {
				found[part]++
				if testing.Verbose() {
					t.Logf("%s:%d", name, i+1)
				}
			}
		}
	})

	text := "product " + strconv.Itoa(found["product"]) + "\ntests " + strconv.Itoa(found["tests"]) + "\n"
	if *update {
		must.OK(t, os.WriteFile(longLinesFile, []byte(text), 0o644))
	}
	for line := range strings.Lines(string(must.Get(os.ReadFile(longLinesFile))(t))) {
		part, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		most := must.Get(strconv.Atoi(number))(t)
		check.That(t, found[part] <= most,
			"%d lines of the %s are over %d columns, and %d were: split where the thought splits; go test ./test/house -run TestLines -v lists them",
			found[part], part, widest, most)
	}
}

func walkGo(t *testing.T, visit func(name string, source []byte)) {
	t.Helper()
	const top = "../.."
	err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		source, err := os.ReadFile(path)
		name, _ := filepath.Rel(top, path)
		visit(name, source)
		return err
	})
	must.OK(t, err)
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
}

// longStrings are the lines that would be short enough without their longest string or comment, and
// those inside a string of several lines.
func longStrings(source []byte) map[int]bool {
	free := map[int]bool{}
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	lines := strings.Split(string(source), "\n")
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return free
		}
		if kind != token.STRING && kind != token.COMMENT {
			continue
		}
		first := file.Line(pos)
		for i := range strings.Count(text, "\n") {
			free[first+i] = true
		}
		last := first + strings.Count(text, "\n")
		rest := columns(lines[last-1]) - utf8.RuneCountInString(text)
		if kind == token.STRING && rest <= widest-20 {
			free[last] = true
		}
	}
}

// isRow says whether a line is an element of a composite literal between others of its kind: it
// begins with a brace or a key, and a line beside it does so too.
func isRow(lines []string, i int) bool {
	row := func(line string) bool {
		line = strings.TrimSpace(line)
		return strings.HasPrefix(line, "{") && strings.HasSuffix(line, "},") ||
			strings.HasPrefix(line, `"`) && strings.HasSuffix(line, ",")
	}

	before := i > 0 && row(lines[i-1])
	after := i+1 < len(lines) && row(lines[i+1])
	return row(lines[i]) && (before || after)
}
