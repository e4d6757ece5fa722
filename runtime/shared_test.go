// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
)

// TestTextsStayAsParsed makes and takes out edits with texts that are parsed once, of all shapes for all daemons: each result is that of
// texts that are parsed each time, and what is remembered stays as it was parsed.
func TestTextsStayAsParsed(t *testing.T) {
	results := map[string]int{}
	for _, c := range corpus(t) {
		for _, d := range daemons() {
			for _, h := range handlers() {
				shared := c.tree
				shared.Texts = new(toml.Texts)
				target, err := Target(shared, d, h)
				if err != nil {
					results["refused"]++
					continue
				}
				found := data(c.tree, target)
				want, werr := Edit(c.tree, d, h, target, found)
				other := append(bytes.Clone(want), "\n# changed outside gpuadm\n"...)
				for range 2 {
					got, err := Edit(shared, d, h, target, found)
					if !bytes.Equal(got, want) || fmt.Sprint(err) != fmt.Sprint(werr) {
						t.Fatalf("%s, %s: %s, %v\nwant %s, %v", c.name, d.Version, got, err, want, werr)
					}
					if werr != nil {
						continue
					}
					rest, left, err := takeOut(shared.Texts)(found, want, other)
					wantRest, wantLeft, wantErr := TakeOut(found, want, other)
					if !bytes.Equal(rest, wantRest) || !reflect.DeepEqual(left, wantLeft) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
						t.Fatalf("%s, %s: takes out %s, %s, %v\nwant %s, %s, %v", c.name, d.Version, rest, left, err, wantRest, wantLeft, wantErr)
					}
					results["edited and taken out"]++
				}
				for _, text := range append([]File{c.tree.Root, {Data: want}, {Data: other}}, c.tree.Imports...) {
					got, err := shared.Texts.Values(text.Data)
					fresh, freshErr := toml.Values(text.Data)
					if fmt.Sprint(err) != fmt.Sprint(freshErr) || err == nil && !toml.Equal(got, fresh) {
						t.Fatalf("%s, %s: what is remembered was changed: %s", c.name, d.Version, toml.FirstDifference(fresh, got))
					}
				}
			}
		}
	}
	if results["edited and taken out"] < 500 {
		t.Errorf("too few: %v", results)
	}
}
