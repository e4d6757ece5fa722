// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Known asks dnf's caches, and reads no repository.
func (a dnf) Known(ctx context.Context, v host.View, names, _ []string) (map[string][]packages.Offer, time.Time, error) {
	var youngest time.Time
	for _, dir := range packages.ListOf(v, dnfCache) {
		if i, err := v.Stat(dnfCache + "/" + dir + "/repodata/repomd.xml"); err == nil && i.Ctime.After(youngest) {
			youngest = i.Ctime
		}
	}
	if youngest.IsZero() {
		return nil, youngest, nil
	}
	cached := a
	cached.more = append(slices.Clone(a.more), "--cacheonly")
	offers, err := cached.Offers(ctx, v, names)
	if err != nil {
		return nil, time.Time{}, nil // a repository has no cache yet: nothing is known
	}
	return offers, youngest, nil
}
