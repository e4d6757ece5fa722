// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const kubeletUnit = "kubelet.service"

// gated is a machine whose systemd describes some units like this. Its kubelet asks a gate.
type gated struct {
	host.View
	units map[string]host.Unit
}

func (g gated) Unit(ctx context.Context, name string) (host.Unit, error) {
	u, named := g.units[name]
	if !named {
		return g.View.Unit(ctx, name)
	}
	real, err := g.View.Unit(ctx, name)
	u.Load = "loaded"
	u.Files = append(real.Files, "/usr/lib/systemd/system/kubelet.service.d/50-gpuadm.conf")
	return u, err
}

// ownOf has a gate that says this.
func ownOf(shut string) Own {
	return Own{
		Version: "1.4.0",
		Units:   []string{"gpuadm.service", "gpuadm-drift.service"},
		Kubelet: kubeletUnit,
		Gate:    "50-gpuadm.conf",
		Shut:    func(context.Context) string { return shut },
	}
}

// reportText is a report in a line: each root cause with what it explains, and the notes.
func reportText(r Report) string {
	var words []string
	for _, cause := range r.Causes {
		text := cause.Code
		for _, f := range cause.Explains {
			text += ">" + f.Code
		}
		words = append(words, text)
	}

	for _, n := range r.Notes {
		words = append(words, "note "+n.Code)
	}
	return strings.Join(words, " ")
}

// TestOwnPart: doctor knows gpuadm's own part: a spec that cannot be used, a failed unit, a closed
// gate, and which of them explains the others, and a kubelet that ends again and again.
func TestOwnPart(t *testing.T) {
	const shut = "cannot let kubelet start: 3 changes pending"
	waiting := host.Unit{Active: "activating", Sub: "auto-restart"}
	failed := host.Unit{Active: "failed"}
	refused := host.Unit{Active: "failed", Refused: []string{"/usr/local/sbin/gpuadm", "gate"}}
	broken := OwnSpec{Fault: "/etc/gpuadm/node.toml:4:3: invalid TOML", Fix: "fix the file"}
	replaced := broken
	replaced.Instead = "the last applied spec"

	for name, c := range map[string]struct {
		units map[string]host.Unit
		spec  OwnSpec
		shut  string
		want  string
	}{
		"all is well": {want: ""},
		"a closed gate": {
			units: map[string]host.Unit{kubeletUnit: waiting}, shut: shut, want: "ADM-003>KUB-014",
		},
		"a kubelet's loop": {units: map[string]host.Unit{kubeletUnit: waiting}, want: "KUB-014"},
		"kubelet runs": {
			units: map[string]host.Unit{kubeletUnit: {Active: "active", PID: 7}}, shut: shut, want: "",
		},
		"the gate is open by now": {
			units: map[string]host.Unit{kubeletUnit: refused}, want: "ADM-003>KUB-001",
		},
		"a failed unit": {units: map[string]host.Unit{"gpuadm.service": failed}, want: "ADM-002"},
		"no spec at all": {
			units: map[string]host.Unit{kubeletUnit: waiting, "gpuadm.service": failed},
			spec:  broken, shut: shut, want: "ADM-001>ADM-002>ADM-003>KUB-014",
		},
		"the last applied spec": {
			units: map[string]host.Unit{"gpuadm-drift.service": failed},
			spec:  replaced, want: "ADM-001>ADM-002",
		},
		"another cause closes the gate": {
			units: map[string]host.Unit{kubeletUnit: waiting},
			spec:  replaced, shut: shut, want: "ADM-001 ADM-003>KUB-014",
		},
		"a removed spec": {spec: OwnSpec{Removed: true}, want: "note ADM-001"},
	} {
		t.Run(name, func(t *testing.T) {
			own := ownOf(c.shut)
			own.Spec = c.spec
			n := incident.Joined(t, true).Node()
			r := Examine(t.Context(), gated{n, c.units}, spec.Spec{}, own)
			check.Equal(t, reportText(r), c.want, "%v %v: the report", r.Causes, r.Unread)
			check.Equal(t, n.Touches(), 0, "touches")
			for _, cause := range r.Causes {
				check.That(t, len(cause.Commands) > 0, "%s has nothing to type", cause.Code)
			}
		})
	}
}

// putJournal writes a journal of these lines.
func putJournal(t *testing.T, n *simhost.Node, mode fs.FileMode, lines ...string) {
	t.Helper()
	must.OK(t, n.Mkdir(converge.Home, host.Attr{Mode: 0o700}))
	text := []byte(strings.Join(lines, "\n") + "\n")
	must.OK(t, n.WriteFile(converge.Home+"/journal.jsonl", text, host.Attr{Mode: mode}))
}

// TestOwnJournal: an undo that holds applies is a note, and the root cause of what an apply would
// make; so is the journal of a newer gpuadm. A journal of another format, and one that cannot be
// used, are faults.
func TestOwnJournal(t *testing.T) {
	const (
		hold  = `{"format":1,"what":"hold","run":"20260102T030405Z","time":"2026-01-02T03:04:05Z"}`
		newer = `{"format":1,"what":"begin","run":"x","time":"2026-01-02T03:04:05Z","tool":"1.5.0"}`
		older = `{"format":1,"what":"begin","run":"x","time":"2026-01-02T03:04:05Z","tool":"1.3.0"}`
		other = `{"format":2,"what":"begin","run":"x"}`
		wrong = `{"format":1,"what":"junk"`
		makes = `{"format":1,"what":"make","run":"x","time":"2026-01-02T03:04:05Z","change":{"kind":"file","name":"/etc/x","before":"","after":"a"}}`
		ends  = `{"format":1,"what":"end","run":"x","time":"2026-01-02T03:04:05Z","result":"ok"}`
		boots = `{"format":1,"what":"reboot","run":"x","time":"2026-01-02T03:04:05Z","boot":"BOOT","change":{"kind":"file","name":"/etc/x","before":"","after":"a"}}`
	)
	noHandler := func(w *incident.World) { w.Do(incident.All(t)["handler-not-configured"]) }
	for name, c := range map[string]struct {
		mode    fs.FileMode
		lines   []string
		machine func(*incident.World)
		want    string
	}{
		"held":                          {0o600, []string{hold}, nil, "note ADM-004"},
		"held, and no handler":          {0o600, []string{hold}, noHandler, "ADM-004>RUN-001>KUB-004"},
		"a newer gpuadm":                {0o600, []string{newer}, nil, "note ADM-005"},
		"an older gpuadm":               {0o600, []string{older}, nil, ""},
		"another format":                {0o600, []string{other}, nil, "ADM-005"},
		"a damaged line":                {0o600, []string{wrong + "}}", older}, nil, "ADM-006"},
		"a journal of any user's":       {0o666, []string{older}, nil, "ADM-006"},
		"an empty journal is no damage": {0o600, nil, nil, ""},
		"a run that was cut short":      {0o600, []string{older, makes}, nil, "ADM-007"},
		"a run that has ended":          {0o600, []string{older, makes, ends}, nil, ""},
		"a run that waits for a boot":   {0o600, []string{older, makes, boots}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := incident.Joined(t, true)
			if c.machine != nil {
				c.machine(w)
			}
			n := w.Node()
			for i, line := range c.lines {
				c.lines[i] = strings.ReplaceAll(line, "BOOT", host.BootID(n))
			}
			putJournal(t, n, c.mode, c.lines...)
			s := spec.Spec{Sections: []string{"runtime"}}
			r := Examine(t.Context(), n, s, ownOf(""))
			check.Equal(t, reportText(r), c.want, "%v %v: the report", r.Causes, r.Unread)
		})
	}
}

// TestCutShort: a run that was cut short is a fault until the next one continues it, with the
// command that does; while it is at work it is none. So is a file that a bake of this machine has
// left when it was killed. An empty file of the machine's own is none.
func TestCutShort(t *testing.T) {
	const (
		begin  = `{"format":1,"what":"begin","run":"x","time":"2026-01-02T03:04:05Z","tool":"1.4.0"%s}`
		change = `{"format":1,"what":"make","run":"x","time":"2026-01-02T03:04:05Z","change":{"kind":"file","name":"/etc/x","before":"","after":"a"}}`
	)
	for name, c := range map[string]struct {
		more    string // of the run's beginning
		atWork  bool
		command string
	}{
		"an apply":    {"", false, "gpuadm apply"},
		"an undo":     {`,"undoes":["w"]`, false, "gpuadm undo"},
		"a repair":    {`,"repair":"RUN-001"`, false, "gpuadm repair RUN-001"},
		"one at work": {"", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := incident.Joined(t, true).Node()
			putJournal(t, n, 0o600, fmt.Sprintf(begin, c.more), change)
			own := ownOf("")
			own.AtWork = func() bool { return c.atWork }
			r := Examine(t.Context(), n, spec.Spec{}, own)
			if c.command == "" {
				check.Equal(t, reportText(r), "", "%v %v: the report", r.Causes, r.Unread)
				return
			}
			must.That(t, reportText(r) == "ADM-007", "%v %v: the report", r.Causes, r.Unread)
			check.Has(t, strings.Join(r.Causes[0].Commands, "; "), c.command, "the command")
		})
	}

	n := incident.Joined(t, true).Node()
	must.OK(t, n.Mkdir("/usr/sbin", host.Attr{Mode: 0o755}))
	must.OK(t, n.WriteFile("/usr/sbin/policy-rc.d", nil, host.Attr{Mode: 0o400}))
	must.OK(t, n.WriteFile("/etc/resolv.conf", nil, host.Attr{Mode: 0o644}))
	r := Examine(t.Context(), n, spec.Spec{}, ownOf(""))
	must.That(t, len(r.Causes) > 0 && r.Causes[0].Code == "ADM-007", "%v %v: the report", r.Causes, r.Unread)
	check.Has(t, r.Causes[0].Found[0].What, "/usr/sbin/policy-rc.d", "the finding")
}
