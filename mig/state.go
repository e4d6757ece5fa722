// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
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
	for _, in := range g.Instances {
		part := Part{
			Profile: profileName(g, in.Profile),
			Start:   in.At.Start,
			Busy:    len(in.Clients) > 0,
		}
		for _, c := range in.Compute {
			part.Compute = append(part.Compute, computeSlices(g, in.Profile, c))
		}
		s.Parts = append(s.Parts, part)
	}

	s.sort()

	return s
}

// profileName is "?" and the id if the driver does not list the profile.
func profileName(g host.GPU, id int) string {
	i := slices.IndexFunc(g.Profiles, func(p host.Profile) bool { return p.ID == id })
	if i < 0 {
		return "?" + strconv.Itoa(id)
	}
	return strings.TrimPrefix(g.Profiles[i].Name, "MIG ")
}

// computeSlices is the size of a compute instance, by its profile where the driver lists it.
func computeSlices(g host.GPU, profile int, c host.ComputeInstance) int {
	for _, p := range g.Profiles {
		for _, offer := range p.Compute {
			if p.ID == profile && offer.ID == c.Profile {
				return offer.Slices
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
	sorting.By(s.Parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), strings.Compare(a.Profile, b.Profile))
	})
	for _, p := range s.Parts {
		largestFirst(p.Compute)
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
	return s + "(" + computeList(p.Compute) + ")"
}

// computeList is compute instances as a state's text has them: 2c,1c.
func computeList(compute []int) string {
	list := make([]string, len(compute))
	for i, c := range compute {
		list[i] = strconv.Itoa(c) + "c"
	}

	return strings.Join(list, ",")
}

// slices is the number of compute slices in the profile's name; 0 if it has no name.
func (p Part) slices() int {
	n, err := parseName(p.Profile)
	if err != nil {
		return 0
	}
	return n.slices
}

// maxStateText bounds what ParseState reads, in bytes: no state's text is longer.
const maxStateText = 4096

// ParseState reads what State.String writes, and nothing else.
func ParseState(text string) (State, error) {
	if text == "" {
		return State{}, nil
	}

	var s State
	ok := len(text) <= maxStateText
	if ok {
		s, ok = parseState(text)
	}
	s.sort()
	if !ok || s.String() != text {
		return State{}, fmt.Errorf("cannot read MIG state %.80q: gpuadm writes none like this", text)
	}

	return s, nil
}

// parseState is lenient: ParseState verifies that String writes the same text.
func parseState(text string) (State, bool) {
	now, next, _ := strings.Cut(text, ", ")
	words := strings.Split(now, " ")
	s := State{
		Mode: Mode(words[0]),
		Next: Mode(cmp.Or(strings.TrimSuffix(next, " after a reset"), words[0])),
	}
	for _, word := range words[1:] {
		p, ok := parsePart(word)
		if !ok {
			return s, false
		}
		s.Parts = append(s.Parts, p)
	}

	modes := []Mode{On, Off}
	known := slices.Contains(modes, s.Mode) && slices.Contains(modes, s.Next)
	return s, known && (s.Mode == On || len(s.Parts) == 0)
}

// parsePart reads one instance: 3g.40gb@0, 2g.20gb@4(1c,1c).
func parsePart(word string) (Part, bool) {
	profile, rest, _ := strings.Cut(word, "@")
	number, brackets, split := strings.Cut(rest, "(")
	p := Part{Profile: profile}
	start, err := strconv.Atoi(number)
	if err != nil || start < 0 || start > 999 {
		return p, false
	}
	p.Start = start

	ok := isProfile(profile)
	if !split {
		p.Compute = []int{p.slices()}
		return p, ok && p.slices() > 0
	}
	list := strings.TrimSuffix(brackets, ")")
	if list == "" {
		return p, ok
	}
	for _, item := range strings.Split(list, ",") {
		c, _ := strconv.Atoi(strings.TrimSuffix(item, "c"))
		ok = ok && c > 0 && item == strconv.Itoa(c)+"c"
		p.Compute = append(p.Compute, c)
	}

	return p, ok
}

// isProfile reports whether a word is the name of a GPU instance's profile, or "?" and an id.
func isProfile(word string) bool {
	id, unnamed := strings.CutPrefix(word, "?")
	if !unnamed {
		n, err := parseName(word)
		return err == nil && n.compute == 0
	}

	n, err := strconv.Atoi(id)
	return err == nil && n >= 0 && strconv.Itoa(n) == id
}
