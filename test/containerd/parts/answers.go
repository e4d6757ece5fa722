// SPDX-License-Identifier: Apache-2.0

package parts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// freshVariable has every question asked again, as a nightly run does.
const freshVariable = "GPUADM_TEST_FRESH"

// An answer is what a part said to a question before. A part is a program whose folder is named by
// its version, and its answer depends on the tree and the arguments alone: who asks the same again,
// after a change that has nothing to do with it, need not start it.
type answer struct {
	Stdout, Stderr []byte
	Exit           int
	Files          map[string][]byte // the tree afterwards, where the part changed it
	Booted         *Booted
}

// question is the file of the answer: made of the part, the arguments and the tree below root, with
// root taken out.
func (p Part) question(root string, args ...string) string {
	cache, err := CacheDir()
	if err != nil || os.Getenv(freshVariable) != "" || os.Getenv("LAB_ALL") != "" {
		return ""
	}
	h := sha256.New()
	info, err := os.Stat(p.Path)
	if err != nil {
		return ""
	}
	fmt.Fprintf(h, "%q %q %d %d\n", p.Path, p.Version, info.Size(), info.ModTime().UnixNano())
	for _, a := range args {
		fmt.Fprintf(h, "%q\n", strings.ReplaceAll(a, root, etc))
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if link, isLink := os.Readlink(path); isLink == nil {
			fmt.Fprintf(h, "%q leads to %q\n", name, link)
		}
		if d.IsDir() && strings.HasSuffix(name, ".toml") { // a pattern of files matches it
			fmt.Fprintf(h, "%q is a folder\n", name)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(h, "%q %q\n", name, unroot(text, root))
		return err
	})
	if err != nil {
		return ""
	}
	sum := hex.EncodeToString(h.Sum(nil))
	return filepath.Join(cache, "answers", sum[:2], sum)
}

func known(file string) (a answer, ok bool) {
	data, err := os.ReadFile(file)
	if file == "" || err != nil {
		return a, false
	}
	return a, json.Unmarshal(data, &a) == nil
}

func learn(file string, a answer) {
	data, err := json.Marshal(a)
	if file == "" || err != nil || os.MkdirAll(filepath.Dir(file), 0o755) != nil {
		return
	}
	temporary := fmt.Sprintf("%s.%d", file, os.Getpid())
	if os.WriteFile(temporary, data, 0o644) == nil {
		_ = os.Rename(temporary, file)
	}
}
