// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// metricsFile is the file that node-exporter's textfile collector reads: its name must
// end in .prom.
// Sources: the textfile collector's part of https://github.com/prometheus/node_exporter, and
// https://github.com/prometheus-community/node-exporter-textfile-collector-scripts.
const metricsFile = "gpuadm.prom"

// keepMetrics writes the metrics of a report into the runtime folder that systemd has given the
// unit; elsewhere there is none. A report is worth more than its metrics: an error is a warning.
func (c *common) keepMetrics(h host.Host, s converge.Status, failed error) {
	folder := c.getenv("RUNTIME_DIRECTORY") // systemd.exec(5)
	if folder == "" || !h.Live() {
		return
	}

	text := metrics(s, failed, h.Now())
	err := h.WriteFile(path.Join(folder, metricsFile), []byte(text), host.Attr{Mode: 0o644})
	if err != nil {
		c.say(agent.Event{
			What: agent.Warning,
			Err:  fmt.Errorf("cannot write the metrics for node-exporter: %w", err),
		})
	}
}

// keepFailure writes the metrics of a report that has failed before it could look at the machine:
// those of an earlier report may say that the node is converged.
func (c *common) keepFailure(failed error) {
	h, err := c.open(c.rootDir, nil)
	if err == nil {
		c.keepMetrics(h, converge.Status{}, failed)
	}
}

// metrics is a status in Prometheus's text format. Times are seconds since 1970.
func metrics(s converge.Status, failed error, now time.Time) string {
	var b strings.Builder
	gauge := func(name, help string, samples ...string) {
		fmt.Fprintf(&b, "# HELP gpuadm_%s %s\n# TYPE gpuadm_%s gauge\n", name, help, name)
		for _, sample := range samples {
			fmt.Fprintf(&b, "gpuadm_%s%s\n", name, sample)
		}
	}

	number := func(n int64) string { return fmt.Sprintf(" %d", n) }
	truth := func(is bool) string {
		if is {
			return number(1)
		}
		return number(0)
	}

	gauge("report_timestamp_seconds", "When gpuadm looked.", number(now.Unix()))
	gauge("report_ok", "Whether gpuadm could look at the machine and read its spec.", truth(failed == nil))
	driver := ""
	if s.Host.Facts.Driver != nil {
		driver = s.Host.Facts.Driver.Version
	}
	versions := labels("version", version(), "driver", driver, "spec", s.Host.Spec)
	gauge("info", "Versions, and the digest of the spec.", versions+number(1))
	if failed != nil {
		return b.String()
	}

	gauge("converged", "Whether all that the spec asks for is so.", truth(s.State == converge.EndsConverged))
	gauge("changes_pending", "Changes that an apply would make, or cannot make.", number(int64(s.Now())))
	gauge("changes_deferred", "Changes that wait for an event.", number(int64(s.Deferred)))
	gauge("things_unknown", "Things whose state could not be read.", number(int64(s.Unknown)))
	var stages []string
	for _, st := range s.Stages {
		stages = append(stages, labels("stage", st.Name)+truth(st.Changes == 0))
	}
	gauge("stage_converged", "Whether a stage is converged; of ready: whether the cluster sees that the GPUs are ready.", stages...)

	reboots := func(l converge.Line) bool { return l.When == host.AfterReboot }
	needsReboot := s.Reboot != "" || slices.ContainsFunc(s.Changes, reboots)
	gauge("reboot_needed", "Whether a change waits for a reboot.", truth(needsReboot))
	gauge("held", "Whether an undo holds unattended applies.", truth(s.Held != ""))
	wasCut := s.Unfinished != "" && !s.InProgress
	gauge("unfinished", "Whether a run was cut short.", truth(wasCut))

	isAtWork := func(r converge.Run) bool { return s.InProgress && r.ID == s.Unfinished }
	ended := slices.DeleteFunc(slices.Clone(s.Runs), isAtWork)
	if len(ended) > 0 {
		last := ended[len(ended)-1]
		began := number(last.Time.Unix())
		gauge("last_run_timestamp_seconds", "When the last run that changed something began.", began)
		gauge("last_run_ok", "Whether that run ended well.", truth(last.Result == "ok"))
	}

	return b.String()
}

// labels are the labels of a sample, from pairs of name and value.
func labels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var all []string
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, pair[0]+`="`+escape.Replace(pair[1])+`"`)
	}
	return "{" + strings.Join(all, ",") + "}"
}
