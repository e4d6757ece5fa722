// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	exporter  = "\n[[unit]]\nname = \"my-exporter.service\"\nenabled = \"enabled\"\nactive = \"active\"\n"
	exporter2 = "\n[[unit]]\nname = \"my-agent.service\"\nenabled = \"enabled\"\nactive = \"inactive\"\n"
	stops     = "[mig]\nstop = [\"my-exporter.service\", \"my-agent.service\"]\n"
)

func wantsMIGAndStops(layout string) string { return stops + wantsMIG(layout) }

// What node.toml names stops before each change of partitions and starts after it, also where the
// change only makes partitions, where it fails, and in an undo, whose node.toml names it no more. A
// unit that does not run is not started.
func TestStopsUnits(t *testing.T) {
	want := []string{"stop my-exporter.service", "start my-exporter.service"}
	n := pauses{gpus(t, a100s+exporter+exporter2), new([]string)}
	jobs := func(what string, want []string) {
		t.Helper()
		check.List(t, slices.Compact(*n.jobs), want, "%s", what)
		*n.jobs = nil
	}

	before := n.Units()
	apply := func(what, spec string) {
		t.Helper()
		_, err := engine(t, spec).Apply(context.Background(), n)
		must.That(t, err == nil, "%s: %v %v", what, err, because(err))
	}

	apply("partitions", wantsMIGAndStops(`"3g.20gb" = 1`))
	jobs("for the first partitions", want)
	p := plan(t, n.Node, engine(t, wantsMIGAndStops(`"3g.20gb" = 1, "1g.5gb" = 1`)))
	i := slices.IndexFunc(p.Changes, func(c converge.Line) bool { return c.Kind == "mig" })
	must.That(t, i >= 0, "%+v", p.Changes)
	check.List(t, p.Changes[i].Clients["pause-services"], []string{"my-exporter.service"}, "the plan names")
	apply("one more", wantsMIGAndStops(`"3g.20gb" = 1, "1g.5gb" = 1`))
	jobs("where a partition is only made", want)
	apply("nothing", wantsMIGAndStops(`"3g.20gb" = 1, "1g.5gb" = 1`))
	jobs("where nothing changes", nil)

	fails := failsToCreate{n}
	_, err := engine(t, wantsMIGAndStops(`"7g.40gb" = 1`)).Apply(context.Background(), fails)
	check.That(t, err != nil, "the driver makes no instance, and apply ends well")
	jobs("where the change fails", want)

	_, err = engine(t, "").Undo(context.Background(), n, "all", nil)
	must.That(t, err == nil, "undo: %v %v", err, because(err))
	jobs("undo", want)
	compare(t, "units", before, n.Units())
}

// failsToCreate is a machine whose driver makes no instance that needs the whole GPU.
type failsToCreate struct{ pauses }

func (n failsToCreate) CreateInstance(ctx context.Context, gpu string, profile int, at host.Span) (int, error) {
	if at.Size == 8 {
		return 0, &host.GPUError{
			Call: "nvmlDeviceCreateGpuInstanceWithPlacement",
			Code: "UNKNOWN",
		}
	}
	return n.pauses.CreateInstance(ctx, gpu, profile, at)
}

// A run that is killed while the units are stopped leaves them to the next run, whatever that is.
func TestKilledRunStartsUnits(t *testing.T) {
	const layout = `"3g.20gb" = 2`
	whole := gpus(t, a100s+exporter)
	want := whole.Units()
	apply(t, whole, engine(t, wantsMIGAndStops(layout)))
	for at := range whole.Touches() {
		for _, then := range []string{"apply", "undo"} {
			n := gpus(t, a100s+exporter)
			n.CutAt(at)
			_, err := engine(t, wantsMIGAndStops(layout)).Apply(context.Background(), n)
			must.That(t, err != nil, "not killed at touch %d", at)
			n.Revive()
			if then == "apply" {
				apply(t, n, engine(t, wantsMIGAndStops(layout)))
			} else {
				undo(t, n, engine(t, wantsMIGAndStops(layout)), "")
			}

			compare(t, fmt.Sprintf("killed at touch %d, then %s", at, then), want, n.Units())
		}
	}
}
