// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

const (
	noticeMost = 2 * time.Second // what a stage is kept by the question
	// azureWakes is how long the service of scheduled events takes to answer for the first time, and some more: two minutes.
	// Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events, "Enabling and disabling scheduled events".
	azureWakes = 150 * time.Second
)

// Notices asks, for one run, whether the cloud has said that it will take the machine away. Azure's service sleeps until it is
// asked; the question that wakes it goes on beside the stages, so that the next one finds it awake. The zero value is ready.
type Notices struct {
	mu    sync.Mutex
	awake chan struct{} // closed once the first question has ended; nil before it
	first *Notice       // what it brought
}

// Ask is AskNotice.
func (n *Notices) Ask(ctx context.Context, v host.View, i *Instance) *Notice {
	if i.Cloud != "azure" {
		return AskNotice(ctx, v, i)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.awake != nil {
		select {
		case <-n.awake:
			return AskNotice(ctx, v, i)
		default:
			return nil // it is waited for once
		}
	}
	n.awake = make(chan struct{})
	go n.wake(context.WithoutCancel(ctx), v, i)
	short := time.NewTimer(noticeMost)
	defer short.Stop()
	select {
	case <-n.awake:
		return n.first
	case <-short.C:
	case <-ctx.Done():
	}
	return nil
}

// wake asks until there is an answer: one question is given up after half a minute (internal/host), and by then it has not woken.
func (n *Notices) wake(ctx context.Context, v host.View, i *Instance) {
	defer close(n.awake)
	ctx, cancel := context.WithTimeout(ctx, azureWakes)
	defer cancel()
	for {
		var ok bool
		if n.first, ok = askAzureNotice(ctx, v, i); ok {
			return
		}
		pause := time.NewTimer(noticeMost)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}
