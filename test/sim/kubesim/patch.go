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
			list, _ := into[key].([]any)
			for _, element := range value {
				list = mergeByType(list, element)
			}
			into[key] = list
		default:
			into[key] = value
		}
	}
}

func mergeByType(list []any, element any) []any {
	with, _ := element.(Object)
	for _, old := range list {
		o, ok := old.(Object)
		if ok && o["type"] == with["type"] {
			merge(o, with)
			return list
		}
	}
	return append(list, element)
}
