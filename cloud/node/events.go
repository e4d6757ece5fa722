// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// maxCondition is the length of a message in bytes: kubectl shows far less in one line.
const maxCondition = 1024

// event is one line of kubectl describe node.
type event struct{ kind, reason, message string }

// postEvents creates the Events with kubelet's identity.
func (s *Session) postEvents(
	ctx context.Context, h host.Host, id identity, node string, events []event,
) error {
	if len(events) == 0 {
		return nil
	}
	kubeconfig, err := id.reads(h)
	if err != nil {
		return err
	}
	client, err := s.clients.Do(h, id.from(kubeconfig))
	if err != nil {
		return err
	}

	for _, e := range events {
		err := client.Event(ctx, node, kube.Event{
			Type:    e.kind,
			Reason:  e.reason,
			Message: e.message,
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// madeEvents has an Event for each stage that has changed something; that of the condition ends in
// sinceBoot.
func madeEvents(changes []converge.Change, sinceBoot string) []event {
	var order []string
	names := map[string][]string{} // of the changes of a stage
	for _, c := range changes {
		if !slices.Contains(order, c.Stage) {
			order = append(order, c.Stage)
		}
		names[c.Stage] = append(names[c.Stage], c.String())
	}

	var list []event
	for _, stage := range order {
		made := names[stage]
		text := stage + ": " + made[0]
		if len(made) > 1 {
			text = fmt.Sprintf("%s: %d changes: %s", stage, len(made), strings.Join(made, ", "))
		}
		if slices.Contains(made, "node condition "+GPUReady) {
			text += sinceBoot
		}
		list = append(list, event{
			kind:    "Normal",
			reason:  camelCase(stage) + "Made",
			message: clip(text),
		})
	}

	return list
}

// sinceBoot says how long the machine has run, and where the time of the last run went; "" if that
// is not known.
func sinceBoot(v host.View) string {
	uptime, err := v.ReadFile("/proc/uptime") // seconds, then those of idle processors: proc(5)
	seconds, _, found := strings.Cut(string(uptime), ".")
	runs := converge.ReadJournal(v).Runs()
	if err != nil || !found || len(runs) == 0 {
		return ""
	}
	return fmt.Sprintf("; %s s after the boot: %s", seconds, runs[len(runs)-1].Took)
}

// camelCase returns a stage's name as a reason: unit-files, UnitFiles.
func camelCase(name string) string {
	var b strings.Builder
	separates := func(r rune) bool { return r == '-' || r == ' ' || r == '_' }
	for _, word := range strings.FieldsFunc(name, separates) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// firstLine returns an error as a condition's message: its first line, without advice.
func firstLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return clip(strings.Join(strings.Fields(line), " "))
}

// clip shortens a message and masks secrets: every user who may read Nodes and Events can read it.
func clip(text string) string {
	text = mask.Message(trouble.Commands(text, trouble.Plain))
	if len(text) > maxCondition {
		text = strings.ToValidUTF8(text[:maxCondition-3], "") + "…"
	}
	return text
}
