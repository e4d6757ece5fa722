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

// TakeOut takes our edit of kubelet's files (before → after) out of found, which was changed outside gpuadm since: our taints
// out of a KubeletConfiguration, our labels and taints out of a file of KEY=VALUE lines. Each that is as we wrote it goes back; what
// is gone, or is what it was, counts as taken out; any other value stays, and left names it. Parsing proves that the result is found
// without what was taken out and nothing else.
func TakeOut(before, after, found []byte) (rest []byte, left []string, err error) {
	switch {
	case bytes.Equal(found, after):
		return before, nil, nil
	case bytes.Equal(found, before), bytes.Equal(before, after):
		return found, nil, nil
	}
	rest, left, err = kubeletConfTakenOut(before, after, found)
	if errors.Is(err, errNotKubeletConf) {
		rest, left, err = kubeletEnvTakenOut(before, after, found)
	}
	if err == nil && before == nil && len(bytes.TrimSpace(rest)) == 0 {
		rest = nil
	}
	return rest, left, err
}

var errNotKubeletConf = errors.New("it is no kubelet configuration")

// kubeletParted is a list before our edit, after it, and as it is found, by what tells its parts apart.
type kubeletParted struct{ was, became, is map[string]string }

// ours returns the parts that we added and those that we replaced with what they were, where they are as we wrote them; and
// names those that are not.
func (p kubeletParted) ours() (added []string, replaced map[string]string, left []string) {
	replaced = map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(p.was)) {
		if _, ok := p.became[id]; !ok && p.is[id] != p.was[id] {
			left = append(left, p.was[id]+" is not back, gpuadm had removed it")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.became)) {
		was, wasThere := p.was[id]
		is, isThere := p.is[id]
		switch {
		case wasThere && was == p.became[id], !isThere, wasThere && is == was:
		case is != p.became[id]:
			left = append(left, fmt.Sprintf("%s is there, gpuadm had set %s", is, p.became[id]))
		case wasThere:
			replaced[id] = was
		default:
			added = append(added, id)
		}
	}
	return added, replaced, left
}

// unproven names parts that are as we wrote them, and that cannot be taken out.
func (p kubeletParted) unproven(added []string, replaced map[string]string, why error) (left []string) {
	for _, id := range append(added, slices.Sorted(maps.Keys(replaced))...) {
		left = append(left, fmt.Sprintf("%s is as gpuadm wrote it, and cannot be taken out: %v", p.is[id], why))
	}
	return left
}

// kubeletEnvTakenOut turns our edit of a file of KEY=VALUE lines back.
func kubeletEnvTakenOut(before, after, found []byte) (rest []byte, left []string, err error) {
	was, err := parseKubeletEnv(before)
	if err != nil {
		return nil, nil, err
	}
	became, err := parseKubeletEnv(after)
	if err != nil {
		return nil, nil, err
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
			return nil, nil, errors.New("gpuadm changed more than labels and taints in it, so its parts cannot be told apart")
		}
		for _, f := range []kubeletFlag{kubeletLabelFlag(), kubeletTaintFlag()} {
			var stays []string
			if out, stays, err = f.takenOut(out, name, b, a); err != nil {
				return nil, nil, err
			}
			left = append(left, stays...)
		}
		if b == nil {
			out = kubeletLineDropped(out, name)
		}
	}
	if len(names) == 0 {
		return nil, nil, errors.New("gpuadm changed neither labels nor taints in it, so its parts cannot be told apart")
	}
	return out, left, nil
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

func (f kubeletFlag) takenOut(found []byte, name string, before, after []byte) (rest []byte, left []string, err error) {
	vars, err := parseKubeletEnv(found)
	if err != nil {
		return nil, nil, err
	}
	var p kubeletParted
	_, p.was = f.stated(before)
	_, p.became = f.stated(after)
	i := kubeletLast(vars, name)
	if i < 0 {
		return found, nil, nil
	}
	_, p.is = f.stated(vars[i].value)
	added, replaced, left := p.ours()
	if len(added)+len(replaced) == 0 {
		return found, left, nil
	}
	out := kubeletSpliced(found, f.without(vars[i], added, len(f.find(kubeletWords(before))) > 0))
	if len(replaced) > 0 {
		then, err := parseKubeletEnv(out)
		if i = kubeletLast(then, name); err != nil || i < 0 {
			return found, append(left, p.unproven(added, replaced, errors.New("the result would not parse"))...), nil
		}
		out = kubeletSpliced(out, f.union(then[i], slices.Sorted(maps.Values(replaced))))
	}
	err = f.proven(vars, out, name, func(parts map[string]string) {
		for _, id := range added {
			delete(parts, id)
		}
		maps.Copy(parts, replaced)
	})
	if err != nil {
		return found, append(left, p.unproven(added, replaced, err)...), nil
	}
	return out, left, nil
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
func kubeletConfTakenOut(before, after, found []byte) (rest []byte, left []string, err error) {
	if _, _, err := parseKubeletConf(before); err != nil {
		return nil, nil, errNotKubeletConf
	}
	var lists [3][]spec.Taint
	for i, data := range [][]byte{before, after, found} {
		if lists[i], err = kubeletConfTaints(data); err != nil {
			return nil, nil, err
		}
	}
	_, wasTree, _ := parseKubeletConf(before)
	if err := confProven(after, wasTree, lists[1]); err != nil {
		return nil, nil, fmt.Errorf("gpuadm changed more than %s in it, so its parts cannot be told apart", confTaints)
	}
	p := kubeletParted{confTexts(lists[0]), confTexts(lists[1]), confTexts(lists[2])}
	added, replaced, left := p.ours()
	if len(added)+len(replaced) == 0 {
		return found, left, nil
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
		return nil, nil, err
	}
	// By lines first, which brings back every byte; by taints where the list was written anew.
	if out, ok := kubeletByLines(before, after, found); ok && confProven(out, tree, want) == nil {
		return out, left, nil
	}
	out := confWithout(found, root, added, want)
	if len(replaced) > 0 {
		out, err = kubeletConfEdited(out, want)
	}
	if err == nil {
		err = confProven(out, tree, want)
	}
	if err != nil {
		return found, append(left, p.unproven(added, replaced, err)...), nil
	}
	return out, left, nil
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
