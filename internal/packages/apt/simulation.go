// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// What apt-get -V prints: "The following packages will be upgraded:", then " NAME (OLD => NEW)" for
// each; what is removed may have no version. The other lists repeat some.
var (
	sayList = pattern.Of(`^The following (?:NEW packages will be installed|packages will be (REMOVED|upgraded|DOWNGRADED)):$`)
	sayMove = pattern.Of(`^   (\S+?)\*?(?: \((?:\S+ => )?(\S+)\))?$`)
	sayNeed = pattern.Of(`(?m)^Need to get ([0-9.]+) ?(\w?)B`)
	saySize = pattern.Of(`(?m)^After this operation, ([0-9.]+) ?(\w?)B of additional disk space`)
)

// parseSimulation returns what apt would do.
func parseSimulation(out string) (moves []packages.Move) {
	var list []string // the match of the list's first line; nil in other lists
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "   ") {
			list = sayList().FindStringSubmatch(line)
			continue
		}
		m := sayMove().FindStringSubmatch(line)
		if list == nil || m == nil {
			continue
		}

		move := packages.Move{Name: m[1], Version: m[2]}
		if list[1] == "REMOVED" {
			move.Version = ""
		}
		moves = append(moves, move)
	}

	return lastOf(moves)
}

// lastOf returns the last move of each package: apt may remove a package before it installs another
// version.
func lastOf(moves []packages.Move) (list []packages.Move) {
	for i, move := range moves {
		same := func(later packages.Move) bool { return later.Name == move.Name }
		if !slices.ContainsFunc(moves[i+1:], same) {
			list = append(list, move)
		}
	}
	return list
}

// needs are the bytes that apt would install and download.
type needs struct{ install, download int64 }

// needsOf reads them: SizeToStr in apt-pkg/contrib/strutl.cc.
func needsOf(out string) needs {
	return needs{
		install:  bytesIn(saySize().FindStringSubmatch(out)),
		download: bytesIn(sayNeed().FindStringSubmatch(out)),
	}
}

// bytesIn reads a match of a number and its unit.
func bytesIn(m []string) int64 {
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	unit := cmp.Or(m[2], " ")
	return int64(n * math.Pow(1000, float64(strings.Index(" kMGTP", unit))))
}

// room refuses what does not fit on the disk: apt itself only checks the room for downloads, and
// dpkg fails in the middle of its work.
func (n needs) room(v host.View) error {
	usr, err := v.Room("/usr")
	if err != nil {
		return err
	}
	archives, err := v.Room(aptArchives)
	if err != nil {
		return err
	}
	return n.fits(usr.Bytes, archives.Bytes)
}

// fits takes the bytes that are free.
func (n needs) fits(usr, archives uint64) error {
	if usr == archives { // one file system
		n.install += n.download
	}
	if n.install <= 0 || uint64(n.install) <= usr {
		return nil
	}

	const full = "cannot install packages: the disk is full: they need %d MB in /usr, which has %d MB free"
	return &trouble.Error{
		What: fmt.Sprintf(full, n.install/1e6+1, usr/1e6),
		Try:  []string{"make room (apt-get clean frees what apt has downloaded), then run the same command again"},
	}
}
