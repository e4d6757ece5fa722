// SPDX-License-Identifier: Apache-2.0

// Metal checks gpuadm on a machine with real GPUs, and prints what its authors need to know. It
// only reads; with -full it makes each layout that the GPUs offer, and undoes it. docs/metal.md
// says what each touches.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// journal exists on a machine that gpuadm has changed.
const journal = "/var/lib/gpuadm"

type check struct {
	gpuadm string
	dir    string // of the specs
	out    io.Writer
}

func main() {
	gpuadm := flag.String("gpuadm", "gpuadm", "the `program` to check")
	report := flag.String("o", "", "write the report to this `file`, too")
	full := flag.Bool("full", false, "change the partitions of GPUs that no process uses, and undo it")
	flag.Parse()

	if err := run(*gpuadm, *report, *full); err != nil {
		fmt.Fprintln(os.Stderr, "metal:", err)
		os.Exit(1)
	}
}

func run(gpuadm, report string, full bool) error {
	gpuadm, err := exec.LookPath(gpuadm)
	if err != nil {
		return err
	}
	if gpuadm, err = filepath.Abs(gpuadm); err != nil {
		return err
	}
	row, err := rowOf(gpuadm, full)
	if err != nil {
		return err
	}
	// gpuadm refuses files that users other than root can replace.
	dir, err := os.MkdirTemp("/run", "gpuadm-metal-")
	if err != nil {
		return fmt.Errorf("cannot make a folder for the specs: %w; run it as root", err)
	}

	defer os.RemoveAll(dir)
	c := check{gpuadm, dir, os.Stdout}
	if report != "" {
		f, err := os.Create(report)
		if err != nil {
			return err
		}
		defer f.Close()
		c.out = io.MultiWriter(os.Stdout, f)
	}

	fmt.Fprintf(c.out, "### README's row\n%s\n", row)
	layouts, err := c.read()
	if err != nil || !full {
		return err
	}
	return c.change(layouts)
}

// rowOf is the machine's row in README's table. If no driver answers it fails: a report from there
// says nothing about GPUs.
func rowOf(gpuadm string, full bool) (string, error) {
	text, err := exec.Command(gpuadm, "facts", "-o", "json").Output()
	var facts struct {
		Machine, NoDriver string
		OS                struct{ Name string }
		Kernel            struct{ Running string }
		Driver            struct {
			Version string
			GPUs    []struct{ Name string }
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &facts)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the facts of this machine: %w", err)
	}
	if facts.NoDriver != "" {
		return "", fmt.Errorf("cannot check GPUs: no NVIDIA driver answers on this machine (%s); run it as root where nvidia-smi lists GPUs", facts.NoDriver)
	}

	counts := map[string]int{}
	for _, g := range facts.Driver.GPUs {
		counts[g.Name]++
	}
	var gpus []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		gpus = append(gpus, fmt.Sprintf("%d × %s", counts[name], name))
	}
	tried := "not tried"
	if full {
		tried = "see its last line"
	}
	version, err := exec.Command(gpuadm, "version").Output()
	columns := []string{
		facts.Machine,
		strings.Join(gpus, ", "),
		facts.Driver.Version,
		facts.OS.Name + ", " + facts.Kernel.Running,
		strings.TrimSpace(strings.TrimPrefix(string(version), "gpuadm ")),
		tried,
		"this issue",
	}

	return "| " + strings.Join(columns, " | ") + " |", err
}

// do runs a command and reports its output, exit status and time.
func (c check) do(args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began).Seconds()

	status := "0"
	if err != nil {
		status = err.Error()
	}
	words := slices.Clone(args)
	words[0] = filepath.Base(args[0])
	fmt.Fprintf(c.out, "### %s: %s, %.1f s\n", strings.Join(words, " "), status, took)
	fmt.Fprintf(c.out, "%s%s\n", stdout.Bytes(), stderr.Bytes())

	return stdout.Bytes(), err
}

// read changes nothing. It returns the names of the layouts that the GPUs offer.
func (c check) read() ([]string, error) {
	for _, args := range [][]string{
		{c.gpuadm, "version"},
		{c.gpuadm, "facts"},
		{c.gpuadm, "facts", "--record"},
		{c.gpuadm, "mig", "profiles"},
		{c.gpuadm, "mig", "export"},
		{"nvidia-smi", "mig", "-lgip"},
		{"nvidia-smi", "mig", "-lgipp"},
		{"nvidia-smi", "topo", "-m"},
	} {
		_, _ = c.do(args...) // what a machine does not have is in the report
	}

	text, err := c.do(c.gpuadm, "mig", "generate", "-o", "json")
	if err != nil {
		return nil, errors.New("cannot list the layouts of the GPUs: the report says why")
	}
	var file struct {
		Layouts map[string]json.RawMessage `json:"mig-configs"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("cannot read the layouts of the GPUs: %w", err)
	}
	layouts := filepath.Join(c.dir, "layouts.yaml")
	if err := os.WriteFile(layouts, text, 0o600); err != nil { // JSON is YAML
		return nil, err
	}

	names := slices.Sorted(maps.Keys(file.Layouts))
	for _, name := range names {
		if err := c.spec(name); err != nil {
			return nil, err
		}
		_, _ = c.do(c.gpuadm, "plan", "mig", "-f", c.specFile(name))
	}

	return names, nil
}

func (c check) specFile(layout string) string {
	return filepath.Join(c.dir, layout+".toml")
}

// spec writes a spec that leaves GPUs in use alone.
func (c check) spec(layout string) error {
	const format = "format = 1\n[mig]\nfile = %q\nlayout = %q\nfailure = \"per-gpu\"\n"
	text := fmt.Sprintf(format, filepath.Join(c.dir, "layouts.yaml"), layout)
	return os.WriteFile(c.specFile(layout), []byte(text), 0o600)
}

// change makes each layout and undoes it. It stops if the GPUs are not as they were.
func (c check) change(layouts []string) error {
	if _, err := os.Stat(journal); err == nil {
		return fmt.Errorf("cannot change partitions: gpuadm has changed this machine before (%s is there), and an undo would hold its boot unit", journal)
	}
	before, err := c.do(c.gpuadm, "mig", "export")
	if err != nil {
		return errors.New("cannot read the partitions: the report says why")
	}

	open := 0
	for _, name := range layouts {
		spec := c.specFile(name)
		if _, err := c.do(c.gpuadm, "apply", "mig", "-f", spec, "--allow", "reset-gpu"); err != nil {
			open++ // or a GPU is in use, and gpuadm has left it alone
		}
		_, _ = c.do(c.gpuadm, "mig", "export")
		_, undoErr := c.do(c.gpuadm, "undo", "--yes", "--allow", "reset-gpu")
		after, readErr := c.do(c.gpuadm, "mig", "export")
		if undoErr != nil || readErr != nil || !bytes.Equal(before, after) {
			return fmt.Errorf("cannot restore the partitions after %s: the report says why; gpuadm undo continues, and a reboot of the machine ends MIG instances", name)
		}
	}

	fmt.Fprintf(c.out, "### %d layouts, of which %d were not made on all GPUs that offer them; the partitions are as before\n", len(layouts), open)

	return nil
}
