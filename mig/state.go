// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Mode is whether a GPU is in MIG mode.
type Mode string

const (
	Unknown Mode = ""
	Off     Mode = "off"
	On      Mode = "on"
)

// State is the MIG state of one GPU. Its text is canonical: two GPUs have the same state if and
// only if their texts are equal.
//
//	state    = "" | mode { " " instance } [ ", " mode " after a reset" ]
//	mode     = "off" | "on"                     without instances when off
//	instance = profile "@" start [ "(" [ compute { "," compute } ] ")" ]
//	compute  = slices "c"                       largest first
//
// Starts are memory slices; instances are ordered by start. An instance without brackets has one
// compute instance, which takes all its slices; one with empty brackets is half-made. "?" and an id
// is a profile that the driver no longer lists. For example:
//
//	on 3g.40gb@0 2g.20gb@4(1c,1c) 1g.10gb@6
//	off, on after a reset
type State struct {
	Mode  Mode
	Next  Mode   // after a reset; equal to Mode if no change is pending
	Parts []Part // by start
}

// Part is one GPU instance.
type Part struct {
	Profile string
	Start   int
	Compute []int // slices of its compute instances, largest first; none: it is half-made
	Busy    bool  // processes use it; the text does not have it
}

// StateOf is a GPU's state as its driver reports it; the zero State if the GPU has no MIG or does
// not answer.
func StateOf(g host.GPU) State {
	if !g.MIG || g.Lost != "" {
		return State{}
	}
	s := State{Mode: mode(g.Mode), Next: mode(g.Pending)}
	for _, i := range g.Instances {
		p := Part{Profile: "?" + strconv.Itoa(i.Profile), Start: i.At.Start, Busy: len(i.Clients) > 0}
		known := slices.IndexFunc(g.Profiles, func(q host.Profile) bool { return q.ID == i.Profile })
		if known >= 0 {
			p.Profile = strings.TrimPrefix(g.Profiles[known].Name, "MIG ")
		}
		for _, c := range i.Compute {
			p.Compute = append(p.Compute, computeSlices(g, i.Profile, c))
		}
		s.Parts = append(s.Parts, p)
	}
	s.sort()
	return s
}

// computeSlices is the size of a compute instance, by its profile where the driver lists it.
func computeSlices(g host.GPU, profile int, c host.ComputeInstance) int {
	for _, p := range g.Profiles {
		for _, q := range p.Compute {
			if p.ID == profile && q.ID == c.Profile {
				return q.Slices
			}
		}
	}
	return c.At.Size
}

func mode(on bool) Mode {
	if on {
		return On
	}
	return Off
}

func (s State) sort() {
	slices.SortStableFunc(s.Parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), strings.Compare(a.Profile, b.Profile))
	})
	for _, p := range s.Parts {
		slices.SortFunc(p.Compute, func(a, b int) int { return b - a })
	}
}

// String is the state's canonical text.
func (s State) String() string {
	if s.Mode == Unknown {
		return ""
	}
	var b strings.Builder
	b.WriteString(string(s.Mode))
	for _, p := range s.Parts {
		b.WriteString(" " + p.String())
	}
	if s.Next != s.Mode && s.Next != Unknown {
		b.WriteString(", " + string(s.Next) + " after a reset")
	}
	return b.String()
}

// String is the instance as State.String writes it.
func (p Part) String() string {
	s := p.Profile + "@" + strconv.Itoa(p.Start)
	if slices.Equal(p.Compute, []int{p.slices()}) {
		return s
	}
	return s + "(" + splits(p.Compute) + ")"
}

// slices is the number of compute slices in the profile's name; 0 if it has no name.
func (p Part) slices() int {
	n, err := parseName(p.Profile)
	if err != nil {
		return 0
	}
	return n.slices
}

// longest bounds what ParseState reads: no state's text is longer.
const longest = 4096

// ParseState reads what State.String writes, and nothing else.
func ParseState(text string) (State, error) {
	if text == "" {
		return State{}, nil
	}
	s, ok := State{}, len(text) <= longest
	if ok {
		s, ok = parseState(text)
	}
	if s.sort(); !ok || s.String() != text {
		return State{}, fmt.Errorf("cannot read MIG state %.80q: gpuadm writes none like this", text)
	}
	return s, nil
}

// parseState is lenient: ParseState verifies that String writes the same text.
func parseState(text string) (s State, ok bool) {
	now, next, _ := strings.Cut(text, ", ")
	words := strings.Split(now, " ")
	s.Mode = Mode(words[0])
	s.Next = Mode(cmp.Or(strings.TrimSuffix(next, " after a reset"), words[0]))
	for _, word := range words[1:] {
		p, ok := parsePart(word)
		if !ok {
			return s, false
		}
		s.Parts = append(s.Parts, p)
	}
	known := []Mode{On, Off}
	return s, slices.Contains(known, s.Mode) && slices.Contains(known, s.Next) && (s.Mode == On || len(s.Parts) == 0)
}

func parsePart(word string) (p Part, ok bool) {
	profile, rest, _ := strings.Cut(word, "@")
	start, brackets, split := strings.Cut(rest, "(")
	p.Profile = profile
	var err error
	if p.Start, err = strconv.Atoi(start); err != nil || p.Start < 0 || p.Start > 999 {
		return p, false
	}
	if id, unnamed := strings.CutPrefix(profile, "?"); unnamed {
		n, err := strconv.Atoi(id)
		ok = err == nil && n >= 0 && strconv.Itoa(n) == id
	} else {
		n, err := parseName(profile)
		ok = err == nil && n.compute == 0
	}
	list := strings.TrimSuffix(brackets, ")")
	switch {
	case !split:
		p.Compute = []int{p.slices()}
		return p, ok && p.slices() > 0
	case list == "":
		return p, ok
	}
	for _, item := range strings.Split(list, ",") {
		c, _ := strconv.Atoi(strings.TrimSuffix(item, "c"))
		ok = ok && c > 0 && item == strconv.Itoa(c)+"c"
		p.Compute = append(p.Compute, c)
	}
	return p, ok
}
