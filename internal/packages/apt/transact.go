// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Transact makes the changes in one apt-get install, which touches nothing if it would do anything
// but these changes: see Verify.
func (a apt) Transact(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	if d.interrupted {
		// apt refuses all work until dpkg has merged its leftover updates. dpkg --set-selections
		// without input does only that: dpkg --configure -a would run the scripts of packages that
		// are about to be replaced.
		if err := a.again(ctx, h, "dpkg", "--set-selections"); err != nil {
			return err
		}
		if d, err = readDpkg(h); err != nil {
			return err
		}
	}
	now := packages.WithBefore(d.packages, changes)
	if len(packages.Due(now)) > 0 {
		if err := a.move(ctx, h, d, now); err != nil {
			if failed := a.markReached(ctx, h, err, now); failed != nil {
				err = host.Join(err, failed)
			}
			return err
		}
		if err := keepNew(ctx, h, now); err != nil {
			return err
		}
	}
	if err = a.purge(ctx, h, now); err == nil {
		err = a.mark(ctx, h, now)
	}
	if err == nil {
		d, err = readDpkg(h)
	}
	return cmp.Or(err, packages.Verify("apt", changes, d.packages))
}

// move installs and removes.
func (a apt) move(ctx context.Context, h host.Host, d dpkg, changes []converge.Change) error {
	var names []string // whose file a source may have; it goes before the stored one
	for _, c := range packages.Due(changes) {
		if after := packages.Parse(c.After); after.Installed() && stored(h, c.Name, after.Version) != "" {
			names = append(names, c.Name)
		}
	}
	get, err := a.hooked(changes)
	if err != nil {
		return err
	}
	install := func(args ...string) error { return a.again(ctx, h, packages.Quiet(h, slices.Concat(get, args)...)...) }
	if packages.Removes(changes) {
		return install(append(verb(changes), arguments(h, changes, nil)...)...)
	}
	offers, err := a.Offers(ctx, h, names)
	if err != nil {
		return err
	}
	r := packages.Resolution{Changes: changes, Installed: d.packages, Solver: solver{apt: a, d: d}}
	if err := r.Unkept(ctx, h, a.Keep(ctx, h, r.Replaced())); err != nil {
		return err
	}
	err = install(append(verb(changes), arguments(h, changes, offers)...)...)
	if failed := (*host.CommandError)(nil); errors.As(err, &failed) && strings.Contains(failed.Stderr, "Failed to fetch") && packages.InStore(h, a, changes) {
		// No source has the versions any more, but Store has. apt reads as its user _apt, which may
		// not enter that folder.
		err = install(slices.Concat([]string{"-o", "APT::Sandbox::User=root"}, verb(changes), arguments(h, changes, nil))...)
	}
	return err
}

// purge removes the leftovers of packages that were not installed before gpuadm.
func (a apt) purge(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	var names []string
	for _, c := range changes {
		if !packages.Parse(c.After).Installed() && packages.Parse(c.After).Broken == "" && d.packages[c.Name].Broken == packages.ConfigFiles {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return a.again(ctx, h, packages.Quiet(h, slices.Concat([]string{"apt-get"}, a.options(), []string{"purge", "--"}, names)...)...)
}

// markReached marks the packages that are converged after a transaction that failed for others: in
// a rollback one script that still fails must not cost all others their holds.
func (a apt) markReached(ctx context.Context, h host.Host, failed error, changes []converge.Change) error {
	d, err := readDpkg(h)
	if busy := (*packages.Locked)(nil); err != nil || d.interrupted || errors.As(failed, &busy) || ctx.Err() != nil {
		return err
	}
	return a.mark(ctx, h, slices.DeleteFunc(slices.Clone(changes), func(c converge.Change) bool {
		found, after := d.packages[c.Name], packages.Parse(c.After)
		return !after.Installed() || found.Version != after.Version || found.Broken != ""
	}))
}

// mark sets and clears holds and automatic marks.
func (a apt) mark(ctx context.Context, h host.Host, changes []converge.Change) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	marks := map[string][]string{}
	for _, c := range changes {
		found, after := d.packages[c.Name], packages.Parse(c.After)
		if after.Installed() && found.Auto != after.Auto {
			verb := map[bool]string{true: "auto", false: "manual"}[after.Auto]
			marks[verb] = append(marks[verb], c.Name)
		}
		if found.Held != after.Held {
			verb := map[bool]string{true: "hold", false: "unhold"}[after.Held]
			marks[verb] = append(marks[verb], c.Name)
		}
	}
	for _, verb := range []string{"auto", "manual", "hold", "unhold"} {
		if len(marks[verb]) == 0 {
			continue
		}
		// dpkg knows them all: no source need be read.
		options := []string{"-o", "Dir::Etc::SourceList=/dev/null", "-o", "Dir::Etc::SourceParts=/dev/null", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="}
		if err := a.again(ctx, h, slices.Concat([]string{"apt-mark"}, options, []string{verb, "--"}, marks[verb])...); err != nil {
			return err
		}
	}
	return nil
}

// Before it starts dpkg, apt sends the commands in DPkg::Pre-Install-Pkgs all that dpkg will do,
// and changes nothing if one of them fails. So gpuadm compares the plan with the very transaction
// that apt is about to make: between an earlier simulation and the transaction another process may
// have changed what apt would do.
//
// Sources: apt.conf(5), DPkg::Pre-Install-Pkgs; pkgDPkgPM::SendPkgsInfo, RunScriptsWithPkgs and Go
// in apt-pkg/deb/dpkgpm.cc of https://salsa.debian.org/apt-team/apt.

// HookVerb is the verb with which apt runs gpuadm.
const HookVerb = "apt-hook"

// hookPlan has the plan: the name and the two states of each package.
const hookPlan = "GPUADM_PACKAGES"

// hooked is apt-get with the hook, for env(1). With Mark-Auto apt marks what it installs as
// automatic before dpkg starts, and keeps the marks of what it replaces. After a kill the next plan
// has the packages that are to be manual, and marks them; it does not have their dependencies,
// which must be marked by then. Sources: apt-get(8), --mark-auto; pkgDPkgPM::Go, and
// pkgDepCache::MarkInstall in apt-pkg/depcache.cc (apt 2.1.8 and later).
func (a apt) hooked(changes []converge.Change) ([]string, error) {
	var plan [][3]string
	for _, c := range changes {
		plan = append(plan, [3]string{c.Name, string(c.Before), string(c.After)})
	}
	text, err := json.Marshal(plan)
	return append([]string{
		hookPlan + "=" + string(text), "apt-get",
		"-o", "APT::Get::Mark-Auto=true", "-o", "DPkg::Pre-Install-Pkgs::=" + host.Self + " " + HookVerb, "-o", "DPkg::Tools::Options::" + host.Self + "::Version=3",
	}, append(unpinned(), a.options()...)...), err
}

// refusal is the hook's line on apt's output, which gives gpuadm the reason of its failure.
type refusal struct {
	Because string `json:"gpuadm_refuses"`
}

// Verify is the hook: it compares apt's announcement with the plan in the environment, and fails if
// apt would do anything else.
func Verify(getenv func(string) string, announced io.Reader, answer io.Writer) error {
	var plan [][3]string
	if err := json.Unmarshal([]byte(getenv(hookPlan)), &plan); err != nil {
		return fmt.Errorf("cannot read what was planned: %w; apt runs this verb", err)
	}
	moves, installed, err := parseAnnounced(announced)
	if err != nil {
		return err
	}
	r := packages.Resolution{Installed: installed, Solver: solver{}}
	for _, p := range plan {
		c := converge.Change{Ref: converge.Ref{Kind: "package", Name: p[0]}, Before: converge.State(p[1]), After: converge.State(p[2])}
		r.Changes = append(r.Changes, c)
	}
	because := r.Difference(moves)
	if because == "" {
		return nil
	}
	return errors.Join(errors.New(because), json.NewEncoder(answer).Encode(refusal{because}))
}

// parseAnnounced reads version 3 of the protocol: "VERSION 3", apt's configuration, an empty line,
// and for each package "NAME OLD ARCH MULTIARCH DIRECTION NEW ARCH MULTIARCH ACTION". installed has
// the old versions.
func parseAnnounced(in io.Reader) (moves []packages.Move, installed map[string]packages.State, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != "VERSION 3" {
		return nil, nil, errors.Join(fmt.Errorf("cannot read what apt announces: it begins with %q", lines.Text()), lines.Err())
	}
	var d dpkg
	for lines.Scan() && lines.Text() != "" {
		if arch, is := strings.CutPrefix(lines.Text(), "APT::Architecture="); is {
			d.native = arch
		}
	}
	installed = map[string]packages.State{}
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 9 {
			return nil, nil, fmt.Errorf("cannot read what apt announces: %q", lines.Text())
		}
		key := func(arch string) string { return string(d.key([]byte(f[0]), []byte(arch))) }
		switch f[8] {
		case "**CONFIGURE**":
		case "**REMOVE**":
			installed[key(f[2])] = packages.State{Version: f[1]}
			moves = append(moves, packages.Move{Name: key(f[2])})
		default:
			moves = append(moves, packages.Move{Name: key(f[6]), Version: f[5]})
		}
	}
	return lastOf(moves), installed, lines.Err()
}

// refused returns the hook's reason on apt's output; nil if the hook has not refused.
func refused(out string) error {
	for line := range strings.Lines(out) {
		var r refusal
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &r) == nil && r.Because != "" {
			return packages.Refused("apt", r.Because)
		}
	}
	return nil
}

// aptArchives is where apt keeps what it has downloaded, until an administrator cleans up.
const aptArchives = "/var/cache/apt/archives"

// Stored returns the file in our own folder that a version of a package can be installed from; ""
// if there is none.
func (apt) Stored(v host.View, name, version string) string { return stored(v, name, version) }

func stored(v host.View, name, version string) string {
	return archive(v, packages.Store, name, version)
}

// archive finds NAME_VERSION_ARCH.deb, as apt names what it downloads: the colon of an epoch is
// written %3a.
func archive(v host.View, dir, name, version string) string {
	bare, arch, foreign := strings.Cut(name, ":")
	start := bare + "_" + strings.ReplaceAll(version, ":", "%3a") + "_"
	for _, n := range packages.ListOf(v, dir) {
		rest, ok := strings.CutPrefix(n, start)
		of, deb := strings.CutSuffix(rest, ".deb")
		if ok && deb && (!foreign || of == arch) {
			return path.Join(dir, n)
		}
	}
	return ""
}

// Keep copies installed packages to Store, as far as a source still has them. It skips a broken
// package, which must not stop its own repair.
func (a apt) Keep(ctx context.Context, h host.Host, of []string) error {
	d, err := readDpkg(h)
	if err != nil {
		return err
	}
	var names, want []string
	for _, name := range of {
		if found := d.packages[name]; found.Broken == "" && stored(h, name, found.Version) == "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := packages.MakeStore(h); err != nil {
		return err
	}
	link(ctx, h, names, d.packages)
	names = slices.DeleteFunc(names, func(name string) bool { return stored(h, name, d.packages[name].Version) != "" })
	offers, err := a.Offers(ctx, h, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		version := d.packages[name].Version
		if _, ok := packages.Find(offers[name], version); ok {
			want = append(want, name+"="+version)
		}
	}
	if len(want) == 0 {
		return nil
	}
	slices.Sort(want)
	argv := slices.Concat([]string{"env", "-C", packages.Store, "apt-get", "-q", "-o", "Acquire::Retries=3"}, unpinned(), []string{"download", "--"}, want)
	if out, err := h.Do(ctx, argv...); err != nil {
		return explain(h, string(out), err)
	}
	return nil
}

// keepNew keeps the files of packages that were just installed in the spec's version: undo of the
// next upgrade needs them, and no repository may have them by then. They take no room while apt
// keeps them, too. An image needs none.
func keepNew(ctx context.Context, h host.Host, changes []converge.Change) error {
	installed, names := map[string]packages.State{}, []string(nil)
	for _, c := range packages.Due(changes) {
		after := packages.Parse(c.After)
		if after.Installed() && after.Held && stored(h, c.Name, after.Version) == "" {
			installed[c.Name], names = after, append(names, c.Name)
		}
	}
	if len(names) == 0 || !h.Live() {
		return nil
	}
	if err := packages.MakeStore(h); err != nil {
		return err
	}
	link(ctx, h, names, installed)
	return nil
}

// link links apt's downloads into Store. If Store is on another file system, apt downloads a
// package again when undo needs it.
func link(ctx context.Context, h host.Host, names []string, installed map[string]packages.State) {
	argv := []string{"ln", "-f", "-t", packages.Store, "--"}
	for _, name := range names {
		if file := archive(h, aptArchives, name, installed[name].Version); file != "" {
			argv = append(argv, file)
		}
	}
	if argv[len(argv)-1] != "--" {
		_, _ = h.Do(ctx, argv...)
	}
}
