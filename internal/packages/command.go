// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
)

// RepairLimit bounds dpkg --configure -a: it may compile a driver's modules for several kernels.
const RepairLimit = 30 * time.Minute

// Quiet adds variables to argv that keep packages' scripts from questions and restarts,
// needrestart(1), apt-listchanges(1), ucf(1), and from running more compilers than the memory
// allows: see things.BuildJobs.
func Quiet(v host.View, argv ...string) []string {
	env := []string{
		"env",
		"OMP_NUM_THREADS=" + strconv.Itoa(kmod.BuildJobs(v)),
		"NEEDRESTART_SUSPEND=1",
		"APT_LISTCHANGES_FRONTEND=none",
		"UCF_FORCE_CONFFOLD=1",
	}
	return append(env, argv...)
}

// program returns the program in an argv that Quiet made: the first word that is not an option,
// variable or folder.
func program(argv []string) string {
	i := slices.IndexFunc(argv, func(word string) bool {
		return word != "env" && word[0] != '-' && !strings.ContainsAny(word, "=/")
	})
	return argv[max(0, i)]
}

func Lines(text string) []string {
	return strings.Split(strings.TrimSpace(text), "\n")
}

// Short drops repeated and empty lines, and keeps only the first of the rest.
func Short(all []string) (some []string) {
	const most = 8
	for _, line := range all {
		line = strings.TrimSpace(line)
		if line != "" && !slices.Contains(some, line) && len(some) < most {
			some = append(some, line)
		}
	}

	return some
}

// Tail returns the last n lines.
func Tail(text string, n int) []string {
	all := Lines(text)
	return Short(all[max(0, len(all)-n):])
}
