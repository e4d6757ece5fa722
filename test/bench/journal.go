// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	journalRuns  = 10_001 // the last of them is of the spec that the machine is converged by
	garbage      = 100 << 20
	journalTries = 25
)

// cost is what a command takes, as the median of several runs.
type cost struct {
	wall time.Duration
	peak float64 // of memory, in MiB
}

func (c cost) ms() float64 { return c.wall.Seconds() * 1000 }

// journals compares what a converged machine costs with an empty journal, with one of 10,000 runs
// that the first apply has compacted, and with one of garbage. Each run has changed containerd's
// configuration from one spec to the other.
func (b bench) journals() error {
	root := filepath.Join(b.dir, "root")
	spec := filepath.Join(b.dir, "node.toml")
	journal := filepath.Join(root, "var/lib/gpuadm/journal.jsonl")
	command := func(verb string) []string {
		return []string{b.gpuadm, verb, "--root", root, "-f", spec, "-q"}
	}
	if err := os.RemoveAll(filepath.Dir(journal)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "etc/containerd/config.toml"), b.config, 0o644); err != nil {
		return err
	}

	for _, text := range []string{nodeSpec, "format = 1\n[runtime]\n", nodeSpec} {
		if err := os.WriteFile(spec, []byte(text), 0o644); err != nil {
			return err
		}
		if _, _, err := spent(command("apply")); err != nil {
			return err
		}
	}

	runs, err := runsOf(journal)
	if err != nil {
		return err
	}

	fmt.Printf("\njournal                            empty      %d runs        %d MiB of garbage\n", journalRuns, garbage>>20)
	fmt.Printf("                                                    ratio                  ratio\n")
	for _, verb := range []string{"plan", "apply", "gate"} {
		empty, err := withGarbage(journal, nil, command(verb))
		if err != nil {
			return err
		}
		long, err := withRuns(journal, runs, command("apply"), command(verb))
		if err != nil {
			return err
		}
		block := bytes.Repeat([]byte("no record at all\n"), 1<<12)
		broken, err := withGarbage(journal, block, command(verb))
		if err != nil {
			return err
		}

		fmt.Printf("%-24s %10.1f ms  %7.1f ms %6.2f    %7.1f ms %6.2f\n", verb+", wall",
			empty.ms(), long.ms(), long.ms()/empty.ms(), broken.ms(), broken.ms()/empty.ms())
		fmt.Printf("%-24s %10.1f MiB %7.1f MiB %+.1f    %7.1f MiB %+.1f\n", verb+", peak memory",
			empty.peak, long.peak, long.peak-empty.peak, broken.peak, broken.peak-empty.peak)
	}

	return nil
}

// withGarbage measures a command with a journal of this block, again and again; nil: with an empty
// one.
func withGarbage(journal string, block []byte, command []string) (cost, error) {
	if err := write(journal, func(int) []byte { return block }, garbage/(17<<12)); err != nil {
		return cost{}, err
	}
	return typical(command)
}

// withRuns measures a command with a journal of many runs, which an apply has compacted.
func withRuns(journal string, runs [][]byte, apply, command []string) (cost, error) {
	if err := repeat(journal, runs); err != nil {
		return cost{}, err
	}
	was, _ := os.Stat(journal)
	took, peak, err := spent(apply)
	if err != nil {
		return cost{}, err
	}
	if command[1] == "plan" { // the first of the verbs
		now, _ := os.Stat(journal)
		fmt.Printf("compacted: %d KiB to %d KiB in %d ms, %.1f MiB\n", was.Size()>>10, now.Size()>>10, took.Milliseconds(), peak)
	}

	return typical(command)
}

// runsOf are the journal's three runs, each with its lines.
func runsOf(journal string) ([][]byte, error) {
	data, err := os.ReadFile(journal)
	if err != nil {
		return nil, err
	}

	var runs [][]byte
	data = regexp.MustCompile(`,"crc32":"[0-9a-f]*"`).ReplaceAll(data, nil) // repeat changes the lines
	for line := range bytes.Lines(data) {
		if bytes.Contains(line, []byte(`"what":"begin"`)) {
			runs = append(runs, nil)
		}
		last := len(runs) - 1
		runs[last] = append(runs[last], line...)
	}

	if len(runs) != 3 {
		return nil, fmt.Errorf("cannot use the journal: it has %d runs: %s", len(runs), data)
	}

	return runs, nil
}

// repeat writes a journal in which the last two runs, which change one spec for the other, come
// again and again.
func repeat(journal string, runs [][]byte) error {
	return write(journal, func(i int) []byte {
		if i < len(runs) {
			return runs[i]
		}
		again := runs[1+(i+1)%2]
		_, rest, _ := bytes.Cut(again, []byte(`"run":"`))
		id, _, _ := bytes.Cut(rest, []byte(`"`))
		old := append(bytes.Clone(id), '"')
		return bytes.ReplaceAll(again, old, fmt.Appendf(nil, `20260102T030405Z-%d"`, i))
	}, journalRuns)
}

// write writes a file of many parts.
func write(name string, part func(int) []byte, n int) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}

	for i := range n {
		if _, err := f.Write(part(i)); err != nil {
			return errors.Join(err, f.Close())
		}
	}

	return f.Close()
}

// typical is the median of the wall times and of the peaks of memory.
func typical(argv []string) (cost, error) {
	var walls []time.Duration
	var peaks []float64
	for range journalTries {
		wall, peak, err := spent(argv)
		if err != nil {
			return cost{}, err
		}
		walls = append(walls, wall)
		peaks = append(peaks, peak)
	}

	slices.Sort(walls)
	slices.Sort(peaks)

	return cost{walls[journalTries/2], peaks[journalTries/2]}, nil
}

// spent is what one command took: wall time, and peak memory in MiB as time(1) saw it. The kernel
// counts a child's peak from what its parent had at the fork, so the parent has to be a small
// program.
func spent(argv []string) (wall time.Duration, peak float64, err error) {
	cmd := exec.Command("/usr/bin/time", append([]string{"--quiet", "--format=%M"}, argv...)...)
	var answer bytes.Buffer
	cmd.Stderr = &answer
	began := time.Now()
	err = cmd.Run()
	wall = time.Since(began)

	lines := strings.Split(strings.TrimSpace(answer.String()), "\n")
	if err == nil {
		peak, err = strconv.ParseFloat(lines[len(lines)-1], 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("cannot run %s: %w: %s", argv, err, &answer)
	}

	return wall, peak / 1024, nil
}
