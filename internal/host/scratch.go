// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// Scratch stands for the private folder in what AskAbout is given.
const Scratch = "{gpuadm scratch folder}"

// AskAbout is View's.
func (l *live) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	dir, err := scratch(files)
	if err != nil {
		return nil, fail("make a scratch folder for", argv[0], err)
	}
	defer os.RemoveAll(dir)
	asked := make([]string, len(argv))
	for i, a := range argv {
		asked[i] = strings.ReplaceAll(a, Scratch, dir)
	}
	return l.runner.ask(ctx, asked)
}

// scratch lays files into a folder that only we can read; wherever their text has Scratch it is that folder.
func scratch(files map[string][]byte) (dir string, err error) {
	// /run is in memory and gone after a boot, so a killed gpuadm leaves nothing for long. Not everybody may write there.
	parent := "/run"
	if os.Geteuid() != 0 {
		parent = os.TempDir()
	}
	if dir, err = os.MkdirTemp(parent, "gpuadm-ask-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	for name, data := range files {
		name = strings.TrimPrefix(name, "/")
		if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return "", err
		}
		text := strings.ReplaceAll(string(data), Scratch, dir)
		if err := root.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	return dir, nil
}
