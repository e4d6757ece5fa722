// SPDX-License-Identifier: Apache-2.0

package modules_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// brought is the package that brings the module nvidia, as its script leaves it on disk: built and
// known to depmod.
type brought struct{ name string }

const broughtVersion = "/var/lib/brought"

func (b brought) Ref() converge.Ref { return converge.Ref{Kind: "package", Name: b.name} }

func (brought) Look(_ context.Context, v host.View) (converge.State, error) {
	is, err := v.ReadFile(broughtVersion)
	return converge.State(is), err
}

func (brought) Make(_ context.Context, h host.Host, to converge.State) error {
	ko := kmodule.Nvidia(string(to), "Dual MIT/GPL", "6.8.0")
	return errors.Join(
		h.WriteFile("/lib/modules/6.8.0/updates/dkms/nvidia.ko", ko, host.Attr{Mode: 0o644}),
		h.WriteFile(broughtVersion, []byte(to), host.Attr{Mode: 0o644}))
}

// TestUndoReloadsModule: where packages alone have changed what lies on disk, undo loads what they
// have brought back: else the libraries are of one version and the module of another.
func TestUndoReloadsModule(t *testing.T) {
	_, thingOf := stages.Run(new(node.Session), nil)
	for _, name := range []string{"a-package"} {
		n := machine(t)
		n.Install("modprobe", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, argv []string) ([]byte, error) {
			version, err := f.ReadFile(broughtVersion)
			return nil, errors.Join(err,
				drivertest.Lay(f, "/sys/module/"+strings.ReplaceAll(argv[1], "-", "_")+"/refcnt", []byte("0\n")), drivertest.Lay(f, "/sys/module/nvidia/version", append(version, '\n')),
				drivertest.Lay(f, "/proc/driver/nvidia/version", []byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+string(version)+"\n")),
			)
		}})
		n.Install("seed", simhost.Program{Looks: drivertest.Changes, Run: func(f *files.Files, _ []string) ([]byte, error) {
			return nil, errors.Join(drivertest.Lay(f, broughtVersion, nil), drivertest.Folders(f, "/lib/modules/6.8.0/updates/dkms"), drivertest.Lay(f, "/sys/bus/pci/devices/0000:17:00.0/uevent", []byte("DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n")),
				drivertest.Lay(f, "/lib/modules/6.8.0/modules.dep", []byte("updates/dkms/nvidia.ko:\n")))
		}})
		must.Get(n.Do(context.Background(), "seed"))(t)
		side := modules.KernelSide{
			Flavour: "open",
			Build:   "precompiled",
			Kernels: []string{"6.8.0"},
		}
		e := &converge.Engine{
			Spec: spec.Spec{Sections: []string{"packages", "modules"}},
			ThingOf: func(ref converge.Ref) (converge.Thing, error) {
				if ref.Kind == "package" {
					return brought{name: ref.Name}, nil
				}
				return thingOf(ref)
			},
			Stages: []converge.Stage{
				{Name: "packages", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
					return []converge.Want{{
						Thing:  brought{name: name},
						Brings: []string{"nvidia"},
						To: func(converge.State) (converge.State, error) {
							return converge.State(side.Version), nil
						},
					}}, nil
				}},
				{Name: "modules", Verifies: "packages", Wants: func(_ spec.Spec, f facts.Facts) ([]converge.Want, error) {
					return modules.Wants(side, f, facts.Modules{})
				}},
			},
		}
		loads := func(want string) {
			t.Helper()
			is, err := n.ReadFile("/sys/module/nvidia/version")
			check.That(t, err == nil && string(is) == want+"\n", "%s: loaded is %q, %v; want %s", name, is, err, want)
		}

		for _, version := range []string{"570.172.08", "580.95.05"} {
			side.Version = version
			_, err := e.Apply(context.Background(), n)
			must.That(t, err == nil, "%v: %v", name, err)
			loads(version)
		}

		e.Clients = func(context.Context, host.View) ([]string, error) {
			return []string{"process 4711 (python3)"}, nil
		}
		told, before := (*trouble.Error)(nil), n.Touches()
		if _, err := e.Undo(context.Background(), n, "", nil); !errors.As(err, &told) || !errors.Is(err, converge.ErrInUse) || !slices.Contains(told.Because, "process 4711 (python3)") || n.Touches() > before+2 {
			t.Errorf("%s: undo while a GPU is used, with %d touches: %v", name, n.Touches()-before, err)
		}
		loads("580.95.05")
		e.Clients = nil
		_, err := e.Undo(context.Background(), n, "", nil)
		must.That(t, err == nil, "%v: %v", name, err)
		loads("570.172.08")
	}
}
