// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// DriverVerb is the verb by which gpuadm starts itself to ask the driver.
const DriverVerb = "ask-driver"

// longestStart is how long a driver may start its GPUs, while it still answers for one after the
// other. It starts a GPU that no process holds at the first question about it. NVIDIA says 1 to 3
// seconds for each: https://docs.nvidia.com/deploy/driver-persistence/overview.html. On eight A100
// it was more than 25 seconds: https://github.com/Azure/AgentBaker/pull/2829.
const longestStart = time.Minute

// driverAnswer is what the child writes: an answer for each step, and the last one has the end.
type driverAnswer struct {
	Count    int          `json:",omitempty"` // of the GPUs that the driver lists
	Attached *int         `json:",omitempty"` // the index of a GPU that the driver has started
	Read     *int         `json:",omitempty"` // the index of a GPU that was read
	End      *driverFound `json:",omitempty"`
}

// driverFound is the end of the child's answer.
type driverFound struct {
	Driver host.Driver
	None   *host.NoDriver
	Error  string
}

// steps writes what the driver has answered so far. It is nil in a process that nobody waits for.
type steps struct {
	mu sync.Mutex
	to *json.Encoder
}

func (s *steps) say(answer driverAnswer) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.to.Encode(answer) // the parent notices that the end is missing
}

// SayDriver is the child: it asks the driver, and writes the answer for its parent.
func (d *NVML) SayDriver(ctx context.Context) error {
	d.more = true
	d.steps = &steps{to: json.NewEncoder(parent())}
	d.steps.say(driverAnswer{}) // this process runs

	found, err := d.Driver(ctx)
	end := driverFound{Driver: found}
	if err != nil && !errors.As(err, &end.None) {
		end.Error = err.Error()
	}
	d.steps.say(driverAnswer{End: &end})
	return nil
}

// DriverWithin asks the driver in a child. A driver that gives no answer at all for the limit is a
// NoDriver of the code host.Overdue. A driver that answers for one GPU after the other has longer
// for all of them; a driver that stops at a GPU has the code host.Stuck.
func (d *NVML) DriverWithin(ctx context.Context, limit time.Duration) (host.Driver, error) {
	q := question{
		self:  "/proc/self/exe",
		argv:  []string{DriverVerb},
		limit: limit,
		most:  max(limit, longestStart),
		sign:  hasWritten,
		every: limit / 40,
		after: time.After,
	}
	r, err := q.ask(ctx)
	if err != nil {
		return host.Driver{}, err
	}

	said, err := readSteps(r.text)
	switch end := said.end; {
	case err != nil:
		return host.Driver{}, errors.New("cannot read what gpuadm " + DriverVerb + " says")
	case end == nil && r.late > 0:
		return host.Driver{}, said.late(r.late, d.listed())
	case end == nil: // a library that lacks a function, or that ends its process
		return host.Driver{}, &host.NoDriver{
			Why: "gpuadm " + DriverVerb + ": " + cmp.Or(r.ended, "it ended without an answer"),
			Try: "install the libraries of the driver again, all in one version",
		}
	case end.None != nil:
		return host.Driver{}, end.None
	case end.Error != "":
		return host.Driver{}, errors.New(end.Error)
	default:
		return end.Driver, nil
	}
}

// saidSteps is what a child has said.
type saidSteps struct {
	count    int   // of the GPUs that the driver lists
	attached []int // by index
	read     []int
	end      *driverFound
}

// readSteps reads the child's answers. The last one may be cut off, where the child was killed.
func readSteps(text []byte) (said saidSteps, err error) {
	lines := bytes.SplitAfter(text, []byte("\n"))
	for _, line := range lines {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var answer driverAnswer
		if err := json.Unmarshal(line, &answer); err != nil {
			return said, err
		}
		said.count = max(said.count, answer.Count)
		if answer.Attached != nil {
			said.attached = append(said.attached, *answer.Attached)
		}
		if answer.Read != nil {
			said.read = append(said.read, *answer.Read)
		}
		said.end = cmp.Or(said.end, answer.End)
	}

	return said, nil
}

// late is the error of a driver that has not said all in time. The addresses are those of the
// kernel module's GPUs, which NVML numbers in the same order.
func (s saidSteps) late(after time.Duration, addresses []string) *host.NoDriver {
	if s.count == 0 {
		return host.NoAnswer(after)
	}

	var waiting []string
	for index := range s.count {
		answered := slices.Contains(s.attached, index)
		if len(s.attached) == s.count { // it reads one after the other
			answered = slices.Contains(s.read, index) || len(waiting) > 0
		}
		if answered {
			continue
		}
		name := fmt.Sprintf("GPU %d", index)
		if index < len(addresses) {
			name = "GPU " + addresses[index]
		}
		waiting = append(waiting, name)
	}

	return host.NoFurtherAnswer(after, waiting)
}
