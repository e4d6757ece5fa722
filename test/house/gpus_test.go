// SPDX-License-Identifier: Apache-2.0

package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/gpuadm/gpuadm/internal/gputable"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// namesGPUs are the files of the product and of the fake drivers that name a GPU model, and why
// they may. All else reads internal/gputable, so that a new GPU is one row there.
var namesGPUs = map[string]string{
	"internal/gputable/gpus.tsv":       "the table",
	"internal/gputable/drivers.tsv":    "the first driver of each, by branch: make facts",
	"internal/gputable/exceptions.tsv": "what the records of it have wrong",
	"mig/profiles/gpus.json":           "MIG tables, under names that the rows have",

	"drivers/catalog/gpus.toml": "chips of ranges of ids, and exceptions for GPUs that need something special",
	"drivers/imex.go":           "a message about racks, with an example",
	"internal/spec/keys.tsv":    "the description of a key, with an example",
	"stages/owners.go":          "a message about racks, with an example",

	"cmd/gpuadm/bake.go":      "an example",
	"cmd/gpuadm/elsewhere.go": "an example",
	"cmd/gpuadm/mig.go":       "an example",
	"cmd/gpuadm/mirror.go":    "an example",
	"mig/parted_yaml.go":      "an example in a message",

	"test/fakenvml/models.txt":       "which GPUs the fake driver has, by id, and what it alone says of them",
	"test/sim/simhost/gpu_models.go": "which GPUs the simulated machine has, by id, and their MIG profiles",
}

// TestGPUs counts the files that name a GPU model by its PCI device id or its name, outside
// comments.
func TestGPUs(t *testing.T) {
	known := gpuWords()
	found := map[string]bool{}
	for _, folder := range []string{"cloud", "cmd", "drivers", "internal", "mig", "runtime", "stages", "test/fakenvml", "test/sim"} {
		err := filepath.WalkDir("../../"+folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() {
				if entry.Name() == "testdata" || entry.Name() == "help" {
					return fs.SkipDir
				}
				return nil
			}

			name := strings.TrimPrefix(filepath.ToSlash(path), "../../")
			if !readsForGPUs(name) {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if word := gpuNamed(withoutComment(line), known); word != "" {
					found[name] = true
					check.That(t, namesGPUs[name] != "", "%s names a GPU model, %s: a row of internal/gputable/gpus.tsv is the place", name, word)
					break
				}
			}

			return nil
		})
		must.That(t, err == nil, "%v", err)
	}

	for name := range namesGPUs {
		check.That(t, found[name], "%s names no GPU model: take it off the list", name)
	}
}

// gpuWords are the ids and the names of the rows. Names of two signs, such as T4 and L4, mean other
// things too, and are found by id only.
func gpuWords() map[string]bool {
	words := map[string]bool{}
	for _, g := range gputable.All() {
		words[g.ID] = true
		name, _, _ := strings.Cut(g.Product, " ")
		if len(name) > 2 && strings.ContainsAny(name, "0123456789") {
			words[name] = true
		}
	}

	return words
}

// gpuNamed returns the first word of a line that is a GPU's name, or its id: 2330, 0x2330,
// 0x233010DE; "" if there is none.
func gpuNamed(line string, known map[string]bool) string {
	separates := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_'
	}
	for _, word := range strings.FieldsFunc(line, separates) {
		id := strings.TrimPrefix(strings.ToLower(word), "0x")
		if len(id) == len("233010de") {
			id = strings.TrimSuffix(id, "10de")
		}
		if known[word] || known[id] {
			return word
		}
	}

	return ""
}

// readsForGPUs reports whether a file is code or data of the product or of a fake.
func readsForGPUs(name string) bool {
	if strings.HasSuffix(name, "_test.go") {
		return false
	}
	return slices.Contains([]string{".go", ".c", ".h", ".txt", ".toml", ".tsv", ".json"}, filepath.Ext(name))
}

// withoutComment cuts a line where a comment of Go, C, TOML or a table begins.
func withoutComment(line string) string {
	code, _, _ := strings.Cut(line, "//")
	code, _, _ = strings.Cut(code, "# ")
	return code
}
