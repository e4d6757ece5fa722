// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// reportDrift says in one line what is pending, here and to the cluster. It says nothing of a converged machine, while an apply is at
// work, and while an undo holds applies: then an operator has asked for what differs.
func (c *common) reportDrift(ctx context.Context) error {
	e, h, err := c.engine(ctx, nil, nil)
	if err != nil {
		return err
	}
	if none, err := c.noGPU(ctx, e, h, justPlan); none || err != nil {
		return err
	}
	s, err := e.Pending(ctx, h)
	if err != nil || s.Held != "" || s.Now() == 0 || atWork(h) {
		return err
	}
	text := drift(s.Changes)
	c.answer(text)
	if !h.Live() {
		return nil
	}
	f := s.Host.Facts
	if err := node.ReportDrift(ctx, c.node, h, e.Spec, f, text); err != nil {
		printf(c.stderr, "gpuadm: cannot report to the cluster: %v\n", err)
	}
	return nil
}

// drift is the line.
func drift(changes []converge.Change) string {
	const most = 6
	var names []string
	for _, ch := range changes {
		if ch.Deferred == "" {
			names = append(names, ch.String())
		}
	}
	n := len(names)
	if n > most {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("%d more", n-most))
	}
	return fmt.Sprintf("%s pending: %s. "+trouble.Command("plan")+" shows why.", count(n, "change"), strings.Join(names, ", "))
}
