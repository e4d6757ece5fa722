// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabConvergedRatio prints how long an apply takes that has nothing to do, beside nvidia-ctk runtime configure on the
// same live host in the same minute, by hyperfine. The host's own figures say little, so it is the ratio that counts; it
// is not judged here, since a busy machine would make that a lottery.
//
// nvidia-ctk is given a copy of the daemon's file: it writes on every run, and would make the daemon stale.
func TestLabConvergedRatio(t *testing.T) {
	each(t, nil, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		n.gpuadm(0, "apply")
		n.ratio(o.String())
	})
}

// ratio prints the times of an apply that has nothing to do beside nvidia-ctk's.
func (n node) ratio(what string) {
	t := n.t
	t.Helper()
	ctk := parts.Get(t, parts.CTK).CTK
	hyperfine, err := exec.LookPath("hyperfine")
	if err != nil {
		const why = "cannot time: hyperfine is missing; apt-get install hyperfine"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	for place, from := range map[string]string{"/usr/local/bin/hyperfine": hyperfine, "/usr/local/bin/nvidia-ctk": ctk.Path} {
		program := must.Get(os.ReadFile(from))(t)
		n.Put(place, string(program), 0o755)
	}
	n.Put("/root/theirs/config.toml", n.Get(config), 0o644)
	const theirs = "nvidia-ctk runtime configure --runtime=containerd --set-as-default --config=/root/theirs/config.toml --drop-in-config=/root/theirs/conf.d/99-nvidia.toml"
	n.Must(strings.Fields(theirs)...)
	pid := n.MainPID(daemon)
	rows := map[string]func(timed) float64{
		"mean": func(x timed) float64 { return x.Mean }, "median": func(x timed) float64 { return x.Median },
		"best": func(x timed) float64 { return x.Min }, "processor": func(x timed) float64 { return x.User + x.System },
	}
	ours, ctks, ratios := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for range 9 { // in turns: a machine is faster in one second than in the next
		n.Must("hyperfine", "--style=none", "--shell=none", "--warmup=5", "--runs=40", "--output=null", "--export-json=/root/times.json", "gpuadm apply", theirs)
		var times struct{ Results []timed }
		if err := json.Unmarshal([]byte(n.Get("/root/times.json")), &times); err != nil || len(times.Results) != 2 {
			t.Fatalf("cannot read hyperfine's answer: %v", err)
		}
		for what, of := range rows {
			a, b := of(times.Results[0]), of(times.Results[1])
			ours[what], ctks[what], ratios[what] = append(ours[what], a), append(ctks[what], b), append(ratios[what], a/b)
		}
	}
	if r := n.gpuadm(0, "apply"); r.Stdout != "Nothing to do.\n" || n.MainPID(daemon) != pid {
		t.Fatalf("what was timed was no apply with nothing to do: %s", r)
	}
	t.Logf("%-10s gpuadm apply with nothing to do   nvidia-ctk %s   ratio (lowest to highest of %d rounds)", what, ctk.Version, len(ratios["mean"]))
	for _, what := range slices.Sorted(maps.Keys(rows)) {
		t.Logf("%-10s %10.2f ms %25.2f ms %17.2f (%.2f to %.2f)", what, middle(ours[what])*1e3, middle(ctks[what])*1e3,
			middle(ratios[what]), slices.Min(ratios[what]), slices.Max(ratios[what]))
	}
}

// timed are hyperfine's seconds for a command.
type timed struct{ Mean, Median, Min, User, System float64 }

func middle(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
