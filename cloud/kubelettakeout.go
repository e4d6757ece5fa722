// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/spec"
)

// TakeOut takes our edit of kubelet's files (before → after) out of found, which someone else changed since: our taints
// out of a KubeletConfiguration, our labels and taints out of a file of KEY=VALUE lines. It succeeds only when they
// still stand there as we wrote them, and parsing proves that the result is found without them and nothing else.
func TakeOut(before, after, found []byte) ([]byte, error) {
	if bytes.Equal(found, after) {
		return before, nil
	}
	out, err := kubeletConfTakenOut(before, after, found)
	if errors.Is(err, errNotKubeletConf) {
		out, err = kubeletEnvTakenOut(before, after, found)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot take out our edit: %w", err)
	}
	if before == nil && len(bytes.TrimSpace(out)) == 0 {
		return nil, nil
	}
	return out, nil
}

var errNotKubeletConf = errors.New("it is no kubelet configuration")

// kubeletParted is a list before our edit, after it, and as it is found, by what tells its parts apart.
type kubeletParted struct{ was, became, is map[string]string }

// ours returns the parts that we added, and those that we replaced with what they were. All must stand as we wrote them.
func (p kubeletParted) ours() (added []string, replaced map[string]string, err error) {
	replaced = map[string]string{}
	for id := range p.was {
		if _, ok := p.became[id]; !ok {
			return nil, nil, errors.New("it took something away")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.became)) {
		was, there := p.was[id]
		if there && was == p.became[id] {
			continue
		}
		switch is, ok := p.is[id]; {
		case !ok:
			return nil, nil, fmt.Errorf("it no longer stands: %s is gone", p.became[id])
		case is != p.became[id]:
			return nil, nil, fmt.Errorf("it is no longer ours: %s stands there, we wrote %s", is, p.became[id])
		case there:
			replaced[id] = was
		default:
			added = append(added, id)
		}
	}
	return added, replaced, nil
}

// kubeletEnvTakenOut turns our edit of a file of KEY=VALUE lines back.
func kubeletEnvTakenOut(before, after, found []byte) ([]byte, error) {
	was, err := parseKubeletEnv(before)
	if err != nil {
		return nil, err
	}
	became, err := parseKubeletEnv(after)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, v := range became {
		if b, a := kubeletValue(was, v.key), kubeletValue(became, v.key); b == nil || !bytes.Equal(b, a) {
			names[v.key] = true
		}
	}
	out := found
	for _, name := range slices.Sorted(maps.Keys(names)) {
		b, a := kubeletValue(was, name), kubeletValue(became, name)
		if !slices.Equal(kubeletOthers(b), kubeletOthers(a)) {
			return nil, errors.New("it changed more than labels and taints, so its parts cannot be told apart")
		}
		for _, f := range []kubeletFlag{kubeletLabelFlag(), kubeletTaintFlag()} {
			if out, err = f.takenOut(out, name, b, a); err != nil {
				return nil, err
			}
		}
		if b == nil {
			out = kubeletLineDropped(out, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("it is none of labels and taints, so its parts cannot be told apart")
	}
	return out, nil
}

// kubeletValue is what a variable says at last; nil if it is not set.
func kubeletValue(vars []kubeletVar, name string) []byte {
	if i := kubeletLast(vars, name); i >= 0 {
		return append([]byte{}, vars[i].value...)
	}
	return nil
}

// kubeletOthers returns the words that are neither option's.
func kubeletOthers(value []byte) []string {
	rest := strings.Join(kubeletLabelFlag().others(value), " ")
	return kubeletTaintFlag().others([]byte(rest))
}

func (f kubeletFlag) takenOut(found []byte, name string, before, after []byte) ([]byte, error) {
	vars, err := parseKubeletEnv(found)
	if err != nil {
		return nil, err
	}
	var p kubeletParted
	_, p.was = f.stated(before)
	_, p.became = f.stated(after)
	i := kubeletLast(vars, name)
	if i < 0 {
		return nil, fmt.Errorf("it no longer stands: %s is gone", name)
	}
	_, p.is = f.stated(vars[i].value)
	added, replaced, err := p.ours()
	if err != nil || len(added)+len(replaced) == 0 {
		return found, err
	}
	stay := len(f.find(kubeletWords(before))) > 0
	splices := f.without(vars[i], added, stay)
	out := kubeletSpliced(found, splices)
	if len(replaced) > 0 {
		if vars, err = parseKubeletEnv(out); err != nil {
			return nil, err
		}
		out = kubeletSpliced(out, f.union(vars[kubeletLast(vars, name)], slices.Sorted(maps.Values(replaced))))
	}
	if vars, err = parseKubeletEnv(found); err != nil {
		return nil, err
	}
	return out, f.proven(vars, out, name, func(parts map[string]string) {
		for _, id := range added {
			delete(parts, id)
		}
		maps.Copy(parts, replaced)
	})
}

// kubeletLineDropped takes away the line of a variable that we brought and that says nothing any more.
func kubeletLineDropped(data []byte, name string) []byte {
	vars, err := parseKubeletEnv(data)
	i := kubeletLast(vars, name)
	if err != nil || i < 0 || len(bytes.TrimSpace(vars[i].value)) > 0 {
		return data
	}
	from, to := confLineStart(data, vars[i].start), confLineEnd(data, vars[i].end)
	switch {
	case bytes.HasPrefix(data[to:], []byte("\r\n")):
		to += 2
	case to < len(data):
		to++
	case from > 1 && data[from-1] == '\n' && data[from-2] == '\r':
		from -= 2
	case from > 0:
		from--
	}
	return kubeletSpliced(data, []kubeletSplice{{from, to, ""}})
}

// kubeletConfTakenOut turns our edit of a KubeletConfiguration back.
func kubeletConfTakenOut(before, after, found []byte) ([]byte, error) {
	if _, _, err := parseKubeletConf(before); err != nil {
		return nil, errNotKubeletConf
	}
	var lists [3][]spec.Taint
	for i, data := range [][]byte{before, after, found} {
		var err error
		if lists[i], err = kubeletConfTaints(data); err != nil {
			return nil, err
		}
	}
	_, wasTree, _ := parseKubeletConf(before)
	if err := confProven(after, wasTree, lists[1]); err != nil {
		return nil, errors.New("it changed more than " + confTaints)
	}
	p := kubeletParted{confTexts(lists[0]), confTexts(lists[1]), confTexts(lists[2])}
	added, replaced, err := p.ours()
	if err != nil {
		return nil, err
	}
	if len(added)+len(replaced) == 0 {
		return nil, errors.New("it changed no taint")
	}
	var want []spec.Taint
	for _, t := range lists[2] {
		if slices.Contains(added, confTaintID(t)) {
			continue
		}
		if _, ok := replaced[confTaintID(t)]; ok {
			t = lists[0][slices.IndexFunc(lists[0], func(o spec.Taint) bool { return confTaintID(o) == confTaintID(t) })]
		}
		want = append(want, t)
	}
	root, tree, err := parseKubeletConf(found)
	if err != nil {
		return nil, err
	}
	// By lines first, which brings back every byte; by taints where the list was written anew.
	if out, ok := kubeletByLines(before, after, found); ok && confProven(out, tree, want) == nil {
		return out, nil
	}
	out := confWithout(found, root, added, want)
	if len(replaced) > 0 {
		if out, err = kubeletConfEdited(out, want); err != nil {
			return nil, err
		}
	}
	return out, confProven(out, tree, want)
}

func confTexts(list []spec.Taint) map[string]string {
	m := map[string]string{}
	for _, t := range list {
		m[confTaintID(t)] = t.String()
	}
	return m
}

// kubeletByLines turns the lines back that our edit changed, where they stand in found, once.
func kubeletByLines(before, after, found []byte) ([]byte, bool) {
	b, a := bytes.SplitAfter(before, []byte("\n")), bytes.SplitAfter(after, []byte("\n"))
	for len(b) > 0 && len(a) > 0 && bytes.Equal(b[0], a[0]) {
		b, a = b[1:], a[1:]
	}
	for len(b) > 0 && len(a) > 0 && bytes.Equal(b[len(b)-1], a[len(a)-1]) {
		b, a = b[:len(b)-1], a[:len(a)-1]
	}
	was, is := bytes.Join(b, nil), bytes.Join(a, nil)
	if len(is) == 0 || bytes.Count(found, is) != 1 {
		return nil, false
	}
	return bytes.Replace(found, is, was, 1), true
}

// confWithout takes taints out of the list one by one, and the list too if it then holds nothing.
func confWithout(data []byte, root *confNode, ids []string, rest []spec.Taint) []byte {
	list, i := root.at(confTaints)
	e := &confEdit{data: data}
	ours := func(item *confNode) bool {
		return slices.Contains(ids, item.value("key")+":"+item.value("effect"))
	}
	switch {
	case list == nil || list.kind != confList:
		return data
	case len(rest) == 0 && !root.flow && !list.flow:
		from := confLineStart(data, root.keys[i].start)
		e.put(from, confAfterLine(data, list.end), "")
	case len(rest) == 0:
		e.put(list.start, list.end, "[]")
	case list.flow:
		kept := -1
		for n, item := range list.items {
			switch {
			case !ours(item):
				kept = n
			case kept >= 0:
				e.put(list.items[n-1].end, item.end, "")
			default:
				e.put(item.start, list.items[n+1].start, "")
			}
		}
	default:
		for _, item := range list.items {
			if ours(item) {
				e.put(confLineStart(data, item.start), confAfterLine(data, item.end), "")
			}
		}
	}
	return kubeletSpliced(data, e.splices)
}

// confAfterLine is where the line after an offset begins.
func confAfterLine(data []byte, at int) int {
	at = confLineEnd(data, at)
	if bytes.HasPrefix(data[at:], []byte("\r\n")) {
		return at + 2
	}
	return min(at+1, len(data))
}
