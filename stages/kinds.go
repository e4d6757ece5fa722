// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/eks"
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

// thingOf builds a thing again from its line in the journal, for undo.
func thingOf(session *node.Session, database *packages.Reading, ref converge.Ref) (converge.Thing, error) {
	if slices.Contains([]string{"file", "folder", "key"}, ref.Kind) && !strings.HasPrefix(ref.Name, "/") {
		return nil, fmt.Errorf("cannot undo %s %s: its line in the journal is damaged: it names no absolute path", ref.Kind, ref.Name)
	}
	switch name, reads := ref.Name, ref.Reads; ref.Kind {
	case "file":
		if ref.Form == packages.FormSource {
			return packages.NewSource(name, database), nil
		}
		if ref.Form == packages.FormDeclared {
			return packages.NewDeclared(name), nil
		}
		merge, known := mergeOf(ref)
		if !known {
			return nil, fmt.Errorf("cannot undo %s %s: this gpuadm does not know the form %s; use the newer gpuadm that made it", ref.Kind, name, ref.Form)
		}
		return eks.NewFile(name, merge, ref.Form), nil // any file: kubelet's kubeconfig says more of itself
	case "folder":
		return things.NewFolder(name), nil
	case "mig":
		return mig.New(name), nil
	case "cdi":
		return cdi.New(name), nil
	case "device-links":
		return cdi.NewDeviceLinks(name), nil
	case "daemon":
		return containerd.NewSupervised(name, reads, ""), nil
	case "paused":
		return things.NewPaused(name), nil
	case "package":
		return packages.New(name, database), nil
	case "package-database":
		return packages.NewDatabase(name, database), nil
	case "package-lists":
		return packages.NewLists(name, reads, database), nil
	case "package-stream":
		return dnf.NewStream(name), nil
	case "package-key":
		return dnf.NewKey(name, reads, database), nil
	case "module":
		return kmod.NewModule(reads, modules.OnDisk), nil
	case "module-file":
		return kmod.NewModuleFile(name, modules.OnDiskLoadable), nil
	case "dkms":
		if t, is := kmod.NewDKMSBeside(name, modules.BuiltBeside); is {
			return t, nil
		}
		return kmod.NewDKMS(name, modules.Built), nil
	case "runfile":
		return drivers.NewRunfile(name), nil
	case "initramfs":
		return kmod.NewInitramfs(name, reads), nil
	case "fabric":
		return kmod.NewFabric(), nil
	case "key":
		return things.NewKey(ref), nil
	case "unit-files":
		return things.NewUnitFiles(name), nil
	case "unit":
		return things.NewUnit(name), nil
	case "node":
		return node.NewPart(name, session)
	case "guard":
		return node.NewGuardThing(name, session)
	case "registered":
		return node.NewRegistered(name), nil
	case "joined":
		return node.NewJoined(name), nil
	case "restart":
		if kubelet.Is(name) {
			return kubelet.NewRestart(name, reads), nil
		}
		if drivers.IsIMEX(name) {
			return drivers.NewIMEX(reads), nil
		}
		if docker.IsUnit(name) {
			return docker.NewRestart(name, reads), nil
		}
		return things.NewRestart(name, reads, runtime.Ready), nil
	}
	return nil, fmt.Errorf("cannot undo %s %s: this gpuadm does not know the kind; use the newer gpuadm that made it", ref.Kind, ref.Name)
}

// mergeOf returns the function that takes gpuadm's part out of a file that was changed outside gpuadm, by the form in the journal.
func mergeOf(ref converge.Ref) (merge things.MergeFunc, known bool) {
	switch ref.Form {
	case things.Whole:
		return nil, true
	case engine.FormTOML:
		return engine.TakeOut, true
	case docker.Form:
		return docker.TakeOut, true
	case drivers.FormKeys:
		return drivers.TakeOutKeys, true
	case kubelet.FormKubelet:
		return kubelet.TakeOut, true
	}
	return nil, false
}
