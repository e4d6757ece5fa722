// SPDX-License-Identifier: Apache-2.0

// Command bench compares gpuadm with `nvidia-ctk runtime configure` on the same files, in the same
// run, and prints ratios. Run it with `make bench`; it needs hyperfine. Its part about the journal
// alone: go run ./test/bench journal
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

const nodeSpec = "format = 1\n[runtime]\nset_as_default = true\n"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "gpuadm-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	if err := refuseMissing(); err != nil {
		return err
	}
	gpuadm, err := installed("bin/gpuadm", dir)
	if err != nil {
		return err
	}
	config, err := os.ReadFile("test/containerd/corpus/08-v2-containerd17-default.toml")
	if err != nil {
		return err
	}

	b := bench{dir: dir, gpuadm: gpuadm, config: config}
	if err := b.writeFiles(); err != nil {
		return err
	}
	if len(os.Args) > 1 && os.Args[1] == "journal" {
		return b.journals()
	}

	ctk, err := parts.Find(parts.CTK)
	if err != nil {
		return err
	}
	if b.ctk, err = installed(ctk.Path, dir); err != nil {
		return err
	}

	return b.compare()
}

// refuseMissing refuses to measure without the programs that measure.
func refuseMissing() error {
	packages := map[string]string{"hyperfine": "hyperfine", "/usr/bin/time": "time"}
	for program, name := range packages {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("cannot measure: %s is missing; apt-get install %s", program, name)
		}
	}

	return nil
}

// installed copies a program in small pieces, as a package manager writes one. The kernel caches
// what is written at once, or has just been linked, in large pieces, and maps such a piece whole:
// then nearly all of the program counts as the process's memory (22.1 for 18.0 MiB). After a boot
// it is read in small pieces, too.
func installed(program, dir string) (string, error) {
	from, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer from.Close()

	name := filepath.Join(dir, filepath.Base(program))
	to, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}

	type plain struct{ io.Writer } // else the kernel copies the whole file at once
	_, err = io.CopyBuffer(plain{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))

	return name, errors.Join(err, to.Close())
}

type bench struct {
	dir    string
	gpuadm string
	ctk    string
	config []byte
}

// writeFiles makes a root folder with containerd 1.7 for gpuadm, and a folder with the same file
// for nvidia-ctk.
func (b bench) writeFiles() error {
	for name, text := range map[string]string{
		"root/etc/os-release":                    "ID=debian\nVERSION_ID=\"13\"\n",
		"root/lib64/ld-linux-x86-64.so.2":        "",
		"root/etc/containerd/config.toml":        string(b.config),
		"root/usr/bin/containerd":                "",
		"root/usr/bin/nvidia-container-runtime":  "",
		"root/var/lib/dpkg/status":               "Package: containerd\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.7.24~ds1-6\n\n",
		"root/var/lib/dpkg/info/containerd.list": "/usr/bin/containerd\n",
		"theirs/config.toml":                     string(b.config),
		"node.toml":                              nodeSpec,
		"config.toml":                            string(b.config),
	} {
		file := filepath.Join(b.dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			return err
		}
	}

	return nil
}

func (b bench) compare() error {
	root := filepath.Join(b.dir, "root")
	reference := filepath.Join(b.dir, "theirs")
	gpuadm, peer := b.commands()

	fmt.Println("                                       gpuadm  nvidia-ctk   ratio")
	if err := b.times("start", "true", []string{b.gpuadm, "version"}, []string{b.ctk, "--version"}); err != nil {
		return err
	}
	if err := b.firstEdits(); err != nil {
		return err
	}
	if err := b.times("no-op", "true", gpuadm, peer); err != nil {
		return err
	}
	if err := b.memory("no-op, peak memory", gpuadm, peer); err != nil {
		return err
	}
	if err := b.handlers(1000, root, reference); err != nil {
		return err
	}
	if err := b.memory("with 1,000 handlers", gpuadm, peer); err != nil {
		return err
	}

	return b.journals()
}

// commands are gpuadm's and nvidia-ctk's for the same work.
func (b bench) commands() (gpuadm, peer []string) {
	spec := filepath.Join(b.dir, "node.toml")
	reference := filepath.Join(b.dir, "theirs")
	gpuadm = []string{b.gpuadm, "apply", "--root", filepath.Join(b.dir, "root"), "-f", spec, "-q"}
	peer = []string{
		b.ctk, "runtime", "configure", "--runtime=containerd", "--set-as-default",
		"--config=" + reference + "/config.toml",
		"--drop-in-config=" + reference + "/conf.d/99-nvidia.toml",
	}

	return gpuadm, peer
}

// firstEdits times the first edit of a file on a disk, and in memory, where nothing waits for a
// disk: gpuadm has the kernel write its journal, its blobs and the file out (fsync(2)) before it
// continues, and nvidia-ctk never does.
func (b bench) firstEdits() error {
	memory, err := os.MkdirTemp("/dev/shm", "gpuadm-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(memory)
	inMemory := b
	inMemory.dir = memory
	if err := inMemory.writeFiles(); err != nil {
		return err
	}

	if err := b.firstEdit("first edit"); err != nil {
		return err
	}
	return inMemory.firstEdit("first edit without fsync")
}

func (b bench) firstEdit(what string) error {
	const prepare = "cd %s; cp config.toml root/etc/containerd/config.toml; cp config.toml theirs/config.toml; rm -rf root/var/lib/gpuadm theirs/conf.d"
	gpuadm, peer := b.commands()
	return b.times(what, fmt.Sprintf(prepare, b.dir), gpuadm, peer)
}

// times prints wall and processor times.
func (b bench) times(what, prepare string, commands ...[]string) error {
	wall, processor, err := b.hyperfine(prepare, commands...)
	if err != nil {
		return err
	}

	row(what+", wall", wall, "ms")
	row(what+", processor", processor, "ms")
	return nil
}

// memory prints the peaks of runs with nothing to do: the first run may have something to do.
func (b bench) memory(what string, commands ...[]string) error {
	var peaks [2]float64
	for range 2 {
		for i, argv := range commands {
			_, peak, err := spent(argv)
			if err != nil {
				return err
			}
			peaks[i] = peak
		}
	}

	row(what, peaks, "MiB")
	return nil
}

// handlers adds n handlers to both configurations.
func (b bench) handlers(n int, root, reference string) error {
	const handler = "\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.h%d]\nruntime_type = \"io.containerd.runc.v2\"\n"
	var text strings.Builder
	text.Write(b.config)
	for i := range n {
		fmt.Fprintf(&text, handler, i)
	}

	return errors.Join(
		os.WriteFile(filepath.Join(root, "etc/containerd/config.toml"), []byte(text.String()), 0o644),
		os.WriteFile(filepath.Join(reference, "config.toml"), []byte(text.String()), 0o644))
}

func row(what string, v [2]float64, unit string) {
	fmt.Printf("%-33s %7.1f %-3s %7.1f %-3s  %5.2f\n", what, v[0], unit, v[1], unit, v[0]/v[1])
}

// hyperfine returns the medians of the wall times and the means of the processor times, in
// milliseconds.
func (b bench) hyperfine(prepare string, commands ...[]string) (wall, processor [2]float64, err error) {
	out := filepath.Join(b.dir, "times.json")
	args := []string{
		"--style=none", "--shell=none", "--output=null",
		"--warmup=3", "--min-runs=50",
		"--export-json=" + out,
		"--prepare=sh -c '" + prepare + "'",
	}
	for _, c := range commands {
		args = append(args, strings.Join(c, " "))
	}
	text, err := exec.Command("hyperfine", args...).CombinedOutput()
	if err != nil {
		return wall, processor, fmt.Errorf("cannot time: %w: %s", err, text)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		return wall, processor, err
	}
	var times struct {
		Results []struct{ Median, User, System float64 }
	}
	if err := json.Unmarshal(data, &times); err != nil {
		return wall, processor, err
	}
	for i, r := range times.Results {
		wall[i] = r.Median * 1000
		processor[i] = (r.User + r.System) * 1000
	}

	return wall, processor, nil
}
