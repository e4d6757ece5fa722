// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A record is what a source says about one version of a package.
type record struct {
	name, version string
	download      int64 // bytes
	size          int64 // KiB when installed
}

// records asks what the sources say about NAME=VERSION.
func (a apt) records(ctx context.Context, v host.View, native string, what []string) ([]record, error) {
	if len(what) == 0 {
		return nil, nil
	}
	out, err := v.Ask(ctx, slices.Concat([]string{"apt-cache"}, readOnly(), []string{"show", "--"}, what)...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	return parseRecords(out, native), nil
}

func parseRecords(out []byte, native string) (all []record) {
	d := dpkg{native: native}
	for p := range paragraphs(out) {
		var r record
		var arch string
		for key, value := range p {
			switch string(key) {
			case "Package":
				r.name = string(value)
			case "Architecture":
				arch = string(value)
			case "Version":
				r.version = string(value)
			case "Size":
				r.download, _ = strconv.ParseInt(string(value), 10, 64)
			case "Installed-Size":
				r.size, _ = strconv.ParseInt(string(value), 10, 64)
			}
		}
		if r.name = d.key(r.name, arch); r.name != "" {
			all = append(all, r)
		}
	}
	return all
}

// room refuses what does not fit on the disk. apt itself looks only whether it can download, and dpkg finds out in its midst.
func (a apt) room(ctx context.Context, v host.View, d dpkg, changes []converge.Change) error {
	var what []string
	need := map[string]int64{} // bytes, by folder
	for _, c := range packages.Due(changes) {
		after := packages.Parse(c.After)
		if found := d.packages[c.Name]; found.Installed() {
			need["/usr"] -= found.size << 10
		}
		if after.Installed() && stored(v, c.Name, after.Version) == "" {
			what = append(what, c.Name+"="+after.Version)
		}
	}
	all, err := a.records(ctx, v, d.native, what)
	if err != nil {
		return err
	}
	for _, r := range all {
		if slices.Contains(what, r.name+"="+r.version) {
			need["/usr"] += r.size << 10
			need[aptArchives] += r.download
		}
	}
	out, err := v.Ask(ctx, "df", "--block-size=1", "--output=avail,target", "/usr", aptArchives)
	if err != nil {
		return nil // it is dpkg that has to know
	}
	return fits(string(out), need["/usr"], need[aptArchives])
}

// fits compares with what df says of the two folders' file systems, which may be one.
func fits(df string, usr, archives int64) error {
	rows := packages.Lines(df)
	if len(rows) != 3 {
		return nil
	}
	need := map[string]int64{}
	free := map[string]int64{}
	for i, n := range []int64{usr, archives} {
		avail, target, _ := strings.Cut(strings.TrimSpace(rows[i+1]), " ")
		have, err := strconv.ParseInt(avail, 10, 64)
		if err != nil {
			return nil
		}
		target = strings.TrimSpace(target)
		need[target] += n
		free[target] = have
		if need[target] > have {
			return &converge.Trouble{
				What: fmt.Sprintf("cannot install packages: the disk is full: they need %d MB in %s, which has %d MB free", need[target]/1e6+1, target, have/1e6),
				Try:  []string{"make room (apt-get clean frees what apt has downloaded), then run the same command again"},
			}
		}
	}
	return nil
}
