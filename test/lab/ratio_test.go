// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabConvergedRatio prints how long an apply takes that has nothing to do, beside nvidia-ctk runtime configure on the
// same live host in the same minute, by hyperfine. The host's own figures say little, so it is the ratio that counts; it
// is not judged here, since a busy machine would make that a lottery.
//
// nvidia-ctk is given a copy of the daemon's file: it writes on every run, and would make the daemon stale.
func TestLabConvergedRatio(t *testing.T) {
	ctk := parts.Get(t, parts.CTK).CTK
	hyperfine, err := exec.LookPath("hyperfine")
	if err != nil {
		const why = "cannot time: hyperfine is missing; apt-get install hyperfine"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	each(t, nil, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		for place, from := range map[string]string{"/usr/local/bin/hyperfine": hyperfine, "/usr/local/bin/nvidia-ctk": ctk.Path} {
			program, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			n.Put(place, string(program), 0o755)
		}
		n.gpuadm(0, "apply")
		n.Put("/root/theirs/config.toml", n.Get(config), 0o644)
		const theirs = "nvidia-ctk runtime configure --runtime=containerd --set-as-default --config=/root/theirs/config.toml --drop-in-config=/root/theirs/conf.d/99-nvidia.toml"
		n.Must(strings.Fields(theirs)...)
		pid := n.MainPID(daemon)
		n.Must("hyperfine", "--style=none", "--shell=none", "--warmup=10", "--runs=200", "--output=null", "--export-json=/root/times.json", "gpuadm apply", theirs)
		if r := n.gpuadm(0, "apply"); r.Stdout != "Nothing to do.\n" || n.MainPID(daemon) != pid {
			t.Fatalf("what was timed was no apply with nothing to do: %s", r)
		}
		var times struct {
			Results []struct{ Mean, Median, Min, User, System float64 }
		}
		if err := json.Unmarshal([]byte(n.Get("/root/times.json")), &times); err != nil || len(times.Results) != 2 {
			t.Fatalf("cannot read hyperfine's answer: %v", err)
		}
		a, b := times.Results[0], times.Results[1]
		t.Logf("%-10s gpuadm apply with nothing to do   nvidia-ctk %s   ratio", o, ctk.Version)
		for _, row := range []struct {
			what         string
			ours, theirs float64
		}{{"mean", a.Mean, b.Mean}, {"median", a.Median, b.Median}, {"best", a.Min, b.Min}, {"processor", a.User + a.System, b.User + b.System}} {
			t.Logf("%-10s %10.2f ms %25.2f ms %17.2f", row.what, row.ours*1e3, row.theirs*1e3, row.ours/row.theirs)
		}
	})
}
