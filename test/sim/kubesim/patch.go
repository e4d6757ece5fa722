// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// op is one step of a JSON patch.
type op struct {
	Op    string
	Path  string
	Value any
}

// apply patches an object.
func apply(n Object, form string, body []byte) (Object, *answer) {
	switch form {
	case "application/json-patch+json":
		var ops []op
		if err := json.Unmarshal(body, &ops); err != nil {
			bad := failure(400, "BadRequest", "error decoding patch: "+err.Error(), nil)
			return nil, &bad
		}
		var doc any = n
		for _, o := range ops {
			made, err := o.do(doc, pointer(o.Path))
			if err != nil { // applyJSPatch in apiserver pkg/endpoints/handlers/patch.go: it does not say which step, nor why
				bad := failure(422, "Invalid", "the server rejected our request due to an error in our request", nil)
				return nil, &bad
			}
			doc = made
		}
		made, ok := doc.(Object)
		if !ok {
			bad := failure(400, "BadRequest", "it is no object any more", nil)
			return nil, &bad
		}
		return made, nil
	case "application/strategic-merge-patch+json":
		var with Object
		if err := json.Unmarshal(body, &with); err != nil {
			bad := failure(400, "BadRequest", err.Error(), nil)
			return nil, &bad
		}
		merge(n, with)
		return n, nil
	}
	bad := failure(415, "UnsupportedMediaType", "the body of the request was in an unknown format", nil)
	return nil, &bad
}

// pointer splits a JSON pointer.
func pointer(p string) (keys []string) {
	for _, k := range strings.Split(p, "/")[1:] {
		keys = append(keys, strings.ReplaceAll(strings.ReplaceAll(k, "~1", "/"), "~0", "~"))
	}
	return keys
}

var errNone = errors.New("there is nothing")

// do carries out one step below doc, and returns what doc is then.
func (o op) do(doc any, keys []string) (any, error) {
	if len(keys) == 0 {
		return nil, errNone
	}
	key, rest := keys[0], keys[1:]
	switch at := doc.(type) {
	case Object:
		if len(rest) > 0 {
			made, err := o.do(at[key], rest)
			if err == nil {
				at[key] = made
			}
			return at, err
		}
		there, has := at[key]
		switch {
		case o.Op == "test" && !reflect.DeepEqual(there, o.Value), o.Op != "add" && o.Op != "test" && !has:
			return nil, errNone
		case o.Op == "remove":
			delete(at, key)
		case o.Op == "add" || o.Op == "replace":
			at[key] = o.Value
		}
		return at, nil
	case []any:
		return o.inList(at, key, rest)
	}
	return nil, errNone
}

func (o op) inList(at []any, key string, rest []string) (any, error) {
	if key == "-" && o.Op == "add" && len(rest) == 0 {
		return append(at, o.Value), nil
	}
	i, err := strconv.Atoi(key)
	if err != nil || i < 0 || i > len(at) || i == len(at) && (o.Op != "add" || len(rest) > 0) {
		return nil, errNone
	}
	if len(rest) > 0 {
		made, err := o.do(at[i], rest)
		if err == nil {
			at[i] = made
		}
		return at, err
	}
	switch o.Op {
	case "add":
		return slices.Insert(at, i, o.Value), nil
	case "remove":
		return slices.Delete(at, i, i+1), nil
	case "replace":
		at[i] = o.Value
	case "test":
		if !reflect.DeepEqual(at[i], o.Value) {
			return nil, errNone
		}
	}
	return at, nil
}

// merge is the strategic merge patch, for a Node: lists of conditions and addresses merge by type, others are replaced.
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
