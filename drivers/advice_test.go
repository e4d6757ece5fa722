// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

var (
	adviseVersion = pattern.Of(`version = "([^"]*)"`)
	adviseSource  = pattern.Of(`source = "([^"]*)" and version`)
)

// TestAdvice wants each version that a refusal advises to be of a branch that has not ended, and taken when it is asked for as
// it is advised: over all GPUs, alone and two by two, branches, days and sources.
func TestAdvice(t *testing.T) {
	c := Load()
	r := random{rand.New(rand.NewPCG(7, 8))}
	days := []string{"", "1970-01-01", "2026-11-22", "2027-03-31", "2027-04-01", "2028-06-30", "2028-07-01", "2031-01-01"}
	systems := [][3]string{{"ubuntu", "22.04", "amd64"}, {"ubuntu", "26.04", "amd64"}, {"debian", "12", "amd64"}, {"debian", "13", "arm64"}, {"rocky", "9.6", "amd64"}, {"azurelinux", "3.0", "amd64"}, {"amzn", "2023", "arm64"}}
	var gpus [][]string
	for _, g := range c.GPUs {
		gpus = append(gpus, g.IDs[:1], []string{g.IDs[0], r.device(c, 0).ID})
	}
	gpus = append(gpus, []string{"102d"}, []string{"1f82"}, []string{"20b2", "0680:1af1"})
	var versions []string
	for _, b := range c.Branches {
		versions = append(versions, strconv.Itoa(b.Branch)+r.of("", ".1.01"))
	}
	versions = append(versions, "", "newest", "700")
	advised, none := 0, 0
	for _, ids := range gpus {
		for _, day := range days {
			for _, version := range versions {
				s := systems[r.IntN(len(systems))]
				m := machine(s[0], s[1], s[2], ids...)
				m.Day = day
				d := driver(version)
				d.Source, d.Modules, d.GDS = r.of("auto", "auto", "nvidia", "distro", "runfile"), r.of("auto", "auto", "auto", "open", "proprietary"), r.IntN(8) == 0
				_, err := Choose(c, m, d)
				switch n, ok := follow(t, c, m, d, err); {
				case !ok:
					return
				case n > 0:
					advised++
				case err != nil:
					none++
				}
			}
		}
	}
	if advised < 1000 || none < 300 {
		t.Errorf("%d refusals advise a version, %d none: the draw is lopsided", advised, none)
	}
}

// follow does what a refusal advises, and says how many versions it named.
func follow(t *testing.T, c Catalog, m Machine, d spec.Driver, err error) (named int, ok bool) {
	t.Helper()
	var told *trouble.Error
	if !errors.As(err, &told) {
		return 0, true
	}
	if len(told.Try) == 0 {
		t.Errorf("%v: no advice", err)
	}
	for _, line := range told.Try {
		version := adviseVersion().FindStringSubmatch(line)
		if version == nil {
			continue
		}
		named++
		branch, _, _ := strings.Cut(version[1], ".")
		if i := slices.IndexFunc(c.Branches, func(b branchRow) bool { return strconv.Itoa(b.Branch) == branch }); i < 0 || c.Branches[i].ended(m.Day) {
			t.Errorf("on %q: %v\n%s: that branch has ended", m.Day, err, line)
			return named, false
		}
		next := d
		next.Version = version[1]
		if source := adviseSource().FindStringSubmatch(line); source != nil {
			next.Source = source[1]
		}
		if _, err2 := Choose(c, m, next); err2 != nil {
			t.Errorf("%s %s %+v on %q: %v\n%s, and then: %v", m.ID, m.Version, m.GPUs, m.Day, err, line, err2)
			return named, false
		}
	}
	return named, true
}

func TestAdviceInWords(t *testing.T) {
	c := Load()
	late := func(m Machine, day string) Machine { m.Day = day; return m }
	const none = `no supported driver is known that works with all GPUs here: remove those that it does not support, or write owner = "other" in [driver] and manage the driver yourself`
	for _, x := range []struct {
		m    Machine
		d    spec.Driver
		want []string
	}{
		{machine("ubuntu", "24.04", "amd64", "1db1"), driver("595"), []string{`write version = "580" in [driver]`}},
		{late(machine("ubuntu", "24.04", "amd64", "1db1"), "2028-07-01"), driver("595"), []string{none}},
		{machine("ubuntu", "24.04", "amd64", "2901"), driver("550"), []string{`write version = "595" in [driver]`}},
		{late(machine("ubuntu", "24.04", "amd64", "2901"), "2027-04-01"), driver("550"), []string{`write version = "580" in [driver]`}},
		{machine("rocky", "9.6", "amd64", "102d"), driver(""), []string{none}},
		{machine("debian", "13", "amd64", "2331"), with(driver("580"), "source", "distro"), []string{`write source = "nvidia" and version = "595" in [driver]`}},
		{machine("debian", "13", "arm64", "2941"), driver(""), []string{`write source = "runfile" and version = "595.91.07" in [driver]`}},
		{machine("debian", "12", "amd64", "20b5"), with(driver("580"), "source", "runfile"), []string{`write version = "595.91.07" in [driver]`}},
		{machine("azurelinux", "3.0", "amd64", "1db1"), driver(""), []string{`write source = "runfile" and version = "580.178.04" in [driver]`}},
		{machine("ubuntu", "22.04", "amd64", "2331"), with(driver("620"), "modules", "proprietary"), []string{`write version = "595" in [driver]`, `write modules = "auto" in [driver]`}},
		{machine("ubuntu", "24.04", "amd64", "2331"), driver("newest"), []string{`write version = "595" in [driver]`}},
	} {
		_, err := Choose(c, x.m, x.d)
		var told *trouble.Error
		if !errors.As(err, &told) || !slices.Equal(told.Try, x.want) {
			t.Errorf("%v: %q", err, told.Try)
		}
	}
}
