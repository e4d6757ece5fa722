// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// database is the packager's own, which an interrupted run leaves broken: then it refuses all further work.
// Its states are "clean", "interrupted [PACKAGE…]" and "broken PACKAGE…", with the packages that are not wholly installed.
// Broken packages that are wanted do not count: they are repaired with the others, in one transaction.
type database struct {
	set *Set
	of  string // dpkg, rpm
}

const orderlyState = "clean"

// Database wants a packager's database clean before anything is asked of it. set is that of the packages that come after it.
func Database(set *Set, packager, why string) converge.Want {
	name := "dpkg"
	if p := set.named(packager); p != nil {
		name = p.Database()
	}
	return converge.Want{
		Thing: database{set, name}, Why: why,
		Keeps: "an interrupted installation is finished; it cannot be interrupted again",
		To:    func(found converge.State) (converge.State, error) { return orderly(name, found) },
	}
}

// NewDatabase builds the thing again from its name.
func NewDatabase(name string, read *Reading) converge.Thing {
	return database{NewSet().Sharing(read), name}
}

// orderly is the database's desired state. The packager may finish what it can. What failed already would fail again, and
// the administrator has to fix it.
func orderly(name string, found converge.State) (converge.State, error) {
	packages, broken := Broken(found)
	if !broken {
		return orderlyState, nil
	}
	return "", &trouble.Error{
		What:    fmt.Sprintf("cannot install packages: %s is not wholly installed, and gpuadm did not install it", packages),
		Because: []string{"its script failed in another installation, and every later one would report that failure"},
		Try:     []string{repairs(name) + ", which shows why it fails", "or remove it: apt-get purge " + packages},
	}
}

// Broken are the packages that are not wholly installed, and that gpuadm did not install, of a database's state.
func Broken(state converge.State) (packages string, is bool) {
	what, packages, _ := strings.Cut(string(state), " ")
	return packages, what == "broken"
}

func repairs(name string) string {
	if name == "rpm" {
		return "dnf check"
	}
	return "dpkg --configure -a"
}

func (d database) Ref() converge.Ref { return converge.Ref{Kind: "package-database", Name: d.of} }

func (d database) Look(ctx context.Context, v host.View) (converge.State, error) {
	m, err := d.set.packager(v)
	if err != nil {
		return "", err
	}
	a, err := m.Audit(ctx, v, func() (map[string]State, error) { return d.set.Read(ctx, v) })
	if err != nil {
		return "", err
	}
	var broken []string
	what := "interrupted"
	var all map[string]State
	if len(a.Broken) > 0 {
		if all, err = d.set.Read(ctx, v); err != nil {
			return "", err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.Broken)) {
		if _, wanted := d.set.wanted[name]; (wanted || d.set.family.Has(name, all[name].Version)) && !a.Interrupted {
			continue
		}
		broken = append(broken, name)
		if !a.Interrupted && (a.Broken[name] == "half-configured" || a.Broken[name] == "half-installed") {
			what = "broken"
		}
	}
	if !a.Interrupted && len(broken) == 0 {
		return orderlyState, nil
	}
	return converge.State(strings.TrimSpace(what + " " + strings.Join(broken, " "))), nil
}

// Make lets the packager finish, once.
func (d database) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != orderlyState {
		return nil
	}
	m, err := d.set.packager(h)
	if err != nil {
		return err
	}
	defer d.set.Forget()
	err = m.Repair(ctx, h)
	d.set.Forget()
	found, lookErr := d.Look(ctx, h)
	if found == orderlyState && lookErr == nil {
		return nil // what failed are wanted packages, which come next
	}
	if t := (*trouble.Error)(nil); errors.As(err, &t) {
		t.Try = append(t.Try, repairs(d.of)+", once its cause is gone")
	}
	return err
}
