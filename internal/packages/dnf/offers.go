// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Offers asks which versions are available; dnf leaves out those that modules or excludes hide.
func (a dnf) Offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]packages.Offer{}, nil
	}
	const format = "%{name}\t%{epoch}\t%{version}\t%{release}\t%{arch}\t%{repoid}"
	out, err := a.query(ctx, v, append([]string{"--showduplicates", "--qf", format}, names...)...)
	if err != nil {
		return nil, err
	}
	all := parseOffers(out, names, raised(v))
	for name := range all {
		all[name] = packages.Newest(all[name], a.Compare)
	}
	return all, nil
}

// Offers leaves out what dnf's plugin versionlock hides. gpuadm runs dnf without it, since it also
// hides what gpuadm's own locks exclude.
func (s solver) Offers(
	ctx context.Context, v host.View, names []string,
) (map[string][]packages.Offer, error) {
	all, err := s.dnf.Offers(ctx, v, names)
	for name := range all {
		hidden := func(o packages.Offer) bool { return s.d.hides(name, o.Version) }
		all[name] = slices.DeleteFunc(all[name], hidden)
	}

	return all, err
}

// query asks what is available.
func (a dnf) query(ctx context.Context, v host.View, args ...string) (string, error) {
	argv := slices.Concat([]string{"dnf", "-q"}, a.options(v), []string{"repoquery", "--available"}, args)
	out, err := v.Ask(ctx, argv...)
	if err != nil {
		err = explain(v, string(out), err)
	}
	return string(out), err
}

// rows splits the lines of an answer into its columns.
func rows(out string, columns int) (all [][]string) {
	for line := range strings.Lines(strings.ReplaceAll(out, `\t`, "\t")) {
		row := strings.Split(strings.TrimSpace(line), "\t")
		if len(row) == columns {
			all = append(all, row)
		}
	}
	return all
}

// usual is an Offer's priority where the repository sets none.
const usual = 1000

// raised returns by how much repositories raise the priority of their offers, by id; it omits those
// that set no priority. For dnf the lowest number comes first, and the default is 99: dnf.conf(5).
func raised(v host.View) map[string]int {
	by := map[string]int{}
	repos, _ := reposIn(v, repoFiles(v, "")) // dnf reports a file that it cannot read
	for _, r := range repos {
		priority, err := strconv.Atoi(r.values["priority"])
		if err == nil {
			by[r.id] = 99 - priority
		}
	}

	return by
}

func parseOffers(out string, names []string, raised map[string]int) map[string][]packages.Offer {
	all := map[string][]packages.Offer{}
	for _, row := range rows(out, 6) {
		p := rpmPackage{
			name: row[0],
			evr:  evr(row[1], row[2], row[3]),
			arch: row[4],
		}
		repository := row[5]
		offer := packages.Offer{
			Version:  p.evr,
			Priority: max(0, usual+raised[repository]),
			From:     []string{repository},
		}

		same := func(o packages.Offer) bool {
			return o.Version == p.evr && o.From[0] == repository
		}
		for _, name := range p.keys() {
			if slices.Contains(names, name) && !slices.ContainsFunc(all[name], same) {
				all[name] = append(all[name], offer)
			}
		}
	}

	return all
}
