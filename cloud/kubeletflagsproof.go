// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// proven reads an edited file anew: the option in the variable holds what change makes of its parts, and all the rest
// is as it was. What is written in a way that our edit does not master is so refused, and never half done.
func (f kubeletFlag) proven(was []kubeletVar, data []byte, name string, change func(map[string]string)) error {
	is, err := parseKubeletEnv(data)
	if err != nil {
		return fmt.Errorf("the result would not parse: %w", err)
	}
	i, j := kubeletLast(was, name), kubeletLast(is, name)
	var before, after []byte
	if i >= 0 {
		before, was = was[i].value, slices.Delete(slices.Clone(was), i, i+1)
	}
	if j >= 0 {
		after, is = is[j].value, slices.Delete(slices.Clone(is), j, j+1)
	}
	same := func(a, b kubeletVar) bool { return a.key == b.key && string(a.value) == string(b.value) }
	if !slices.EqualFunc(was, is, same) || !slices.Equal(f.others(before), f.others(after)) {
		return errors.New("the result would change more than " + f.name)
	}
	_, want := f.stated(before)
	change(want)
	if _, got := f.stated(after); !maps.Equal(want, got) {
		return fmt.Errorf("%s in %s is quoted in a way that cannot be edited safely", f.name, name)
	}
	return nil
}

// others returns the words that are not the option's.
func (f kubeletFlag) others(value []byte) (list []string) {
	words := kubeletWords(value)
	f.last = false
	taken := map[int]bool{}
	for _, o := range f.find(words) {
		taken[o.word], taken[o.first] = true, true
	}
	for i, w := range words {
		if !taken[i] {
			list = append(list, w.text)
		}
	}
	return list
}
