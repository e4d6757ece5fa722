// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Command bench sets gpuadm beside `nvidia-ctk runtime configure` on the same files, in the same run, and prints
// ratios. Run it with `make bench`; it needs hyperfine. Its part about the journal alone: go run ./test/bench journal
package main

import (
	"encoding/json"
	"errors"
	"fmt"
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
	for program, of := range map[string]string{"hyperfine": "hyperfine", "/usr/bin/time": "time"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("cannot measure: %s is missing; apt-get install %s", program, of)
		}
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
	if err := b.lay(); err != nil {
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

// installed copies a program, as a package manager writes one: what the linker has just written lies in the kernel's cache in
// other pieces, and then more of it counts as the process's memory.
func installed(program, dir string) (string, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, filepath.Base(program))
	return to, os.WriteFile(to, text, 0o755)
}

type bench struct {
	dir, gpuadm, ctk string
	config           []byte
}

// lay makes a root folder with containerd 1.7 for ours, and a folder with the same file for theirs.
func (b bench) lay() error {
	for name, text := range map[string]string{
		"root/etc/os-release":                    "ID=debian\nVERSION_ID=\"13\"\n",
		"root/etc/containerd/config.toml":        string(b.config),
		"root/usr/bin/containerd":                "",
		"root/usr/bin/nvidia-container-runtime":  "",
		"root/var/lib/dpkg/status":               "Package: containerd\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.7.24~ds1-6\n\n",
		"root/var/lib/dpkg/info/containerd.list": "/usr/bin/containerd\n",
		"theirs/config.toml":                     string(b.config),
		"node.toml":                              nodeSpec,
		"config.toml":                            string(b.config),
	} {
		at := filepath.Join(b.dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (b bench) compare() error {
	root, reference := filepath.Join(b.dir, "root"), filepath.Join(b.dir, "theirs")
	gpuadm := []string{b.gpuadm, "apply", "--root", root, "-f", filepath.Join(b.dir, "node.toml"), "-q"}
	peer := []string{b.ctk, "runtime", "configure", "--runtime=containerd", "--set-as-default", "--config=" + reference + "/config.toml", "--drop-in-config=" + reference + "/conf.d/99-nvidia.toml"}
	fresh := fmt.Sprintf("cp %[1]s/config.toml %[2]s/etc/containerd/config.toml; cp %[1]s/config.toml %[3]s/config.toml; rm -rf %[2]s/var/lib/gpuadm %[3]s/conf.d", b.dir, root, reference)

	fmt.Println("                     gpuadm      nvidia-ctk   ratio")
	first, err := b.hyperfine(fresh, gpuadm, peer)
	if err != nil {
		return err
	}
	row("first edit, wall", first, "ms")
	noop, err := b.hyperfine("true", gpuadm, peer)
	if err != nil {
		return err
	}
	row("no-op, wall", noop, "ms")
	if err := b.memory("no-op, peak memory", gpuadm, peer); err != nil {
		return err
	}
	if err := b.handlers(1000, root, reference); err != nil {
		return err
	}
	if err := b.memory("with 1,000 handlers", gpuadm, peer); err != nil {
		return err
	}
	if err := b.journals(); err != nil {
		return err
	}
	return partitions()
}

// memory prints the peaks of runs with nothing to do: the first run may have something to do.
func (b bench) memory(what string, commands ...[]string) (err error) {
	var rss [2]float64
	for range 2 {
		for i, argv := range commands {
			if _, rss[i], err = spent(argv); err != nil {
				return err
			}
		}
	}
	row(what, rss, "MiB")
	return nil
}

// handlers adds n handlers to both configurations.
func (b bench) handlers(n int, root, reference string) error {
	var text strings.Builder
	text.Write(b.config)
	for i := range n {
		fmt.Fprintf(&text, "\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.h%d]\nruntime_type = \"io.containerd.runc.v2\"\n", i)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(root, "etc/containerd/config.toml"), []byte(text.String()), 0o644),
		os.WriteFile(filepath.Join(reference, "config.toml"), []byte(text.String()), 0o644),
	)
}

func row(what string, v [2]float64, unit string) {
	fmt.Printf("%-20s %7.1f %-3s %7.1f %-3s  %5.2f\n", what, v[0], unit, v[1], unit, v[0]/v[1])
}

// hyperfine returns the mean wall times in milliseconds.
func (b bench) hyperfine(prepare string, commands ...[]string) (mean [2]float64, err error) {
	out := filepath.Join(b.dir, "times.json")
	args := []string{"--style=none", "--shell=none", "--warmup=3", "--min-runs=30", "--output=null", "--export-json=" + out, "--prepare=sh -c '" + prepare + "'"}
	for _, c := range commands {
		args = append(args, strings.Join(c, " "))
	}
	cmd := exec.Command("hyperfine", args...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return mean, fmt.Errorf("cannot time: %w: %s", err, text)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		return mean, err
	}
	var res struct {
		Results []struct{ Mean float64 }
	}
	if err := json.Unmarshal(data, &res); err != nil {
		return mean, err
	}
	for i, r := range res.Results {
		mean[i] = r.Mean * 1000
	}
	return mean, nil
}
