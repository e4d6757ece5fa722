// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Known asks the lists on disk, and says when the youngest of them was read: never, if one that is configured is
// missing. Ours are left out.
func (a apt) Known(ctx context.Context, v host.View, names, ours []string) (map[string][]packages.Offer, time.Time, error) {
	var youngest time.Time
	for _, s := range allSources(v) {
		if slices.Contains(ours, s.file) {
			continue
		}
		read := readAt(v, s)
		if i, err := v.Stat(s.file); read.IsZero() || err != nil || i.Ctime.After(read) {
			return nil, time.Time{}, err
		}
		if read.After(youngest) {
			youngest = read
		}
	}
	if youngest.IsZero() {
		return nil, youngest, nil
	}
	offers, err := a.Offers(ctx, v, names)
	return offers, youngest, err
}

// readAt says when a list of a source was read. One that is not signed, and trusted all the same, has no Release.
func readAt(v host.View, s source) time.Time {
	if _, read := release(v, s); !read.IsZero() {
		return read
	}
	for _, name := range packages.ListOf(v, aptLists) {
		if strings.HasPrefix(name, s.list()) {
			if i, err := v.Lstat(aptLists + "/" + name); err == nil { // of file: URIs it may be a link
				return i.Ctime
			}
		}
	}
	return time.Time{}
}
