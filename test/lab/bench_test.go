// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// TestBenchDriver prints how long a fresh install of driver, toolkit and containerd's configuration takes, by gpuadm and
// by the shell commands of NVIDIA's guides, each on fresh hosts with the same repository; and how much of gpuadm's time
// is its own: no child of its runs. The lab's packages are small and near, so real ones have the ratio closer to 1. The
// figures are not judged here; that both install the same packages is. Last comes what an apply costs then that has nothing to do.
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
		t.Run("parts", func(t *testing.T) {
			n := bootBench(t, c.headers)
			n.parts(c.stages)
			if c.headers {
				n.ratio("with a driver, its modules and the toolkit:")
			}
		})
	}
}

func bootBench(t *testing.T, headers bool) driverNode {
	t.Helper()
	n := bootDriver(t, lab.Options{Dist: "bookworm", Headers: headers})
	program, err := os.ReadFile(parts.Get(t, parts.CTK).CTK.Path)
	if err != nil {
		t.Fatal(err)
	}
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

// parts prints what the time of one apply goes to, as strace sees its children come and go.
func (n driverNode) parts(stages []string) {
	n.t.Helper()
	const log = "/run/strace"
	out := n.Must(slices.Concat([]string{
		"strace", "-f", "--seccomp-bpf", "-ttt", "-e", "trace=clone,clone3,fork,vfork,execve", "-e", "signal=none",
		"-s", "200", "-o", log, "gpuadm", "apply", "-o", "json",
	}, stages)...)
	var waits float64
	for line := range strings.Lines(out) {
		var e converge.Event
		if err := json.Unmarshal([]byte(line), &e); err == nil && e.What == converge.Made && e.Change != nil && (e.Change.Kind == "restart" || e.Change.Kind == "unit") {
			waits += float64(e.Millis) / 1e3
		}
	}
	total, children := lifetimes(n.Get(log))
	own, by, times := total-union(children), map[string]float64{}, map[string]int{}
	for _, c := range children {
		by[c.what] += c.end - c.start
		times[c.what]++
	}
	n.t.Logf("  of one such apply, %.2f s under strace:", total)
	for _, what := range slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Compare(by[b], by[a]) }) {
		n.t.Logf("  %6.2f s %5.1f %%  %d × %s", by[what], 100*by[what]/total, times[what], what)
	}
	n.t.Logf("  %6.2f s %5.1f %%  no child runs, and a daemon starts", waits, 100*waits/total)
	n.t.Logf("  %6.2f s %5.1f %%  gpuadm's own", own-waits, 100*(own-waits)/total)
}

// child is a process that gpuadm started, and the seconds of its life.
type child struct {
	what       string
	start, end float64
}

var (
	traced  = regexp.MustCompile(`^(\d+) +(\d+\.\d+) (.*)`)
	started = regexp.MustCompile(`^(?:clone3?|v?fork)\(.* = (\d+)$`)
	program = regexp.MustCompile(`^execve\("[^"]*", \["([^\]]*)\]`)
)

// lifetimes reads strace -f -ttt: how long the first process lived, and its direct children. A child by vfork is heard of
// before the call that made it returns.
func lifetimes(log string) (total float64, children []child) {
	threads, calls := map[string]bool{}, map[string]child{} // calls that have not returned, by the thread that makes them
	what, start, end := map[string]string{}, map[string]float64{}, map[string]float64{}
	first := ""
	for line := range strings.Lines(log) {
		m := traced.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		pid, text := m[1], m[3]
		now, _ := strconv.ParseFloat(m[2], 64)
		if first == "" {
			first, threads[pid], start[pid] = pid, true, now
		}
		if strings.HasPrefix(text, "+++") {
			end[pid] = now
		}
		if argv := program.FindStringSubmatch(text); argv != nil && what[pid] == "" {
			what[pid] = shorten(argv[1])
		}
		if strings.HasSuffix(text, "<unfinished ...>") {
			calls[pid] = child{what: text, start: now}
			continue
		}
		if strings.HasPrefix(text, "<...") {
			text, now = calls[pid].what+text, calls[pid].start
		}
		if made := started.FindStringSubmatch(text); made != nil && threads[pid] {
			if strings.Contains(text, "CLONE_THREAD") {
				threads[made[1]] = true
			} else {
				start[made[1]] = now
			}
		}
	}
	for pid := range start {
		if pid != first && end[pid] > 0 {
			children = append(children, child{cmp.Or(what[pid], "no program: Go's runtime tests what the kernel can"), start[pid], end[pid]})
		}
	}
	return end[first] - start[first], children
}

// shorten keeps the program and its verb.
func shorten(argv string) string {
	words := strings.Split(strings.Trim(argv, `"`), `", "`)
	if words[0] == "env" {
		words = slices.DeleteFunc(words[1:], func(w string) bool { return strings.Contains(w, "=") && !strings.HasPrefix(w, "-") })
	}
	verb := slices.IndexFunc(words[1:], func(w string) bool { return !strings.HasPrefix(w, "-") && !strings.ContainsAny(w, "=:/") })
	switch {
	case verb < 0:
		return words[0]
	case slices.Contains(words, "-s"):
		return words[0] + " -s " + words[verb+1]
	}
	return words[0] + " " + words[verb+1]
}

// union is how many seconds at least one of them lived.
func union(children []child) (sum float64) {
	slices.SortFunc(children, func(a, b child) int { return cmp.Compare(a.start, b.start) })
	until := 0.0
	for _, c := range children {
		if c.end > until {
			sum += c.end - max(c.start, until)
			until = c.end
		}
	}
	return sum
}
