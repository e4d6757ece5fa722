// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const extra = "KUBELET_EXTRA_ARGS"

// Each file gets one word that says a=1 and b=2, and that is all that changes in it.
func TestLabelsInVariable(t *testing.T) {
	const word = "--node-labels=a=1,b=2"
	for name, c := range map[string]struct{ before, after string }{
		"no file":          {"", extra + "=\"" + word + "\"\n"},
		"empty":            {extra + "=\n", extra + "=" + word + "\n"},
		"empty quotes":     {extra + "=\"\"\n", extra + "=\"" + word + "\"\n"},
		"no newline":       {extra + "=", extra + "=" + word},
		"other variable":   {"# c\nX=1", "# c\nX=1\n" + extra + "=\"" + word + "\"\n"},
		"commented out":    {"#" + extra + "=\"--v=2\"\n", "#" + extra + "=\"--v=2\"\n" + extra + "=\"" + word + "\"\n"},
		"bare flags":       {extra + "=--v=2 --x=y\n", extra + "=--v=2 --x=y " + word + "\n"},
		"blank at the end": {extra + "=--v=2 \n", extra + "=--v=2 " + word + " \n"},
		"double":           {"; c\n" + extra + "=\"--v=2\"\nY=2\n", "; c\n" + extra + "=\"--v=2 " + word + "\"\nY=2\n"},
		"single":           {extra + "='--v=2 '\n", extra + "='--v=2 " + word + "'\n"},
		"their labels":     {extra + "=--node-labels=x=y,a=0 --v=2\n", extra + "=--node-labels=x=y,a=0 --v=2 " + word + "\n"},
		"apart":            {extra + "=\"--node-labels x=y --v=2\"\n", extra + "=\"--node-labels x=y --v=2 " + word + "\"\n"},
		"quotes inside":    {extra + "=\"--v=2 --x='a b'\"\n", extra + "=\"--v=2 --x='a b' " + word + "\"\n"},
		"quote at the end": {extra + "=--v=2 --x='a b'\n", extra + "=--v=2 --x='a b' " + word + "\n"},
		"last counts":      {extra + "=--a\n" + extra + "=--b\n", extra + "=--a\n" + extra + "=--b " + word + "\n"},
		"carriage returns": {"A=1\r\n" + extra + "=--v=2\r\n", "A=1\r\n" + extra + "=--v=2 " + word + "\r\n"},
		"states them":      {extra + "=--node-labels=b=2,x=y,a=1\n", extra + "=--node-labels=b=2,x=y,a=1\n"},
		"states them late": {extra + "=--node-labels=a=3 --node_labels b=2,a=1\n", extra + "=--node-labels=a=3 --node_labels b=2,a=1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var before []byte
			if name != "no file" {
				before = []byte(c.before)
			}
			got, err := withFlag(before, extra, labelFlag, []string{"a=1", "b=2"}, nil)
			must.That(t, err == nil && string(got) == c.after, "got %q, %v\nwant %q", got, err, c.after)
			again, err := withFlag(got, extra, labelFlag, []string{"a=1", "b=2"}, nil)
			check.That(t, err == nil && string(again) == string(got), "twice: %q, %v", again, err)
			if c.before == c.after {
				return
			}
			foreign := "# another tool's\nOTHER=1\n"
			out, left, err := TakeOut(before, got, []byte(foreign+string(got)))
			back := foreign + c.before
			check.That(t, err == nil && left == nil && string(out) == back, "taken out: %q, left %q, %v", out, left, err)
		})
	}
}

// What cannot be edited as one line is refused: nothing in it would be certain.
func TestVariableRefused(t *testing.T) {
	for name, text := range map[string]string{
		"open word":       extra + "=--x='a b\n",
		"several lines":   extra + "=--v=2 \\\n  --x=y\nZ=1\n",
		"lines in quotes": extra + "=\"--v=2\n--x=y\"\n",
		"goes on":         "A=1 \\",
	} {
		out, err := withFlag([]byte(text), extra, labelFlag, []string{"a=1"}, nil)
		check.That(t, err != nil && strings.Contains(err.Error(), "one line"), "%s: %q, %v", name, out, err)
	}
}

// A list of taints replaces those before it, so ours repeats those that count; the words of others
// stay.
// TestLabelTwice: of two values of one label kubelet uses the last, in one list too.
func TestLabelTwice(t *testing.T) {
	for before, after := range map[string]string{
		"--node-labels=a=1,a=2":                 "--node-labels=a=1,a=2 --node-labels=a=1",
		"--node-labels=a=2,a=1":                 "--node-labels=a=2,a=1",
		"--node-labels=a=1 --node-labels=a=2":   "--node-labels=a=1 --node-labels=a=2 --node-labels=a=1",
		"--node-labels=a=2 --node-labels=,,a=1": "--node-labels=a=2 --node-labels=,,a=1",
	} {
		got, err := withFlag([]byte(extra+"=\""+before+"\"\n"), extra, labelFlag, []string{"a=1"}, nil)
		want := extra + "=\"" + after + "\"\n"
		check.That(t, err == nil && string(got) == want, "%s: %q, %v, want %q", before, got, err, want)
	}
}

func TestTaintsInVariable(t *testing.T) {
	for name, c := range map[string]struct{ before, others, after string }{
		"none":            {"--v=2", "", "--v=2 --register-with-taints=gpu=new:NoSchedule"},
		"in a file":       {"--v=2", "a=b:NoExecute,c:NoSchedule", "--v=2 --register-with-taints=a=b:NoExecute,c:NoSchedule,gpu=new:NoSchedule"},
		"in the variable": {"--register-with-taints=x:NoSchedule,gpu=old:NoSchedule", "a:NoExecute", "--register-with-taints=x:NoSchedule,gpu=old:NoSchedule --register-with-taints=x:NoSchedule,gpu=new:NoSchedule"},
		"of two the last": {"--register-with-taints=x:NoSchedule --register-with-taints y:NoExecute", "", "--register-with-taints=x:NoSchedule --register-with-taints y:NoExecute --register-with-taints=y:NoExecute,gpu=new:NoSchedule"},
		"another effect":  {"--register-with-taints=gpu=new:NoExecute", "", "--register-with-taints=gpu=new:NoExecute --register-with-taints=gpu=new:NoExecute,gpu=new:NoSchedule"},
		"stated":          {"--register-with-taints=gpu=new:NoSchedule", "a:NoExecute", "--register-with-taints=gpu=new:NoSchedule"},
		"stated in file":  {"--v=2", "a:NoExecute,gpu=new:NoSchedule", "--v=2"},
	} {
		var others []string
		if c.others != "" {
			others = strings.Split(c.others, ",")
		}
		got, err := withFlag([]byte(extra+"=\""+c.before+"\"\n"), extra, taintFlag, []string{"gpu=new:NoSchedule"}, others)
		want := extra + "=\"" + c.after + "\"\n"
		check.That(t, err == nil && string(got) == want, "%s: %q, %v, want %q", name, got, err, want)
		again, err := withFlag(got, extra, taintFlag, []string{"gpu=new:NoSchedule"}, others)
		check.That(t, err == nil && string(again) == string(got), "%s, twice: %q, %v", name, again, err)
	}
}

// TestRandomFlags: whatever the variable holds and whatever gpuadm wants, an edit done twice is one,
// and TakeOut leaves what was there.
func TestRandomFlags(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		w := randomFlags(rnd)
		after, err := w.added(w.before)
		must.That(t, err == nil, "%v in\n%s", err, w.before)
		w.statesAll(t, after)

		again, err := w.added(after)
		must.That(t, err == nil && string(again) == string(after), "twice: %q, %q, %v", after, again, err)
		if string(after) == string(w.before) {
			continue
		}

		found := "X=1\n" + string(after)
		want := "X=1\n" + string(w.before)
		rest, left, err := TakeOut(w.before, after, []byte(found))
		isOut := err == nil && left == nil && string(rest) == want
		must.That(t, isOut, "taken out of %q: %q, left %q, %v; want %q", after, rest, left, err, want)
	}
}

// wantedFlags is a file, and what gpuadm adds to a variable in it.
type wantedFlags struct {
	before []byte
	flag   string
	parts  []string // of gpuadm
	others []string // taints of another file
}

func randomFlags(rnd *rand.Rand) wantedFlags {
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	isHalf := func() bool { return rnd.IntN(2) == 0 }

	value := pick(
		"", `""`, "--v=2", `"--v=2 --x y"`, "'--v=2'", "--node-labels=q=1",
		`"--node-labels q=1 --register-with-taints=t:NoExecute"`, `--x='a b'`, `"--x='a  b' --y"`,
	)
	w := wantedFlags{before: []byte("# c\nA=1\n" + extra + "=" + value + "\nZ=2\n")}
	if rnd.IntN(8) == 0 {
		w.before = []byte("A=1\n")
	}
	if isHalf() {
		w.flag = labelFlag
		w.parts = []string{"nvidia.com/gpu.present=true", "q=" + pick("0", "1", "2")}
		return w
	}

	taint := pick("t", "nvidia.com/gpu", "1") + pick("", "=v", "=0x1f") + ":" + pick("NoSchedule", "NoExecute")
	w.flag = taintFlag
	w.parts = []string{taint}
	if isHalf() {
		w.others = []string{"o:NoSchedule", "t:NoSchedule"}
	}
	return w
}

// added is a file with gpuadm's part.
func (w wantedFlags) added(file []byte) ([]byte, error) {
	return withFlag(file, extra, w.flag, w.parts, w.others)
}

// statesAll checks that the edited file has gpuadm's parts as they are, and that it has lost no key that
// the variable had before.
func (w wantedFlags) statesAll(t *testing.T, after []byte) {
	t.Helper()
	partsIn := func(file []byte) []string {
		value, _ := variableOf(file, extra)
		return flagParts(facts.Words(value), w.flag)
	}

	stated := partsIn(after)
	hasChanged := string(after) != string(w.before)

	for _, part := range w.parts {
		isThere := slices.Contains(stated, part)
		must.That(t, isThere || !hasChanged || slices.Contains(w.others, part), "%q states %q, and lacks %s", after, stated, part)
	}

	for _, part := range slices.Concat(w.parts, partsIn(w.before)) {
		sameKey := func(other string) bool { return partKey(other) == partKey(part) }
		isThere := slices.ContainsFunc(stated, sameKey)
		must.That(t, isThere || slices.Contains(w.others, part), "%q states %q, and lacks the key of %s", after, stated, part)
	}
}

func FuzzVariables(f *testing.F) {
	f.Add([]byte(extra + "=\"--node-labels=a=1 --x\"\nX='y'\n"))
	f.Add([]byte(extra + "=--node-labels \x8d\x8d0"))
	f.Add([]byte("# c\n" + extra + "=--v=2 \\\n --node-labels=\"a=0\"\n"))
	f.Add([]byte(extra + "\r=\\"))
	f.Fuzz(func(t *testing.T, data []byte) {
		parts := []string{"a=1", "nvidia.com/gpu.present=true"}
		var out []byte
		var err error
		alloc.Most(t, 2000, len(data), func() {
			out, err = withFlag(data, extra, labelFlag, parts, nil)
		})
		if err != nil {
			return
		}
		again, err := withFlag(out, extra, labelFlag, parts, nil)
		check.That(t, err == nil && string(again) == string(out), "twice: %q, then %q, %v", out, again, err)
		rest, _, err := TakeOut(data, out, append([]byte("A=1\n"), out...))
		if err != nil && string(out) != string(data) {
			t.Errorf("not taken out of %q: %v", out, err)
		}
		if value, _ := variableOf(rest, extra); err == nil && string(out) != string(data) && strings.Contains(value, "--node-labels=a=1,nvidia.com/gpu.present=true") {
			if was, _ := variableOf(data, extra); !strings.Contains(was, "--node-labels=a=1,nvidia.com/gpu.present=true") {
				t.Errorf("left in %q", rest)
			}
		}
	})
}

// What was changed outside gpuadm stays and is named, what is gone counts as taken out, and only
// what has no parts is refused.
func TestTakeOutByWords(t *testing.T) {
	const ours = "--node-labels=a=1,b=1"
	for name, c := range map[string]struct{ before, after, found, rest, left, err string }{
		"other file":     {"options nvidia a=1\n", "options nvidia a=2\n", "options nvidia a=3\n", "", "", "cannot tell its own parts"},
		"other flag":     {"A=--v=1\n", "A=--v=2\n", "A=--v=3\n", "", "", "cannot tell its own parts"},
		"other line":     {"A=\n", "A=" + ours + "\nB=1\n", "A=" + ours + "\n", "", "", "cannot tell its own parts"},
		"gpuadm's file":  {"", "[Service]\nX\n", "[Service]\nY\n", "", "", "cannot tell its own parts"},
		"word gone":      {"A=\n", "A=" + ours + "\n", "A=--v=2\n", "A=--v=2\n", "", ""},
		"variable gone":  {"A=\n", "A=" + ours + "\n", "B=\n", "B=\n", "", ""},
		"word before":    {"A=\n", "A=" + ours + "\n", "A=--v=2 " + ours + "\n", "A=--v=2\n", "", ""},
		"word after":     {"A=\n", "A=" + ours + "\n", "A=" + ours + " --v=2\n", "A=--v=2\n", "", ""},
		"own line":       {"B=1\n", "B=1\nA=\"" + ours + "\"\n", "B=2\nA=\"" + ours + "\"\nC=1\n", "B=2\nC=1\n", "", ""},
		"line added to":  {"B=1\n", "B=1\nA=\"" + ours + "\"\n", "B=1\nA=\"" + ours + " --v=2\"\n", "B=1\nA=\"--v=2\"\n", "", ""},
		"in a comment":   {"A=\n", "A=" + ours + "\n", "# " + ours + "\nA=" + ours + "\n", "# " + ours + "\nA=\n", "", ""},
		"longer word":    {"A=\n", "A=" + ours + "\n", "A=" + ours + ",c=1\n", "A=" + ours + ",c=1\n", "--node-labels in A states a=1, in a word that gpuadm did not write\n--node-labels in A states b=1, in a word that gpuadm did not write", ""},
		"other value":    {"A=\n", "A=" + ours + "\n", "A=--node-labels=a=2,b=1\n", "A=--node-labels=a=2,b=1\n", "--node-labels in A states b=1, in a word that gpuadm did not write", ""},
		"stated before":  {"A=--node-labels=b=1\n", "A=--node-labels=b=1 " + ours + "\n", "A=--v=2 --node-labels=b=1 " + ours + "\n", "A=--v=2 --node-labels=b=1\n", "", ""},
		"two words":      {"A=\n", "A=" + ours + " --register-with-taints=t:NoSchedule\n", "A=" + ours + " --v=2 --register-with-taints=t:NoSchedule\n", "A=--v=2\n", "", ""},
		"back":           {"A=--node-labels=a=1\n", "A=" + ours + "\n", "A=" + ours + " --v=2\n", "A=--v=2 --node-labels=a=1\n", "", ""},
		"not back":       {"A=--node-labels=a=1\n", "A=\n", "A=--v=2\n", "A=--v=2\n", "--node-labels=a=1 is not back, gpuadm had removed it", ""},
		"line not back":  {"B=1\nA=\"" + ours + "\"\n", "B=1\n", "B=2\n", "B=2\n", ours + " is not back, gpuadm had removed it", ""},
		"undone already": {"A=\n", "A=" + ours + "\n", "A=\nB=1\n", "A=\nB=1\n", "", ""},
		"nothing done":   {"A=\n", "A=\n", "A=1\n", "A=1\n", "", ""},
	} {
		out, left, err := TakeOut([]byte(c.before), []byte(c.after), []byte(c.found))
		if c.err != "" {
			check.That(t, err != nil && strings.Contains(err.Error(), c.err), "%s: %q, %v", name, out, err)
			continue
		}
		check.That(t, err == nil && string(out) == c.rest && strings.Join(left, "\n") == c.left, "%s: %q, left %q, %v", name, out, left, err)
	}
}

// The list of our file in kubelet's folder replaces those before it.
func TestConfigurationRepeatsOthers(t *testing.T) {
	at := facts.Place{
		How: "drop-in", File: "/k.d", Key: confTaints,
		Others: []facts.Taint{
			{Key: "a", Value: "1", Effect: "NoExecute"},
			{Key: "gpu", Value: "old", Effect: "NoSchedule"},
		},
	}

	file := confFile(at, []spec.Taint{{
		Key:    "gpu",
		Value:  "true",
		Effect: "NoSchedule",
	}})

	config := must.Get(readKubeletConfig(file.Name, file.data))(t)
	const want = "[map[effect:NoExecute key:a value:1] map[effect:NoSchedule key:gpu value:true]]"
	check.Equal(t, fmt.Sprint(config[confTaints]), want, "taints in\n%s\n", file.data)
	check.Equal(t, fmt.Sprint(config["kind"]), "KubeletConfiguration", "kind")
}

// TestTakeOutBeside: another process writes lines above or below gpuadm's into the file of a variable.
// Without them the rest is the file from before gpuadm's edit, to the byte.
func TestTakeOutBeside(t *testing.T) {
	rnd := rand.New(rand.NewPCG(60, 1))
	for range 3000 {
		w := randomFlags(rnd)
		ending := []string{"", "\n", "\n\n", " \n", "\t"}[rnd.IntN(5)]
		w.before = append(bytes.TrimRight(w.before, "\n"), ending...)
		after, err := w.added(w.before)
		must.That(t, err == nil, "%v in\n%s", err, w.before)
		if string(after) == string(w.before) {
			continue
		}

		lines := slices.Collect(strings.Lines(string(after)))
		found := strings.Join(slices.Insert(lines, rnd.IntN(len(lines)), "# foreign\n"), "")
		rest, left, err := TakeOut(w.before, after, []byte(found))
		want := string(w.before)
		erased := strings.Replace(string(rest), "# foreign\n", "", 1)
		if above, isLast := strings.CutSuffix(string(rest), "\n# foreign"); isLast { // it ends as the file did
			erased = above
		}
		isExact := err == nil && left == nil && erased == want
		must.That(t, isExact, "taken out of %q: %q, left %q, %v; before %q", found, rest, left, err, want)
	}
}
