// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/local"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// bakeSpecs are wanted of every image. The driver's repository has a key that lies in the image, as
// no network does here.
func bakeSpecs(t *testing.T) map[string]string {
	t.Helper()
	key := must.Get(os.ReadFile("../../internal/things/testdata/ed25519.asc"))(t)
	repo := "url = \"https://mirror.example/debian12\"\nkey = \"/etc/gpuadm/key.asc\"\nfingerprint = \"F22CC24F7F742054127646D9354FB98A5B4AF876\"\n"
	all := map[string]string{
		"handler": "[runtime]\nengine = \"containerd\"\n",
		"default": "[runtime]\nset_as_default = true\n",
		"crio":    "[runtime]\nengine = \"crio\"\n",
		"docker":  "[runtime]\nengine = \"docker\"\n",
		"mig":     "[[mig.gpu]]\nlayout = { \"7g.80gb\" = 1 }\nmatch = [\"H100-80GB\"]\n",
		"node":    "[node]\nstartup_taint = \"none\"\nlabels = { \"example.com/pool\" = \"h200\" }\n",
		"driver":  "[driver]\nversion = \"580.95.05\"\n[driver.repo]\n" + repo + "[toolkit]\nversion = \"1.18.0\"\n[toolkit.repo]\n" + repo + "[runtime]\n",
	}
	for name, text := range all {
		all[name] = "\n-- usr/bin/nvidia-container-runtime mode=0755 --\n" +
			"-- etc/gpuadm/key.asc --\n" + string(key) + "-- etc/gpuadm/node.toml --\nformat = 1\n" + text
	}

	return all
}

// A bakery is the root folder of an image, and the verbs on it.
type bakery struct {
	*testing.T
	image *simhost.Node
	open  func() // opens the root folder, but for a bake
}

// newBakery makes an image of a recorded machine: one that has joined no cluster, with one kernel.
func newBakery(t *testing.T, archive string) (bakery, bool) {
	t.Helper()
	n, err := simhost.New([]byte(archive))
	if err != nil {
		return bakery{}, false // the machine cannot have these files, such as on a disk that is read-only
	}
	is := must.Get(facts.Gather(t.Context(), n, facts.Needs{}))(t)
	gone := []string{is.Kubelet.Kubeconfig}
	for _, kernel := range is.Kernel.Installed[min(1, len(is.Kernel.Installed)):] {
		gone = append(gone, "/lib/modules/"+kernel+"/modules.dep")
	}
	for _, name := range gone {
		_ = n.Remove(name)
	}
	return bakery{t, n, n.Image}, true
}

// run runs gpuadm on the image, and returns what it prints as JSON.
func (b bakery) run(args ...string) (code int, said io.Reader) {
	out := new(bytes.Buffer)
	code = run(context.Background(), env{
		stdin: strings.NewReader(""), stdout: out, stderr: io.Discard, root: true, getenv: func(string) string {
			return ""
		},
		read: func(string) ([]byte, error) { return []byte("the binary\n"), nil },
		open: func(string, commands.Follow) (host.Host, error) { b.open(); return b.image, nil },
		image: func(string, *local.ModuleKey, commands.Follow) (host.Host, func(), error) {
			b.image.Bake()
			return b.image, func() {}, nil
		},
	}, append(args, "--root", "/image", "-o", "json"))
	return code, out
}

// plan runs a verb that plans.
func (b bakery) plan(args ...string) (code int, p converge.Plan) {
	b.Helper()
	code, said := b.run(args...)
	if err := json.NewDecoder(said).Decode(&p); err != nil {
		b.Fatalf("gpuadm %s: exit code %d, %v", strings.Join(args, " "), code, err)
	}
	return code, p
}

// bake bakes, and returns what was made and what was deferred.
func (b bakery) bake() (made, deferred []converge.Line) {
	b.Helper()
	code, said := b.run("bake")
	for dec := json.NewDecoder(said); dec.More(); {
		var e converge.Event
		must.OK(b, dec.Decode(&e))
		switch e.What {
		case converge.Made:
			made = append(made, *e.Line)
		case converge.Deferred:
			deferred = append(deferred, *e.Line)
		}
	}

	check.That(b, code == 0, "bake ends with %d", code)
	return made, deferred
}

// without are the changes for which not is false.
func without(changes []converge.Line, not func(converge.Line) bool) []converge.Line {
	return slices.DeleteFunc(slices.Clone(changes), not)
}

// TestBakeIsItsPlan: over all recorded machines `plan --root` says of an image, change for change,
// what `bake --dry-run` says, which has gpuadm's installation too, as `apply --install --dry-run`
// has. The bake then makes these changes and no others, in that order, and what it lists as
// deferred is the rest. A plan cannot know the states of what waits for another change of the bake:
// such a change is made in its place.
func TestBakeIsItsPlan(t *testing.T) {
	tested := 0
	texts := bakeSpecs(t)
	for name, archive := range recorded(t) {
		for of, text := range texts {
			t.Run(name+" "+of, func(t *testing.T) {
				b, ok := newBakery(t, string(archive)+text)
				if !ok {
					return
				}
				code, dry := b.plansAlike()
				if code != 0 || of == "driver" {
					return // refused, and by both for the same reasons; or for a real apt: TestLabBake
				}
				tested++
				b.makesItsPlan(dry.Changes)
			})
		}
	}

	check.That(t, tested >= 60, "only %d images could be baked: the law was hardly tested", tested)
}

// plansAlike wants the three plans of an image to be the same, and to touch nothing.
func (b bakery) plansAlike() (code int, dry converge.Plan) {
	b.Helper()
	touched := b.image.Touches()
	code, dry = b.plan("bake", "--dry-run")
	codeRoot, root := b.plan("plan")
	_, install := b.plan("apply", "--install", "--dry-run")
	touches := b.image.Touches() - touched
	must.That(b, code == codeRoot && touches == 0,
		"bake --dry-run ends with %d, plan --root with %d, after %d touches", code, codeRoot, touches)

	same := func(what string, want, got []converge.Line) {
		b.Helper()
		check.None(b, cmp.Diff(want, got), "%s (-want +got):", what)
	}
	isInstall := func(ch converge.Line) bool { return ch.Stage == "install" }
	same("apply --install --dry-run, bake --dry-run", install.Changes, dry.Changes)
	same("plan --root, bake --dry-run", root.Changes, without(dry.Changes, isInstall))
	return code, dry
}

// makesItsPlan wants a bake to make what was planned, and to defer the rest.
func (b bakery) makesItsPlan(planned []converge.Line) {
	b.Helper()
	made, deferred := b.bake()
	indexOf := func(ch converge.Line) int {
		return slices.IndexFunc(made, func(o converge.Line) bool {
			return o.Stage == ch.Stage && o.Kind == ch.Kind && o.Name == ch.Name
		})
	}
	isMade := func(ch converge.Line) bool { return indexOf(ch) >= 0 }
	isNotMade := func(ch converge.Line) bool { return indexOf(ch) < 0 }

	check.List(b, lineNames(made), lineNames(without(planned, isNotMade)), "made:")
	check.List(b, lineNames(deferred), lineNames(without(planned, isMade)), "deferred:")
	for _, ch := range planned {
		i := indexOf(ch)
		switch {
		case ch.When == host.AtFirstBoot && i >= 0:
			b.Errorf("deferred until first boot, and made: %s", ch)
		case ch.Deferred != "":
		case i < 0:
			b.Errorf("not made: %s", ch)
		default:
			is := made[i]
			same := is.Before == ch.Before && is.After == ch.After && is.Diff == ch.Diff
			check.That(b, same, "planned %+v, made %+v", ch, is)
		}
	}
}

func lineNames(changes []converge.Line) (all []string) {
	for _, ch := range changes {
		all = append(all, ch.Stage+" "+ch.String())
	}
	return all
}

// TestImageWithoutKernels: the refusal of --kernel says so, and does not end in the middle.
func TestImageWithoutKernels(t *testing.T) {
	_, err := imageKernel(nil, "6.8.0", true)
	check.Equal(t, fmt.Sprint(err), "cannot find kernel 6.8.0 in the image; it has none", "the refusal is")
}
