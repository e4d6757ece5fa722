// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"encoding/json"
	"slices"
)

// apply patches an object by a strategic merge patch: gpuadm sends no other.
func apply(n Object, form string, body []byte) (Object, *answer) {
	if form != "application/strategic-merge-patch+json" {
		bad := failure(415, "UnsupportedMediaType", "the body of the request was in an unknown format", nil)
		return nil, &bad
	}

	var with Object
	if err := json.Unmarshal(body, &with); err != nil {
		bad := failure(400, "BadRequest", err.Error(), nil)
		return nil, &bad
	}
	merge(n, with)
	return n, nil
}

// merge is the strategic merge patch, for a Node: lists of conditions and addresses merge by type,
// others are replaced.
func merge(into, with Object) {
	for key, value := range with {
		switch value := value.(type) {
		case nil:
			delete(into, key)
		case Object:
			merge(below(into, key), value)
		case []any:
			if key != "conditions" && key != "addresses" {
				into[key] = value
				continue
			}
			list, _ := into[key].([]any)
			into[key] = mergeByType(list, value)
		default:
			into[key] = value
		}
	}
}

// mergeByType merges elements into those of their type. New ones come first.
func mergeByType(list, elements []any) []any {
	var made []any
	for _, element := range elements {
		with, _ := element.(Object)
		i := slices.IndexFunc(list, func(old any) bool {
			o, is := old.(Object)
			return is && o["type"] == with["type"]
		})
		if i >= 0 {
			merge(list[i].(Object), with)
		} else {
			made = append(made, element)
		}
	}

	return append(made, list...)
}
