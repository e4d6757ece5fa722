// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// platforms are machines that differ in what no package list shows.
var platforms = []struct {
	name, arch, cloud, instance string
	rdma                        bool
	host                        string // the driver of the host of a virtual GPU
	gpus                        []string
}{
	{name: "T4 g4dn", arch: "amd64", cloud: "aws", instance: "g4dn.xlarge", gpus: []string{"1eb8"}},
	{name: "V100", arch: "amd64", gpus: []string{"1db1"}},
	{name: "A10", arch: "amd64", gpus: []string{"2236"}},
	{name: "A10 Azure", arch: "amd64", cloud: "azure", host: "570.237", gpus: []string{"2236"}},
	{name: "L4 g6f", arch: "amd64", cloud: "aws", instance: "g6f.xlarge", host: "580.105.08", gpus: []string{"27b8"}},
	{name: "H100", arch: "amd64", gpus: []string{"2330", "0680:22a3"}},
	{name: "B200", arch: "amd64", gpus: []string{"2901"}},
	{name: "2909", arch: "amd64", gpus: []string{"2909"}},
	{name: "B300", arch: "amd64", gpus: []string{"3182"}},
	{name: "GH200", arch: "arm64", gpus: []string{"2342"}},
	{name: "GB200 P6e", arch: "arm64", cloud: "aws", instance: "p6e-gb200.36xlarge", rdma: true, gpus: []string{"2941"}},
	{name: "GB200 Azure", arch: "arm64", cloud: "azure", rdma: true, gpus: []string{"2941"}},
	{name: "GB200 rack", arch: "arm64", gpus: []string{"2941"}},
	{name: "GB300 P6e", arch: "arm64", cloud: "aws", instance: "p6e-gb300r.36xlarge", rdma: true, gpus: []string{"31c2"}},
	{name: "RTX6000 Azure", arch: "amd64", cloud: "azure", gpus: []string{"2bb5"}},
	{name: "RTX6000 Google", arch: "amd64", cloud: "gce", gpus: []string{"2bb5"}},
	{name: "2c3a", arch: "amd64", gpus: []string{"2c3a"}},
	{name: "Rubin", arch: "arm64", gpus: []string{"307f"}},
	{name: "unknown", arch: "amd64", gpus: []string{"4000"}},
}

// systems are os-release's ID and VERSION_ID, a kernel, and the spec's source where it is not auto.
var systems = [][4]string{
	{"ubuntu", "22.04", "6.8.0-41-generic"},
	{"ubuntu", "24.04", "6.8.0-41-generic"},
	{"ubuntu", "26.04", "7.0.0-12-generic"},
	{"debian", "13", "6.12.41-cloud-amd64"},
	{"rocky", "9.6", "5.14.0-570.el9.x86_64"},
	{"amzn", "2023", "6.12.40-64.114.amzn2023.x86_64"},
	{"azurelinux", "3.0", "6.6.96.1-1.azl3"},
	{"azurelinux", "4.0", "6.18.31-1.3.azl4.x86_64"},
	{"rhel", "10.1", "6.12.0-124.56.1.el10_1.x86_64"},
	{"rhel", "10.1", "6.12.0-124.56.1.el10_1.x86_64", "distro"},
	{"almalinux", "9.6", "5.14.0-570.el9.x86_64", "distro"},
	{"sles", "15.6", "6.4.0-150600.23-default"},
}

// aPlatform is a machine of platforms under a system.
func aPlatform(i int, system [4]string) facts.Facts {
	p := platforms[i]
	f := facts.Facts{
		Live: true,
		Day:  "2026-11-25",
		OS:   facts.OS{ID: system[0], Version: system[1]},
		Arch: p.arch,
		GPUs: []facts.PCI{},
	}
	f.Cloud = instance.Cloud{Name: p.cloud, Type: p.instance}
	for n, g := range p.gpus {
		class, id := "030200", g
		if sw, is := strings.CutPrefix(g, "0680:"); is {
			class, id = "068000", sw
		}
		f.GPUs = append(f.GPUs, facts.PCI{
			Address: fmt.Sprintf("0000:%02x:00.0", n+1),
			Vendor:  "10de",
			Device:  id,
			Class:   class,
		})
	}

	if branch, _, _ := strings.Cut(p.host, "."); p.host != "" {
		f.VGPU = &facts.VGPU{Version: p.host, Branch: "r" + branch + "_00"}
	}
	f.RDMA = p.rdma
	f.Kernel = facts.Kernel{Running: system[2], Installed: []string{system[2]}}
	return f
}

// cell is what a aPlatform gets, in the words of cells.txt.
func cell(f facts.Facts, asked, source string) string {
	d := driver(asked)
	if source != "" {
		d.Source = source
	}
	ch, err := choiceFor(question{spec: d, facts: f})
	if err != nil {
		return err.Error()
	}
	words := []string{ch.Source, ch.Branch, ch.Flavour}
	if ch.Precompiled {
		words = append(words, "signed")
	}
	for _, p := range []string{"NVreg_CoherentGPUMemoryMode=driver", "NVreg_GrdmaPciTopoCheckOverride=1", "NVreg_EnableGpuFirmware=0"} {
		if name, value, _ := strings.Cut(p, "="); ch.Parameters[name] == value {
			words = append(words, p)
		}
	}

	short := strings.NewReplacer("NVreg_CoherentGPUMemoryMode=driver", "cdmm", "NVreg_GrdmaPciTopoCheckOverride=1", "grdma", "NVreg_EnableGpuFirmware=0", "gsp-off")
	for _, m := range ch.Members {
		if slices.Contains([]string{"fabricmanager", "nvlsm", "imex"}, m.Role) {
			words = append(words, "+"+m.Role)
		}
	}

	return short.Replace(strings.Join(words, " "))
}

// TestPlatforms holds what is chosen for each machine of platforms, under each system and of each
// branch, against cells.txt, where the facts that each cell follows from are named. Of the rows
// that are for a cell the last counts; a refusal begins as the row says.
func TestPlatforms(t *testing.T) {
	rows := platformRows(t)
	used := map[int]bool{}
	for _, s := range systems {
		for i, p := range platforms {
			for _, asked := range []string{"", "580", "595", "615", "620"} {
				got := cell(aPlatform(i, s), asked, s[3])
				on := fmt.Sprintf("%s %s %s  %s  %s", s[0], s[1], s[3], p.name, asked)
				system := strings.TrimSpace(s[0] + " " + s[1] + " " + s[3])
				n := lastRowFor(rows, system, p.name, cmp.Or(asked, "-"))
				if n < 0 {
					t.Errorf("%s: no row: %s", on, got)
					continue
				}

				used[n] = true
				row := rows[n]
				isSentence := strings.HasPrefix(row.want, "cannot ") && sentence(row.want).MatchString(got)
				check.That(t, got == row.want || isSentence, "%s\n  is   %s\n  want %s  (%s)", on, got, row.want, row.facts)
			}
		}
	}

	for n, row := range rows {
		check.That(t, used[n], "no cell is of the row %+v", row)
	}
}

// platformRow is a row of cells.txt: what machines should get. The first three are * or words with
// commas.
type platformRow struct {
	systems, platforms, asked string
	want                      string
	facts                     string // their ids
}

// platformRows reads cells.txt, whose facts must be in facts.tsv.
func platformRows(t *testing.T) (rows []platformRow) {
	t.Helper()
	known := map[string]bool{}
	for line := range strings.Lines(string(must.Get(os.ReadFile("testdata/platforms/facts.tsv"))(t))) {
		id, rest, isRow := strings.Cut(line, "\t")
		if isRow && strings.Count(rest, "\t") == 3 {
			known[id] = true
		}
	}
	check.Equal(t, len(known), 64, "facts:")

	gap := regexp.MustCompile(`  +`)
	for line := range strings.Lines(string(must.Get(os.ReadFile("testdata/platforms/cells.txt"))(t))) {
		words := gap.Split(strings.TrimSpace(line), -1)
		if len(words) != 5 || words[0][0] == '#' {
			continue
		}
		rows = append(rows, platformRow{words[0], words[1], words[2], words[3], words[4]})
		for id := range strings.FieldsSeq(words[4]) {
			check.That(t, known[id], "%q: no fact %s", words, id)
		}
	}
	return rows
}

// lastRowFor is the index of the last row for a machine, -1 if there is none: later rows are exceptions.
func lastRowFor(rows []platformRow, system, platform, asked string) int {
	is := func(pattern, name string) bool {
		return pattern == "*" || slices.Contains(strings.Split(pattern, ","), name)
	}
	for n, row := range slices.Backward(rows) {
		if is(row.systems, system) && is(row.platforms, platform) && is(row.asked, asked) {
			return n
		}
	}
	return -1
}

// sentence matches what begins as the text says, in which * is any text.
func sentence(text string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, ".*"))
}
