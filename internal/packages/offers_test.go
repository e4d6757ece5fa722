// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"slices"
	"strings"
	"testing"
)

// One source has all members in one version: the other source's newer revision of one of them is left alone.
func TestChooseFromOneSource(t *testing.T) {
	cuda, ubuntu := []string{"https://nvidia /"}, []string{"http://ubuntu noble/main"}
	offers := map[string][]Offer{
		"a": {{"580.2-0ubuntu9", 500, ubuntu}, {"580.2-0ubuntu1", 500, cuda}, {"580.1-0ubuntu1", 500, cuda}},
		"b": {{"580.2-0ubuntu1", 500, cuda}, {"580.1-0ubuntu1", 500, cuda}},
	}
	got, _, ok := choose([]string{"a", "b"}, "580.*", offers, strings.Compare)
	if !ok || got["a"] != "580.2-0ubuntu1" || got["b"] != "580.2-0ubuntu1" {
		t.Errorf("%v, %v", got, ok)
	}
	offers["b"] = offers["b"][1:]
	if got, _, ok := choose([]string{"a", "b"}, "580.*", offers, strings.Compare); !ok || got["a"] != "580.1-0ubuntu1" {
		t.Errorf("the newest that both have: %v, %v", got, ok)
	}
	if got, _, ok := choose([]string{"a", "b"}, "580.2", offers, strings.Compare); ok {
		t.Errorf("chosen: %v", got)
	}
}

// Of packages of which the same is to be said it says that once, and a place once for all its versions.
func TestAvailableOnce(t *testing.T) {
	const a, b = "https://a.example/cuda", "https://b.example/main"
	offers := map[string][]Offer{
		"nvidia-driver": {{Version: "590.1-1", From: []string{a}}, {Version: "580.2-1", From: []string{a}}, {Version: "535.1-1", From: []string{b}}},
		"nvidia-smi":    {{Version: "590.1-1", From: []string{a}}, {Version: "580.2-1", From: []string{a}}, {Version: "535.1-1", From: []string{b}}},
		"nvidia-old":    nil,
	}
	names := []string{"nvidia-driver", "nvidia-old", "nvidia-smi"}
	got := availableAll(names, "source", func(name string) ([]Offer, State) { return offers[name], State{Version: "580.2-1"} })
	want := []string{
		"nvidia-driver, nvidia-smi: 590.1-1, 580.2-1 from " + a + "; 535.1-1 from " + b + "; installed is 580.2-1",
		"nvidia-old: no source has it; installed is 580.2-1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	var many []Offer
	for _, v := range []string{"8", "7", "6", "5", "4", "3", "2", "1"} {
		many = append(many, Offer{Version: v, From: []string{a}})
	}
	if got := available(many, "source", State{}); got != "8, 7, 6, 5, 4, 3 from "+a+", and 2 more" {
		t.Error(got)
	}
}
