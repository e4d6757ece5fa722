// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/runtime"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// A kind builds a thing again from its Ref.
type kind func(converge.Ref) (converge.Thing, error)

// named is a kind whose things are told apart by their names alone.
func named[T converge.Thing](build func(name string) T) kind {
	return func(r converge.Ref) (converge.Thing, error) { return build(r.Name), nil }
}

// reading is a kind whose things depend on files, too.
func reading[T converge.Thing](build func(name string, reads []string) T) kind {
	return func(r converge.Ref) (converge.Thing, error) { return build(r.Name, r.Reads), nil }
}

// edited is a file out of which merge takes gpuadm's part; nil: gpuadm writes it as a whole.
func edited(merge things.MergeFunc) kind {
	return func(r converge.Ref) (converge.Thing, error) {
		return things.NewFile(r.Name, merge).Formed(r.Form), nil
	}
}

// by is a kind that needs more of its Ref, or of the run.
func by[T converge.Thing](build func(converge.Ref) T) kind {
	return func(r converge.Ref) (converge.Thing, error) { return build(r), nil }
}

// kinds lists the things that gpuadm makes, as the journal has them: by kind, or by kind and form;
// * is any form.
func kinds(session *node.Session, database *packages.Reading) map[string]kind {
	return map[string]kind{
		"file " + things.Whole:          edited(nil),
		"file " + engine.FormTOML:       edited(engine.TakeOut),
		"file " + docker.Form:           edited(docker.TakeOut),
		"file " + drivers.FormKeys:      edited(drivers.TakeOutKeys),
		"file " + kubelet.FormKubelet:   edited(kubelet.TakeOut),
		"file " + node.FormLogin:        named(node.NewLogin),
		"file " + packages.FormSource:   by(func(r converge.Ref) converge.Thing { return packages.NewSource(r.Name, database) }),
		"file " + packages.FormDeclared: named(packages.NewDeclared),
		"folder":                        named(things.NewFolder),
		"key *":                         by(things.NewKey),
		"unit":                          named(things.NewUnit),
		"unit-files":                    named(things.NewUnitFiles),
		"paused":                        named(things.NewPaused),
		"daemon":                        by(func(r converge.Ref) converge.Thing { return containerd.NewSupervised(r.Name, r.Reads, "") }),
		"daemon *":                      by(childOf),
		"restart":                       reading(restartOf),
		"restart " + kubelet.FormUnit:   reading(kubeletOf),
		"restart " + docker.FormUnit:    reading(docker.NewRestart),
		"restart " + drivers.FormIMEX:   by(func(r converge.Ref) converge.Thing { return drivers.NewIMEX(r.Reads) }),
		"package":                       by(func(r converge.Ref) converge.Thing { return packages.New(r.Name, database) }),
		"package-database":              by(func(r converge.Ref) converge.Thing { return packages.NewDatabase(r.Name, database) }),
		"package-lists":                 by(func(r converge.Ref) converge.Thing { return packages.NewLists(r.Name, r.Reads, database) }),
		"package-stream":                named(dnf.NewStream),
		"package-key":                   by(func(r converge.Ref) converge.Thing { return dnf.NewKey(r.Name, r.Reads, database) }),
		"module":                        by(func(r converge.Ref) converge.Thing { return kmod.NewModule(r.Reads, modules.OnDisk, mig.Unpartitioned) }),
		"module-file":                   by(func(r converge.Ref) converge.Thing { return kmod.NewModuleFile(r.Name, modules.OnDiskLoadable) }),
		"dkms":                          by(func(r converge.Ref) converge.Thing { return kmod.NewDKMS(r.Name, modules.Built) }),
		"dkms " + kmod.FormAddOn:        by(func(r converge.Ref) converge.Thing { return kmod.NewDKMSAddOn(r.Name, modules.BuiltBeside) }),
		"runfile":                       named(drivers.NewRunfile),
		"initramfs":                     reading(kmod.NewInitramfs),
		"fabric":                        by(func(converge.Ref) converge.Thing { return kmod.NewFabric() }),
		"mig *":                         by(mig.New),
		"cdi":                           named(cdi.New),
		"device-links":                  named(cdi.NewDeviceLinks),
		"node":                          func(r converge.Ref) (converge.Thing, error) { return node.NewPart(r.Name, session) },
		"guard":                         func(r converge.Ref) (converge.Thing, error) { return node.NewGuardThing(r.Name, session) },
		"registered":                    named(node.NewRegistered),
		"joined":                        named(node.NewJoined),
	}
}

// restartOf builds the restart of an engine or of another daemon again. Where the engine runs in
// kubelet's unit, the restart is kubelet's.
func restartOf(unit string, reads []string) converge.Thing {
	if kubelet.IsUnit(unit) {
		return kubeletOf(unit, reads)
	}
	return things.NewJudged(unit, reads, runtime.Ready, runtime.Verdict(unit, reads))
}

// kubeletOf builds the restart of kubelet again.
func kubeletOf(unit string, reads []string) converge.Thing {
	return kubelet.NewJudged(unit, reads, runtime.Verdict(unit, nil))
}

// childOf builds the restart of a daemon again that its unit's program starts.
func childOf(r converge.Ref) converge.Thing {
	return containerd.NewChild(r.Form, r.Name, r.Reads, runtime.Verdict(r.Form, nil))
}

// thingOf builds a thing again from its line in the journal, for undo.
func thingOf(kinds map[string]kind, ref converge.Ref) (converge.Thing, error) {
	isPath := slices.Contains([]string{"file", "folder", "key"}, ref.Kind)
	if isPath && !strings.HasPrefix(ref.Name, "/") {
		return nil, fmt.Errorf("cannot undo %s: its line in the journal is damaged: it names no absolute path", ref)
	}

	formed := strings.TrimSpace(ref.Kind + " " + ref.Form)
	for _, name := range []string{formed, ref.Kind + " *"} {
		build := kinds[name]
		if build != nil {
			return build(ref)
		}
	}
	return nil, fmt.Errorf("cannot undo %s: this gpuadm does not know the kind %s; use the newer gpuadm that made it", ref, formed)
}
