// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"
	lib "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Kind is the kind of the devices in the toolkit's spec. The device plugin's and the DRA driver's
// specs have other kinds.
const Kind = "nvidia.com/gpu"

// newest is the newest version of the specification that CNCF's library knows: its
// specs-go/version.go and SPEC.md. It is parsed where it is needed: the parser compiles
// expressions, a tenth of gpuadm's start.
const newest = "1.1.0"

// read reads a spec with CNCF's own library, as engines do, and says why an engine does not use the
// spec; "" if it does. engine is the newest version of the specification that the engine here
// knows; "" if that is unknown.
// Source: newSpec and validate in pkg/cdi/spec.go of
// https://github.com/cncf-tags/container-device-interface.
func read(text []byte, engine string) (s lib.Spec, why string) {
	raw, err := lib.ParseSpec(text)
	if err != nil || raw == nil || raw.Kind == "" {
		return s, "it is not a CDI spec"
	}
	s.Spec = raw

	//lint:ignore SA1019 what replaces it is in another module: one more direct dependency
	least, err := lib.MinimumRequiredVersion(raw)
	if why := invalid(raw, err); why != "" {
		return s, why
	}

	return s, wrongVersion(raw, least, engine)
}

// invalid says what a spec has that the specification does not allow. leastErr is the error of
// MinimumRequiredVersion.
func invalid(raw *specs.Spec, leastErr error) string {
	if _, err := version.NewVersion(raw.Version); err != nil {
		return "it has no cdiVersion"
	}
	vendor, class := parser.ParseQualifier(raw.Kind)
	edits := lib.ContainerEdits{ContainerEdits: &raw.ContainerEdits}
	faults := []error{
		leastErr,
		parser.ValidateVendorName(vendor),
		parser.ValidateClassName(class),
		edits.Validate(),
	}

	names := map[string]bool{}
	for _, d := range raw.Devices {
		edits := lib.ContainerEdits{ContainerEdits: &d.ContainerEdits}
		faults = append(faults, parser.ValidateDeviceName(d.Name), edits.Validate())
		if names[d.Name] {
			faults = append(faults, fmt.Errorf("it has the device %s twice", d.Name))
		}
		names[d.Name] = true
	}

	if err := cmp.Or(faults...); err != nil {
		return err.Error()
	}

	return ""
}

// wrongVersion says why a valid spec is of a wrong version of the specification. least is the
// version that has all that the spec uses.
func wrongVersion(raw *specs.Spec, least, engine string) string {
	says := version.Must(version.NewVersion(raw.Version))
	if says.GreaterThan(version.Must(version.NewVersion(newest))) {
		return fmt.Sprintf("it says cdiVersion %s, which engines of today do not read", raw.Version)
	}
	if engine != "" && says.GreaterThan(version.Must(version.NewVersion(engine))) {
		return fmt.Sprintf("it says cdiVersion %s, and the container engine here reads none after %s", raw.Version, engine)
	}

	needs, err := version.NewVersion(least)
	if err == nil && says.LessThan(needs) {
		return fmt.Sprintf("it says cdiVersion %s, and what it has came with %s", raw.Version, least)
	}

	return ""
}

// A cdiDevice is a device for containers.
type cdiDevice struct {
	uuid string
	node string // /dev/nvidia3: the node of its GPU; "" if unknown
}

// cdiDevices are the devices that the toolkit's spec must offer: GPUs without MIG, and the compute
// instances of GPUs with MIG.
// Source: getDeviceSpecGeneratorsForAllDevices in pkg/nvcdi/lib-nvml.go of
// https://github.com/NVIDIA/nvidia-container-toolkit;
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html.
func cdiDevices(d host.Driver) []cdiDevice {
	var list []cdiDevice
	for _, g := range d.GPUs {
		node := ""
		if g.Minor >= 0 {
			node = fmt.Sprintf("/dev/nvidia%d", g.Minor)
		}

		switch {
		case g.Lost != "":
		case !g.Mode:
			list = append(list, cdiDevice{g.UUID, node})
		default:
			for _, in := range g.Instances {
				for _, c := range in.Compute {
					list = append(list, cdiDevice{c.UUID, node})
				}
			}
		}
	}

	return list
}

// cdiProblem says how a spec differs from what the driver has; "" if it does not. It compares no
// times: a spec that is older than the driver or a partition differs, or the difference does not
// matter.
func cdiProblem(v host.View, name string, d host.Driver, want []cdiDevice) (string, error) {
	text, err := v.ReadFile(name)
	if host.NotExist(err) {
		return "it is not there", nil
	}
	if err != nil {
		return "", err
	}

	s, why := read(text, "")
	if why != "" {
		return why, nil
	}
	if problem := wrongDevices(s, want); problem != "" {
		return problem, nil
	}

	return wrongFiles(s, v, d.Version)
}

// wrongDevices compares devices: by UUID if the spec names them so, as the service's defaults do;
// else by their number.
func wrongDevices(s lib.Spec, want []cdiDevice) string {
	nodes := map[string][]string{} // by UUID
	others := 0                    // devices without one
	for _, d := range s.Devices {
		if strings.HasPrefix(d.Name, "GPU-") || strings.HasPrefix(d.Name, "MIG-") {
			for _, n := range d.ContainerEdits.DeviceNodes {
				nodes[d.Name] = append(nodes[d.Name], n.Path)
			}
		} else if d.Name != "all" {
			others++
		}
	}

	withoutUUID := func(d cdiDevice) bool { return d.uuid == "" }
	if len(nodes) == 0 || slices.ContainsFunc(want, withoutUUID) {
		has := max(others, len(nodes))
		if has != len(want) {
			return fmt.Sprintf("it has %s, the driver has %d", trouble.Count(has, "device"), len(want))
		}
		return ""
	}

	for _, d := range want {
		has, listed := nodes[d.uuid]
		if !listed {
			return d.uuid + " is not in it"
		}
		if d.node != "" && !slices.Contains(has, d.node) {
			return fmt.Sprintf("it gives %s without %s", d.uuid, d.node)
		}
		delete(nodes, d.uuid)
	}

	for _, d := range s.Devices {
		if _, left := nodes[d.Name]; left {
			return fmt.Sprintf("it names %s, which is not there", d.Name)
		}
	}

	return ""
}

// wrongFiles checks the files that containers get: they must exist, and the driver's libraries must
// have its version in their names.
func wrongFiles(s lib.Spec, v host.View, version string) (string, error) {
	all := []specs.ContainerEdits{s.ContainerEdits}
	for _, d := range s.Devices {
		all = append(all, d.ContainerEdits)
	}

	var names []string
	for _, edits := range all {
		for _, m := range edits.Mounts {
			if other := otherVersion(m.HostPath, version); other != "" {
				return fmt.Sprintf("it mounts the driver %s, and %s is loaded", other, version), nil
			}
			names = append(names, m.HostPath)
		}

		for _, n := range edits.DeviceNodes {
			names = append(names, cmp.Or(n.HostPath, n.Path))
		}
		for _, h := range edits.Hooks {
			names = append(names, h.Path)
		}
	}

	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		_, err := v.Stat(name)
		if host.NotExist(err) {
			return fmt.Sprintf("it names %s, which is not there", name), nil
		}
		if err != nil {
			return "", err
		}
	}

	return wrongNumbers(all, v)
}

// wrongNumbers compares the device numbers of a spec with those of the nodes on the machine: an
// engine makes a container's nodes by the spec's numbers where it has them, and the kernel gives
// nvidia-uvm another major at a later boot. NVIDIA's toolkit writes numbers from 1.19 on.
// Sources: https://github.com/NVIDIA/nvidia-container-toolkit/issues/1934,
// https://github.com/NVIDIA/NemoClaw/issues/4733; fillInfo in pkg/cdi/container-edits_unix.go of
// https://github.com/cncf-tags/container-device-interface, which fills in missing numbers alone.
func wrongNumbers(all []specs.ContainerEdits, v host.View) (string, error) {
	for _, edits := range all {
		for _, n := range edits.DeviceNodes {
			if n.Major == 0 {
				continue
			}
			name := cmp.Or(n.HostPath, n.Path)
			info, err := v.Stat(name)
			if err != nil {
				return "", err
			}

			has := info.Device
			isDevice := has != host.Device{}
			if isDevice && (int64(has.Major) != n.Major || int64(has.Minor) != n.Minor) {
				return fmt.Sprintf("it has %s as device %d:%d, and the machine has it as %d:%d",
					name, n.Major, n.Minor, has.Major, has.Minor), nil
			}
		}
	}

	return "", nil
}

// otherVersion is the version in the name of a driver's library; "" if it is the loaded driver's,
// or if that is unknown.
func otherVersion(library, version string) string {
	if version == "" {
		return ""
	}

	for _, prefix := range []string{"libcuda.so.", "libnvidia-ml.so."} {
		has, isLibrary := strings.CutPrefix(path.Base(library), prefix)
		if isLibrary && strings.Contains(has, ".") && has != version {
			return has
		}
	}

	return ""
}
