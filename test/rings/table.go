// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// table has a line for each test of the labs and each optional target. Its head explains the columns.
//
//go:embed rings.tsv
var table string

// budgets are how many seconds of tests a change may ask for, beside the smoke. The labs run several
// tests at a time, so a run takes less by the clock.
var budgets = map[string]int{"lab": 900, "kube": 300, "targets": 3600}

type row struct {
	ring, name string
	seconds    int
	smoke      bool // for each change
	night      bool // for no change
	paths      []string
}

func readTable() ([]row, error) {
	var rows []row
	for i, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 5 {
			return nil, fmt.Errorf("rings.tsv, line %d: %d cells, want 5", i+1, len(cells))
		}
		seconds, err := strconv.Atoi(cells[2])
		if err != nil {
			return nil, fmt.Errorf("rings.tsv, line %d: %w", i+1, err)
		}
		rows = append(rows, row{
			ring:    cells[0],
			name:    cells[1],
			seconds: seconds,
			smoke:   cells[3] == "smoke",
			night:   cells[3] == "night",
			paths:   strings.Fields(cells[4]),
		})
	}

	return rows, nil
}

// chosen is what a ring runs: the smoke, what shows the change, and what would but for the budget.
type chosen struct{ smoke, shown, left []string }

// choose fills the budget of a ring, beginning at another test in each turn.
func choose(rows []row, ring string, files []string, turn int) chosen {
	var picked chosen
	var wanted []row
	for _, r := range rows {
		switch {
		case r.ring != ring || r.night:
		case r.smoke:
			picked.smoke = append(picked.smoke, r.name)
		case slices.ContainsFunc(files, r.shows):
			wanted = append(wanted, r)
		}
	}

	seconds := 0
	for i := range wanted {
		r := wanted[(i+turn)%len(wanted)]
		if seconds+r.seconds > budgets[ring] {
			picked.left = append(picked.left, r.name)
			continue
		}
		seconds += r.seconds
		picked.shown = append(picked.shown, r.name)
	}

	return picked
}

// shows says whether a file lies at or below one of the row's paths.
func (r row) shows(file string) bool {
	return slices.ContainsFunc(r.paths, func(path string) bool {
		return file == path || strings.HasPrefix(file, path+"/") || strings.HasSuffix(path, "*") && strings.HasPrefix(file, strings.TrimSuffix(path, "*"))
	})
}
