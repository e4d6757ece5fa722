//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestAwait: a child that gives signs has longer, one without a sign has no longer than the limit, and
// none has longer than the most.
func TestAwait(t *testing.T) {
	for name, c := range map[string]struct {
		signs int // how many limits the child shows a sign
		want  time.Duration
	}{
		"no sign":       {0, 2 * time.Second},
		"two signs":     {2, 2 * time.Second},
		"signs all day": {1000, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			left := c.signs
			q := question{
				limit: 2 * time.Second,
				most:  10 * time.Second,
				every: 2 * time.Second,
				after: time.After,
			}
			q.sign = func(_ child, before int, _ time.Duration) (int, bool) {
				left--
				return before + 1, left >= 0
			}

			began := time.Now()
			late, err := q.await(t.Context(), make(chan error), child{})
			took := time.Since(began)
			check.That(t, err == nil && late == c.want, "%s: %v, late %v", name, err, late)
			want := min(time.Duration(c.signs+1)*q.limit, q.most)
			check.Equal(t, took, want, "%s", name)
		})
	}

	synctest.Test(t, func(t *testing.T) { // the limit counts from the last sign: that it has started
		signs := 2
		q := question{
			limit: 2 * time.Second,
			most:  time.Minute,
			every: 50 * time.Millisecond,
			after: time.After,
		}
		q.sign = func(_ child, before int, _ time.Duration) (int, bool) {
			signs--
			return before + 1, signs >= 0
		}

		began := time.Now()
		late, err := q.await(t.Context(), make(chan error), child{})
		check.That(t, err == nil && late == q.limit, "late %v, %v", late, err)
		check.Equal(t, time.Since(began), q.limit+2*q.every, "a child that stops after its start")
	})

	ctx, end := context.WithCancel(t.Context())
	end()
	q := question{limit: time.Hour, every: time.Hour, after: time.After}
	late, err := q.await(ctx, make(chan error), child{})
	check.That(t, err == nil && late == 0, "an end of the context: %v, late %v", err, late)
}

// TestDriverStops: the error names the GPUs about which the driver has said nothing.
func TestDriverStops(t *testing.T) {
	addresses := []string{"0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0"}
	const all = `{"Attached":0}` + "\n" + `{"Attached":2}` + "\n" + `{"Attached":1}` + "\n"
	for text, want := range map[string]string{
		"":                           "OVERDUE: the driver has not answered for 2s",
		"{}\n{}\n":                   "OVERDUE: the driver has not answered for 2s",
		"{}\n{\"Count\":3}\n{\"Atta": "STUCK: the driver has not answered for 2s about GPU 0000:18:00.0, GPU 0000:2a:00.0, GPU 0000:3a:00.0",
		"{\"Count\":3}\n{\"Attached\":0}\n{\"Attached\":2}\n": "STUCK: the driver has not answered for 2s about GPU 0000:2a:00.0",
		"{\"Count\":1}\n{\"Attached\":0}\n{\"Read\":0}\n":     "STUCK: the driver has not answered for 2s",
		"{\"Count\":3}\n" + all + "{\"Read\":0}\n":            "STUCK: the driver has not answered for 2s about GPU 0000:2a:00.0",
	} {
		said := must.Get(readSteps([]byte(text)))(t)
		none := said.late(2*time.Second, addresses)
		check.Equal(t, none.Code+": "+none.Why, want, "%s", text)
	}

	_, err := readSteps([]byte("Segmentation fault\n"))
	check.That(t, err != nil, "another text was read")
	said := must.Get(readSteps([]byte("{\"Count\":1}\n{\"End\":{\"Driver\":{\"Version\":\"580.95.05\"}}}\n")))(t)
	check.That(t, said.end != nil && said.end.Driver.Version == "580.95.05", "%+v", said)
	check.Equal(t, (saidSteps{count: 2}).late(time.Second, nil).Code, host.Stuck, "without addresses")
}

// TestSigns: a process that computes gives a sign, one that sleeps gives none, and a longer answer is
// one.
func TestSigns(t *testing.T) {
	computes := start(t, "sh", "-c", "while :; do :; done")
	sleeps := start(t, "sleep", "1000")
	const limit = time.Millisecond // of which a tenth is less than one tick
	deadline := time.Now().Add(time.Minute)
	for {
		ticks := must.Get(processorTicks(computes))(t)
		if ticks > 0 {
			break
		}
		must.That(t, time.Now().Before(deadline), "a busy process has used no time within a minute")
		time.Sleep(time.Millisecond)
	}

	_, isSign := hasComputed(child{pid: computes}, 0, 100*limit)
	check.That(t, isSign, "a busy process gives no sign")
	_, isSign = hasComputed(child{pid: sleeps}, 0, 2*time.Second)
	check.That(t, !isSign, "a process that sleeps gives a sign")

	answer := must.Get(os.CreateTemp(t.TempDir(), "answer"))(t)
	must.Get(answer.WriteString("{}\n"))(t)
	size, isSign := hasWritten(child{answer: answer}, 0, limit)
	check.That(t, isSign && size == 3, "%d %t", size, isSign)
	_, isSign = hasWritten(child{answer: answer}, size, limit)
	check.That(t, !isSign, "the same answer is a sign")
}

func start(t *testing.T, argv ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}
