// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBenchDriver prints how long a fresh install of driver, toolkit and containerd's configuration takes, by gpuadm and
// by the shell commands of NVIDIA's guides, each on fresh hosts with the same repository. The lab's
// packages are small and near, so real ones have the ratio closer to 1. The figures are not judged here; that both install
// the same packages is. Last comes what an apply costs then that has nothing to do.
func TestBenchDriver(t *testing.T) {
	lab.Asked(t)
	const rounds = 3
	for _, c := range []struct {
		what    string
		headers bool
		stages  []string // the others prove a build
	}{
		{"no module is built", false, []string{"sources", "packages", "runtime"}},
		{"dkms builds a small module", true, nil},
	} {
		var gpuadm, reference []time.Duration
		for range rounds {
			t.Run("round", func(t *testing.T) { // its hosts go when it ends
				a, b := bootBench(t, c.headers), bootBench(t, c.headers)
				gpuadm = append(gpuadm, a.took(slices.Concat([]string{"gpuadm", "apply"}, c.stages)...))
				reference = append(reference, b.took("sh", "-ec", b.shell()))
				if x, y := a.installed(), b.installed(); !maps.Equal(x, y) {
					t.Errorf("gpuadm installs %v, the shell %v", x, y)
				}
			})
		}
		if t.Failed() {
			return
		}
		a, b := median(gpuadm), median(reference)
		t.Logf("%-28s gpuadm %6.2f s   shell %6.2f s   ratio %.2f   (medians of %d)", c.what, a, b, a/b, rounds)
		if c.headers {
			t.Run("ratio", func(t *testing.T) {
				n := bootBench(t, true)
				n.took("gpuadm", "apply")
				n.ratio("with a driver, its modules and the toolkit:")
			})
		}
	}
}

func bootBench(t *testing.T, headers bool) driverNode {
	t.Helper()
	n := bootDriver(t, lab.Options{Dist: "bookworm", Headers: headers})
	program := must.Get(os.ReadFile(parts.Get(t, parts.CTK).CTK.Path))(t)
	n.Put("/usr/local/bin/nvidia-ctk", string(program), 0o755)
	if headers {
		n.Put("/lib/modules/"+headersOf(t, n.Host)+"/modules.dep", "", 0o644) // so that it counts as a kernel
	}
	n.Put(specFile, n.spec("580.65.06", "1.18.0")+"[runtime]\nset_as_default = true\n", 0o644)
	n.answers()
	return n
}

// shell is the same by hand: every package in its exact version, since apt takes the newest of those that are not named.
func (n driverNode) shell() string {
	toolkit := repos.DebSet("1.18.0", "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
	return "export DEBIAN_FRONTEND=noninteractive\n" +
		"cat >/etc/apt/sources.list.d/nvidia.list <<'E'\n" + repos.AptSources(repos.Mirror, "bookworm", repos.Keyring) + "E\n" +
		"apt-get -q update\n" +
		"apt-get -q -y install " + strings.Join(append(driverSet("580.65.06"), repos.DebSet("580.65.06", "libnvidia-encode1")...), " ") + "\n" +
		"apt-get -q -y install " + strings.Join(toolkit, " ") + "\n" +
		"nvidia-ctk runtime configure --runtime=containerd --set-as-default\n" +
		"systemctl restart containerd\n"
}

// took times a command that has to exit with 0.
func (n driverNode) took(argv ...string) time.Duration {
	n.t.Helper()
	began := time.Now()
	n.Must(argv...)
	return time.Since(began)
}

// installed are the packages of NVIDIA's with their versions, without marks.
func (n driverNode) installed() map[string]string {
	n.t.Helper()
	list := lab.Only(n.AptState(), "*nvidia*", "libcuda*", "dkms")
	for name, is := range list {
		list[name], _, _ = strings.Cut(is, " ")
	}
	return list
}

func median(list []time.Duration) float64 {
	slices.Sort(list)
	return list[len(list)/2].Seconds()
}

var (
	traced  = regexp.MustCompile(`^(\d+) +(\d+\.\d+) (.*)`)
	started = regexp.MustCompile(`^(?:clone3?|v?fork)\(.* = (\d+)$`)
	program = regexp.MustCompile(`^execve\("[^"]*", \["([^\]]*)\]`)
)
