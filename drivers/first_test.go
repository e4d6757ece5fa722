// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/gputable"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestFirstDriver: a driver that does not have a GPU is refused before it is installed, and one
// that has it is taken. Versions: the README of NVIDIA's open modules, release by release.
func TestFirstDriver(t *testing.T) {
	for _, x := range []struct{ id, refused, taken string }{
		{"233b", "550.90.07", "565.57.01"},   // H200 NVL
		{"232c", "535.161.07", "535.216.03"}, // H20-3e
		{"232c", "565.57.01", "565.77"},      // later in the next branch
		{"2348", "560.35.03", "565.57.01"},   // GH200 144G
		{"2342", "535.104.05", "535.129.03"}, // GH200
		{"2321", "535.98", "535.104.05"},     // H100 NVL
		{"2e12", "580.65.06", "580.119.02"},  // GB10
		{"2bb9", "580.65.06", "580.82.07"},   // RTX 6000D
		{"2c33", "580.65.06", "580.76.05"},   // RTX PRO 4000 SFF
		{"2c33", "570.172.08", "570.190"},    // the same, earlier branch
		{"2c34", "575.57.08", "575.64"},      // RTX PRO 4000
		{"2d30", "570.172.08", "570.190"},    // RTX PRO 2000
		{"2bb1", "570.124.06", "570.133.07"}, // RTX PRO 6000 Workstation
		{"2bb4", "570.124.06", "570.133.07"}, // Max-Q
		{"2bb3", "570.133.20", "570.153.02"}, // RTX PRO 5000
		{"2c31", "570.158.01", "570.169"},    // RTX PRO 4500
		{"2c3a", "580.178.04", "595.58.03"},  // RTX PRO 4500 Server
		{"2909", "580.178.04", "595.58.03"},  // a B200 that the README omits
		{"2331", "515.86.01", "520.61.05"},   // H100 PCIe
		{"2901", "565.77", "570.86.15"},      // B200
		{"1eb8", "", "535.161.07"},           // T4, which the README omits
		{"2233", "", "515.48.07"},            // RTX A5500: no row in gpus.tsv
	} {
		arch := "amd64"
		if gpu := gputable.Of(x.id); gpu != nil && gpu.Arm {
			arch = "arm64"
		}
		m := machine("ubuntu", "22.04", arch, x.id)
		if x.refused != "" {
			_, err := Choose(Load(), m, driver(x.refused))
			check.That(t, err != nil && strings.Contains(err.Error(), "or newer"), "%s takes %s: %v", x.id, x.refused, err)
		}
		ch, err := Choose(Load(), m, driver(x.taken))
		check.That(t, err == nil && ch.Version == x.taken, "%s refuses %s: %v", x.id, x.taken, err)
	}
}

// TestServedRows: every row is of a GPU whose architecture is known, names its branches in order,
// and agrees with the architecture about kernel modules.
func TestServedRows(t *testing.T) {
	c := Load()
	rows := 0
	for id := range 0x10000 {
		device := strconv.FormatInt(int64(id), 16)
		served, listed := gputable.ServedBy(device)
		if !listed {
			continue
		}

		rows++
		arch, known := c.Arch(device)
		check.That(t, known, "%s (%s) is of no known architecture", device, served.Name)
		check.That(t, len(served.Sources) > 0 && len(served.First) > 0, "%s: %+v", device, served)
		byBranch := func(a, b string) int { return entryBranch(a) - entryBranch(b) }
		check.That(t, slices.IsSortedFunc(served.First, byBranch), "%s: %v", device, served.First)
		want := map[string]string{"must": "open", "may": "both", "no": "closed"}[arch.Open]
		check.That(t, served.Modules == "" || served.Modules == want,
			"%s: %s modules, and %s says %s", device, served.Modules, arch.Name, arch.Open)
	}

	check.That(t, rows >= 290, "%d rows: that is not all", rows)
}

// entryBranch is the branch of 570.169, and of 580+.
func entryBranch(entry string) int { return branchNumber(strings.TrimSuffix(entry, "+")) }

// TestDebian13 begins with 590: NVIDIA's repository for it has no older branch.
func TestDebian13(t *testing.T) {
	m := machine("debian", "13", "amd64", "2330")
	_, err := Choose(Load(), m, driver("580"))
	check.That(t, err != nil && strings.Contains(err.Error(), "590"), "580 on Debian 13: %v", err)

	ch, err := Choose(Load(), m, driver(""))
	check.That(t, err == nil && ch.Branch == "595", "by default %s: %v", ch.Branch, err)
}

// TestDefaultByRepository: a branch can be the default of one system alone.
func TestDefaultByRepository(t *testing.T) {
	c := Load()
	c.Branches = slices.Clone(c.Branches)
	for i := range c.Branches {
		if c.Branches[i].Branch == 620 {
			c.Branches[i].Default = "2026-11"
			c.Branches[i].DefaultOn = []string{"ubuntu2604"}
		}
	}

	for version, branch := range map[string]string{"24.04": "580", "26.04": "620"} {
		ch, err := Choose(c, machine("ubuntu", version, "amd64", "2330"), driver(""))
		check.That(t, err == nil && ch.Branch == branch, "Ubuntu %s: branch %s: %v", version, ch.Branch, err)
	}
}

// TestMixedGPUs: from 570.124.06 to 570.158.01 no pod with a GPU starts on a node that has partitions
// beside whole GPUs. The branch's newest driver is past them.
func TestMixedGPUs(t *testing.T) {
	for version, served := range map[string]bool{
		"570.86.15": true, "570.124.06": false, "570.133.20": false, "570.148.08": false,
		"570.158.01": false, "570.172.08": true, "570": true, "580": true,
	} {
		m := machine("ubuntu", "22.04", "amd64", "2330")
		m.MIG, m.Whole = true, true
		_, err := Choose(Load(), m, driver(version))
		check.That(t, (err == nil) == served, "%s beside whole GPUs: %v", version, err)

		m.Whole = false
		_, err = Choose(Load(), m, driver(version))
		check.That(t, err == nil, "%s, all GPUs partitioned: %v", version, err)
	}
}

// TestFirstDriverWithMIG: some GPUs have a driver before they have partitions. A spec that asks for
// partitions is refused before the reboot, and one that does not is served.
func TestFirstDriverWithMIG(t *testing.T) {
	for _, id := range []string{"2bb1", "2bb3", "2bb4", "2c31"} {
		for version, served := range map[string]bool{"570.172.08": false, "580.95.05": true} {
			m := machine("ubuntu", "24.04", "amd64", id)
			_, err := Choose(Load(), m, driver(version))
			check.That(t, err == nil, "%s with %s, not partitioned: %v", id, version, err)

			m.MIG = true
			_, err = Choose(Load(), m, driver(version))
			check.That(t, (err == nil) == served, "%s with %s, partitioned: %v", id, version, err)
		}
	}
}
