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
	"github.com/gpuadm/gpuadm/internal/gputable"
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
		branch := "580"
		if slices.Contains([]string{"2909", "2c3a", "31c3"}, w[0]) {
			branch = "595"
		}
		isProprietary := ch.Flavour == FlavourProprietary
		check.That(t, isProprietary == legacy && ch.Branch == branch,
			"%s (%s): %s modules of branch %s", w[0], w[1], ch.Flavour, ch.Branch)
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
	tables := map[string][]Origin{
		"architectures": originsOf(c.Architectures),
		"ranges":        originsOf(c.Ranges),
		"gpus":          originsOfGPUs(c.GPUs),
		"exceptions":    originsOf(c.Exceptions),
		"guests":        originsOf(c.Guests),
		"branches":      originsOf(c.Branches),
		"rules":         originsOf(c.Rules),
		"cuda":          originsOf(c.CUDA),
		"unload":        originsOf(c.Unload),
		"parameters":    originsOf(c.Parameters),
		"bad":           originsOf(c.Bad),
		"keys":          originsOf(c.Keys),
		"repositories":  originsOf(c.Repositories),
		"runfiles":      originsOf(c.Runfiles),
		"owners":        originsOf(c.Owners),
		"tools":         originsOf(c.Tools),
		"headers":       originsOf(c.Headers),
		"sets":          originsOf(c.Sets),
	}

	for table, rows := range tables {
		check.That(t, len(rows) > 0, "%s has no rows", table)
		for i, o := range rows {
			check.That(t, o.isComplete(), "row %d of %s: %+v", i, table, o)
			trusted := o.Checked == "memory" && o.Confidence == "high"
			check.That(t, !trusted, "row %d of %s is from memory and of high confidence", i, table)
		}
	}
}

func (o Origin) origin() Origin { return o }

// originsOf returns the origins of a table's rows, each of which embeds one.
func originsOf[Row interface{ origin() Origin }](rows []Row) (all []Origin) {
	for _, r := range rows {
		all = append(all, r.origin())
	}
	return all
}

func originsOfGPUs(gpus []gputable.GPU) (all []Origin) {
	for _, g := range gpus {
		all = append(all, Origin{
			Where:      g.Source.Origin,
			Checked:    g.Source.Checked,
			Confidence: g.Source.Confidence,
			Date:       g.Source.Date,
		})
	}
	return all
}

// isComplete reports whether all fields say something that the catalog's readers know.
func (o Origin) isComplete() bool {
	_, err := time.Parse(time.DateOnly, o.Date)
	isChecked := slices.Contains([]string{"repository", "source", "documentation", "memory"}, o.Checked)
	isTrusted := slices.Contains([]string{"high", "medium", "low"}, o.Confidence)
	return o.Where != "" && err == nil && isChecked && isTrusted
}

// TestCalled: what users call a release names that release, and no other.
func TestCalled(t *testing.T) {
	c := Load()
	called := 0
	for _, r := range c.Repositories {
		if r.Called == "" {
			continue
		}
		called++
		check.Equal(t, c.Called(r.Called), r.IDs[0]+"-"+r.Version, "%s:", r.Called)
	}
	check.That(t, called >= 5, "only %d releases have such a name", called)
	check.Equal(t, c.Called("ubuntu"), "", "ubuntu:")
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
		if r.Refused != "" {
			continue
		}
		last := r.Last
		if last == 0 {
			last = 700
		}

		for branch := r.First; branch <= last; branch++ {
			sets := setsFor(c, r, branch)
			if len(sets) != 1 {
				t.Errorf("%s, branch %d: %d sets", r, branch, len(sets))
				continue
			}
			wantWholeDriver(t, r, branch, rolesIn(sets[0], r, branch))
		}
	}
}

// setsFor returns the sets of names that a repository uses for a branch.
func setsFor(c Catalog, r repositoryRow, branch int) (sets []setRow) {
	for _, s := range c.Sets {
		isOfRepository := slices.Contains(s.Sources, r.Source) && slices.Contains(s.Distros, r.Name)
		if isOfRepository && s.First <= branch && branch <= s.Last {
			sets = append(sets, s)
		}
	}
	return sets
}

// rolesIn counts the packages of open modules by their role.
func rolesIn(s setRow, r repositoryRow, branch int) map[string]int {
	onlyPrecompiled := r.Precompiled && r.OpenOnly
	roles := map[string]int{}
	for _, m := range s.Members {
		if !m.in(branch) || slices.Contains(m.When, "proprietary") {
			continue
		}
		if slices.Contains(m.When, "precompiled") && !onlyPrecompiled {
			continue
		}
		roles[m.Role]++
	}
	return roles
}

func wantWholeDriver(t *testing.T, r repositoryRow, branch int, roles map[string]int) {
	t.Helper()
	isNVIDIAs := r.Source == SourceNVIDIA
	inComputeLibrary := isNVIDIAs && strings.HasPrefix(r.Name, "ubuntu") && branch >= 590 // nvidia-smi is
	for _, role := range []string{"module", "utils", "persistenced"} {
		if role == "utils" && inComputeLibrary {
			continue
		}
		check.That(t, roles[role] == 1, "%s, branch %d: %d packages bring the %s", r, branch, roles[role], role)
	}

	if !isNVIDIAs {
		return
	}
	companions := []string{"fabricmanager", "nscq", "nvlsm"}
	if branch >= 560 {
		companions = append(companions, "imex")
	}
	for _, role := range companions {
		check.That(t, roles[role] == 1, "%s, branch %d: %d packages bring the companion %s", r, branch, roles[role], role)
	}
}

// TestNameSetRows wants each set to be for repositories that have rows, and each member of a set to be
// taken under conditions that the code knows.
func TestNameSetRows(t *testing.T) {
	c := Load()
	conditions := []string{
		"open", "proprietary", "dkms", "precompiled",
		"persistenced", "fabric", "nscq", "nvsdm", "imex", "nvlsm", "gds",
	}
	for _, s := range c.Sets {
		for _, m := range s.Members {
			for _, w := range m.When {
				check.That(t, slices.Contains(conditions, w), "%s is taken when %q: no such condition", m.Name, w)
			}
			namesVersion := strings.Contains(m.Name, "{v}")
			isOptional := m.Extra || slices.Contains(m.When, "precompiled")
			check.That(t, !namesVersion || isOptional, "%s needs a version that may not be asked for", m.Name)
		}

		for _, d := range s.Distros {
			hasRow := slices.ContainsFunc(c.Repositories, func(r repositoryRow) bool {
				return r.Name == d && slices.Contains(s.Sources, r.Source)
			})
			check.That(t, hasRow, "a set is for %s of source %s, which has no row", d, s.Sources)
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
