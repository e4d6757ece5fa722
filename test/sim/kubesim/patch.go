// SPDX-License-Identifier: Apache-2.0

package kubesim

import "encoding/json"

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
			there, _ := into[key].([]any)
			for _, v := range value {
				there = mergeByType(there, v)
			}
			into[key] = there
		default:
			into[key] = value
		}
	}
}

func mergeByType(list []any, v any) []any {
	with, _ := v.(Object)
	for _, there := range list {
		if o, ok := there.(Object); ok && o["type"] == with["type"] {
			merge(o, with)
			return list
		}
	}
	return append(list, v)
}
