// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Before it starts dpkg, apt tells the commands in DPkg::Pre-Install-Pkgs all that dpkg will do, and changes nothing where one of them
// fails. So apt itself says what is compared with the plan, in the transaction that it is about: between an earlier question and the
// transaction another process may have changed what apt would do.
//
// Sources: apt.conf(5), DPkg::Pre-Install-Pkgs; pkgDPkgPM::SendPkgsInfo, RunScriptsWithPkgs and Go in apt-pkg/deb/dpkgpm.cc of
// https://salsa.debian.org/apt-team/apt.

// HookVerb is the verb by which apt runs gpuadm.
const HookVerb = "apt-hook"

// hookPlan has the plan: the name and the two states of each package.
const hookPlan = "GPUADM_PACKAGES"

// hooked is apt-get with the hook, for env(1).
func (a apt) hooked(changes []converge.Change) ([]string, error) {
	var plan [][3]string
	for _, c := range changes {
		plan = append(plan, [3]string{c.Name, string(c.Before), string(c.After)})
	}
	text, err := json.Marshal(plan)
	return append([]string{
		hookPlan + "=" + string(text), "apt-get",
		"-o", "DPkg::Pre-Install-Pkgs::=" + host.Self + " " + HookVerb, "-o", "DPkg::Tools::Options::" + host.Self + "::Version=3",
	}, a.options()...), err
}

// refusal is the hook's line on apt's output, by which it tells gpuadm why it has failed.
type refusal struct {
	Because string `json:"gpuadm_refuses"`
}

// Verify is the hook: it compares what apt announces with the plan that getenv has, and fails where apt would do anything else.
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
	because := r.Unlike(moves)
	if because == "" {
		return nil
	}
	return errors.Join(errors.New(because), json.NewEncoder(answer).Encode(refusal{because}))
}

// parseAnnounced reads version 3 of the protocol: "VERSION 3", apt's configuration, an empty line, and for each package
// "NAME OLD ARCH MULTIARCH DIRECTION NEW ARCH MULTIARCH ACTION". installed has the old versions.
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

// refused is the hook's reason on apt's output; nil where it has not refused.
func refused(out string) error {
	for line := range strings.Lines(out) {
		var r refusal
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &r) == nil && r.Because != "" {
			return packages.Refused("apt", r.Because)
		}
	}
	return nil
}
