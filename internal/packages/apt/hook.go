// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

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
	if err != nil {
		return nil, err
	}

	aptGet := []string{
		hookPlan + "=" + string(text), "apt-get",
		"-o", "APT::Get::Mark-Auto=true",
		"-o", "DPkg::Pre-Install-Pkgs::=" + host.Self + " " + HookVerb,
		"-o", "DPkg::Tools::Options::" + host.Self + "::Version=3",
	}
	return slices.Concat(aptGet, unpinned(), a.options()), nil
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

	r := packages.Resolution{Installed: installed, Solver: newSolver(apt{}, dpkg{})}
	for _, p := range plan {
		r.Changes = append(r.Changes, converge.Change{
			Ref:    converge.Ref{Kind: "package", Name: p[0]},
			Before: converge.State(p[1]),
			After:  converge.State(p[2]),
		})
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
		err := fmt.Errorf("cannot read what apt announces: it begins with %q", lines.Text())
		return nil, nil, errors.Join(err, lines.Err())
	}

	var d dpkg
	for lines.Scan() && lines.Text() != "" {
		if arch, ok := strings.CutPrefix(lines.Text(), "APT::Architecture="); ok {
			d.native = arch
		}
	}

	installed = map[string]packages.State{}
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 9 {
			return nil, nil, fmt.Errorf("cannot read what apt announces: %q", lines.Text())
		}
		name := words[0]
		oldVersion := words[1]
		newVersion := words[5]
		oldName := string(d.key([]byte(name), []byte(words[2])))
		newName := string(d.key([]byte(name), []byte(words[6])))
		switch words[8] {
		case "**CONFIGURE**":
		case "**REMOVE**":
			installed[oldName] = packages.State{Version: oldVersion}
			moves = append(moves, packages.Move{Name: oldName})
		default:
			moves = append(moves, packages.Move{Name: newName, Version: newVersion})
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
