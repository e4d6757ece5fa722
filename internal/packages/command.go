// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
)

// LockWait is how long another apt may take: unattended-upgrades at boot takes minutes.
const LockWait = 5 * time.Minute

// RepairLimit bounds dpkg --configure -a: a driver's modules may be compiled in it, for several kernels.
const RepairLimit = 30 * time.Minute

// Quiet is argv with what keeps scripts of packages from asking or restarting, needrestart(1), apt-listchanges(1), ucf(1),
// and from running more compilers than the memory holds: see things.BuildJobs.
func Quiet(v host.View, argv ...string) []string {
	jobs := "OMP_NUM_THREADS=" + strconv.Itoa(kmod.BuildJobs(v))
	return append([]string{"env", jobs, "NEEDRESTART_SUSPEND=1", "APT_LISTCHANGES_FRONTEND=none", "UCF_FORCE_CONFFOLD=1"}, argv...)
}

// Due returns the changes that ask for another version or a repair, and not only for other marks.
func Due(changes []converge.Change) (list []converge.Change) {
	for _, c := range changes {
		before, after := Parse(c.Before), Parse(c.After)
		if after.Installed() != before.Installed() || after.Installed() && (after.Version != before.Version || before.Broken != "") {
			list = append(list, c)
		}
	}
	return list
}

func Lines(text string) []string {
	return strings.Split(strings.TrimSpace(text), "\n")
}
