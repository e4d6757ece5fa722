// SPDX-License-Identifier: Apache-2.0

package jsonedit_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestTakeOutBeside: another process adds a member or a blank line to a file that gpuadm edited. What
// is left after the take-out is, without that, the file before gpuadm's edit to the byte.
func TestTakeOutBeside(t *testing.T) {
	exact := 0
	for seed := range uint64(4000) {
		random := rand.New(rand.NewPCG(seed, 60))
		before := randomObject(random)
		after := randomSets(t, random, before)
		hasMembers := len(must.Get(jsonedit.Parse(before))(t).Keys()) > 0
		if !hasMembers || bytes.Equal(before, after) {
			continue
		}

		found, ok := foreignMember(random, after)
		if !ok {
			continue
		}
		rest, left, err := jsonedit.TakeOut(before, after, found, nil)
		shown := fmt.Sprintf("seed %d: %v, left %q\n--- before\n%s\n--- after\n%s\n--- found\n%s\n--- rest\n%s",
			seed, err, left, before, after, found, rest)
		must.That(t, err == nil && len(left) == 0, "%s", shown)
		must.That(t, bytes.Contains(rest, []byte(foreign)), "%s\n--- lost", shown)
		erased := string(rest)
		for _, text := range []string{foreign + ",\n", ",\n" + foreign} {
			erased = strings.ReplaceAll(erased, text, "")
		}
		must.That(t, erased == string(before), "%s\n--- erased\n%s", shown, erased)
		exact++
	}

	check.That(t, exact >= 1000, "only %d files were compared", exact)
}

// foreign is a member on lines of its own.
const foreign = "  \"foreign\": [\n    1\n  ]"

// foreignMember adds a member as the first of the file.
func foreignMember(random *rand.Rand, after []byte) (found []byte, ok bool) {
	brace, others, ok := bytes.Cut(after, []byte("{\n"))
	isEmpty := bytes.HasPrefix(bytes.TrimSpace(others), []byte("}"))
	if !ok || len(brace) > 0 || isEmpty {
		return nil, false
	}
	lines := bytes.SplitAfter(others, []byte("\n"))
	isTop := func(line []byte) bool { return bytes.HasPrefix(line, []byte("  \"")) }
	at := random.IntN(len(lines))
	for !isTop(lines[at]) {
		at = (at + 1) % len(lines)
	}
	found = append([]byte("{\n"), bytes.Join(lines[:at], nil)...)
	found = append(found, foreign+",\n"...)
	return append(found, bytes.Join(lines[at:], nil)...), true
}

// randomObject is a file of members on lines of their own, with space here and there.
func randomObject(random *rand.Rand) []byte {
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	var members []string
	for _, name := range []string{"debug", "features", "runtimes", "dns"} {
		if random.IntN(2) == 0 {
			continue
		}
		value := pick("true", "1", "{ }", "{}", "{\n  }", "{\n    \"a\": 1\n  }", "[ 1,2 ]")
		members = append(members, "  \""+name+"\""+pick(": ", " : ", ":")+value)
	}

	if len(members) == 0 {
		return []byte(pick("{}", "{ }\n", "{\n}\n", "{\n\n}"))
	}
	return []byte("{\n" + strings.Join(members, pick(",\n", ",\n\n")) + "\n}" + pick("", "\n", "\n\n"))
}

// randomSets sets some values as gpuadm does.
func randomSets(t *testing.T, random *rand.Rand, text []byte) []byte {
	t.Helper()
	for _, path := range [][]string{{"default"}, {"runtimes", "nvidia", "path"}, {"features", "cdi"}, {"dns"}} {
		if random.IntN(2) == 0 {
			continue
		}
		doc := must.Get(jsonedit.Parse(text))(t)
		edited, err := doc.Set(`"set"`, path...)
		if err == nil {
			text = edited
		}
	}

	return text
}
