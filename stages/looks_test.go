// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestEveryKeyHasItsLook: each key that names something outside the spec has a look, each look has a
// key, and each says who looks. A key whose value is a path is looked at by a function of its own.
func TestEveryKeyHasItsLook(t *testing.T) {
	stageNames := map[string]bool{}
	for _, st := range Sequence() {
		stageNames[st.Name] = true
	}
	lookNames := map[string]bool{}
	for _, l := range looks() {
		check.That(t, !lookNames[l.names], "two looks are named %s", l.names)
		lookNames[l.names] = true
	}

	used := map[string]bool{}
	for _, k := range spec.Keys() {
		if k.Names == "" || k.Names == spec.NamesNothing {
			continue
		}
		used[k.Names] = true
		l := lookOf(k)
		check.That(t, l.names == k.Names, "no look is named %s, which keys.tsv has for %s", k.Names, k)
		check.That(t, !k.File || l.at != nil, "nothing looks at the path in %s", k)
	}

	for _, l := range looks() {
		check.That(t, used[l.names], "no key names the look %s", l.names)
		check.That(t, l.at != nil || len(l.by) > 0 || lookNames[l.with], "nothing looks at %s", l.names)
		check.That(t, (l.at == nil) == (l.uses == nil), "%s: a look has both at and uses, or neither", l.names)
		check.That(t, l.sees != "" || l.until != "", "%s says neither what a plan sees nor what comes later", l.names)
		for _, name := range l.by {
			check.That(t, stageNames[name], "%s: no stage is named %s", l.names, name)
		}
	}
}

// namingNothing is a spec in which a key names what an empty machine does not have.
func namingNothing(t *testing.T, k spec.Key) spec.Spec {
	t.Helper()
	value := map[string]string{
		"driver.parameters":  "{ EnableMSI = 1 }",
		"driver.repo.url":    `"file:///srv/none"`,
		"toolkit.repo.url":   `"file:///srv/none"`,
		"driver.runfile.url": `"/srv/none.run"`,
		"driver.imex_nodes":  `["10.0.0.1"]`,
		"join.cluster":       `"c"`,
		"join.region":        `"eu-west-1"`,
		"join.server":        `"https://api.example"`,
		"join.service_cidr":  `"10.0.0.0/16"`,
		"join.cluster_dns":   `["10.0.0.10"]`,
		"proxy.http":         `"http://proxy.example:3128"`,
		"proxy.https":        `"http://proxy.example:3128"`,
		"toolkit.runtimes":   `["/srv/none"]`,
		"mig.stop":           `["none.service"]`,
	}[k.String()]
	if value == "" {
		must.That(t, k.File, "%s needs a value in this test", k)
		value = `"/srv/none"`
	}

	const fingerprint = "fingerprint = \"EB693B3035CD5710E231E123A4B469963BF863CC\"\n"
	beside := map[string]string{
		"driver.repo.url":     "key = \"/srv/none\"\n" + fingerprint,
		"toolkit.repo.url":    "key = \"/srv/none\"\n" + fingerprint,
		"driver.repo.key":     "url = \"file:///srv/none\"\n" + fingerprint,
		"toolkit.repo.key":    "url = \"file:///srv/none\"\n" + fingerprint,
		"driver.runfile.url":  "sha256 = \"" + strings.Repeat("0", 64) + "\"\n[driver]\nversion = \"580.95.05\"\nsource = \"runfile\"\n",
		"driver.imex_nodes":   "imex = \"host\"\n",
		"mig.stop":            "[[mig.gpu]]\nlayout = { \"1g.10gb\" = 7 }\n",
		"join.cluster":        "method = \"eks\"\n",
		"join.region":         "method = \"eks\"\n",
		"join.server":         "method = \"eks\"\nca_file = \"/srv/none\"\nservice_cidr = \"10.0.0.0/16\"\ncluster = \"c\"\n",
		"join.ca_file":        "method = \"eks\"\nserver = \"https://api.example\"\nservice_cidr = \"10.0.0.0/16\"\ncluster = \"c\"\n",
		"join.service_cidr":   "method = \"eks\"\nserver = \"https://api.example\"\nca_file = \"/srv/none\"\ncluster = \"c\"\n",
		"join.cluster_dns":    "method = \"eks\"\n",
		"join.kubelet_config": "method = \"eks\"\n",
	}[k.String()]
	text := fmt.Sprintf("format = 1\n[%s]\n%s = %s\n%s", k.Section, k.Name, value, beside)
	s, err := spec.Parse(spec.File{Data: []byte(text)})
	must.That(t, err == nil, "%s: %v", text, err)
	return s
}

// TestLooksSayWhatIsNotThere: on a machine that has nothing of what a key names, the look refuses
// the value and names it and its key, or says which moment decides. It is never silent.
func TestLooksSayWhatIsNotThere(t *testing.T) {
	ctx := context.Background()
	empty := must.Get(simhost.New([]byte("-- etc/os-release --\nID=debian\nVERSION_ID=12\n")))(t)
	seenKeys := 0
	for _, k := range spec.Keys() {
		l := lookOf(k)
		if l.at == nil {
			continue
		}
		seenKeys++
		s := namingNothing(t, k)

		mayNotExist := k.String() == "runtime.config" // its stage judges it
		for _, isLive := range []bool{true, false} {
			isKey := func(seen converge.Seen) bool { return seen.Key == k.String() }
			all := NamedAll(ctx, empty, s, facts.Facts{Live: isLive})
			i := slices.IndexFunc(all, isKey)
			must.That(t, i >= 0, "%s is not looked at", k)

			var refused *trouble.Error
			var later host.Later
			err := all[i].Err
			switch {
			case mayNotExist:
			case errors.As(err, &later):
				isFile := k.File || strings.Contains(all[i].Value, "/srv/none")
				check.That(t, !isLive || !isFile, "%s waits on a running machine: %v", k, err)
			default:
				is := errors.As(err, &refused)
				check.That(t, is && len(refused.Try) > 0, "%s, live %v: %v", k, isLive, err)
			}
		}

		none := Named(ctx, empty, s, facts.Facts{Live: true}, nil)
		check.Equal(t, len(none), 0, "%s without a pending change:", k)
	}

	check.That(t, seenKeys >= 20, "%d keys with a look", seenKeys)
}

// inFolder is a machine whose files are in a folder.
type inFolder struct{ host.View }

func (inFolder) Root() string { return "/mnt/image" }

// TestLooksAtAnImage: a command about a file of an image works as it is typed outside the image.
func TestLooksAtAnImage(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- opt/runtime --\n")))(t)
	s := must.Get(spec.Parse(spec.File{Data: []byte("format = 1\n[runtime]\nprogram = \"/opt/runtime\"\n")}))(t)
	all := NamedAll(t.Context(), inFolder{n}, s, facts.Facts{})
	must.That(t, len(all) == 1, "%v", all)

	var refused *trouble.Error
	must.That(t, errors.As(all[0].Err, &refused), "%v", all[0].Err)
	check.Equal(t, refused.Try[0], "chmod 755 /mnt/image/opt/runtime", "advice")
}

// TestLooksAtContent: a file that exists and is another one is refused, and a right one is not.
func TestLooksAtContent(t *testing.T) {
	ctx := context.Background()
	const page = "<!DOCTYPE html>\n<html>404</html>\n"
	n := must.Get(simhost.New([]byte("-- srv/none mode=0644 --\n" + page)))(t)
	rejects := 0
	for _, k := range spec.Keys() {
		l := lookOf(k)
		if l.at == nil || !k.File {
			continue
		}
		for _, seen := range NamedAll(ctx, n, namingNothing(t, k), facts.Facts{Live: true}) {
			if seen.Key == k.String() && seen.Err != nil {
				rejects++
			}
		}
	}
	// Two keys, two lists of certificates, layouts, a kubeconfig, a kubelet's configuration, three programs.
	check.Equal(t, rejects, 10, "keys that refuse a web page:")
}

// TestABootLooksAtWhatItChanges: a kubeconfig that is gone keeps no kubelet from starting: at a boot
// only changes that wait use it.
func TestABootLooksAtWhatItChanges(t *testing.T) {
	ctx := context.Background()
	n := must.Get(simhost.New([]byte("-- etc/os-release --\nID=debian\n")))(t)
	s, err := spec.Parse(spec.File{Data: []byte("format = 1\n[node]\nkubeconfig = \"/srv/none\"\n")})
	must.OK(t, err)
	guard := converge.Change{Stage: "guard"}
	waiting := converge.Line{
		Change: guard,
		Reason: converge.Reason{Deferred: "once kubelet runs"},
	}
	live := facts.Facts{Live: true}

	check.Equal(t, len(Named(ctx, n, s, live, []converge.Line{waiting})), 1, "plan:")
	check.Equal(t, len(NamedNow(ctx, n, s, live, []converge.Line{waiting})), 0, "boot:")
	check.Equal(t, len(NamedNow(ctx, n, s, live, []converge.Line{{Change: guard}})), 1, "a boot that changes:")
}
