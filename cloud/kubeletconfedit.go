// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// confTaints is the key of a KubeletConfiguration that holds the taints to register with.
const confTaints = "registerWithTaints"

// confTaintID tells taints apart: a node has one of a key and an effect.
func confTaintID(t spec.Taint) string { return t.Key + ":" + t.Effect }

// kubeletConfTaints returns the taints that a configuration registers with.
func kubeletConfTaints(data []byte) ([]spec.Taint, error) {
	root, _, err := parseKubeletConf(data)
	if err != nil {
		return nil, err
	}
	return confTaintList(root)
}

func confTaintList(root *confNode) (list []spec.Taint, err error) {
	n, _ := root.at(confTaints)
	switch {
	case n == nil || n.kind == confNull || n.kind == confNothing:
		return nil, nil
	case n.kind != confList:
		return nil, fmt.Errorf("%s is no list", confTaints)
	}
	seen := map[string]bool{}
	for _, item := range n.items {
		t := spec.Taint{Key: item.value("key"), Value: item.value("value"), Effect: item.value("effect")}
		if item.kind != confMap || t.Key == "" || t.Effect == "" || seen[confTaintID(t)] {
			return nil, fmt.Errorf("%s holds something that is no taint, or one twice", confTaints)
		}
		seen[confTaintID(t)] = true
		list = append(list, t)
	}
	return list, nil
}

// kubeletConfEdited returns a KubeletConfiguration that also registers with these taints. One with the same key and
// effect gets our value; all other bytes stay.
func kubeletConfEdited(data []byte, want []spec.Taint) ([]byte, error) {
	root, tree, err := parseKubeletConf(data)
	if err != nil {
		return nil, err
	}
	have, err := confTaintList(root)
	if err != nil {
		return nil, err
	}
	e := &confEdit{data: data, nl: kubeletNewline(data), json: confIsJSON(data, root)}
	result := slices.Clone(have)
	var fresh []spec.Taint
	for _, t := range want {
		i := slices.IndexFunc(have, func(o spec.Taint) bool { return confTaintID(o) == confTaintID(t) })
		switch {
		case i < 0:
			fresh = append(fresh, t)
		case have[i] != t:
			list, _ := root.at(confTaints)
			e.setValue(list.items[i], t.Value)
			result[i] = t
		}
	}
	if len(fresh) > 0 {
		if err := e.add(root, fresh); err != nil {
			return nil, err
		}
	}
	out := kubeletSpliced(data, e.splices)
	return out, confProven(out, tree, append(result, fresh...))
}

// confProven parses an edited configuration anew: it registers with exactly these taints, and says nothing else anew.
func confProven(out []byte, was map[string]any, want []spec.Taint) error {
	root, tree, err := parseKubeletConf(out)
	if err != nil {
		return fmt.Errorf("the result would not parse: %w", err)
	}
	got, err := confTaintList(root)
	if err != nil || !slices.Equal(got, want) {
		return fmt.Errorf("%s is written in a way that cannot be edited safely", confTaints)
	}
	was, tree = maps.Clone(was), maps.Clone(tree)
	delete(was, confTaints)
	delete(tree, confTaints)
	if !reflect.DeepEqual(was, tree) {
		return errors.New("the result would change more than " + confTaints)
	}
	return nil
}

// confIsJSON says that keys and texts need quotes: all that there is has them.
func confIsJSON(data []byte, root *confNode) bool {
	return root.flow && (len(root.keys) == 0 || data[root.keys[0].start] == '"')
}

// confEdit collects what to change.
type confEdit struct {
	data    []byte
	nl      string
	json    bool
	splices []kubeletSplice
}

func (e *confEdit) put(from, to int, text string) {
	e.splices = append(e.splices, kubeletSplice{from, to, text})
}

// setValue gives a taint that is there another value.
func (e *confEdit) setValue(item *confNode, value string) {
	text := confScalar(value, e.json)
	if v, i := item.at("value"); v != nil {
		if v.kind == confNothing {
			text = ": " + text
			// The colon is written already; what follows the key is replaced up to it.
			to := item.keys[i].end + strings.IndexByte(string(e.data[item.keys[i].end:]), ':') + 1
			e.put(item.keys[i].end, to, text)
			return
		}
		e.put(v.start, v.end, text)
		return
	}
	key := confScalar("value", e.json) + ": "
	if item.flow {
		e.put(item.start+1, item.start+1, key+text+", ")
		return
	}
	e.put(item.start, item.start, key+text+e.nl+strings.Repeat(" ", item.indent))
}

// add brings the taints that are not there yet.
func (e *confEdit) add(root *confNode, taints []spec.Taint) error {
	list, i := root.at(confTaints)
	switch {
	case list == nil && !root.flow:
		return e.addKey(root, taints)
	case list == nil:
		e.addFlow(root, confScalar(confTaints, e.json)+": ["+e.flowItems(taints, ", ")+"]")
	case list.kind == confNull:
		e.put(list.start, list.end, "["+e.flowItems(taints, ", ")+"]")
	case list.kind == confNothing && root.flow:
		return fmt.Errorf("%s has no value", confTaints)
	case list.kind == confNothing:
		at := confLineEnd(e.data, root.keys[i].end)
		e.put(at, at, e.nl+strings.Join(e.blockItems(taints, root.keys[i].indent), e.nl))
	case list.flow:
		e.addFlow(list, e.flowItems(taints, e.between(list)))
	default:
		return e.addBlock(list, taints)
	}
	return nil
}

// addKey appends the key with its list at the end of a file in block style.
func (e *confEdit) addKey(root *confNode, taints []spec.Taint) error {
	for line := range strings.SplitSeq(string(e.data), "\n") {
		if strings.HasPrefix(line, "...") {
			return errors.New("a line of three dots ends the document, and nothing can be added after it")
		}
	}
	indent := strings.Repeat(" ", root.indent)
	text := indent + confTaints + ":" + e.nl + strings.Join(e.blockItems(taints, root.indent), e.nl)
	at := len(e.data)
	if at > 0 && e.data[at-1] == '\n' {
		e.put(at, at, text+e.nl)
	} else {
		e.put(at, at, e.nl+text)
	}
	return nil
}

func (e *confEdit) addBlock(list *confNode, taints []spec.Taint) error {
	last := list.items[len(list.items)-1]
	var lines []string
	if last.flow {
		for _, t := range taints {
			lines = append(lines, strings.Repeat(" ", list.indent)+"- "+e.flowItems([]spec.Taint{t}, ""))
		}
	} else {
		lines = e.blockItems(taints, list.indent)
	}
	at := confLineEnd(e.data, last.end)
	e.put(at, at, e.nl+strings.Join(lines, e.nl))
	return nil
}

// addFlow writes into braces or brackets, after what they hold.
func (e *confEdit) addFlow(in *confNode, text string) {
	inside := in.items
	if in.kind == confMap {
		inside = in.keys
	}
	if len(inside) == 0 {
		e.put(in.start+1, in.start+1, text)
		return
	}
	last := inside[len(inside)-1]
	at := last.end
	if in.kind == confMap {
		at = max(at, in.vals[len(in.vals)-1].end)
	}
	e.put(at, at, e.between(in)+text)
}

// between is what sets two things in braces or brackets apart: a line where each has its own.
func (e *confEdit) between(in *confNode) string {
	inside := in.items
	if in.kind == confMap {
		inside = in.keys
	}
	if len(inside) > 0 {
		last := inside[len(inside)-1]
		before := string(e.data[confLineStart(e.data, last.start):last.start])
		if strings.Trim(before, " \t") == "" && before != "" {
			return "," + e.nl + before
		}
	}
	return ", "
}

func (e *confEdit) flowItems(taints []spec.Taint, between string) string {
	var items []string
	for _, t := range taints {
		var fields []string
		for _, f := range confFields(t) {
			fields = append(fields, confScalar(f[0], e.json)+": "+confScalar(f[1], e.json))
		}
		items = append(items, "{"+strings.Join(fields, ", ")+"}")
	}
	return strings.Join(items, between)
}

func (e *confEdit) blockItems(taints []spec.Taint, indent int) (lines []string) {
	for _, t := range taints {
		lead := "- "
		for _, f := range confFields(t) {
			lines = append(lines, strings.Repeat(" ", indent)+lead+f[0]+": "+confScalar(f[1], false))
			lead = "  "
		}
	}
	return lines
}

func confFields(t spec.Taint) [][2]string {
	if t.Value == "" {
		return [][2]string{{"key", t.Key}, {"effect", t.Effect}}
	}
	return [][2]string{{"key", t.Key}, {"value", t.Value}, {"effect", t.Effect}}
}

// confScalar writes a text that may be a number or a truth to YAML 1.1, which kubelet's parser reads, in quotes.
func confScalar(text string, quoted bool) string {
	odd := []string{"", "y", "yes", "n", "no", "on", "off", "true", "false", "null"}
	letter := text != "" && (text[0] >= 'a' && text[0] <= 'z' || text[0] >= 'A' && text[0] <= 'Z')
	if quoted || !letter || slices.Contains(odd, strings.ToLower(text)) {
		return `"` + text + `"`
	}
	return text
}
