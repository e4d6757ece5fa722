// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Load is many simulated nodes that do the same at the same time.
type Load struct {
	// Nodes is how many Node objects there are, one for each simulated node.
	Nodes int
	// Parallel is how many of them are at it at a time.
	Parallel int
	// Each is what one does. Its name is that of a Node object.
	Each func(ctx context.Context, node string) error
}

// Figures are what a load cost.
type Figures struct {
	Nodes    int
	Took     time.Duration
	P50, P99 time.Duration // that one node needed
	// Requests is how many the API server answered for one node, CPU what it needed for that.
	Requests float64
	CPU      time.Duration
	// Memory is the API server's resident memory at the end, in bytes.
	Memory int64
	// Errors are how many nodes failed, Why some of the reasons.
	Errors int
	Why    error
}

func (f Figures) String() string {
	text := fmt.Sprintf("%d nodes in %.1f s: %.0f nodes/s, p50 %d ms, p99 %d ms, %.2f requests and %.1f ms of the API server's CPU per node, its memory %d MiB, %d errors",
		f.Nodes, f.Took.Seconds(), float64(f.Nodes)/f.Took.Seconds(), f.P50.Milliseconds(), f.P99.Milliseconds(), f.Requests,
		float64(f.CPU.Microseconds())/1000, f.Memory>>20, f.Errors)
	if f.Why != nil {
		text += ", as\n" + f.Why.Error()
	}
	return text
}

// loadPrefix begins the names of simulated nodes.
const loadPrefix = "load-"

// Load makes the Node objects, has all nodes do their work, and drops the objects. The controllers
// are paused meanwhile: they would call nodes without a kubelet unreachable, and patch them.
func (c *Cluster) Load(ctx context.Context, l Load) (f Figures, err error) {
	for _, p := range c.processes[2:] {
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			return f, fmt.Errorf("cannot stop %s: %w", p.name, err)
		}
		defer func() { err = errors.Join(err, p.cmd.Process.Signal(syscall.SIGCONT)) }()
	}

	selector := "/api/v1/nodes?labelSelector=lab.invalid%2Fload"
	defer func() {
		_, derr := c.Admin.Do(context.WithoutCancel(ctx), "DELETE", selector, "", nil)
		err = errors.Join(err, derr)
	}()
	made := parallel(ctx, l, func(ctx context.Context, node string) error {
		_, err := c.Admin.Create(ctx, "/api/v1/nodes", Object{
			"apiVersion": "v1", "kind": "Node", "metadata": Object{"name": node, "labels": Object{"lab.invalid/load": "", "kubernetes.io/hostname": node}},
			"spec":   Object{"taints": []Object{{"key": "gpuadm.io/not-ready", "effect": "NoSchedule"}}},
			"status": Object{"conditions": []Object{{"type": "Ready", "status": "True", "reason": "KubeletReady"}}},
		})
		return err
	})
	if made.Errors > 0 {
		return f, fmt.Errorf("cannot make %d of the Nodes: %w", made.Errors, made.Why)
	}
	before, err := c.cost(ctx)
	if err != nil {
		return f, err
	}
	f = parallel(ctx, l, l.Each)
	after, err := c.cost(ctx)
	if err != nil {
		return f, err
	}
	f.Requests = (after.requests - before.requests) / float64(l.Nodes)
	f.CPU, f.Memory = (after.cpu-before.cpu)/time.Duration(l.Nodes), after.memory
	return f, nil
}

// parallel runs a function for each node, and takes the time.
func parallel(ctx context.Context, l Load, each func(context.Context, string) error) Figures {
	f := Figures{Nodes: l.Nodes}
	var mutex sync.Mutex
	var took []time.Duration
	names := make(chan string)
	var workers sync.WaitGroup
	began := time.Now()
	for range l.Parallel {
		workers.Go(func() {
			for name := range names {
				start := time.Now()
				err := each(ctx, name)
				mutex.Lock()
				took = append(took, time.Since(start))
				if err != nil {
					if f.Errors++; f.Errors <= 5 {
						f.Why = errors.Join(f.Why, fmt.Errorf("%s: %w", name, err))
					}
				}

				mutex.Unlock()
			}
		})
	}

	for i := range l.Nodes {
		names <- fmt.Sprintf("%s%05d", loadPrefix, i)
	}
	close(names)
	workers.Wait()
	f.Took = time.Since(began)
	slices.Sort(took)
	f.P50, f.P99 = took[len(took)/2], took[len(took)*99/100]
	return f
}

// cost is what the API server has done so far.
type cost struct {
	requests float64
	cpu      time.Duration
	memory   int64
}

func (c *Cluster) cost(ctx context.Context) (at cost, err error) {
	o, err := c.Admin.Get(ctx, "/metrics")
	if err != nil {
		return at, err
	}
	for line := range strings.Lines(Text(o, "text")) {
		// Leases and the API server's own questions go on meanwhile.
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, `resource="nodes"`) &&
			!strings.Contains(line, `resource="events"`) && !strings.Contains(line, `resource="selfsubjectreviews"`) {
			continue
		}
		count, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			return at, fmt.Errorf("cannot read the API server's count of requests: %w", err)
		}
		at.requests += count
	}

	pid := c.processes[1].cmd.Process.Pid
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return at, fmt.Errorf("cannot read what the API server cost: %w", err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	if len(fields) < 22 {
		return at, errors.New("cannot read what the API server cost: too few fields")
	}
	// utime, stime in ticks of 10 ms and rss in pages: proc_pid_stat(5), fields 14, 15 and 24.
	for _, i := range []int{11, 12} {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return at, fmt.Errorf("cannot read what the API server cost: %w", err)
		}
		at.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}

	pages, err := strconv.ParseInt(fields[21], 10, 64)
	if err != nil {
		return at, fmt.Errorf("cannot read what the API server cost: %w", err)
	}
	at.memory = pages * int64(os.Getpagesize())
	return at, nil
}
