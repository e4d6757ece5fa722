// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/must"
)

// runs is a machine with another kernel than the test's.
type runs struct {
	*machine
	kernel string
}

func (r runs) ReadFile(name string) ([]byte, error) {
	if name == "/proc/sys/kernel/osrelease" {
		return []byte(r.kernel + "\n"), nil
	}
	return r.machine.ReadFile(name)
}

// What gpuadm knows of a kernel's headers decides before it writes anything. Where it cannot decide, it gives the reason.
func TestHeadersAreAvailable(t *testing.T) {
	t.Parallel()
	const kernel, other = "6.1.0-99-lab", "6.1.0-98-lab"
	const name, image = "linux-headers-" + kernel, "linux-image-" + kernel
	mine := packages.Repository{ID: "driver", URL: "https://vendor.example/cuda"}
	mirror := mine
	mirror.URL, mirror.Mixed = "https://mirror.example/all", true
	m := newMachine(t)
	m.write("/usr/lib/modules/"+kernel+"/modules.builtin", "")
	m.write("/usr/lib/modules/"+other+"/build/Makefile", "")
	judged := func(of packages.Repository) (found converge.State, later string, refused error) {
		t.Helper()
		w := packages.Headers(newSet(slices.Sorted(maps.Keys(New().Contents([]packages.Repository{of}, host.Via{})))...), []packages.Repository{of}, map[string]string{kernel: name, other: "linux-headers-" + other}, "")
		found, err := w.Look(t.Context(), m)
		if wait := (host.Later{}); errors.As(err, &wait) {
			return "", wait.Until, nil
		} else if err != nil {
			t.Fatal(err)
		}
		_, refused = w.To(found)
		return found, "", refused
	}

	m.write("/srv/none/Packages", "")
	m.write("/etc/apt/sources.list.d/none.list", "deb [trusted=yes] file:/srv/none ./\n") // apt keeps no Release of such a one
	if _, later, _ := judged(mine); later != "once the package lists are read" {
		t.Errorf("no lists: later %q", later)
	}
	m.repo.add(deb{name: image, version: "1"})
	m.update()
	_, later, err := judged(mine)
	if err == nil {
		t.Fatalf("the lists have the kernel and not its headers: later %q", later)
	}
	words := wordsOf(err)
	for _, want := range []string{"cannot build modules for kernel " + kernel, name, "these kernels have headers: " + other, "https://vendor.example/cuda", "remove kernel " + kernel} {
		if !strings.Contains(words, want) {
			t.Errorf("it does not say %q: %s", want, words)
		}
	}
	if words := packages.WithoutHeaders(runs{m, kernel}, kernel); strings.Contains(words, "remove") || !strings.Contains(words, "reboot into it, or install the headers of "+kernel) {
		t.Errorf("of the kernel that runs: %s", words)
	}
	if _, later, err := judged(mirror); err != nil || !strings.Contains(later, mirror.URL) || !strings.Contains(later, name) {
		t.Errorf("a mirror that may have them: later %q, %v", later, err)
	}

	// Lists that know neither the kernel nor its headers say nothing, if they are older than the kernel.
	m.repo.drop(image, "1")
	m.repo.add(deb{name: "other", version: "1"})
	m.update()
	if _, _, err := judged(mine); err == nil {
		t.Error("lists younger than the kernel have neither: not refused")
	}
	must.OK(t, os.Remove(m.dir+"/usr/lib/modules/"+kernel+"/modules.builtin"))
	m.write("/usr/lib/modules/"+kernel+"/modules.builtin", "")
	if _, later, err := judged(mine); err != nil || later == "" {
		t.Errorf("lists older than the kernel: later %q, %v", later, err)
	}

	m.repo.add(deb{name: name, version: "1"})
	m.update()
	if found, later, err := judged(mine); found != "ok" || later != "" || err != nil {
		t.Errorf("they are available: %q, later %q, %v", found, later, err)
	}
	m.must("apt-get", "-y", "install", name)
	m.packagers()
	if found, _, err := judged(mine); found != "ok" || err != nil || len(m.packagers()) > 0 {
		t.Errorf("they are installed: %q, %v", found, err)
	}
}
