// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// kubeletFlag is an option whose value is a list, and how to tell which of its parts are the same label or taint.
type kubeletFlag struct {
	name string
	id   func(part string) string
	last bool // a later option replaces an earlier one; else they are merged
}

// kubeletLabelFlag: given twice, the two are merged (kubernetes, component-base/cli/flag/configuration_map.go).
func kubeletLabelFlag() kubeletFlag {
	return kubeletFlag{name: "--node-labels", id: func(part string) string {
		key, _, _ := strings.Cut(part, "=")
		return strings.TrimSpace(key)
	}}
}

// kubeletTaintFlag: given twice, the last one counts (kubernetes, pkg/util/flag/flags.go, RegisterWithTaintsVar).
func kubeletTaintFlag() kubeletFlag {
	return kubeletFlag{name: "--register-with-taints", last: true, id: func(part string) string {
		front, effect, _ := strings.Cut(part, ":")
		key, _, _ := strings.Cut(front, "=")
		return key + ":" + effect
	}}
}

// kubeletParts writes labels and taints as the two options take them.
func kubeletParts(labels map[string]string) (list []string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return list
}

func kubeletTaintParts(taints []spec.Taint) (list []string) {
	for _, t := range taints {
		list = append(list, t.String())
	}
	return list
}

// kubeletWord is one word of a command line: its text, and which byte of the line each of its bytes is.
type kubeletWord struct {
	text       string
	at         []int
	start, end int // in the line, quotes included
}

// kubeletWords splits a variable's value as systemd does where a command line says $VARIABLE: at blanks, quotes taken
// off (systemd, src/basic/extract-word.c). An open quote ends with the line.
func kubeletWords(line []byte) (words []kubeletWord) {
	var w *kubeletWord
	var quote byte
	for i := 0; i < len(line); i++ {
		c := line[i]
		if quote == 0 && kubeletBlank(c) {
			w = nil
			continue
		}
		if w == nil {
			words = append(words, kubeletWord{start: i})
			w = &words[len(words)-1]
		}
		w.end = i + 1
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == '\\' && i+1 < len(line):
			i++
			w.end = i + 1
			w.text, w.at = w.text+string(line[i:i+1]), append(w.at, i)
		default:
			w.text, w.at = w.text+string(line[i:i+1]), append(w.at, i)
		}
	}
	return words
}

// kubeletOption is one occurrence of an option: the word that holds its list, and where in that the list begins.
type kubeletOption struct {
	word, first, list int // index of the option's own word, of the one with the list; where that begins in its text
}

// find returns the occurrences of the option, of which those that count.
func (f kubeletFlag) find(words []kubeletWord) (list []kubeletOption) {
	for i := 0; i < len(words); i++ {
		switch {
		case strings.HasPrefix(words[i].text, f.name+"="):
			list = append(list, kubeletOption{i, i, len(f.name) + 1})
		case words[i].text == f.name && i+1 < len(words):
			list = append(list, kubeletOption{i, i + 1, 0})
			i++
		}
	}
	if f.last && len(list) > 1 {
		list = list[len(list)-1:]
	}
	return list
}

// kubeletPart is one part of a list: its text, and from where to where it stands in its word.
type kubeletPart struct {
	text     string
	from, to int
}

func (o kubeletOption) parts(words []kubeletWord) (list []kubeletPart) {
	at := o.list
	for text := range strings.SplitSeq(words[o.first].text[at:], ",") {
		list = append(list, kubeletPart{text, at, at + len(text)})
		at += len(text) + 1
	}
	return list
}

// stated returns the parts that count, by what tells them apart, in their order.
func (f kubeletFlag) stated(value []byte) (ids []string, parts map[string]string) {
	words := kubeletWords(value)
	parts = map[string]string{}
	for _, o := range f.find(words) {
		for _, p := range o.parts(words) {
			if p.text == "" {
				continue
			}
			id := f.id(p.text)
			if _, ok := parts[id]; !ok {
				ids = append(ids, id)
			}
			parts[id] = p.text
		}
	}
	return ids, parts
}

// union returns what to change so that the option holds the parts beside those that are there.
func (f kubeletFlag) union(v kubeletVar, want []string) (out []kubeletSplice) {
	words := kubeletWords(v.value)
	options := f.find(words)
	var fresh []string
	for _, part := range want {
		there := false
		for _, o := range options {
			for _, p := range o.parts(words) {
				if p.text == "" || f.id(p.text) != f.id(part) {
					continue
				}
				if there = true; p.text != part {
					out = append(out, v.replaced(words[o.first], p, part)...)
				}
			}
		}
		if !there {
			fresh = append(fresh, part)
		}
	}
	if len(fresh) == 0 {
		return out
	}
	text := strings.Join(fresh, ",")
	if len(options) == 0 {
		text = f.name + "=" + text
		if len(words) == 0 {
			return append(out, kubeletSplice{v.first, v.first, text})
		}
		at := v.to[words[len(words)-1].end-1]
		return append(out, kubeletSplice{at, at, " " + text})
	}
	o := options[len(options)-1]
	w := words[o.first]
	if o.list < len(w.text) && w.text[len(w.text)-1] != ',' {
		text = "," + text
	}
	at := v.to[w.end-1]
	if len(w.at) > 0 {
		at = v.to[w.at[len(w.at)-1]] // inside the quotes, if there are any
	} else if w.end-w.start > 1 {
		at = v.to[w.start]
	}
	return append(out, kubeletSplice{at, at, text})
}

// without returns what to change so that the option no longer holds these parts. An option left empty goes, if it is
// not to stay.
func (f kubeletFlag) without(v kubeletVar, ids []string, stay bool) (out []kubeletSplice) {
	words := kubeletWords(v.value)
	for _, o := range f.find(words) {
		parts, gone := o.parts(words), 0
		kept := -1
		for i, p := range parts {
			if p.text == "" || !slices.Contains(ids, f.id(p.text)) {
				kept = i
				continue
			}
			gone++
			from, to := p.from, p.to
			if kept >= 0 {
				from-- // with the comma before it
			} else if i+1 < len(parts) {
				to++
			}
			out = append(out, v.erased(words[o.first], from, to)...)
		}
		if gone == len(parts) && !stay {
			out = append(out, v.dropped(words, o)...)
		}
	}
	return out
}

// dropped returns what to change so that a whole option is gone, with the blanks that set it apart.
func (v *kubeletVar) dropped(words []kubeletWord, o kubeletOption) (out []kubeletSplice) {
	from, to := words[o.word].start, words[o.first].end
	switch {
	case o.word > 0:
		from = words[o.word-1].end
	case o.first+1 < len(words):
		to = words[o.first+1].start
	}
	for i := from; i < to; i++ {
		out = append(out, kubeletSplice{v.from[i], v.to[i], ""})
	}
	return out
}

// erased takes bytes of a word out one by one: quotes and escapes between them stay balanced.
func (v *kubeletVar) erased(w kubeletWord, from, to int) (out []kubeletSplice) {
	for _, i := range w.at[from:to] {
		at := v.from[i]
		if i > 0 && v.value[i-1] == '\\' && !slices.Contains(w.at, i-1) {
			at = v.from[i-1] // with the backslash before it
		}
		out = append(out, kubeletSplice{at, v.to[i], ""})
	}
	return out
}

func (v *kubeletVar) replaced(w kubeletWord, p kubeletPart, text string) []kubeletSplice {
	out := v.erased(w, p.from, p.to)
	if len(out) > 0 {
		out[0].text = text
	}
	return out
}

// kubeletEdited returns a file of KEY=VALUE lines whose variable also holds these labels and taints.
func kubeletEdited(data []byte, name string, f kubeletFlag, want []string) ([]byte, error) {
	vars, err := parseKubeletEnv(data)
	if err != nil || len(want) == 0 {
		return data, err
	}
	i := kubeletLast(vars, name)
	var out []byte
	if i < 0 {
		out = kubeletAppended(data, fmt.Sprintf("%s=\"%s=%s\"", name, f.name, strings.Join(want, ",")))
	} else {
		out = kubeletSpliced(data, f.union(vars[i], want))
	}
	return out, f.proven(vars, out, name, func(parts map[string]string) {
		for _, part := range want {
			parts[f.id(part)] = part
		}
	})
}

// kubeletLast finds the assignment that counts: a later one replaces an earlier one.
func kubeletLast(vars []kubeletVar, name string) int {
	for i, v := range slices.Backward(vars) {
		if v.key == name {
			return i
		}
	}
	return -1
}

// kubeletAppended adds a line at the end, and ends it as the file ends its last one.
func kubeletAppended(data []byte, line string) []byte {
	nl := kubeletNewline(data)
	if len(data) == 0 || data[len(data)-1] == '\n' {
		return append(slices.Clone(data), line+nl...)
	}
	return append(slices.Clone(data), nl+line...)
}
