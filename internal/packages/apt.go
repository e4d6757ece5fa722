// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// apt speaks for dpkg and apt.
type apt struct {
	wait time.Duration // for a lock that another apt holds
}

// lockWait is how long another apt may take: unattended-upgrades at boot takes minutes.
const lockWait = 5 * time.Minute

func newApt() apt { return apt{wait: lockWait} }

func (apt) name() string { return "apt" }

func (apt) database() []string { return []string{dpkgStatus, dpkgUpdates, aptExtStates} }

func (apt) installed(_ context.Context, v host.View) (map[string]State, error) {
	d, err := readDpkg(v)
	if err != nil {
		return nil, err
	}
	all := make(map[string]State, len(d.packages))
	for name, p := range d.packages {
		all[name] = p.State
	}
	return all, nil
}

func (apt) audit(_ context.Context, v host.View) (audit, error) {
	d, err := readDpkg(v)
	if err != nil {
		return audit{}, err
	}
	a := audit{interrupted: d.interrupted, broken: map[string]string{}}
	for name, p := range d.packages {
		if p.Broken != "" && p.Broken != configFiles {
			a.broken[name] = p.Broken
		}
	}
	return a, nil
}

// repair has dpkg finish what it was interrupted in.
func (a apt) repair(ctx context.Context, h host.Host) error {
	ctx, stop := context.WithTimeoutCause(ctx, repairLimit, fmt.Errorf("not done within %v", repairLimit))
	defer stop()
	return a.again(ctx, h, func(time.Duration) ([]byte, error) {
		return h.Do(ctx, quiet(h, "dpkg", "--force-confdef", "--force-confold", "--configure", "-a")...)
	})
}

// repairLimit bounds dpkg --configure -a: a driver's modules may be compiled in it, for several kernels.
const repairLimit = 30 * time.Minute

// quiet is argv with what keeps scripts of packages from asking or restarting, needrestart(1), apt-listchanges(1), ucf(1),
// and from running more compilers than the memory holds: see things.BuildJobs.
func quiet(v host.View, argv ...string) []string {
	jobs := "OMP_NUM_THREADS=" + strconv.Itoa(things.BuildJobs(v))
	return append([]string{"env", jobs, "NEEDRESTART_SUSPEND=1", "APT_LISTCHANGES_FRONTEND=none", "UCF_FORCE_CONFFOLD=1"}, argv...)
}

// readOnly keeps apt from writing its caches anew while it is only asked.
func readOnly() []string {
	return []string{"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="}
}

// options make apt do what it is told, all of it, and never ask: apt-get(8), dpkg(1).
func (a apt) options() []string {
	return []string{
		"-y", "-q",
		"--no-install-recommends",
		"--allow-downgrades", // an exact version may be an older one
		"--allow-change-held-packages",
		"-o", "APT::Get::AutomaticRemove=false", "-o", "APT::Get::HideAutoRemove=true",
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", // a changed conffile is kept, nobody is asked
		"-o", "Dpkg::Use-Pty=0",
		"-o", "Acquire::Retries=3",
	}
}

// get runs apt-get.
func (a apt) get(ctx context.Context, h host.Host, args ...string) error {
	return a.again(ctx, h, func(within time.Duration) ([]byte, error) {
		return h.Do(ctx, quiet(h, slices.Concat([]string{"apt-get"}, a.options(), lockTimeout(within), args)...)...)
	})
}

// lockTimeout has apt wait for dpkg's lock by itself, so that it is not started anew each second.
func lockTimeout(within time.Duration) []string {
	return []string{"-o", fmt.Sprintf("DPkg::Lock::Timeout=%d", int(within.Seconds()))}
}

// again runs what may find a lock held, until it is free or our patience ends.
func (a apt) again(ctx context.Context, h host.Host, run func(within time.Duration) ([]byte, error)) error {
	return patiently(ctx, h, a.wait, func(within time.Duration) error {
		out, err := run(within)
		if err == nil {
			return nil
		}
		return explain(h, string(out), err)
	})
}

// install is what apt-get install is told for a change: NAME=VERSION or NAME-.
func install(name string, to State) string {
	if to.Installed() {
		return name + "=" + to.Version
	}
	return name + "-"
}

// due returns the changes that ask for another version or a repair, and not only for other marks.
func due(changes []converge.Change) (list []converge.Change) {
	for _, c := range changes {
		before, after := Parse(c.Before), Parse(c.After)
		if after.Installed() != before.Installed() || after.Installed() && (after.Version != before.Version || before.Broken != "") {
			list = append(list, c)
		}
	}
	return list
}

func lines(text string) []string {
	return strings.Split(strings.TrimSpace(text), "\n")
}
