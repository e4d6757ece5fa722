// SPDX-FileCopyrightText: The gpuadm authors
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

// State is the MIG state of one GPU. Its text is canonical: two GPUs have the same state if and only if their texts are equal.
//
//	state    = "" | mode { " " instance } [ ", " mode " after a reset" ]
//	mode     = "off" | "on"                     without instances when off
//	instance = profile "@" start [ "(" [ compute { "," compute } ] ")" ]
//	compute  = slices "c" [ "@" start ]         largest first
//
// Starts of instances are memory slices, and instances are in their order; starts of compute instances are compute
// slices. An instance with one compute instance that takes all its slices has no brackets; empty brackets are half-made.
// A profile that the driver lists no more is "?" and its id. For example:
//
//	on 3g.40gb@0 2g.20gb@4(1c,1c) 1g.10gb@6
//	off, on after a reset
type State struct {
	Mode  Mode
	Next  Mode   // after a reset; the same as Mode where none is pending
	Parts []Part // by start
}

// Part is one GPU instance.
type Part struct {
	Profile string
	Start   int
	Compute []Compute // none: it is half-made
	Busy    bool      // processes use it; no part of the text
}

// Compute is one compute instance.
type Compute struct {
	Slices int
	Start  int // Anywhere where the driver chooses
}

// StateOf is a GPU's state by its driver; the zero State if it has no MIG or does not answer.
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
			made := Compute{Slices: computeSlices(g, i.Profile, c), Start: Anywhere}
			p.Compute = append(p.Compute, made)
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
		slices.SortStableFunc(p.Compute, func(a, b Compute) int {
			return cmp.Or(cmp.Compare(b.Slices, a.Slices), cmp.Compare(a.Start, b.Start))
		})
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
	if len(p.Compute) == 1 && p.Compute[0].Slices == p.slices() {
		return s
	}
	list := make([]string, len(p.Compute))
	for i, c := range p.Compute {
		list[i] = strconv.Itoa(c.Slices) + "c"
		if c.Start != Anywhere {
			list[i] += "@" + strconv.Itoa(c.Start)
		}
	}
	return s + "(" + strings.Join(list, ",") + ")"
}

// slices is how many compute slices the profile has by its name; 0 for one that has no name.
func (p Part) slices() int {
	n, err := parseName(p.Profile)
	if err != nil {
		return 0
	}
	return n.slices
}

// longest is more than any state's text has; it bounds what ParseState reads.
const longest = 4096

// ParseState reads what State.String writes, and nothing else.
func ParseState(text string) (State, error) {
	wrong := func(why string) (State, error) {
		return State{}, fmt.Errorf("cannot read MIG state %.80q: %s", text, why)
	}
	if text == "" {
		return State{}, nil
	}
	if len(text) > longest {
		return wrong("it is too long")
	}
	now, next, pending := strings.Cut(text, ", ")
	words := strings.Split(now, " ")
	s := State{Mode: Mode(words[0]), Next: Mode(words[0])}
	if pending {
		after, ok := strings.CutSuffix(next, " after a reset")
		if !ok {
			return wrong("only a mode after a reset may follow a comma")
		}
		s.Next = Mode(after)
	}
	for _, m := range []Mode{s.Mode, s.Next} {
		if m != On && m != Off {
			return wrong(fmt.Sprintf("%q is no mode", m))
		}
	}
	for _, word := range words[1:] {
		p, err := parsePart(word)
		if err != nil {
			return wrong(err.Error())
		}
		s.Parts = append(s.Parts, p)
	}
	if s.Mode == Off && len(s.Parts) > 0 {
		return wrong("there are no instances while the mode is off")
	}
	s.sort()
	if s.String() != text {
		return wrong("it would be written " + strconv.Quote(s.String()))
	}
	return s, nil
}

func parsePart(word string) (Part, error) {
	profile, rest, ok := strings.Cut(word, "@")
	if !ok {
		return Part{}, fmt.Errorf("%q has no start", word)
	}
	start, brackets, split := strings.Cut(rest, "(")
	p := Part{Profile: profile}
	var err error
	if p.Start, err = slice(start); err != nil {
		return Part{}, err
	}
	if id, unnamed := strings.CutPrefix(profile, "?"); unnamed {
		if n, err := strconv.Atoi(id); err != nil || n < 0 || strconv.Itoa(n) != id {
			return Part{}, fmt.Errorf("%q is no profile id", id)
		}
	} else if n, err := parseName(profile); err != nil || n.compute != 0 {
		return Part{}, fmt.Errorf("%q is no MIG profile", profile)
	}
	if !split {
		if p.slices() == 0 {
			return Part{}, fmt.Errorf("%q does not say its compute instances", word)
		}
		p.Compute = []Compute{{Slices: p.slices(), Start: Anywhere}}
		return p, nil
	}
	list, ok := strings.CutSuffix(brackets, ")")
	if !ok {
		return Part{}, fmt.Errorf("%q has no closing bracket", word)
	}
	if list == "" {
		return p, nil
	}
	for _, item := range strings.Split(list, ",") {
		c := Compute{Start: Anywhere}
		head, at, has := strings.Cut(item, "@")
		if c.Slices = number(head, "c"); c.Slices == 0 {
			return Part{}, fmt.Errorf("%q is no compute instance", item)
		}
		if has {
			if c.Start, err = slice(at); err != nil {
				return Part{}, err
			}
		}
		p.Compute = append(p.Compute, c)
	}
	return p, nil
}

func slice(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 999 || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is no slice", s)
	}
	return n, nil
}
