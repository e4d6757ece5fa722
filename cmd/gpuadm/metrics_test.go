// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMetrics: what a person reads in status is in the metrics, too; and where gpuadm could not look,
// no metric says that the node is converged.
func TestMetrics(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	var s converge.Status
	s.State = converge.EndsPending
	s.Stages = []converge.StagePlan{{
		Name:      "runtime",
		Converged: 2,
	}, {Name: "ready", Changes: 1}}
	s.Changes = []converge.Line{{Reason: converge.Reason{
		Deferred: "after a reboot",
		When:     host.AfterReboot,
	}}, {}}
	s.Deferred = 1
	s.Runs = []converge.Run{{Time: now.Add(-time.Hour), Result: "ok"}}
	s.Held = `a "run"`
	s.Host.Facts.Driver = &host.Driver{Version: "580.95.05"}

	text := metrics(s, nil, now)
	for _, want := range []string{
		"gpuadm_report_timestamp_seconds 1800000000\n",
		"gpuadm_report_ok 1\n",
		`driver="580.95.05"`,
		"gpuadm_converged 0\n",
		"gpuadm_changes_pending 1\n",
		"gpuadm_changes_deferred 1\n",
		`gpuadm_stage_converged{stage="runtime"} 1` + "\n",
		`gpuadm_stage_converged{stage="ready"} 0` + "\n",
		"gpuadm_reboot_needed 1\n",
		"gpuadm_held 1\n",
		"gpuadm_unfinished 0\n",
		"gpuadm_last_run_timestamp_seconds 1799996400\n",
		"gpuadm_last_run_ok 1\n",
	} {
		check.Has(t, text, want, "metrics:")
	}

	wellFormed(t, text)

	s.State = converge.EndsConverged
	check.Has(t, metrics(s, nil, now), "gpuadm_converged 1\n", "converged:")

	s.Reboot = "module nvidia"
	s.Changes = nil
	s.Deferred = 0
	check.Has(t, metrics(s, nil, now), "gpuadm_reboot_needed 1\n", "a run has asked for a reboot:")

	s.Runs = append(s.Runs, converge.Run{ID: "now", Time: now})
	s.Unfinished = "now"
	check.Says(t, metrics(s, nil, now), "gpuadm_unfinished 1\n", "gpuadm_last_run_ok 0\n")
	s.InProgress = true
	check.Says(t, metrics(s, nil, now), "gpuadm_unfinished 0\n", "gpuadm_last_run_ok 1\n")

	blind := metrics(converge.Status{}, errors.New("cannot read node.toml"), now)
	isFine := strings.Contains(blind, "gpuadm_converged") || !strings.Contains(blind, "gpuadm_report_ok 0\n")
	check.That(t, !isFine, "blind:\n%s", blind)
	wellFormed(t, blind)

	check.Equal(t, labels("a", "x\\y\"\n"), `{a="x\\y\"\n"}`, "escaped:")
}

// wellFormed wants HELP and TYPE once and first for each metric, and lines that end: node-exporter
// refuses a whole file otherwise.
// Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
func wellFormed(t *testing.T, text string) {
	t.Helper()
	typed := map[string]bool{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "# TYPE "):
			check.That(t, !typed[words[2]], "%s has two types", words[2])
			typed[words[2]] = true
		case !strings.HasPrefix(line, "#"):
			name, _, _ := strings.Cut(words[0], "{")
			check.That(t, typed[name] && strings.HasSuffix(line, "\n"), "no type before %q", line)
		}
	}
}

// TestMetricsAreNotStale: a report that cannot look at the machine, or has no spec, replaces earlier
// metrics that say that the node is converged. The metrics do not count a run at work as cut short.
func TestMetricsAreNotStale(t *testing.T) {
	const folder = "/run/gpuadm-metrics"
	report := func(h host.Host, want int) string {
		var out strings.Builder
		e := envOn(h, &out)
		e.getenv = func(name string) string {
			return map[string]string{"RUNTIME_DIRECTORY": folder}[name]
		}
		code := run(t.Context(), e, []string{"plan", "--report"})
		check.That(t, code == want, "exit code %d, want %d: %s", code, want, out.String())
		return string(must.Get(h.ReadFile(folder + "/" + metricsFile))(t))
	}
	applied := func() *simhost.Node {
		n := appliedNode(t)
		must.OK(t, n.Mkdir(folder, host.Attr{Mode: 0o755}))
		check.Says(t, report(n, 0), "gpuadm_report_ok 1\n", "gpuadm_converged 1\n")
		return n
	}
	isBlind := func(text, what string) {
		isFine := strings.Contains(text, "gpuadm_converged") || !strings.Contains(text, "gpuadm_report_ok 0\n")
		check.That(t, !isFine, "%s:\n%s", what, text)
	}

	n := applied()
	plantFile(t, n, machineSpecFile, "[[[")
	must.OK(t, n.Remove(converge.LastSpecFile))
	isBlind(report(n, exitUsage), "no spec can be used")

	n = applied()
	must.OK(t, n.Remove(machineSpecFile))
	isBlind(report(n, 0), "the spec was removed")

	n = applied()
	fails := map[string]error{"/sys/bus/pci/devices": syscall.EIO}
	isBlind(report(unreadable{n, fails}, exitAgain), "the PCI bus cannot be read")

	n = applied()
	journal := string(must.Get(n.ReadFile(converge.Home + "/journal.jsonl"))(t))
	at := strings.LastIndex(strings.TrimSpace(journal), "\n")
	plantFile(t, n, converge.Home+"/journal.jsonl", journal[:at+1])
	check.Has(t, report(n, 0), "gpuadm_unfinished 1\n", "a cut run:")
	unlock := must.Get(n.Lock())(t)
	defer unlock()
	check.Has(t, report(n, 0), "gpuadm_unfinished 0\n", "a run at work:")
}
