// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// errKnown is the cause of an error of Find about a known GPU: several models have the name, or the
// GPU's profiles are not public.
var errKnown = errors.New("the GPU is known")

// Find returns the model that a user names: by PCI device id (0x233010DE, 2330, 10de:2330, with
// :0x16C110DE the subsystem too) or by name (H100-80GB, h200, "NVIDIA A100-SXM4-40GB"). The error
// is a *trouble.Error that lists similar names.
func Find(name string) (Model, error) {
	device, sub, _ := strings.Cut(name, ":")
	if isDeviceID(device) && isDeviceID(sub) {
		m, err := Find(device)
		m.sub = sub
		return m, err
	}

	all := Models()
	asked := tokens(name)
	var matching []Model
	for _, m := range all {
		isNamed := func(d string) bool { return sameDevice(d, name) }
		if i := slices.IndexFunc(m.Devices, isNamed); i >= 0 {
			m.device = m.Devices[i]
			return m, nil
		}
		if nameFits(asked, m.words) {
			matching = append(matching, m)
		}
	}

	if len(matching) == 1 {
		return matching[0], nil
	}
	if len(matching) > 1 {
		return Model{}, &trouble.Error{
			What: fmt.Sprintf(
				"cannot tell which GPU %q is: there are %s",
				name, strings.Join(modelNames(matching), ", "),
			),
			Try: []string{"write the memory too: " + strconv.Quote(matching[0].Name)},
			Err: errKnown,
		}
	}

	if err := refuseUnlisted(name, asked); err != nil {
		return Model{}, err
	}

	list := modelNames(all)
	try := "write one of " + strings.Join(list, ", ") + ", or a PCI device id"
	if near := nearest.Of(name, list); near != "" {
		try = "did you mean " + strconv.Quote(near) + "?"
	}

	return Model{}, &trouble.Error{
		What: fmt.Sprintf("cannot find GPU %q: no GPU of this name with MIG is known", name),
		Try:  []string{try},
	}
}

// Unlisted refuses a GPU by its PCI device id if it has MIG, and no table of its
// profiles is public.
func Unlisted(device string) error { return refuseUnlisted(device, nil) }

// refuseUnlisted refuses GPUs that have MIG, and whose profiles are not public.
func refuseUnlisted(name string, asked []string) error {
	for _, u := range read().Unlisted {
		has := func(device string) bool { return sameDevice(device, name) }
		if nameFits(asked, u.Words) || slices.ContainsFunc(u.Devices, has) {
			return &trouble.Error{
				What: fmt.Sprintf("cannot plan for %s without its driver: %s", u.Name, u.Why),
				Try:  []string{"run the same command without --gpu on the machine, where the driver says what it can be partitioned into"},
				Err:  errKnown,
			}
		}
	}

	return nil
}

func modelNames(models []Model) []string {
	var list []string
	for _, m := range models {
		list = append(list, m.Name)
	}

	return list
}

// nameFits reports whether the words that a user writes name a GPU that has these words: all of
// them are among the GPU's, and not all are numbers.
func nameFits(asked, words []string) bool {
	foreign := func(word string) bool { return !slices.Contains(words, word) }
	return slices.ContainsFunc(asked, hasLetter) && !slices.ContainsFunc(asked, foreign)
}

func hasLetter(word string) bool {
	return strings.ContainsFunc(word, func(r rune) bool { return r >= 'a' && r <= 'z' })
}

// sameDevice compares 0x233010DE with any spelling of it.
func sameDevice(device, s string) bool {
	s = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "0x")
	short := strings.ToLower(device[2:6])

	return s == short || s == short+"10de" || s == "10de:"+short || s == "10de:0x"+short
}

// isDeviceID reports whether s is two PCI ids as mig-parted writes them: 0xDDDDVVVV.
func isDeviceID(s string) bool {
	if len(s) != 10 || !strings.EqualFold(s[:2], "0x") {
		return false
	}
	return strings.Trim(s[2:], "0123456789abcdefABCDEF") == ""
}

// tokens are the distinctive words of a GPU's name: "NVIDIA H100-80GB HBM3" has h100, 80, hbm3.
func tokens(name string) []string {
	separator := func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') }
	var kept []string
	for _, word := range strings.FieldsFunc(strings.ToLower(name), separator) {
		number := strings.TrimSuffix(word, "gb")
		if strings.Trim(number, "0123456789") == "" { // "80gb"
			word = number
		}
		if word != "" && word != "nvidia" && word != "gpu" {
			kept = append(kept, word)
		}
	}

	return kept
}
