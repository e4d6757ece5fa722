// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// nvidia is the family that drivers hands to this package, as far as these tests need it.
func nvidia() *Family {
	return &Family{
		Group: "driver", Names: []string{"*nvidia*", "libcuda*", "cuda-drivers*"}, Branch: pattern.Of(`^linux-modules-nvidia-([0-9]+)-`),
		OwnVersion: []string{"nvidia-settings"},
	}
}

// listed is a packager that has files of packages.
type listed struct {
	Packager
	files map[string][]string
}

func (l listed) FilesOf(context.Context, host.View, []string) (map[string][]string, error) {
	return l.files, nil
}

// TestBrings: a package brings modules because its files do, or the catalog says so; never by its
// name, and not where only a mark changes.
func TestBrings(t *testing.T) {
	m := listed{files: map[string][]string{
		"linux-objects": {"/lib/modules/6.8.0-41-generic/kernel/nvidia-580-server-open/nvidia.ko", "/lib/modules/6.8.0-41-generic/kernel/nvidia-580-server-open/nvidia-uvm.ko"},
		"source":        {"/usr/src/nvidia-580.95.05/dkms.conf"},
		"storage":       {"/usr/src/nvidia-fs-2.26.6/dkms.conf"},
		"other-modules": {"/lib/modules/6.8.0-41-generic/extra/nvme.ko.zst"},
		"nvidia-dkms":   {"/usr/share/doc/nvidia-dkms/copyright", "/usr/src/nvidia-580.95.05/nvidia.c"},
	}}
	for name, want := range map[string][]string{
		"linux-objects": {"nvidia"}, "source": {"nvidia"}, "storage": {"nvidia-fs"}, "other-modules": nil, "nvidia-dkms": nil, "nvidia-settings": nil,
	} {
		for _, c := range []struct {
			before, after converge.State
			says, want    []string
		}{{"1-1 held", "2-1 held", nil, want}, {"1-1", "", nil, want}, {"1-1", "1-1 held", []string{"nvidia"}, nil}, {"", "2-1", []string{"x"}, []string{"x"}}, {"", "2-1", nil, nil}} {
			changes := []converge.Change{{
				Ref:    converge.Ref{Kind: "package", Name: name},
				Before: c.before,
				After:  c.after,
				Brings: c.says,
			}}
			if err := brings(t.Context(), nil, m, changes); err != nil || !slices.Equal(changes[0].Brings, c.want) {
				t.Errorf("%s %q to %q: %v, %v", name, c.before, c.after, changes[0].Brings, err)
			}
		}
	}
}

func TestFamilyHas(t *testing.T) {
	f := nvidia()
	for _, c := range []struct {
		name, version string
		want          bool
	}{
		{"libnvidia-compute-580", "580.95.05-0ubuntu1", true},
		{"libnvidia-compute-580:i386", "580.95.05-0ubuntu1", true},
		{"nvidia-driver-cuda", "3:580.95.05-1.el9", true},
		{"nvidia-settings", "510.47.03-0ubuntu1", false}, // the distribution's own
		{"nvidia-container-toolkit", "1.18.0-1", false},
		{"nvidia-support", "20240109+1", false},
		{"nvidia-driver-selinux", "0.1-2", false},
		{"linux-modules-nvidia-580-server-open-generic", "6.8.0-106.106", false},
		{"nvlsm", "2025.06.11-1", false},
		{"nvidia-fs", "2.27.3-1", false},
		{"containerd", "580.1.1", false},
		{"libcuda1", "999.9-1", true},
		{"libcuda1", "580", false},
		{"libcuda1", "580.", false},
		{"libcuda1", "580..5", false},
		{"libcuda1", "580.95.05a", false},
		{"libcuda1", "580.95\n", false},
		{"libcuda1", "5.0.95", false},
		{"libcuda1", "5800.95", false},
		{"libcuda1", "299.95", false},
		{"libcuda1", "a80.95", false},
		{"libcuda1", "", false},
	} {
		check.Equal(t, f.Has(c.name, c.version), c.want, "%s %s:", c.name, c.version)
	}
}

func BenchmarkSplit(b *testing.B) {
	s := NewSet(new(Reading))
	s.Family = nvidia()
	all := map[string]State{}
	for i := range 2500 {
		all[fmt.Sprintf("package-number-%d", i)] = State{Version: fmt.Sprintf("1:%d.4.7-2ubuntu1.%d", i%700, i)}
	}
	for i := range 15 {
		name := fmt.Sprintf("libnvidia-part%d-580", i)
		all[name] = State{Version: "580.95.05-0ubuntu1", Held: true}
		s.wanted[name] = State{Version: "driver=580.95.05", Held: true}
	}

	s.found = all
	for b.Loop() {
		s.split("driver")
	}
}

// One source has all members in one version: the other source's newer revision of one of them is
// left alone.
func TestChooseFromOneSource(t *testing.T) {
	cuda, ubuntu := []string{"https://nvidia /"}, []string{"http://ubuntu noble/main"}
	offers := map[string][]Offer{
		"a": {{"580.2-0ubuntu9", 500, ubuntu}, {"580.2-0ubuntu1", 500, cuda}, {"580.1-0ubuntu1", 500, cuda}},
		"b": {{"580.2-0ubuntu1", 500, cuda}, {"580.1-0ubuntu1", 500, cuda}},
	}
	got, _, ok := choose([]string{"a", "b"}, "580.*", offers, strings.Compare)
	check.That(t, ok && got["a"] == "580.2-0ubuntu1" && got["b"] == "580.2-0ubuntu1", "%v, %v", got, ok)
	offers["b"] = offers["b"][1:]
	got, _, ok = choose([]string{"a", "b"}, "580.*", offers, strings.Compare)
	check.That(t, ok && got["a"] == "580.1-0ubuntu1", "the newest that both have: %v, %v", got, ok)
	got, _, ok = choose([]string{"a", "b"}, "580.2", offers, strings.Compare)
	check.That(t, !ok, "chosen: %v", got)
}

// Of packages of which the same is to be said it says that once, and a place once for all its
// versions.
func TestAvailableOnce(t *testing.T) {
	const a, b = "https://a.example/cuda", "https://b.example/main"
	offers := map[string][]Offer{
		"nvidia-driver": {{
			Version: "590.1-1",
			From:    []string{a},
		}, {Version: "580.2-1", From: []string{a}}, {Version: "535.1-1", From: []string{b}}},
		"nvidia-smi": {{
			Version: "590.1-1",
			From:    []string{a},
		}, {Version: "580.2-1", From: []string{a}}, {Version: "535.1-1", From: []string{b}}},
		"nvidia-old": nil,
	}
	names := []string{"nvidia-driver", "nvidia-old", "nvidia-smi"}
	got := availableAll(names, "source", func(name string) ([]Offer, State) {
		return offers[name], State{Version: "580.2-1"}
	})
	want := []string{
		"nvidia-driver, nvidia-smi: 590.1-1, 580.2-1 from " + a + "; 535.1-1 from " + b + "; installed is 580.2-1",
		"nvidia-old: no source has it; installed is 580.2-1",
	}
	check.That(t, slices.Equal(got, want), "%q\nwant %q", got, want)
	var many []Offer
	for _, v := range []string{"8", "7", "6", "5", "4", "3", "2", "1"} {
		many = append(many, Offer{Version: v, From: []string{a}})
	}
	check.Equal(t, available(many, "source", State{}), "8, 7, 6, 5, 4, 3 from "+a+", and 2 more", "got")
}

// named is a packager of which a test needs the name alone.
type named struct{ Solver }

func (named) Name() string               { return "dnf" }
func (named) Essential(name string) bool { return name == "glibc" }

// TestDifference: more, less and other than planned is found.
func TestDifference(t *testing.T) {
	r := Resolution{Solver: named{}, Installed: map[string]State{"x": {Version: "1-1"}}, Changes: []converge.Change{
		{Ref: converge.Ref{Name: "a"}, Before: "1-1", After: "2-1 held"}, {Ref: converge.Ref{Name: "b"}, Before: "1-1", After: ""}, {Ref: converge.Ref{Name: "c"}, Before: "1-1", After: "1-1 held"},
	}}
	a, b := Move{"a", "2-1"}, Move{Name: "b"}
	for want, moves := range map[string][]Move{
		"":                                  {a, b},
		`dnf would leave b as it is: "1-1"`: {a},
		"dnf would install x 1-1 beside it": {a, b, {"x", "1-1"}},
		"dnf would remove x 1-1, which depends on what would change": {a, b, {Name: "x"}},
		`dnf would make a "3-1" instead of "2-1"`:                    {{"a", "3-1"}, b},
		"dnf would remove a, and 2-1 is planned":                     {{Name: "a"}, b},
		"dnf would remove c, and 1-1 is planned":                     {a, b, {Name: "c"}},
		"dnf would install b 2-1, and its removal is planned":        {a, {"b", "2-1"}},
	} {
		check.Equal(t, r.Difference(moves), want, "%v:", moves)
	}

	r.Changes = []converge.Change{{Ref: converge.Ref{Name: "glibc"}, Before: "1-1"}}
	check.Equal(t, r.Difference([]Move{{Name: "glibc"}}), "dnf would remove glibc, and this machine cannot work without it", "got")
}

// spoken is a packager of which a test needs the words, too.
type spoken struct{ named }

func (spoken) Words() Words { return Words{Show: "dnf --assumeno", At: "-"} }

// TestRefused: the error says what was asked for, in a command that works as it is printed: also
// where nothing that the spec asks for is new, and where packages are removed alone.
func TestRefused(t *testing.T) {
	asked := converge.Change{Ref: packageRef("a"), Before: "1-1", After: "2-1 held"}
	dependency := converge.Change{Ref: packageRef("b"), Before: "1-1", After: "2-1", Dependency: true}
	removal := converge.Change{Ref: packageRef("c"), Before: "1-1"}
	marked := converge.Change{Ref: packageRef("d"), Before: "1-1", After: "1-1 held"}
	for request, changes := range map[string][]converge.Change{
		"install a-2-1": {marked, dependency, asked, removal},
		"install b-2-1": {marked, dependency, removal},
		"remove c":      {marked, removal},
	} {
		r := Resolution{Solver: spoken{}, Changes: changes}
		var said *trouble.Error
		must.That(t, errors.As(r.refused("x", "it depends on a"), &said), "%s: no advice", request)
		check.Equal(t, said.What, "cannot "+request+": package x prevents it", "what")
		check.List(t, said.Try, []string{"dnf --assumeno " + request + ", which shows what dnf would do"}, "try")
	}
}

// TestVerify: what the database has in the place of a change is said in words, with the log that this
// machine has.
func TestVerify(t *testing.T) {
	changes := []converge.Change{
		{Ref: converge.Ref{Name: "a"}, After: "2-1 held"},
		{Ref: converge.Ref{Name: "b"}, Before: "1-1", After: ""},
		{Ref: converge.Ref{Name: "c"}, Before: "1-1", After: "2-1"},
	}
	installed := map[string]State{"b": {Version: "1-1"}, "c": {Version: "2-1"}}
	err := Verify("dnf", "dnf history info last", changes, installed)

	said := (*trouble.Error)(nil)
	must.That(t, errors.As(err, &said), "it is %v", err)
	check.Equal(t, strings.Join(said.Because, "\n"), `a is not installed and should be "2-1 held"`+"\n"+
		`b is "1-1" and should not be installed`, "because")
	check.Equal(t, strings.Join(said.Try, "\n"), "dnf history info last, which says what was done", "try")

	installed["a"] = State{Version: "2-1", Held: true}
	delete(installed, "b")
	check.Equal(t, Verify("dnf", "dnf history info last", changes, installed), nil, "as planned")
}

func TestStateText(t *testing.T) {
	for text, want := range map[converge.State]State{
		"":                           {},
		"580.95.05-0ubuntu1 held":    {Version: "580.95.05-0ubuntu1", Held: true},
		"3:580.95.05-1.el9 auto":     {Version: "3:580.95.05-1.el9", Auto: true},
		"1 held auto half-installed": {Version: "1", Held: true, Auto: true, Broken: "half-installed"},
		"driver=580.* held":          {Version: "driver=580.*", Held: true},
		"- held":                     {Version: Nowhere, Held: true},
		"1.0 config-files":           {Version: "1.0", Broken: ConfigFiles},
	} {
		got := Parse(text)
		check.That(t, got == want && want.String() == text, "%q: parsed %+v, written %q", text, got, want.String())
	}
}

// TestToIsIdempotent goes through the states of a package: the second To changes nothing.
func TestToIsIdempotent(t *testing.T) {
	set := NewSet(new(Reading))
	for _, wanted := range []State{{Version: "driver=580.*", Held: true}, {Version: "580.1-1"}, {Version: "driver=*", Auto: true}} {
		want := Want(set, "x", wanted, "")
		for _, found := range []converge.State{"", "580.1-1", "580.1-1 auto", "580.1-1 held", "570.1-1", "580.1-1 half-configured", "580.1-1 config-files"} {
			once, err := want.To(found)
			if err != nil {
				continue
			}
			twice, err := want.To(once)
			check.That(t, err == nil && twice == once, "wanted %q, found %q: %q, then %q, %v", wanted.String(), found, once, twice, err)
		}
	}

	for _, c := range []struct{ found, left, after, who converge.State }{
		{"- held", "", "580.1-1 held", "x is held as not installed"},
		{"570.1-1 held", "", "580.1-1 held", "x is held at 570.1-1"},
		{"570.1-1 held", "570.1-1", "", "x is held at 570.1-1"},             // since gpuadm installed it
		{"570.1-1 held", "560.1-1 held", "580.1-1", "x is held at 570.1-1"}, // in another version than gpuadm's
		{"570.1-1 held", "570.1-1 held", "580.1-1 held", ""},
		{"570.1-1 held", "", "570.1-1", ""},
		{"570.1-1", "", "", ""},
	} {
		_, who := New("x", nil).(converge.Guarded).Guards(c.found, c.left, c.after)
		check.That(t, who == string(c.who), "%+v: it says %q", c, who)
	}

	to, _ := Want(set, "x", State{Version: "driver=580.*"}, "").To("580.1-1 auto")
	check.That(t, to == "580.1-1", "an automatic package that is wanted becomes %q", to)
}

// TestTakeOut: what a transaction left half way, and what has other marks since, is rolled back;
// another version stays, and is named.
func TestTakeOut(t *testing.T) {
	for _, c := range []struct{ found, before, after, want converge.State }{
		{"2-1", "1-1 held auto", "2-1 held auto", "1-1"},
		{"1-1", "1-1 held", "2-1 held", "1-1"},
		{"2-1 held auto half-configured", "1-1 held auto", "2-1 held auto", "1-1 held auto"},
		{"2-1 unpacked", "", "2-1 held", ""},
		{"- half-installed", "", "2-1 held", ""},
		{"2-1 config-files", "", "2-1 held", ""},
		{"2-1 auto", "1-1", "2-1", "1-1 auto"},
		{"3-1 held", "1-1 held", "2-1 held", "stays"},
		{"3-1 unpacked", "", "2-1 held", ""},
		{"3-1 half-configured", "1-1 held", "2-1 held", "1-1"},
		{"3-1 config-files", "1-1 held", "2-1 held", "stays"},
		{"driver=3 held", "", "2-1 held", "driver=3 held"},
	} {
		got, left, err := thing{NewSet(new(Reading)), "p"}.TakeOut(nil, c.found, c.before, c.after)
		if len(left) == 1 && got == c.found {
			got = "stays"
		}
		check.That(t, err == nil && got == c.want, "found %q after %q → %q: %q %q %v, want %q", c.found, c.before, c.after, got, left, err, c.want)
	}
}

func TestOwnVersions(t *testing.T) {
	for _, c := range []struct {
		pattern, version string
		want             bool
	}{
		{"580.95.05", "580.95.05-0ubuntu1", true},
		{"580.95.05", "3:580.95.05-1.el9", true},
		{"580.95.05", "580.95.050-1", false},
		{"580.*", "580.95.05-1", true},
		{"580.*", "5800.1-1", false},
		{"580.*", "580-1", true},
		{"*", "1", true},
		{"1.18.0~rc.1", "1.18.0~rc.1-1", true},
	} {
		check.Equal(t, Matches(c.pattern, c.version), c.want, "%s matches %s:", c.pattern, c.version)
	}
}

// TestAdvised: a refusal about packages says what to enable, one about a lock does not.
func TestAdvised(t *testing.T) {
	s := NewSet(new(Reading))
	s.Lacks = []Lack{{
		Name: "the repository epel",
		Try:  "dnf install epel-release",
	}, {Name: "x", Try: "y", Enabled: true}}
	refused := &trouble.Error{What: "cannot install dkms", Try: []string{"dnf makecache"}}
	said := (*trouble.Error)(nil)
	if err := s.advised(refused); !errors.As(err, &said) || !slices.Equal(said.Try, []string{"enable the repository epel, which the driver's packages depend on: dnf install epel-release", "dnf makecache"}) || len(refused.Try) != 1 {
		t.Errorf("%+v", said)
	}
	busy := &trouble.Error{What: "locked", Err: &Locked{errors.New("x"), "y"}}
	err := s.advised(busy)
	check.That(t, err == error(busy), "%v", err)
}

// Who holds a lock is said on one line that can be read.
func TestCommandOf(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- proc/7/cmdline base64 --\nc2gALWMAZWNobyBhCgllY2hvIGIA\n-- proc/8/cmdline --\n" + strings.Repeat("x", 300) + "\n")))(t)
	for pid, want := range map[string]string{"7": " (sh -c echo a echo b)", "8": " (" + strings.Repeat("x", 120) + "…)", "9": ""} {
		check.Equal(t, commandOf(n, pid), want, "%s:", pid)
	}
}

// clocked is a machine that has a clock and nothing else.
type clocked struct {
	host.Host
	now time.Time
}

func (c *clocked) Now() time.Time { return c.now }

// The holder of a lock is named at once and then now and again, with the time that is left; of a
// free lock there is no message.
func TestPatienceSays(t *testing.T) {
	for _, c := range []struct {
		name  string
		held  int // how many runs find it held, of 6 s each
		wait  time.Duration
		says  []string
		fails bool
		runs  int
	}{
		{name: "free", wait: time.Minute, runs: 1},
		{name: "held for a while", held: 5, wait: 5 * time.Minute, says: []string{"it: waiting for up to 4m54s", "it: waiting for up to 4m42s", "it: waiting for up to 4m30s"}, runs: 6},
		{name: "its end", held: 99, wait: 20 * time.Second, says: []string{"it: waiting for up to 14s", "it: waiting for up to 2s"}, fails: true, runs: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &clocked{now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
			var says []string
			ctx := converge.Listen(t.Context(), func(_ converge.What, text string) {
				says = append(says, text)
			})
			runs := 0
			err := patiently(ctx, m, c.wait, 0, func() error {
				m.now = m.now.Add(6 * time.Second)
				if runs++; runs > c.held {
					return nil
				}
				return &Locked{errors.New("held"), "it"}
			})
			check.That(t, (err != nil) == c.fails && slices.Equal(says, c.says) && runs == c.runs, "%v\nsays %q\nwant %q\n%d runs, want %d", err, says, c.says, runs, c.runs)
		})
	}
}

// offering is a packager that has no offers.
type offering struct{ named }

func (offering) Offers(context.Context, host.View, []string) (map[string][]Offer, error) {
	return nil, nil
}

// TestSpared: a package that nothing is built with is right if it is not there, and a package that
// a source need not have is left out.
func TestSpared(t *testing.T) {
	set := NewSet(new(Reading))
	set.AsFound = []string{"spared"}
	for found, want := range map[converge.State]converge.State{"": "", "1-1": "1-1", "1-1 config-files": "1-1 config-files"} {
		w := Want(set, "spared", State{Version: "spared=*"}, "")
		to, err := w.To(found)
		check.That(t, err == nil && to == want && w.AsFound, "%q: %q, %v", found, to, err)
	}

	ask := Request{
		Changes: []converge.Change{{
			Ref:   converge.Ref{Kind: "package", Name: "may"},
			After: "may=*",
		}},
		IfThere: []string{"may"},
	}
	r, err := Begin(t.Context(), nil, ask, nil, offering{})
	check.That(t, err == nil && len(Due(r.Changes)) == 0, "%v", err)
}

// TestOverdue: a limit that is over is the cause, whatever a program says that it has ended:
// --deadline, or gpuadm's own.
func TestOverdue(t *testing.T) {
	for cause, want := range map[error]string{
		context.DeadlineExceeded:                "they were not installed within --deadline, and apt-get was ended",
		host.OverLimit{Limit: 30 * time.Second}: "apt-get gave no answer within 30s, and gpuadm ended it",
	} {
		failed := &host.CommandError{
			Argv: []string{"env", "-C", "/srv", "OMP_NUM_THREADS=1", "apt-get", "install"}, Code: -1,
			Stderr: "g++: fatal error: Killed signal terminated program cc1plus\nNo space left on device", Cause: cause,
		}
		told, known := Failure(nil, failed, "", failed)
		check.That(t, known && strings.HasSuffix(told.What, want) && errors.Is(told.Err, context.DeadlineExceeded), "want %s: %+v", want, told)
		check.That(t, (len(told.Try) > 0) == strings.Contains(want, "30s"), "%s: %q", want, told.Try)
	}
}

// TestFailedBefore: what did not build is not compiled again while nothing has changed that decides it.
func TestFailedBefore(t *testing.T) {
	is := SharedModules{
		Package: "gpuadm-modules-open-6.17.0", Kernel: "6.17.0", Version: "550.163.01", Flavour: "open",
		Source: "s", Headers: "h", Builder: "debian-13; dkms-3.2.0; gcc 14", Settings: "c",
	}
	old := is
	old.Failure = "nv.c:3:9: error: no such thing"
	l := Lock{Failed: []SharedModules{old}}

	check.Equal(t, l.FailedBefore(is), old.Failure, "the same build:")
	for name, change := range map[string]func(*SharedModules){
		"another source":   func(m *SharedModules) { m.Source = "s2" },
		"other headers":    func(m *SharedModules) { m.Headers = "h2" },
		"another compiler": func(m *SharedModules) { m.Builder = "debian-13; dkms-3.2.0; gcc 15" },
		"other settings":   func(m *SharedModules) { m.Settings = "" },
		"another flavour":  func(m *SharedModules) { m.Flavour = "proprietary" },
		"another kernel":   func(m *SharedModules) { m.Kernel = "6.17.1" },
		"another driver":   func(m *SharedModules) { m.Version = "580.95.05" },
	} {
		changed := is
		change(&changed)
		check.Equal(t, l.FailedBefore(changed), "", "%s:", name)
	}

	is.Signer.Name = "another key"
	check.Equal(t, l.FailedBefore(is), old.Failure, "with another key:")
}
