// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// The machine of cdiNode with a toolkit before 1.18.
var (
	service   = "[[unit]]\nname = \"nvidia-cdi-refresh.service\"\nenabled = \"enabled\"\n"
	olderNode = strings.Replace(cdiNode, service, "", 1) + "-- usr/bin/nvidia-ctk mode=0755 --\n"
)

const written = "/var/run/cdi/nvidia.yaml"

// older is a machine whose toolkit's program writes this spec.
func older(t *testing.T, archive, writes string) *simhost.Node {
	t.Helper()
	n := must.Get(simhost.New([]byte(archive)))(t)
	n.Install("nvidia-ctk", simhost.Program{
		Looks: func([]string) bool { return false },
		Run: func(f *files.Files, argv []string) ([]byte, error) {
			check.Equal(t, strings.Join(argv, " "), "nvidia-ctk cdi generate --output="+written, "what is run:")
			if writes == "" {
				return nil, errors.New("it died")
			}
			for _, folder := range []string{"/var", "/var/run", "/var/run/cdi"} {
				err := f.Mkdir(folder, host.Attr{Mode: 0o755})
				if err != nil && !errors.Is(err, fs.ErrExist) {
					return nil, err
				}
			}

			return nil, f.WriteFile(written, []byte(writes), host.Attr{Mode: 0o644})
		},
	})
	return n
}

// TestGenerated: a toolkit without a service writes the spec when gpuadm tells it to, where no
// other spec is for the same devices; undo removes the file, and leaves a service's alone.
func TestGenerated(t *testing.T) {
	good := cdiSpec(t, must.Get(simhost.New([]byte(cdiNode)))(t))
	for name, x := range map[string]struct {
		archive string
		found   converge.State
	}{
		"before 1.18":         {olderNode, "missing"},
		"a service":           {cdiNode, "none"},
		"a masked service":    {strings.Replace(cdiNode, "\"enabled\"", "\"masked\"", 1) + "-- usr/bin/nvidia-ctk --\n", "none"},
		"no toolkit":          {strings.Replace(olderNode, "-- usr/bin/nvidia-ctk mode=0755 --\n", "", 1), "none"},
		"an operator's own":   {olderNode + "-- etc/cdi/nvidia.yaml --\n" + good, "none"},
		"a plugin's":          {olderNode + "-- etc/cdi/p.yaml --\n" + strings.Replace(good, "kind: nvidia", "kind: k8s.nvidia", 1), "missing"},
		"written at the boot": {olderNode + "-- var/run/cdi/nvidia.yaml --\n" + good, "there"},
	} {
		found, err := cdi.Generated().Look(t.Context(), older(t, x.archive, good))
		check.That(t, err == nil && found == x.found, "%s: %q, %v; want %q", name, found, err, x.found)
	}

	n := older(t, olderNode, good)
	want := cdi.Generated()
	to := must.Get(want.To("missing"))(t)
	must.OK(t, want.Make(t.Context(), n, to))
	check.Equal(t, must.Get(want.Look(t.Context(), n))(t), to, "made:")
	check.Equal(t, must.Get(cdi.Spec().Look(t.Context(), n))(t), "current", "its spec is")

	undone := cdi.New("generated")
	must.OK(t, undone.Make(t.Context(), n, "missing"))
	check.Equal(t, must.Get(undone.Look(t.Context(), n))(t), "missing", "undone:")
	check.Equal(t, must.Get(cdi.Spec().Look(t.Context(), n))(t), "none", "a spec that was taken away is")
	rest, left, err := undone.(converge.Merger).TakeOut(n, "none", "missing", "there")
	check.That(t, rest == "none" && left == nil && err == nil, "a service's since: %q, %q, %v", rest, left, err)
}

// TestGeneratedAgain: a generated spec that the driver has left behind is written again, as after a
// change of partitions; a program that fails is named, with what to do.
func TestGeneratedAgain(t *testing.T) {
	good := cdiSpec(t, must.Get(simhost.New([]byte(cdiNode)))(t))
	stale := olderNode + "-- var/run/cdi/nvidia.yaml --\n" + strings.ReplaceAll(good, "580.95.05", "570.1.2")
	for _, thing := range []converge.Thing{cdi.New("spec"), cdi.New(cdi.Unit)} {
		n := older(t, stale, good)
		found := must.Get(thing.Look(t.Context(), n))(t)
		check.Has(t, string(found), "570.1.2", "%s:", thing.Ref())
		must.OK(t, thing.Make(t.Context(), n, thing.(converge.Follower).Current(found)))
		check.Equal(t, must.Get(thing.Look(t.Context(), n))(t), "current", "%s:", thing.Ref())
	}

	err := cdi.New("generated").Make(t.Context(), older(t, olderNode, ""), "there")
	fails := err != nil && strings.Contains(err.Error(), "cannot generate the CDI spec")
	check.That(t, fails, "a program that fails: %v", err)

	err = cdi.New("spec").Make(t.Context(), older(t, stale, unfinished), "current")
	fails = err != nil && strings.Contains(err.Error(), "the spec is outdated")
	check.That(t, fails, "a program that writes half of it: %v", err)
}

// hungProgram is a machine on which the toolkit's program does not end, as with a driver that does
// not answer.
type hungProgram struct{ *simhost.Node }

func (h hungProgram) Do(ctx context.Context, argv ...string) ([]byte, error) {
	<-ctx.Done()
	return nil, &host.CommandError{
		Argv:  argv,
		Code:  -1,
		Cause: context.Cause(ctx),
	}
}

// TestGeneratedInTime: a program that hangs is ended after two minutes, by a clock that waits for
// nothing. The run fails with that cause, and does not wait for the program.
func TestGeneratedInTime(t *testing.T) {
	n := older(t, olderNode, "")
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := cdi.New("generated").Make(t.Context(), hungProgram{n}, "there")

		check.Equal(t, time.Since(began), 2*time.Minute, "the program has")
		must.That(t, err != nil, "a program that hangs has written the spec")
		check.Says(t, err.Error(), "cannot generate the CDI spec", "nvidia-ctk", "no answer within 2m0s")
		check.That(t, !trouble.Passes(err), "waits for a program that hangs: %v", err)
	})
}

// blindSpecs is a machine with a CDI spec, or a folder of them, that cannot be read.
type blindSpecs struct {
	host.Host
	name string
}

func (b blindSpecs) ReadFile(name string) ([]byte, error) {
	if name == b.name {
		return nil, syscall.EIO
	}
	return b.Host.ReadFile(name)
}

func (b blindSpecs) ReadDir(name string) ([]string, error) {
	if name == b.name {
		return nil, syscall.EIO
	}
	return b.Host.ReadDir(name)
}

// TestGeneratedBesideUnread: a spec that cannot be read may be for the same devices: a second one
// would take them from containers.
func TestGeneratedBesideUnread(t *testing.T) {
	n := older(t, olderNode+"-- etc/cdi/nvidia.yaml --\n"+unfinished, "")
	for _, name := range []string{"/etc/cdi/nvidia.yaml", "/etc/cdi"} {
		state, err := cdi.Generated().Look(t.Context(), blindSpecs{n, name})
		check.That(t, errors.Is(err, syscall.EIO), "without %s: %q, %v", name, state, err)
	}
}
