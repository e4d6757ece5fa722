// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Offers asks apt which versions of packages are available, newest first. What is only installed is not among them.
func (a apt) Offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]packages.Offer{}, nil
	}
	out, err := v.Ask(ctx, slices.Concat([]string{"apt-cache"}, readOnly(v), []string{"policy", "--"}, names)...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	all := parsePolicy(string(out))
	for name := range all {
		all[name] = packages.Newest(all[name], a.Compare)
	}
	return all, nil
}

// others is Offers without asking again for those that are known.
func (a apt) others(ctx context.Context, v host.View, names []string, known map[string][]packages.Offer) (map[string][]packages.Offer, error) {
	isKnown := func(n string) bool { return len(known[n]) > 0 }
	all, err := a.Offers(ctx, v, slices.DeleteFunc(slices.Clone(names), isKnown))
	if err == nil {
		maps.Copy(all, known)
	}
	return all, err
}

// parsePolicy reads what apt-cache policy NAME… prints: versions with their priority follow five spaces, the
// sources of each follow eight.
func parsePolicy(out string) map[string][]packages.Offer {
	all := map[string][]packages.Offer{}
	name := ""
	var last *packages.Offer
	end := func() {
		if last != nil && len(last.From) > 0 {
			all[name] = append(all[name], *last)
		}
		last = nil
	}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case line[0] != ' ':
			end()
			name = strings.TrimSuffix(line, ":")
		case len(words) >= 2 && (strings.HasPrefix(line, " *** ") || strings.HasPrefix(line, "     ") && line[5:6] != " "):
			end()
			if words[0] == "***" {
				words = words[1:]
			}
			if len(words) < 2 {
				continue
			}
			if p, err := strconv.Atoi(words[1]); err == nil {
				last = &packages.Offer{Version: words[0], Priority: p}
			}
		case last != nil && strings.HasPrefix(line, "        ") && len(words) >= 2 && words[1] != packages.DpkgStatus:
			if _, err := strconv.Atoi(words[0]); err == nil {
				last.From = append(last.From, strings.TrimSuffix(strings.Join(words[1:], " "), " Packages"))
			}
		}
	}
	end()
	return all
}
