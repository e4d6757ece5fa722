// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
	out, err := v.Ask(ctx, slices.Concat([]string{"apt-cache"}, readOnly(v), []string{"show", "--"}, what)...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	return parseRecords(out, native), nil
}

func parseRecords(out []byte, native string) (all []record) {
	d := dpkg{native: native}
	for p := range paragraphs(out) {
		var r record
		var name, arch []byte
		for key, value := range fields(p) {
			switch string(key) {
			case "Package":
				name = value
			case "Architecture":
				arch = value
			case "Version":
				r.version = string(value)
			case "Size":
				r.download, _ = strconv.ParseInt(string(value), 10, 64)
			case "Installed-Size":
				r.size, _ = strconv.ParseInt(string(value), 10, 64)
			}
		}
		if r.name = string(d.key(name, arch)); r.name != "" {
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
			size, _ := strconv.ParseInt(string(d.details(c.Name).size), 10, 64)
			need["/usr"] -= size << 10
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
	usr, err := v.Room("/usr")
	if err != nil {
		return err
	}
	archives, err := v.Room(aptArchives)
	if err != nil {
		return err
	}
	return fits(usr.Bytes, archives.Bytes, need["/usr"], need[aptArchives])
}

// fits compares with the room in both folders. They are on one file system where they have the same.
func fits(usr, archives uint64, install, download int64) error {
	if usr == archives {
		install, download = install+download, 0
	}
	for _, f := range []struct {
		dir  string
		room uint64
		need int64
	}{{"/usr", usr, install}, {aptArchives, archives, download}} {
		if f.need > 0 && uint64(f.need) > f.room {
			return &trouble.Error{
				What: fmt.Sprintf("cannot install packages: the disk is full: they need %d MB in %s, which has %d MB free", f.need/1e6+1, f.dir, f.room/1e6),
				Try:  []string{"make room (apt-get clean frees what apt has downloaded), then run the same command again"},
			}
		}
	}
	return nil
}
