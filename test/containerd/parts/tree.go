package parts

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// etc is where a config tree lives on a real machine.
const etc = "/etc/containerd"

// Lay writes a config tree into a temporary folder and returns that folder.
// Names are relative to /etc/containerd, or absolute. Wherever the text of a
// file has "/etc/containerd" (in imports, in config_path), or the folder of a
// file that lies elsewhere, the temporary folder is written instead; Files and
// Dump turn that back for /etc/containerd.
func Lay(t testing.TB, files map[string][]byte) (root string) {
	t.Helper()
	root = t.TempDir()
	var moved []string
	for name := range files {
		if filepath.IsAbs(name) && !strings.HasPrefix(name, etc+"/") {
			dir := filepath.Dir(name)
			moved = append(moved, dir, filepath.Join(root, "elsewhere", filepath.Base(dir)))
		}
	}

	inside := strings.NewReplacer(append(moved, etc, root)...) // the first that fits wins
	for name, text := range files {
		local := strings.TrimPrefix(name, etc+"/")
		if filepath.IsAbs(local) {
			local, _ = filepath.Rel(root, inside.Replace(name))
		}
		must.That(t, filepath.IsLocal(local), "cannot lay %s: it leads out of the folder", name)
		path := filepath.Join(root, local)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		must.That(t, err == nil, "cannot lay %s: %v", name, err)
		err = os.WriteFile(path, []byte(inside.Replace(string(text))), 0o644)
		must.That(t, err == nil, "cannot lay %s: %v", name, err)
	}

	return root
}

// Files reads a tree laid by Lay back, by names relative to /etc/containerd.
func Files(t testing.TB, root string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[name] = unroot(text, root)
		return nil
	})
	must.That(t, err == nil, "cannot read the config tree: %v", err)
	return files
}

// unroot writes /etc/containerd where a text has the temporary folder.
func unroot(text []byte, root string) []byte {
	return bytes.ReplaceAll(text, []byte(root), []byte(etc))
}
