// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const platformFiles = "testdata/platforms.txt"

// TestPlatforms: the number of product files outside internal/platform with a string that names a
// platform never rises. A platform is one file there, and the others ask its value. The package that
// joins a platform, such as cloud/eks, may name it in as many files as it has subjects.
func TestPlatforms(t *testing.T) {
	words := map[string]*regexp.Regexp{}
	for _, p := range platform.Joining() {
		words[p.Name] = regexp.MustCompile(`\b(` + p.Name + `|` + p.Title + `)\b`)
	}

	found := map[string]int{}
	walkGo(t, func(name string, source []byte) {
		isProduct := !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "test/") && !strings.HasPrefix(name, "images/")
		if !isProduct || strings.HasPrefix(name, "internal/platform/") {
			return
		}
		texts := stringsOf(source)
		for platform, word := range words {
			itsPackage := strings.HasPrefix(name, "cloud/"+platform+"/")
			if !itsPackage && word.MatchString(texts) {
				found[platform]++
				if testing.Verbose() {
					t.Logf("%s: %s", platform, name)
				}
			}
		}
	})

	var text strings.Builder
	for _, p := range platform.Joining() {
		fmt.Fprintln(&text, p.Name, found[p.Name])
	}
	if *update {
		must.OK(t, os.WriteFile(platformFiles, []byte(text.String()), 0o644))
	}

	most := map[string]int{}
	for line := range strings.Lines(string(must.Get(os.ReadFile(platformFiles))(t))) {
		var name string
		var number int
		must.Get(fmt.Sscan(line, &name, &number))(t)
		most[name] = number
	}

	for name := range words {
		check.That(t, found[name] <= most[name],
			"%d product files outside internal/platform and cloud/%s name it, and %d did: give its value a field, and ask that; go test ./test/house -run TestPlatforms -v lists them",
			found[name], name, most[name])
	}
}

// stringsOf returns the string literals of a Go file, one a line.
func stringsOf(source []byte) string {
	file := token.NewFileSet().AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)

	var texts []string
	for {
		_, tok, literal := s.Scan()
		switch tok {
		case token.STRING:
			texts = append(texts, literal)
		case token.EOF:
			return strings.Join(texts, "\n")
		}
	}
}
