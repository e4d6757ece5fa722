// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// database is the packager's own database. An interrupted run leaves it broken, and the packager
// then refuses all further work. Its states are "clean", "busy" while another process works at it,
// "interrupted [PACKAGE…]" and "broken PACKAGE…", with the packages that are not wholly installed.
// Broken packages that the spec wants do not count: the transaction that installs the others
// repairs them.
type database struct {
	set *Set
	of  string // dpkg, rpm
}

const orderlyState = "clean"

// Database wants a packager's database clean before gpuadm uses the packager. set has the packages
// that are installed afterwards.
func Database(set *Set, packager, why string) converge.Want {
	name := "dpkg"
	if p := set.Named(packager); p != nil {
		name = p.Database()
	}
	return converge.Want{
		Thing: database{set, name}, Why: why,
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
	return "", &trouble.Error{
		What:    fmt.Sprintf("cannot install packages: %s is not wholly installed, and gpuadm did not install it", packages),
		Because: []string{"its script failed in another installation, and every later one would report that failure"},
		Try:     []string{repairs(name) + ", which shows why it fails", "or remove it: apt-get purge " + packages},
	}
}

// Broken returns, from a database's state, the packages that are not wholly installed and that
// gpuadm did not install.
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
	if errors.As(err, new(*Locked)) {
		return "busy", nil
	} else if err != nil {
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
		if _, wanted := d.set.wanted[name]; (wanted || d.set.Family.Has(name, all[name].Version)) && !a.Interrupted {
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

// Make waits for another process, and has the packager finish its interrupted work, once.
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
		return nil // only wanted packages failed, which come next
	}
	if t := (*trouble.Error)(nil); errors.As(err, &t) && !errors.As(err, new(*Locked)) {
		t.Try = append(t.Try, repairs(d.of)+", once its cause is gone")
	}
	return err
}

// Reading is a shared reading of the packager's database: it is read again only after the database
// has changed.
type Reading struct {
	packagers []Packager

	mu    sync.Mutex
	of    []identity
	found map[string]State
	reads int

	digests sync.Map // LockFile, by identity: of files of mirrors
}

// NewReading returns a reading for a program that knows these packagers.
func NewReading(packagers ...Packager) *Reading { return &Reading{packagers: packagers} }

// packager returns the packager of the machine.
func (r *Reading) packager(v host.View) (Packager, error) {
	name := facts.PackagerOf(v).Name
	if p := r.Named(name); p != nil {
		return p, nil
	}
	return nil, Unmanaged("read installed", name)
}

// Unmanaged refuses work with packages on a machine whose packager gpuadm does not install with:
// name, or "" if none is known.
func Unmanaged(verb, name string) error {
	return &trouble.Error{
		What: "cannot " + verb + " packages: " + cmp.Or(name, "no packager that gpuadm knows") + " manages this machine, and gpuadm installs by apt and dnf",
		Try:  []string{`set owner = "other" in [driver], and leave [toolkit] out, where another tool installs them`},
	}
}

// Named returns the packager of a name; nil if there is none.
func (r *Reading) Named(name string) Packager {
	for _, p := range r.packagers {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// identity distinguishes the versions of a file: it changes when a packager replaces the file or
// writes to it.
type identity struct {
	name  string
	size  int64
	ctime time.Time
}

// Read returns the states of all packages, from memory while the database is unchanged.
func (r *Reading) Read(ctx context.Context, v host.View) (map[string]State, error) {
	m, err := r.packager(v)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	of, err := identities(v, m.Files())
	if err != nil {
		return nil, err
	}
	if r.found != nil && slices.Equal(of, r.of) {
		return r.found, nil
	}
	v = view.Machine(v) // the reading outlives a snapshot, which may have read a file before its identity was asked for
	if of, err = identities(v, m.Files()); err != nil {
		return nil, err
	}
	found, err := m.Installed(ctx, v)
	if err != nil {
		return nil, err
	}
	r.of, r.found, r.reads = of, found, r.reads+1
	return found, nil
}

// identities returns the identity of each file; a missing file has the zero identity.
func identities(v host.View, names []string) (all []identity, err error) {
	for _, name := range names {
		id := identity{name: name}
		if i, err := v.Stat(name); err == nil {
			id.size, id.ctime = i.Size, i.Ctime
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		all = append(all, id)
	}
	return all, nil
}

// last returns what the last reading found.
func (r *Reading) last() (found map[string]State, edition int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found, r.reads
}

// Meets says whether packages are installed as wanted.
func (r *Reading) Meets(ctx context.Context, v host.View, want map[string]State) (bool, error) {
	all, err := r.Read(ctx, v)
	for name, wanted := range want {
		if err == nil && !all[name].meets(wanted) {
			return false, nil
		}
	}
	return true, err
}

// Forget makes the next Read read the database: with a coarse clock two writes may have the same
// time.
func (r *Reading) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = nil
}
