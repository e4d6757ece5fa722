// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A dependency of the driver that is not wholly installed is fixed though all that the spec names is converged: in the version that is
// installed, not in a newer one that the spec would allow. The states are those of dpkg(1), as real dpkg writes them into its database.
func TestBrokenPartOfTheDriverIsFixed(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]string{
		"half-installed":  "install reinstreq half-installed", // dpkg was killed as it unpacked: the files may be missing
		"unpacked":        "install ok unpacked",
		"half-configured": "install ok half-configured",
	} {
		for _, version := range []string{"580.95.05", "580.*"} {
			t.Run(name+" "+version, func(t *testing.T) {
				m := newMachine(t)
				m.repo.branches()
				m.update()
				wants := func(version string) func(*packages.Set) []converge.Want {
					return leaves(nvidiaDriver(), version, "nvidia-dkms-580-open", "libnvidia-compute-580")
				}
				m.apply(wants("580.95.05"))
				whole := m.has()
				m.breaks("nvidia-kernel-common-580", status)
				plan, err := m.engine(wants(version)).Plan(t.Context(), m)
				if err != nil || len(plan.Changes) != 1 || plan.Changes[0].Name != "nvidia-kernel-common-580" || !strings.Contains(plan.Changes[0].Why, name) {
					t.Fatalf("planned %+v, %v", plan.Changes, err)
				}
				m.apply(wants(version))
				if is := m.has(); is != whole {
					t.Errorf("after apply:\n%swas:\n%s", is, whole)
				}
				if got := m.must("cat", "/opt/nvidia.conf"); got != "580\n" {
					t.Errorf("its file has %q", got)
				}
				m.must("apt-get", "check")
				if res := m.apply(wants(version)); res.Run != "" {
					t.Errorf("the second apply changed %v", res.Made)
				}
			})
		}
	}
}

// breaks has dpkg's database say that a package is in a state, and removes a file of a package whose unpacking was cut short.
func (m *machine) breaks(name, status string) {
	m.t.Helper()
	whole := m.must("cat", "/var/lib/dpkg/status")
	before, after, found := strings.Cut(whole, "Package: "+name+"\n")
	was, rest, again := strings.Cut(after, "\n")
	if !found || !again || !strings.HasPrefix(was, "Status: ") {
		m.t.Fatalf("%s is not installed", name)
	}
	held := strings.HasPrefix(was, "Status: hold ")
	if held {
		status = strings.Replace(status, "install ", "hold ", 1)
	}
	m.write("/var/lib/dpkg/status", before+"Package: "+name+"\nStatus: "+status+"\n"+rest)
	if strings.HasSuffix(status, "half-installed") {
		m.must("rm", "/opt/nvidia.conf")
	}
}
