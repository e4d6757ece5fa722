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

// journals compares what a converged machine costs with an empty journal, with one of 10,000 runs
// that the first apply has compacted, and with one of garbage. Each run has changed containerd's
// configuration from one spec to the other.
func (b bench) journals() error {
	root, spec := filepath.Join(b.dir, "root"), filepath.Join(b.dir, "node.toml")
	journal := filepath.Join(root, "var/lib/gpuadm/journal.jsonl")
	verb := func(verb string) []string { return []string{b.gpuadm, verb, "--root", root, "-f", spec, "-q"} }
	if err := os.RemoveAll(filepath.Dir(journal)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "etc/containerd/config.toml"), b.config, 0o644); err != nil {
		return err
	}
	for i := range 3 {
		text := nodeSpec
		if i%2 == 1 {
			text = "format = 1\n[runtime]\n"
		}
		if err := os.WriteFile(spec, []byte(text), 0o644); err != nil {
			return err
		}
		if _, _, err := spent(verb("apply")); err != nil {
			return err
		}
	}
	runs, err := runsOf(journal)
	if err != nil {
		return err
	}

	fmt.Printf("\njournal                            empty      %d runs        %d MiB of garbage\n", journalRuns, garbage>>20)
	fmt.Printf("                                                    ratio                  ratio\n")
	for _, what := range []string{"plan", "apply", "gate"} {
		var wall [3]time.Duration
		var most [3]float64
		for i, block := range [][]byte{nil, nil, bytes.Repeat([]byte("no record at all\n"), 1<<12)} {
			if i == 1 {
				err = repeat(journal, runs)
			} else {
				err = write(journal, func(int) []byte { return block }, garbage/(17<<12))
			}
			if err != nil {
				return err
			}
			if i == 1 { // the first apply compacts it
				was, _ := os.Stat(journal)
				if took, rss, err := spent(verb("apply")); err != nil {
					return err
				} else if what == "plan" {
					info, _ := os.Stat(journal)
					fmt.Printf("compacted: %d KiB to %d KiB in %d ms, %.1f MiB\n", was.Size()>>10, info.Size()>>10, took.Milliseconds(), rss)
				}
			}
			if wall[i], most[i], err = typical(verb(what)); err != nil {
				return err
			}
		}
		ms := func(i int) float64 { return wall[i].Seconds() * 1000 }
		fmt.Printf("%-24s %10.1f ms  %7.1f ms %6.2f    %7.1f ms %6.2f\n", what+", wall", ms(0), ms(1), ms(1)/ms(0), ms(2), ms(2)/ms(0))
		fmt.Printf("%-24s %10.1f MiB %7.1f MiB %+.1f    %7.1f MiB %+.1f\n", what+", peak memory", most[0], most[1], most[1]-most[0], most[2], most[2]-most[0])
	}
	return nil
}

// runsOf are the journal's three runs, each with its lines.
func runsOf(journal string) (runs [][]byte, err error) {
	data, err := os.ReadFile(journal)
	data = regexp.MustCompile(`,"crc32":"[0-9a-f]*"`).ReplaceAll(data, nil) // repeat changes the lines
	for line := range bytes.Lines(data) {
		if bytes.Contains(line, []byte(`"what":"begin"`)) {
			runs = append(runs, nil)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], line...)
	}
	if err == nil && len(runs) != 3 {
		err = fmt.Errorf("cannot use the journal: it has %d runs: %s", len(runs), data)
	}
	return runs, err
}

// repeat writes a journal in which the last two runs, which change one spec for the other, come
// again and again.
func repeat(journal string, runs [][]byte) error {
	return write(journal, func(i int) []byte {
		if i < len(runs) {
			return runs[i]
		}
		again := runs[1+(i+1)%2]
		_, id, _ := bytes.Cut(again, []byte(`"run":"`))
		id, _, _ = bytes.Cut(id, []byte(`"`))
		return bytes.ReplaceAll(again, append(bytes.Clone(id), '"'), fmt.Appendf(nil, `20260102T030405Z-%d"`, i))
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

// typical is the median of the wall times and of the peaks of memory, in MiB.
func typical(argv []string) (time.Duration, float64, error) {
	var walls []time.Duration
	var peaks []float64
	for range journalTries {
		wall, most, err := spent(argv)
		if err != nil {
			return 0, 0, err
		}
		walls, peaks = append(walls, wall), append(peaks, most)
	}
	slices.Sort(walls)
	slices.Sort(peaks)
	return walls[journalTries/2], peaks[journalTries/2], nil
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
