// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Offers asks apt which versions of packages are available, newest first. A version that is only
// installed does not count.
func (a apt) Offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]packages.Offer{}, nil
	}
	out, err := a.policy(ctx, v, nil, names)
	if err != nil {
		return nil, err
	}

	all := parsePolicy(out)
	for name := range all {
		all[name] = packages.Newest(all[name], a.Compare)
	}
	return all, nil
}

// policy returns what apt-cache policy prints of packages. pins precede those on disk.
func (a apt) policy(ctx context.Context, v host.View, pins []packages.Pin, names []string) (string, error) {
	pinText, err := a.literalPins(v, pins, names)
	if err != nil {
		return "", err
	}
	argv := slices.Concat([]string{"apt-cache"}, readOnly(v), scratchPins(), []string{"policy", "--"}, names)
	out, err := v.AskAbout(ctx, map[string][]byte{pinsInScratch: pinText}, argv...)
	if err != nil {
		return "", explain(v, string(out), err)
	}
	return string(out), nil
}

// sayCandidate is the version of a package that apt would install where none is named.
var sayCandidate = pattern.Of(`(?m)^(\S+):\n  Installed: .*\n  Candidate: (.*)$`)

// candidatesIn reads the candidates of packages in what apt-cache policy prints: ShowPolicy in
// apt-private/private-show.cc.
func candidatesIn(out string) map[string]string {
	candidates := map[string]string{}
	for _, m := range sayCandidate().FindAllStringSubmatch(out, -1) {
		candidates[m[1]] = m[2]
	}
	return candidates
}

// parsePolicy reads what apt-cache policy NAME… prints: versions with their priority follow five
// spaces, or " *** " where one is installed; the sources of each, with theirs in four columns,
// follow seven: ShowPolicy in apt-private/private-show.cc.
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

		case len(words) >= 2 && isVersionLine(line):
			end()
			if words[0] == "***" {
				words = words[1:]
			}
			if len(words) < 2 {
				continue
			}
			priority, err := strconv.Atoi(words[1])
			if err == nil {
				last = &packages.Offer{Version: words[0], Priority: priority}
			}

		case last != nil && len(words) >= 2 && isSourceLine(line) && words[1] != facts.DpkgStatus:
			if _, err := strconv.Atoi(words[0]); err == nil {
				source := strings.TrimSuffix(strings.Join(words[1:], " "), " Packages")
				last.From = append(last.From, source)
			}
		}
	}

	end()
	return all
}

func isVersionLine(line string) bool {
	const spaces = "     "
	indented := strings.HasPrefix(line, spaces) && !strings.HasPrefix(line, spaces+" ")
	return indented || strings.HasPrefix(line, " *** ")
}

func isSourceLine(line string) bool { return strings.HasPrefix(line, "       ") }
