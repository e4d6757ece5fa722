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

// with is a kind whose things share a part: the reading of a database, or a function that looks.
func with[T converge.Thing, S any](build func(name string, shared S) T, shared S) kind {
	return func(r converge.Ref) (converge.Thing, error) { return build(r.Name, shared), nil }
}

// readingWith is a kind whose things depend on files, and share a part.
func readingWith[T converge.Thing, S any](
	build func(name string, reads []string, shared S) T, shared S,
) kind {
	return func(r converge.Ref) (converge.Thing, error) {
		return build(r.Name, r.Reads, shared), nil
	}
}

// of is a kind whose things are parts of the Node object, as a session reads it.
func of[T converge.Thing](build func(string, *node.Session) (T, error), session *node.Session) kind {
	return func(r converge.Ref) (converge.Thing, error) { return build(r.Name, session) }
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
		"file " + packages.FormSource:   with(packages.NewSource, database),
		"file " + packages.FormDeclared: named(packages.NewDeclared),
		"folder":                        named(things.NewFolder),
		"key *":                         by(things.NewKey),
		"unit":                          named(things.NewUnit),
		"unit-files":                    named(things.NewUnitFiles),
		"paused":                        named(things.NewPaused),
		"daemon":                        readingWith(containerd.NewSupervised, ""),
		"daemon *":                      by(childOf),
		"restart":                       reading(restartOf),
		"restart " + kubelet.FormUnit:   reading(kubeletOf),
		"restart " + docker.FormUnit:    reading(docker.NewRestart),
		"restart " + drivers.FormIMEX: by(func(r converge.Ref) converge.Thing {
			return drivers.NewIMEX(r.Reads)
		}),
		"package":          with(packages.New, database),
		"package-database": with(packages.NewDatabase, database),
		"package-lists":    readingWith(packages.NewLists, database),
		"package-stream":   named(dnf.NewStream),
		"package-key":      readingWith(dnf.NewKey, database),
		"module": by(func(r converge.Ref) converge.Thing {
			return kmod.NewModule(r.Reads, modules.OnDisk)
		}),
		"module-file":            with(kmod.NewModuleFile, modules.OnDiskLoadable),
		"dkms":                   with(kmod.NewDKMS, modules.Built),
		"dkms " + kmod.FormAddOn: with(kmod.NewDKMSAddOn, modules.BuiltBeside),
		"runfile":                named(drivers.NewRunfile),
		"initramfs":              reading(kmod.NewInitramfs),
		"fabric":                 by(func(converge.Ref) converge.Thing { return kmod.NewFabric() }),
		"mig *":                  by(mig.New),
		"cdi":                    named(cdi.New),
		"device-links":           named(cdi.NewDeviceLinks),
		"node":                   of(node.NewPart, session),
		"guard":                  of(node.NewGuardThing, session),
		"registered":             named(node.NewRegistered),
		"joined":                 named(node.NewJoined),
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
