// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// dnfHistory is where dnf 4 keeps what it did and why: rpm itself knows neither reasons nor that it was interrupted.
const dnfHistory = "/var/lib/dnf/history.sqlite"

// A past is dnf's history, as far as it bears on what is installed.
type past struct {
	auto   map[string]bool // NAME.ARCH: installed for others' sake
	failed map[string]bool // NAME-[EPOCH:]VERSION-RELEASE.ARCH: its script failed when it was installed
	// left is what the newest transaction was about if it never ended; nil if it did.
	left *leftover
}

// A leftover is a transaction that was begun and never ended.
type leftover struct {
	incoming, outgoing []rpmPackage
}

// What dnf's tables call things: libdnf/transaction/Types.hpp in libdnf's tree.
const (
	transactionDone = 1

	actionInstall, actionDowngrade, actionDowngraded, actionObsolete, actionObsoleted = 1, 2, 3, 4, 5
	actionUpgrade, actionUpgraded, actionRemove, actionReinstall, actionReinstalled   = 6, 7, 8, 9, 10

	reasonDependency, reasonWeakDependency = 1, 4
)

// sayScript is rpm's word for a script that failed where dnf goes on and exits with 0.
var sayScript = pattern.Of(`(?m)(?:warning|error): %(\w+)\((\S+)\) scriptlet failed, (.*?)\s*$`)

func readPast(v host.View) (past, error) {
	data, err := v.ReadFile(dnfHistory)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		return past{}, nil
	}
	if err != nil {
		return past{}, fmt.Errorf("cannot read dnf's history: %w", err)
	}
	wal, err := v.ReadFile(dnfHistory + "-wal")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return past{}, fmt.Errorf("cannot read dnf's history: %w", err)
	}
	p, err := parsePast(data, wal)
	if err != nil {
		return past{}, fmt.Errorf("cannot read dnf's history (%s): %w", dnfHistory, err)
	}
	return p, nil
}

// An item is what a transaction did to one package.
type item struct {
	rpmPackage
	action, reason int64
}

func parsePast(data, wal []byte) (past, error) {
	db, err := openSqlite(data, wal)
	if err != nil {
		return past{}, err
	}
	tables := map[string][]row{}
	for name, id := range map[string]int{"trans": 0, "trans_item": 0, "rpm": -1, "console_output": 0} {
		if tables[name], err = db.table(name, id); err != nil {
			return past{}, err
		}
	}
	rpms := map[int64]rpmPackage{}
	for _, r := range tables["rpm"] {
		rpms[r.num(0)] = rpmPackage{r.text(1), evr(strconv.FormatInt(r.num(2), 10), r.text(3), r.text(4)), r.text(5)}
	}
	items := map[int64][]item{}
	for _, r := range tables["trans_item"] {
		if p, ok := rpms[r.num(2)]; ok { // groups and module streams are items too
			items[r.num(1)] = append(items[r.num(1)], item{p, r.num(4), r.num(5)})
		}
	}
	said := map[int64][]string{} // by transaction: packages whose scripts failed
	for _, r := range tables["console_output"] {
		for _, m := range sayScript().FindAllStringSubmatch(r.text(3), -1) {
			if !strings.HasSuffix(m[1], "un") { // of what goes away
				said[r.num(1)] = append(said[r.num(1)], withoutEpoch(m[2]))
			}
		}
	}
	p := past{auto: map[string]bool{}, failed: map[string]bool{}}
	slices.SortFunc(tables["trans"], func(a, b row) int { return cmp.Compare(a.num(0), b.num(0)) })
	for i, t := range tables["trans"] {
		switch {
		case t.num(8) == transactionDone:
			p.done(items[t.num(0)], said[t.num(0)])
		case t.num(8) == 0 && i == len(tables["trans"])-1:
			p.left = left(items[t.num(0)])
		}
	}
	return p, nil
}

// done takes over what a transaction did. dnf itself counts only transactions that ended.
func (p *past) done(items []item, failed []string) {
	for _, it := range items {
		switch it.action {
		case actionDowngraded, actionObsoleted, actionUpgraded, actionReinstalled:
			continue
		}
		key := it.name + "." + it.arch
		delete(p.auto, key)
		if it.action != actionRemove && (it.reason == reasonDependency || it.reason == reasonWeakDependency) {
			p.auto[key] = true
		}
		switch it.action {
		case actionInstall, actionDowngrade, actionObsolete, actionUpgrade, actionReinstall:
			p.failed[it.nevra()] = slices.Contains(failed, withoutEpoch(it.nevra()))
		}
	}
}

func left(items []item) *leftover {
	l := &leftover{}
	for _, it := range items {
		switch it.action {
		case actionInstall, actionDowngrade, actionObsolete, actionUpgrade, actionReinstall:
			l.incoming = append(l.incoming, it.rpmPackage)
		case actionRemove:
			l.outgoing = append(l.outgoing, it.rpmPackage)
		}
	}
	return l
}

var hasEpoch = pattern.Of(`-\d+:`)

// withoutEpoch: older rpms leave the epoch out where they name a package.
func withoutEpoch(nevra string) string { return hasEpoch().ReplaceAllLiteralString(nevra, "-") }
