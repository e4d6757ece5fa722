// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// headersOf matches the package of a kernel's headers: Debian's, Ubuntu's, Proxmox VE's, those of
// Fedora, RHEL, Amazon (kernel6.12-devel) and Oracle.
var headersOf = pattern.Of(`^(?:linux-headers|(?:proxmox|pve)-headers|kernel[a-z0-9.-]*-devel)-(\d.*)$`)

// missing returns the error that no version of a group is available for all members: it lists each
// member's versions and sources.
func (r *Resolution) missing(
	ctx context.Context,
	v host.View,
	group, pattern string,
	members []string,
) error {
	what := strings.TrimSuffix(group+" "+pattern, " *")
	if err := r.Solver.Hidden(ctx, v, what, pattern, members, r.Offers); err != nil {
		return err
	}

	words := r.Solver.Words()
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot install %s: no %s has that version of every package of it", what, words.Source),
		Because: availableAll(members, words.Source, r.offered),
	}
	if lack := r.unavailable(members, pattern); len(lack) > 0 {
		parts := strings.Join(lack, ", ")
		t.What = fmt.Sprintf("cannot install %s: no %s has that version of %s", what, words.Source, parts)
	}
	if member := r.keptOut(members, pattern); member != "" {
		t.Try = append(t.Try, "apt-cache policy "+member+", which shows the priority that keeps it out. The pin is in /etc/apt/preferences.d; gpuadm writes its own there for the source in [driver]")
	}

	if m := headersOf().FindStringSubmatch(group); m != nil {
		kernel := m[1]
		t.What = fmt.Sprintf("cannot build modules for kernel %s: no %s has its headers, %s", kernel, words.Source, group)
		t.Try = append(t.Try, WithoutHeaders(v, kernel))
		if kernels := kmod.WithHeaders(v); len(kernels) > 0 {
			t.Because = append(t.Because, "these kernels have headers: "+strings.Join(kernels, ", "))
		}
	}

	if all := common(members, r.Offers, r.Solver.Compare); len(all) > 0 {
		newest := all[:min(len(all), 5)]
		t.Try = append(t.Try, "ask for a version that all have: "+strings.Join(newest, ", "))
	}
	t.Try = append(t.Try, words.Refresh+", if the repository has changed since")
	return t
}

// unavailable returns the members that have no offer of the pattern which apt's pins allow.
func (r *Resolution) unavailable(members []string, pattern string) (lack []string) {
	for _, member := range members {
		allowed := func(o Offer) bool { return o.Priority >= 0 && Matches(pattern, o.Version) }
		if !slices.ContainsFunc(r.Offers[member], allowed) {
			lack = append(lack, member)
		}
	}
	return lack
}

// keptOut returns the first member with an offer of the pattern that a pin excludes.
func (r *Resolution) keptOut(members []string, pattern string) string {
	for _, member := range members {
		excluded := func(o Offer) bool { return o.Priority < 0 && Matches(pattern, o.Version) }
		if slices.ContainsFunc(r.Offers[member], excluded) {
			return member
		}
	}
	return ""
}

// Check makes sure that each version asked for is available: in a repository, or as a file in
// Store.
func (r *Resolution) Check(ctx context.Context, v host.View) error {
	for _, c := range Due(r.Changes) {
		after := Parse(c.After)
		if !after.Installed() || r.available(v, c.Name, after.Version) {
			continue
		}

		what := c.Name + " " + after.Version
		if err := r.Solver.Hidden(ctx, v, what, Own(after.Version), []string{c.Name}, r.Offers); err != nil {
			return err
		}
		words := r.Solver.Words()
		return &trouble.Error{
			What:    fmt.Sprintf("cannot install package %s: no %s has that version", what, words.Source),
			Because: availableAll([]string{c.Name}, words.Source, r.offered),
			Try: []string{
				"ask for a version that is available",
				words.Refresh + ", if the repository has changed since",
			},
		}
	}
	return nil
}

// available reports whether a version is installed, or can be.
func (r *Resolution) available(v host.View, name, version string) bool {
	found := r.Installed[name]
	if found.Installed() && found.Version == version && found.Broken != "half-installed" {
		return true
	}
	_, offered := Find(r.Offers[name], version)
	return offered || r.Solver.Stored(v, name, version) != ""
}

func (r *Resolution) refused(name, why string) error {
	words := r.Solver.Words()
	request := r.requested(words.At)
	return &trouble.Error{
		What:    fmt.Sprintf("cannot %s: package %s prevents it", request, name),
		Because: []string{why},
		Try:     []string{words.Show + " " + request + ", which shows what " + r.Solver.Name() + " would do"},
	}
}

// requested is what the packager is asked for, as its command line has it: the packages that the
// spec asks for, else the dependencies, else the removals.
func (r *Resolution) requested(at string) string {
	var asked, dependencies, removals []string
	for _, c := range Due(r.Changes) {
		after := Parse(c.After)
		switch {
		case !after.Installed():
			removals = append(removals, c.Name)
		case c.Dependency:
			dependencies = append(dependencies, c.Name+at+after.Version)
		default:
			asked = append(asked, c.Name+at+after.Version)
		}
	}

	switch {
	case len(asked) > 0:
		return "install " + strings.Join(asked, " ")
	case len(dependencies) > 0:
		return "install " + strings.Join(dependencies, " ")
	}
	return "remove " + strings.Join(removals, " ")
}

func (r *Resolution) offered(name string) ([]Offer, State) {
	return r.Offers[name], r.Installed[name]
}
