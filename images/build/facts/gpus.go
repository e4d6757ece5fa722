// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// gpu is a row of drivers.tsv.
type gpu struct {
	ID      string
	Name    string   // of the newest list that has one
	Modules string   // open, both, closed: by supported-gpus.json; "" if no list says it
	First   []string // the first driver of each branch
	Sources []string
	Month   string // of the newest record that has the GPU
	Why     string // with an exception: its reason
}

// exception is a row of exceptions.tsv: what the records have wrong, or do not say.
type exception struct {
	ID    string
	First string // as in drivers.tsv
	Why   string
}

// dense is the record that has every release: what it does not list, a driver does not know, unless
// two others say that it does.
const dense = "open-gpu-kernel-modules"

// merge makes the rows of the lists.
func merge(lists []list, exceptions []exception) (rows []gpu) {
	slices.SortStableFunc(lists, func(a, b list) int {
		return cmp.Or(compare(a.Version, b.Version), strings.Compare(a.Month, b.Month))
	})

	ids := map[string]bool{}
	begins := map[string]string{} // by branch: the first release that the dense record has
	newest := map[string]string{} // the last one
	for _, l := range lists {
		if l.Source != dense {
			continue
		}
		branch := branchOf(l.Version)
		begins[branch] = cmp.Or(begins[branch], l.Version)
		newest[branch] = l.Version
		for id := range l.Names {
			ids[id] = true
		}
	}

	for _, e := range exceptions {
		ids[e.ID] = true
	}
	for _, l := range lists {
		for id := range l.Names {
			// Older GPUs than Turing are in no list of the open modules, and have no minimum.
			if id >= "1e00" && compare(l.Version, "515") >= 0 {
				ids[id] = true
			}
		}
	}

	for _, id := range slices.Sorted(maps.Keys(ids)) {
		rows = append(rows, row(id, lists, exceptions, begins, newest))
	}
	return slices.DeleteFunc(rows, func(g gpu) bool { return len(g.First) == 0 })
}

// row makes one GPU's row.
func row(id string, lists []list, exceptions []exception, begins, newest map[string]string) gpu {
	listing := slices.DeleteFunc(slices.Clone(lists), func(l list) bool {
		_, listed := l.Names[id]
		return !listed || compare(branchOf(l.Version), oldest) < 0
	})

	g := describe(id, listing)
	firstOf := firstReleases(listing)
	dropWithdrawn(firstOf, listing, newest)
	first := firstOfBranches(firstOf, begins, newest)
	g.First = shorten(first, begins)
	if !slices.Contains(g.Sources, dense) && len(g.First) > 0 {
		// The README omits the GPU, and the other records have few releases: from the
		// first on, all.
		g.First = []string{strings.TrimSuffix(g.First[0], "+") + "+"}
	}
	for _, e := range exceptions {
		if e.ID == id {
			g.First = strings.Fields(e.First)
			g.Why = e.Why
		}
	}

	return g
}

// describe is a GPU as the lists that have it describe it, the newest list's word last.
func describe(id string, listing []list) gpu {
	g := gpu{ID: id}
	for _, l := range listing {
		name := l.Names[id]
		if name != "" && l.Source != "nvidia-graphics-drivers" {
			g.Name = name
		}
		if l.Open != nil {
			g.Modules = modulesOf(l.Open[id], l.Closed[id])
		}
		g.Month = max(g.Month, l.Month)
		if !slices.Contains(g.Sources, l.Source) {
			g.Sources = append(g.Sources, l.Source)
		}
	}

	slices.Sort(g.Sources)
	return g
}

// firstReleases has by branch and source the first release in the lists.
func firstReleases(listing []list) map[string]map[string]string {
	firstOf := map[string]map[string]string{}
	for _, l := range listing {
		branch := branchOf(l.Version)
		if firstOf[branch] == nil {
			firstOf[branch] = map[string]string{}
		}
		if firstOf[branch][l.Source] == "" {
			firstOf[branch][l.Source] = l.Version
		}
	}

	return firstOf
}

// dropWithdrawn drops what the dense record says of a branch whose newest release does not list the
// GPU: NVIDIA has withdrawn it. The README of 535.154.05 lists 2685, and those of the 13 later
// releases of 535 do not.
func dropWithdrawn(firstOf map[string]map[string]string, listing []list, newest map[string]string) {
	for branch, bySource := range firstOf {
		inNewest := slices.ContainsFunc(listing, func(l list) bool {
			return l.Source == dense && l.Version == newest[branch]
		})
		if !inNewest {
			delete(bySource, dense)
		}
	}
}

// firstOfBranches returns the first version of each branch that serves a GPU, of what the sources
// list.
func firstOfBranches(
	firstOf map[string]map[string]string, begins, newest map[string]string,
) map[string]string {
	first := map[string]string{}
	for _, branch := range slices.SortedFunc(maps.Keys(firstOf), compare) {
		version := firstListed(firstOf[branch], newest[branch])
		// The other records have few releases of a branch: a GPU of an older branch is in all.
		known := len(first) > 0
		if known && version != firstOf[branch][dense] && begins[branch] != "" {
			version = begins[branch]
		}
		if version != "" {
			first[branch] = version
		}
	}
	// Where the first branch of the dense record has the GPU from its first release on, the older
	// branches say nothing more.
	for branch := range first {
		if compare(branch, "515") < 0 && first["515"] == begins["515"] {
			delete(first, branch)
		}
	}

	return first
}

// oldest is the first branch whose libraries gpuadm reads: drivers.oldestBranch.
const oldest = "470"

func modulesOf(open, closed bool) string {
	switch {
	case open && closed:
		return "both"
	case open:
		return "open"
	}
	return "closed"
}

// firstListed returns the first driver of a branch that lists a GPU, by what each record has:
// the dense record's word counts, unless two others name an older driver. After the newest release
// that the dense record has, any other's word counts.
func firstListed(bySource map[string]string, newest string) string {
	var others []string
	for source, version := range bySource {
		if source != dense {
			others = append(others, version)
		}
	}

	slices.SortFunc(others, compare)

	first := bySource[dense]
	if len(others) >= 2 && (first == "" || compare(others[1], first) < 0) {
		first = others[1]
	}
	if first == "" && len(others) > 0 && compare(others[0], newest) > 0 {
		first = others[0]
	}
	return first
}

// shorten lists the first drivers by branch. Where from some branch on all have the GPU in their
// first release, that branch stands for all with a plus: 570.169 575.64 580+.
func shorten(first, begins map[string]string) (list []string) {
	branches := slices.SortedFunc(maps.Keys(begins), compare)
	tail := len(branches)
	for tail > 0 {
		branch := branches[tail-1]
		if first[branch] == "" || first[branch] != begins[branch] {
			break
		}
		tail--
	}

	for _, branch := range slices.SortedFunc(maps.Keys(first), compare) {
		if tail < len(branches) && compare(branch, branches[tail]) >= 0 {
			break
		}
		list = append(list, first[branch])
	}

	if tail < len(branches) {
		list = append(list, branches[tail]+"+")
	}
	return list
}
