// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strconv"
	"strings"
)

// suggestion returns the likely intent of a value of the wrong type: `key = value`.
func suggestion(r row, v *value) string {
	word := v.text
	if v.kind == tableKind || v.kind == listKind {
		word = ""
	}

	key := r.Name + " = "
	switch r.Type {
	case TypeString:
		return suggestedString(r, word)
	case TypeBool:
		return suggestedBool(key, word)
	case TypeInt:
		return suggestedInt(r, word)
	case TypeStrings:
		if r.Name == "taints" && word == "" {
			return key + `["key=value:NoSchedule"]`
		}
		return key + suggestedList(word)
	case TypeLabels:
		return key + `{ "example.com/name" = "value" }`
	case TypeParameters:
		return key + "{ NVreg_Name = 1 }"
	case TypeCounts:
		return key + `{ "1g.10gb" = 7 }`
	default: // TypeDevices
		return suggestedDevices(key, word)
	}
}

func suggestedInt(r row, word string) string {
	whole := strings.TrimSuffix(strings.TrimSpace(word), ".0")
	n, ok := parseInt(whole)
	what, _ := r.numberFault(n, ok)
	if what == "" {
		return r.Name + " = " + strconv.Itoa(n)
	}
	return "a whole number, such as 2"
}

func suggestedDevices(key, word string) string {
	n, ok := parseInt(word)
	if ok && n >= 0 {
		return key + "[" + strconv.Itoa(n) + "]"
	}
	return key + `"all" or ` + key + "[0, 1]"
}

func suggestedBool(key, word string) string {
	switch strings.ToLower(word) {
	case "true", "yes", "on", "1":
		return key + "true"
	case "false", "no", "off", "0":
		return key + "false"
	}
	return key + "true or " + key + "false"
}

func suggestedString(r row, word string) string {
	key := r.Name + " = "
	if len(r.Allowed) > 0 {
		switch {
		case word == "true" && slices.Contains(r.Allowed, "on"):
			return key + `"on"`
		case word == "false" && slices.Contains(r.Allowed, "off"):
			return key + `"off"`
		}
		return choice(r.Allowed)
	}

	if _, fault := r.check(word); fault == nil {
		return key + show(word) // the source text: 580.10 as a number would come back as 580.1
	}
	if r.Default == "" || r.Default == `""` {
		return key + `"…"`
	}
	return key + r.Default
}

func suggestedList(word string) string {
	if word == "" {
		return `["…"]`
	}

	words := strings.Split(clip(word), ",")
	for i := range words {
		words[i] = strconv.Quote(strings.TrimSpace(words[i]))
	}
	return "[" + strings.Join(words, ", ") + "]"
}
