// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import "context"

// Kept is a session with the driver that several calls share.
type Kept struct {
	Session interface{ End() } // nil: none is open
}

type keptKey struct{}

// KeepDriver has the calls that are made with the context, by one goroutine, share one session with the driver: each session attaches
// GPUs that no process holds, which takes 1 to 3 seconds a GPU (https://docs.nvidia.com/deploy/driver-persistence/overview.html). The
// session begins with the first call; a reset, or end, ends it. Its answers leave out what only containers need: the UUID and the Share of
// a compute instance.
func KeepDriver(ctx context.Context) (keeping context.Context, end func()) {
	k := &Kept{}
	return context.WithValue(ctx, keptKey{}, k), k.End
}

// KeptOf is the session that calls with the context share, nil if they share none.
func KeptOf(ctx context.Context) *Kept {
	k, _ := ctx.Value(keptKey{}).(*Kept)
	return k
}

// End ends the session, if one is open.
func (k *Kept) End() {
	if k != nil && k.Session != nil {
		k.Session.End()
		k.Session = nil
	}
}
