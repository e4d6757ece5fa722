// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/runtime"
)

// ThingOf builds a thing again, for undo.
func ThingOf(ref converge.Ref) (converge.Thing, error) {
	return thingOf(nil, new(packages.Reading), ref)
}

func thingOf(node *cloud.Session, database *packages.Reading, ref converge.Ref) (converge.Thing, error) {
	switch name, reads := ref.Name, ref.Reads; ref.Kind {
	case "file":
		return cloud.NewFile(name, mergeOf(name)), nil
	case "folder":
		return things.NewFolder(name), nil
	case "mig":
		return mig.New(name), nil
	case "cdi":
		return things.NewCDI(name), nil
	case "device-links":
		return things.NewDeviceLinks(), nil
	case "paused":
		return things.NewPaused(name), nil
	case "package":
		return packages.New(name, database), nil
	case "package-database":
		return packages.NewDatabase(name), nil
	case "package-lists":
		return packages.NewLists(name, reads), nil
	case "package-stream":
		return packages.NewStream(name), nil
	case "package-key":
		return packages.NewKey(name, reads), nil
	case "module":
		return things.NewModule(reads, drivers.OnDisk), nil
	case "module-file":
		return things.NewModuleFile(name, drivers.OnDiskProven), nil
	case "dkms":
		if t, is := things.NewDKMSBeside(name, drivers.BuiltBeside); is {
			return t, nil
		}
		return things.NewDKMS(name, drivers.Built), nil
	case "runfile":
		return drivers.NewRunfile(name), nil
	case "initramfs":
		return things.NewInitramfs(name, reads), nil
	case "fabric":
		return things.NewFabric(), nil
	case "key":
		return things.NewKey(name), nil
	case "secret":
		return things.NewSecret(name), nil
	case "unit-files":
		return things.NewUnitFiles(name), nil
	case "unit":
		return things.NewUnit(name), nil
	case "node":
		return cloud.NewNodePart(name, node)
	case "guard":
		return cloud.NewGuardThing(name, node)
	case "bootstrap":
		return cloud.NewCertificate(name), nil
	case "registered":
		return cloud.NewRegistered(name), nil
	case "joined":
		return cloud.NewJoined(name), nil
	case "restart":
		if cloud.IsKubelet(name) {
			return cloud.NewFresh(name, reads), nil
		}
		if drivers.IsIMEX(name) {
			return drivers.NewIMEX(reads), nil
		}
		return things.NewRestart(name, reads, runtime.Ready), nil
	}
	return nil, fmt.Errorf("cannot undo %s %s: this gpuadm does not know the kind; use the newer gpuadm that made it", ref.Kind, ref.Name)
}

// mergeOf returns how to take gpuadm's part out of a file that was changed outside gpuadm since.
func mergeOf(name string) things.MergeFunc {
	switch {
	case path.Ext(name) == ".toml":
		return runtime.TakeOut
	case name == drivers.IMEXConfig:
		return drivers.TakeOutIMEX
	}
	return cloud.TakeOut // which refuses files that are not kubelet's
}
