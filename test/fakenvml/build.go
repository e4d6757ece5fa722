// SPDX-License-Identifier: Apache-2.0

package fakenvml

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

//go:embed c/*.c c/*.h
var sources embed.FS

// What the users of NVML and of CUDA load.
const (
	Soname     = "libnvidia-ml.so.1"
	CUDASoname = "libcuda.so.1"
)

// Parts are the built files.
type Parts struct {
	Dir       string // holds all of them; put it in LD_LIBRARY_PATH and PATH
	Library   string // libnvidia-ml.so.1
	CUDA      string // libcuda.so.1, as far as it tells whether CUDA starts
	Tool      string // fakenvml
	NvidiaSMI string // nvidia-smi
}

// ErrNoCompiler reports that there is no C compiler.
var ErrNoCompiler = errors.New("there is no C compiler (cc)")

// shared are the C files that library and programs share; table.c is generated.
func shared() []string { return []string{"state.c", "mig.c", "words.c", "table.c"} }

// Build compiles library and programs, once per content of their sources, into the user's cache
// folder. Without a compiler the test is skipped, or fails in CI.
func Build(t testing.TB) Parts {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	parts, err := BuildIn(filepath.Join(cache, "gpuadm-fakenvml"))
	if errors.Is(err, ErrNoCompiler) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}

	return parts
}

// BuildIn compiles below dir, in a folder named after the content of the sources, and keeps what
// exists.
func BuildIn(dir string) (Parts, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return Parts{}, ErrNoCompiler
	}
	files, sum, err := read()
	if err != nil {
		return Parts{}, err
	}
	folder := filepath.Join(dir, sum)
	parts := Parts{
		Dir:       folder,
		Library:   filepath.Join(folder, Soname),
		CUDA:      filepath.Join(folder, CUDASoname),
		Tool:      filepath.Join(folder, "fakenvml"),
		NvidiaSMI: filepath.Join(folder, "nvidia-smi"),
	}
	if _, err := os.Stat(parts.Library); err == nil {
		return parts, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Parts{}, err
	}
	work, err := os.MkdirTemp(dir, "work-")
	if err != nil {
		return Parts{}, err
	}
	defer func() { _ = os.RemoveAll(work) }()

	out := filepath.Join(work, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return Parts{}, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(work, name), text, 0o644); err != nil {
			return Parts{}, err
		}
	}

	if err := compile(cc, work, out); err != nil {
		return Parts{}, err
	}

	// The folder appears whole. If another process was faster, its work is the same.
	if err := os.Rename(out, folder); err != nil {
		if _, missing := os.Stat(parts.Library); missing != nil {
			return Parts{}, fmt.Errorf("cannot place the fake NVML: %w", err)
		}
	}

	return parts, nil
}

// read returns the sources, the table among them, and a name for their content.
func read() (map[string][]byte, string, error) {
	models, err := Models()
	if err != nil {
		return nil, "", err
	}

	files := map[string][]byte{"table.c": []byte(table(models))}
	names, err := fs.Glob(sources, "c/*")
	if err != nil {
		return nil, "", err
	}
	for _, name := range names {
		text, err := sources.ReadFile(name)
		if err != nil {
			return nil, "", err
		}
		files[filepath.Base(name)] = text
	}

	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%s %d\n%s", name, len(files[name]), files[name])
	}
	id := hex.EncodeToString(sum.Sum(nil))[:16]

	return files, id, nil
}

func compile(cc, work, out string) error {
	common := []string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"}
	library := func(soname string) []string {
		return []string{"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname," + soname}
	}
	nvml := []string{"call.c", "device.c", "partition.c", "compute.c", "health.c"}
	for name, own := range map[string][]string{
		Soname:       append(library(Soname), nvml...),
		CUDASoname:   append(library(CUDASoname), "cuda.c"),
		"fakenvml":   {"tool.c", "make.c", "dump.c"},
		"nvidia-smi": {"smi.c"},
	} {
		args := slices.Concat(common, own, shared(), []string{"-o", filepath.Join(out, name)})
		cmd := exec.Command(cc, args...)
		cmd.Dir = work
		output, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("cannot compile %s: %w\n%s", name, err, output)
		}
	}

	return nil
}
