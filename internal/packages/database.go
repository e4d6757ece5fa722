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

// database is the packager's own database. An interrupted run leaves it broken, and the packager
// then refuses all further work. Its states are "clean", "busy" while another process works at it,
// "interrupted [PACKAGE…]", "broken PACKAGE…" where a script has failed, and "torn PACKAGE…" where
// files were not all unpacked, with the packages that are not wholly installed. Broken packages
// that the spec wants do not count: the transaction that installs the others repairs them.
type database struct {
	set  *Set
	name string // dpkg, rpm
}

const (
	orderlyState = "clean"
	busy         = "busy"
)

// Database wants a packager's database clean before gpuadm uses the packager. set has the packages
// that are installed afterwards.
func Database(set *Set, packager, why string) converge.Want {
	name := "dpkg"
	if p := set.Named(packager); p != nil {
		name = p.Database()
	}
	return converge.Want{
		Thing: database{set, name},
		Why:   why,
		Keeps: "work that was begun is finished, not taken back",
		To:    func(found converge.State) (converge.State, error) { return orderly(name, found) },
	}
}

// NewDatabase builds the thing from its name, for undo.
func NewDatabase(name string, read *Reading) converge.Thing {
	return database{NewSet(read), name}
}

// orderly returns the database's desired state. The packager may finish interrupted work. A package
// that has failed would fail again: the operator has to fix it.
func orderly(name string, found converge.State) (converge.State, error) {
	packages, broken := Broken(found)
	if !broken {
		return orderlyState, nil
	}
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot install packages: %s is not wholly installed, and gpuadm did not install it", packages),
		Because: []string{"its script failed in another installation, and every later one would report that failure"},
		Try: []string{
			repairCommand(name, packages) + ", which shows why it fails",
			"or remove it: apt-get purge " + packages,
		},
	}
	if stateOf(found) == torn {
		// dpkg does not configure such a package, and removes it only by force: dpkg(1), "Package
		// flags" and --force-things.
		t.Because = []string{"another installation was cut short while it unpacked files"}
		t.Try = []string{
			"apt-get install --reinstall " + packages + ", which unpacks it again",
			"or remove it, if no source has it: dpkg --purge --force-remove-reinstreq " + packages,
		}
	}
	return "", t
}

// torn is the state of a database with packages that were not all unpacked.
const torn = "torn"

// stateOf returns a database's state without its packages.
func stateOf(state converge.State) string {
	what, _, _ := strings.Cut(string(state), " ")
	return what
}

// Broken returns, from a database's state, the packages that are not wholly installed and that
// gpuadm did not install.
func Broken(state converge.State) (packages string, broken bool) {
	_, packages, _ = strings.Cut(string(state), " ")
	what := stateOf(state)
	return packages, what == "broken" || what == torn
}

// repairCommand returns the command that finishes the installation of packages. dnf check does not
// see what a killed dnf has left: see Audit of package dnf.
func repairCommand(database, packages string) string {
	if database == "rpm" {
		return "dnf reinstall " + packages
	}
	return "dpkg --configure -a"
}

func (d database) Ref() converge.Ref {
	return converge.Ref{Kind: "package-database", Name: d.name}
}

func (d database) Look(ctx context.Context, v host.View) (converge.State, error) {
	packager, err := d.set.packager(v)
	if err != nil {
		return "", err
	}
	audit, err := packager.Audit(ctx, v, func() (map[string]State, error) {
		return d.set.Read(ctx, v)
	})
	switch {
	case errors.As(err, new(*Locked)):
		return busy, nil
	case err != nil:
		return "", err
	case audit.Interrupted:
		names := slices.Sorted(maps.Keys(audit.Broken))
		return databaseState("interrupted", names), nil
	case len(audit.Broken) == 0:
		return orderlyState, nil
	}

	all, err := d.set.Read(ctx, v)
	if err != nil {
		return "", err
	}
	what := "interrupted"
	var broken []string
	for _, name := range slices.Sorted(maps.Keys(audit.Broken)) {
		if d.set.wants(name, all[name].Version) {
			continue
		}
		broken = append(broken, name)
		switch word := audit.Broken[name]; {
		case word == "half-installed":
			what = torn
		case word == "half-configured" && what != torn:
			what = "broken"
		}
	}

	if len(broken) == 0 {
		return orderlyState, nil
	}
	return databaseState(what, broken), nil
}

func databaseState(what string, packages []string) converge.State {
	return converge.State(strings.TrimSpace(what + " " + strings.Join(packages, " ")))
}

// Make waits for another process, and has the packager finish its interrupted work, once.
func (d database) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != orderlyState {
		return nil
	}
	packager, err := d.set.packager(h)
	if err != nil {
		return err
	}
	defer d.set.Forget()

	err = packager.Repair(ctx, h)
	d.set.Forget()
	found, lookErr := d.Look(ctx, h)
	if found == orderlyState && lookErr == nil {
		return nil // only wanted packages failed, which come next
	}
	if err == nil { // dpkg succeeds beside a package whose archive it needs
		_, err = orderly(d.name, found)
		return err
	}

	_, packages, _ := strings.Cut(string(found), " ")
	isSeen := lookErr == nil && found != busy
	var t *trouble.Error
	if errors.As(err, &t) && isSeen && !errors.As(err, new(*Locked)) {
		t.Try = append(t.Try, repairCommand(d.name, packages)+", once its cause is gone")
	}
	return err
}
