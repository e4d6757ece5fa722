// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// recorded is a record in memory: the files of each commit or tag.
type recorded map[string]map[string]string

func (r recorded) tags() ([]string, error) {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r)), func(c string) bool {
		return c == "HEAD"
	}), nil
}

func (r recorded) changes(path string) (commits []string, err error) {
	for commit, files := range r {
		if _, has := files[path]; has {
			commits = append(commits, commit)
		}
	}

	slices.Sort(commits)
	return append(commits, "removed"), nil
}

func (r recorded) files(commit, folder string) (names []string, err error) {
	for name := range r[commit] {
		if folder == "." || strings.HasPrefix(name, folder) {
			names = append(names, name)
		}
	}

	slices.Sort(names)
	return names, nil
}

func (r recorded) read(commit, path string) ([]byte, error) {
	text, has := r[commit][path]
	if !has {
		return nil, fmt.Errorf("cannot read %s of %s", path, commit)
	}
	return []byte(text), nil
}

func (r recorded) month(string) (string, error) { return "2026-03", nil }

func (r recorded) words(commit, folder string, words []string) (map[string]bool, error) {
	has := map[string]bool{}
	for _, word := range words {
		has[word] = slices.Contains(strings.Fields(r[commit][folder+"/conftest.sh"]), word)
	}
	return has, nil
}

// releases are some of the open modules', with the words of the changelogs in testdata that their
// sources have: git grep in NVIDIA/open-gpu-kernel-modules.
func releases() recorded {
	const (
		old  = "dma_fence_signal drm_print"
		v617 = old + " drm_fb_create_takes_format_info"
		irq  = v617 + " nv_in_hardirq"
		most = irq + " vma_flags_set_word dma_map_ops_has_map_phys"
		v619 = most + " folio_free"
		v700 = v619 + " is_vma_write_locked_has_mm_lock_seq_arg"
	)
	all := recorded{}
	for release, words := range map[string]string{
		"535.261.03": old, "535.274.02": v617,
		"580.76.05": old, "580.82.07": v617, "580.105.08": v617, "580.119.02": irq, "580.126.09": v619, "580.142": v700,
		"580.94.02": "", // a Vulkan developer's version
		"590.44.01": v617, "590.48.01": most,
		"595.44.02": v619, "595.44.03": v700,
	} {
		all[release] = map[string]string{"kernel-open/conftest.sh": words}
	}

	return all
}

// patchList has rows of nvidia-all's list.
const patchList = `# TYPE FILE KMIN KMAX DMIN DMAX STRIP TARGET FLAG
open 580/kernel-7.0.patch 7.0 7.0.9999 580 580.142 1 kernel-open
dkms 580/kernel-7.0.patch 7.0 7.0.9999 580 580.142 1 kernel-dkms
open all/kernel-6.19.patch 6.19 6.19.9999 590 590.9999 2 kernel-open
open 595/kernel-7.0.patch 7.0 7.0.9999 590 595.58.03 2 kernel-open - 595.44.06:595.44.07
open 575/0008-kbuild.patch - - 575 575.9999 1 . _gcc15_fix
`

// TestKernelRows: two of three records must say that a driver does not build.
func TestKernelRows(t *testing.T) {
	var texts []string
	for _, name := range []string{"testdata/changelog-550", "testdata/changelog-555"} {
		texts = append(texts, string(must.Get(os.ReadFile(name))(t)))
	}
	changes := addWords(debianChanges(texts), must.Get(readWords("words.tsv"))(t))
	k := must.Get(readKnowledge(releases(), changes))(t)

	var got []string
	for _, r := range kernelRows(k, changes, patchRows(patchList)) {
		row := []string{r.Linux, r.Branch, r.Through, r.Month}
		got = append(got, strings.Join(append(row, r.Sources...), " "))
	}

	check.List(t, got, []string{
		"6.17 535 535.261.03 2025-11 conftest debian",
		"6.17 580 580.76.05 2025-11 conftest debian",
		"6.19 535 535.274.02 2026-03 conftest debian",
		"6.19 580 580.119.02 2026-03 conftest debian",    // 580.119.02 has only a part of it
		"6.19 590 590.48.01 2026-03 conftest nvidia-all", // it knows what Debian names, and not folio_free
		"7.0 535 535.274.02 2026-10 conftest debian",
		"7.0 580 580.142 2026-10 conftest debian nvidia-all", // by the two others: its own sources know a part
		"7.0 590 590.48.01 2026-10 conftest debian nvidia-all",
		"7.0 595 595.44.02 2026-10 conftest debian nvidia-all",
		"7.2 535 535.274.02 2026-10 conftest debian",
		"7.2 580 580.142 2026-10 conftest debian",
		"7.2 590 590.48.01 2026-10 conftest debian",
		"7.2 595 595.44.03 2026-10 conftest debian",
	}, "rows:")
}

// TestWordsThatTellNothing: a word that older drivers have, too, and one that got another name later,
// make no row.
func TestWordsThatTellNothing(t *testing.T) {
	k := must.Get(readKnowledge(recorded{
		"570.86.16":  {"kernel-open/conftest.sh": "common"},
		"580.65.06":  {"kernel-open/conftest.sh": "common_word once_so"},
		"580.95.05":  {"kernel-open/conftest.sh": "common_word once_so"},
		"590.44.01":  {"kernel-open/conftest.sh": "common_word"},
		"550.163.01": {"kernel-open/conftest.sh": "common_word"},
	}, []change{{
		Linux: "6.17",
		From:  map[string]string{"common_word": "580.95.05", "once_so": "580.65.06"},
	}}))(t)

	check.That(t, !k.marks("common_word", "580.95.05"), "a word that 580.65.06 has, too, tells them apart")
	check.That(t, k.marks("once_so", "580.65.06"), "once_so tells nothing")
	check.Equal(t, k.lacking("590", "once_so"), "", "590 lacks it, since it has another name: ")
	check.Equal(t, k.lacking("570", "once_so"), "570.86.16", "570 lacks it to ")
}

// TestBulletins reads NVIDIA's bulletin 5821, cut to a few of its products.
func TestBulletins(t *testing.T) {
	text := string(must.Get(os.ReadFile("testdata/5821.json"))(t))
	rows := must.Get(bulletins(recorded{"HEAD": {
		"2026/5821/5821.json": text, "2026/5821/CVE-2026-24187.json": "{", "2026/5821/README.md": "no JSON",
	}}))(t)
	check.List(t, rows, []bulletin{
		{Branch: "535", Fixed: "535.309.01", Number: "5821", Month: "2026-05", CVEs: 2},
		{Branch: "580", Fixed: "580.159.03", Number: "5821", Month: "2026-05", CVEs: 2},
	}, "rows:")

	_, err := bulletins(recorded{"HEAD": {"2026/5821/5821.json": "{"}})
	check.That(t, err != nil, "a bulletin that cannot be read is passed over")
}

// TestBulletinOfTwoReleases reads NVIDIA's bulletin 5353, cut to three CVEs and the drivers of two
// branches: what desktops get first fixes a data centre's GPUs as well.
func TestBulletinOfTwoReleases(t *testing.T) {
	text := string(must.Get(os.ReadFile("testdata/5353.json"))(t))
	rows := must.Get(bulletins(recorded{"HEAD": {"2022/5353/5353.json": text}}))(t)
	check.List(t, rows, []bulletin{
		{Branch: "470", Fixed: "470.129.06", Number: "5353", Month: "2022-05", CVEs: 3},
		{Branch: "510", Fixed: "510.73.05", Number: "5353", Month: "2022-05", CVEs: 3},
	}, "rows:")
}

// TestMerge: the first driver of each branch, by the READMEs and two other lists.
func TestMerge(t *testing.T) {
	const h200nvl, h100 = "| NVIDIA H200 NVL | 233B 10DE 1996 |\n", "| NVIDIA H100 | 2331 |\n"
	sources := recorded{}
	for tag, text := range map[string]string{
		"515.43.04": "no table yet\n", "515.65.01": h100, "550.54.14": h100, "550.142": h100 + h200nvl,
		"565.57.01": h100 + h200nvl, "570.86.16": h100 + h200nvl, "580.94.02": "| NVIDIA Vulkan | 2FFF |\n",
	} {
		sources[tag] = map[string]string{"README.md": text}
	}

	lists := must.Get(readmes(sources))(t)
	const eks = "templates/al2023/runtime/gpu/nvidia-open-supported-devices-570.txt"
	more := must.Get(eksLists(recorded{
		"HEAD": {eks: ""},
		"c1":   {eks: "# NVIDIA-Linux-x86_64-570.133.20.run\n0x2331 NVIDIA H100\n0x233B NVIDIA H200 NVL\n"},
	}))(t)
	rows := merge(append(lists, more...), []exception{{"1eb8", "515+", "the T4 is omitted"}})

	first := map[string]string{}
	for _, g := range rows {
		first[g.ID] = strings.Join(g.First, " ")
	}
	want := map[string]string{"1eb8": "515+", "2331": "515+", "233b": "550.142 565+"}
	check.That(t, maps.Equal(first, want), "first drivers: %v, want %v", first, want)
}

// TestListedOnce: a release lists a GPU that no later release of its branch lists any more. Such a branch
// does not have the GPU: 535.154.05 alone of 535 lists the RTX 4090 D (2685), which 550 has.
func TestListedOnce(t *testing.T) {
	const h100, rtx4090d = "| NVIDIA H100 | 2331 |\n", "| NVIDIA GeForce RTX 4090 D | 2685 |\n"
	sources := recorded{}
	for tag, text := range map[string]string{
		"515.65.01": h100, "535.54.03": h100, "535.154.05": h100 + rtx4090d, "535.161.07": h100, "535.183.01": h100,
		"550.54.14": h100 + rtx4090d, "560.28.03": h100 + rtx4090d,
		"580.65.06": h100 + rtx4090d, "580.82.07": h100, "580.95.05": h100 + rtx4090d, // an omission of one
	} {
		sources[tag] = map[string]string{"README.md": text}
	}

	first := map[string]string{}
	for _, g := range merge(must.Get(readmes(sources))(t), nil) {
		first[g.ID] = strings.Join(g.First, " ")
	}
	want := map[string]string{"2331": "515+", "2685": "550+"}
	check.That(t, maps.Equal(first, want), "first drivers: %v, want %v", first, want)
}
