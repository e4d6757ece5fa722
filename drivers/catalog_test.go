// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// wordsByLine reads the words of each line of a data file.
func wordsByLine(t testing.TB, name string) (all [][]string) {
	t.Helper()
	b := must.Get(os.ReadFile("testdata/" + name))(t)
	for l := range strings.Lines(string(b)) {
		if w := strings.Fields(l); len(w) > 1 && w[0] != "#" {
			all = append(all, w)
		}
	}

	must.That(t, len(all) >= 50, "%s has %d lines: that is not all", name, len(all))
	return all
}

// TestEveryGPU runs each known device id through the ranges and through Choose.
func TestEveryGPU(t *testing.T) {
	c := Load()
	for _, w := range wordsByLine(t, "gpus.txt") {
		for _, id := range []string{w[0], "0x" + w[0], strings.ToUpper(w[0])} {
			if a, ok := c.Arch(id); !ok || a.Name != w[1] {
				t.Errorf("%s is %s (%v), not %s", id, a.Name, ok, w[1])
			}
		}

		ch, err := Choose(c, machine("ubuntu", "24.04", "amd64", w[0]), driver(""))
		if err != nil {
			t.Errorf("%s: %v", w[0], err)
			continue
		}
		legacy := slices.Contains([]string{"maxwell", "pascal", "volta"}, w[1])
		newer := slices.Contains([]string{"2909", "2c3a", "31c3"}, w[0])
		if (ch.Flavour == FlavourProprietary) != legacy || ch.Branch != map[bool]string{false: "580", true: "595"}[newer] {
			t.Errorf("%s (%s): %s modules of branch %s", w[0], w[1], ch.Flavour, ch.Branch)
		}
	}
}

// TestChips compares the ranges with what the PCI ID Repository says of each id.
func TestChips(t *testing.T) {
	c := Load()
	families := map[string]string{
		"GK": "kepler", "GM": "maxwell", "GP": "pascal", "GV": "volta", "TU": "turing", "GA": "ampere",
		"AD": "ada", "GH": "hopper", "GB": "blackwell",
	}
	checked := 0
	for _, w := range wordsByLine(t, "chips.txt") {
		want := families[w[0][:2]]
		for _, id := range w[1:] {
			a, ok := c.Arch(id)
			switch {
			case id == "3340": // GB120, of which nothing is published yet
				check.That(t, !ok && a.Open == "must", "%s is %s", id, a.Name)
			case !ok || a.Name != want && a.Name != "grace-"+want && a.Name != want+"-ultra":
				t.Errorf("%s, a %s, is %s (%v)", id, w[0], a.Name, ok)
			}

			checked++
		}
	}

	check.That(t, checked >= 700, "only %d ids were checked", checked)
}

func TestArchOfNonsense(t *testing.T) {
	c := Load()
	for _, id := range []string{"", "zz", "12345", "-1", "0x", "10de:2330"} {
		a, ok := c.Arch(id)
		check.That(t, !ok && a.Name == "", "%q is %s", id, a.Name)
	}

	for _, id := range []string{"4000", "ffff", "3000", "1900"} {
		a, ok := c.Arch(id)
		check.That(t, !ok && a.Name != "", "%q is %q (%v)", id, a.Name, ok)
	}
}

// TestCatalogOrigins wants every row to say where it comes from, how that was checked, when, and
// how far to trust it.
func TestCatalogOrigins(t *testing.T) {
	c := Load()
	all := map[string][]Origin{}
	for _, r := range c.Architectures {
		all["architectures"] = append(all["architectures"], r.Origin)
	}
	for _, r := range c.Ranges {
		all["ranges"] = append(all["ranges"], r.Origin)
	}
	for _, r := range c.GPUs {
		all["gpus"] = append(all["gpus"], Origin{
			Where:      r.Source.Origin,
			Checked:    r.Source.Checked,
			Confidence: r.Source.Confidence,
			Date:       r.Source.Date,
		})
	}

	for _, r := range c.Exceptions {
		all["exceptions"] = append(all["exceptions"], r.Origin)
	}
	for _, r := range c.Guests {
		all["guests"] = append(all["guests"], r.Origin)
	}
	for _, r := range c.Branches {
		all["branches"] = append(all["branches"], r.Origin)
	}
	for _, r := range c.Rules {
		all["rules"] = append(all["rules"], r.Origin)
	}
	for _, r := range c.CUDA {
		all["cuda"] = append(all["cuda"], r.Origin)
	}
	for _, r := range c.Unload {
		all["unload"] = append(all["unload"], r.Origin)
	}
	for _, r := range c.Parameters {
		all["parameters"] = append(all["parameters"], r.Origin)
	}
	for _, r := range c.Bad {
		all["bad"] = append(all["bad"], r.Origin)
	}
	for _, r := range c.Keys {
		all["keys"] = append(all["keys"], r.Origin)
	}
	for _, r := range c.Repositories {
		all["repositories"] = append(all["repositories"], r.Origin)
	}
	for _, r := range c.Runfiles {
		all["runfiles"] = append(all["runfiles"], r.Origin)
	}
	for _, r := range c.Owners {
		all["owners"] = append(all["owners"], r.Origin)
	}
	for _, r := range c.Tools {
		all["tools"] = append(all["tools"], r.Origin)
	}
	for _, r := range c.Headers {
		all["headers"] = append(all["headers"], r.Origin)
	}
	for _, r := range c.Sets {
		all["sets"] = append(all["sets"], r.Origin)
	}
	check.That(t, len(all) == 18, "%d tables have rows, not 18", len(all))
	for table, rows := range all {
		for i, o := range rows {
			_, err := time.Parse(time.DateOnly, o.Date)
			if o.Where == "" || err != nil ||
				!slices.Contains([]string{"repository", "source", "documentation", "memory"}, o.Checked) ||
				!slices.Contains([]string{"high", "medium", "low"}, o.Confidence) {
				t.Errorf("row %d of %s: %+v", i, table, o)
			}

			check.That(t, o.Checked != "memory" || o.Confidence != "high", "row %d of %s is from memory and of high confidence", i, table)
		}
	}
}

// TestRanges wants the ranges to cover all ids once.
func TestRanges(t *testing.T) {
	c := Load()
	next := uint64(0)
	for _, r := range c.Ranges {
		from, err1 := strconv.ParseUint(r.From, 16, 16)
		to, err2 := strconv.ParseUint(r.To, 16, 16)
		check.That(t, err1 == nil && err2 == nil && from == next && to >= from, "range %s-%s does not follow the one before it", r.From, r.To)
		next = to + 1
		_, ok := c.Arch(r.From)
		check.That(t, ok || strings.HasPrefix(r.Architecture, "unknown-"), "range %s-%s is of an architecture without a row: %s", r.From, r.To, r.Architecture)
	}

	check.That(t, next == 0x10000, "the ranges end at %x", next)
	seen := map[string]bool{}
	for _, g := range c.GPUs {
		_, ok := c.Arch(g.ID)
		check.That(t, !seen[g.ID] && ok && g.ID == strings.ToLower(g.ID), "%s (%s) is there twice, or of no known architecture", g.ID, g.Product)
		check.Equal(t, g.Arch, c.rangeOf(g.ID).Architecture, "%s: the row and the range", g.ID)
		seen[g.ID] = true
	}
}

// TestCoherent holds the ranges against the rule of NVIDIA's module, pci_devid_is_self_hosted in
// kernel-open/nvidia/detect-self-hosted.h of open-gpu-kernel-modules 595.45.04.
func TestCoherent(t *testing.T) {
	c := Load()
	for id := range 0x10000 {
		rule := id >= 0x2340 && id <= 0x237f || id >= 0x2940 && id <= 0x297f || id == 0x31a1 || id >= 0x31c0 && id <= 0x31ff
		check.Equal(t, c.coherent(fmt.Sprintf("%04x", id)), rule, "%04x:", id)
	}
}

// TestBranches wants the tables of branches to agree with each other.
func TestBranches(t *testing.T) {
	c := Load()
	known := func(b int) bool {
		return slices.ContainsFunc(c.Branches, func(r branchRow) bool { return r.Branch == b })
	}
	for _, r := range c.Rules {
		check.That(t, known(r.Branch), "rule %s names branch %d, which has no row", r.Name, r.Branch)
	}
	for _, name := range []string{"open-first", "open-default", "proprietary-last", "proprietary-removed", "legacy-last"} {
		check.That(t, c.rule(name) != 0, "there is no rule %s", name)
	}
	for _, a := range c.Architectures {
		check.That(t, (a.Open != "no" || a.Last == c.rule("legacy-last") || a.Name == "kepler") && (a.Open == "no" || a.Last == 0), "%s has the last branch %d", a.Name, a.Last)
	}
	check.That(t, slices.IsSortedFunc(c.Branches, func(a, b branchRow) int {
		return a.Branch - b.Branch
	}), "the branches are not in order")
	past := map[int]bool{}
	for _, b := range c.Branches {
		past[b.Branch] = b.ended("2026-11-22")
	}
	check.That(t, past[535] && past[570] && past[550] && !past[580] && !past[595] && past[610], "past: %v", past)
	for day, want := range map[string][]int{
		"":           {580, 595},
		"2026-11-22": {580, 595},
		"1970-01-01": {580, 595}, // a clock before the catalog is wrong
		"2027-03-31": {580, 595},
		"2027-04-01": {580},
		"2028-06-30": {580},
		"2028-07-01": nil,
	} {
		check.List(t, (&plan{
			catalog: c,
			machine: hardware.Machine{Day: day},
		}).candidates(), want, "supported on %q:", day)
	}
}

// TestNameSets wants one set of names for each branch that a repository has, with all that a driver
// needs.
func TestNameSets(t *testing.T) {
	c := Load()
	for _, r := range c.Repositories {
		last := r.Last
		if r.Refused != "" {
			continue
		}
		if last == 0 {
			last = 700
		}
		for b := r.First; b <= last; b++ {
			var fit []setRow
			for _, s := range c.Sets {
				if slices.Contains(s.Sources, r.Source) && slices.Contains(s.Distros, r.Name) && s.First <= b && b <= s.Last {
					fit = append(fit, s)
				}
			}

			if len(fit) != 1 {
				t.Errorf("%s, branch %d: %d sets", r, b, len(fit))
				continue
			}
			roles := map[string]int{}
			for _, m := range fit[0].Members {
				if m.in(b) && !slices.Contains(m.When, "proprietary") && (!slices.Contains(m.When, "precompiled") || r.Precompiled && r.OpenOnly) {
					roles[m.Role]++
				}
			}

			for _, role := range []string{"module", "utils", "persistenced"} {
				if b >= 590 && role == "utils" && strings.HasPrefix(r.Name, "ubuntu") && r.Source == SourceNVIDIA {
					continue // libnvidia-compute has nvidia-smi
				}
				check.That(t, roles[role] == 1, "%s, branch %d: %d packages bring the %s", r, b, roles[role], role)
			}

			if r.Source == SourceNVIDIA && (roles["fabricmanager"] != 1 || roles["nscq"] != 1 || roles["nvlsm"] != 1 || b >= 560 && roles["imex"] != 1) {
				t.Errorf("%s, branch %d lacks a companion: %v", r, b, roles)
			}
		}
	}

	conditions := []string{"open", "proprietary", "dkms", "precompiled", "persistenced", "fabric", "nscq", "nvsdm", "imex", "nvlsm", "gds"}
	for _, s := range c.Sets {
		for _, m := range s.Members {
			for _, w := range m.When {
				check.That(t, slices.Contains(conditions, w), "%s is taken when %q: no such condition", m.Name, w)
			}
			check.That(t, !strings.Contains(m.Name, "{v}") || m.Extra || slices.Contains(m.When, "precompiled"), "%s needs a version that may not be asked for", m.Name)
		}

		for _, d := range s.Distros {
			check.That(t, slices.ContainsFunc(c.Repositories, func(r repositoryRow) bool {
				return r.Name == d && slices.Contains(s.Sources, r.Source)
			}),
				"a set is for %s of source %s, which has no row", d, s.Sources)
		}
	}
}

func TestKeys(t *testing.T) {
	c := Load()
	for _, k := range c.Keys {
		fingerprint := len(k.Fingerprint) == 40 && strings.Trim(k.Fingerprint, "0123456789ABCDEF") == "" && strings.HasSuffix(k.Fingerprint, strings.ToUpper(k.Name))
		digest := len(k.SHA256) == 64 && strings.Trim(k.SHA256, "0123456789abcdef") == ""
		check.That(t, fingerprint != digest && (k.Fingerprint == "" || k.SHA256 == ""),
			"%s has the fingerprint %q and the digest %q: one of them is to be known", k.Name, k.Fingerprint, k.SHA256)
		check.That(t, strings.Contains(k.Where, "; "), "%s was seen in one place: %s", k.Name, k.Where)
	}

	for _, r := range c.Repositories {
		check.That(t, r.Key == "" || slices.ContainsFunc(c.Keys, func(k keyRow) bool {
			return k.Name == r.Key
		}), "%s is signed by %s, which has no row", r, r.Key)
		check.That(t, r.URL == "" || strings.Contains(r.Where, "; "), "the address of %s was seen in one place: %s", r, r.Where)
	}
}

func TestKnownBad(t *testing.T) {
	c := Load()
	for _, x := range []struct {
		version, kernel string
		bad             bool
	}{
		{"525.125.06", "6.1.0-18-cloud-amd64", true},
		{"525.125.06", "6.1.0-17-cloud-amd64", false},
		{"525.125.06", "6.1.0-180-amd64", false},
		{"535.154.05", "6.6.15-x64v3-xanmod1", true},
		{"535.161.07", "6.6.15-x64v3-xanmod1", false},
		{"535.154.05", "6.6.14", false},
		{"545.29.06", "6.7.3_1", true},
		{"550.54.14", "6.7.3_1", false},
		{"580.95.05", "my-very-own-kernel", false},
		{"", "", false},
	} {
		why := c.KnownBad(x.version, x.kernel)
		check.That(t, (why != "") == x.bad, "%s on %s: %q", x.version, x.kernel, why)
	}

	check.None(t, c.knownBad("535.154.05", "6.7.3", FlavourOpen), "open modules:")
}

func TestUnloadOrder(t *testing.T) {
	order := Load().UnloadOrder()
	check.That(t, len(order) >= 5 && order[0] == "nvidia_drm" && order[len(order)-1] == "nvidia", "%v", order)
}
