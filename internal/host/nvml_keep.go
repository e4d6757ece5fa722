// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import "context"

// kept is a session with the driver that several calls share.
type kept struct {
	session *nvmlSession // nil: none is open
}

type keptKey struct{}

// KeepDriver has the calls that are made with the context, by one goroutine, share one session with the driver: each session attaches
// GPUs that no process holds, which takes 1 to 3 seconds a GPU (https://docs.nvidia.com/deploy/driver-persistence/overview.html). The
// session begins with the first call; a reset, or end, ends it. Its answers leave out what only containers need: the UUID and the Share of
// a compute instance.
func KeepDriver(ctx context.Context) (keeping context.Context, end func()) {
	k := &kept{}
	return context.WithValue(ctx, keptKey{}, k), k.end
}

func keptOf(ctx context.Context) *kept {
	k, _ := ctx.Value(keptKey{}).(*kept)
	return k
}

func (k *kept) end() {
	if k != nil && k.session != nil {
		k.session.end()
		k.session = nil
	}
}
