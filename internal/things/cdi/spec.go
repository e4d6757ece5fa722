// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"
	lib "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

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
		return s, "it is no CDI spec"
	}
	s.Spec = raw
	vendor, class := parser.ParseQualifier(raw.Kind)
	//lint:ignore SA1019 the function that replaces it lies in a module of its own, which would be one more direct dependency
	least, err := lib.MinimumRequiredVersion(raw)
	is, no := version.NewVersion(raw.Version)
	if no != nil {
		return s, "it has no cdiVersion"
	}
	faults := []error{err, parser.ValidateVendorName(vendor), parser.ValidateClassName(class), (&lib.ContainerEdits{ContainerEdits: &raw.ContainerEdits}).Validate()}
	names := map[string]bool{}
	for _, d := range raw.Devices {
		faults = append(faults, parser.ValidateDeviceName(d.Name), (&lib.ContainerEdits{ContainerEdits: &d.ContainerEdits}).Validate())
		if names[d.Name] {
			faults = append(faults, fmt.Errorf("it has the device %s twice", d.Name))
		}
		names[d.Name] = true
	}
	if err := cmp.Or(faults...); err != nil {
		return s, err.Error()
	}
	switch needs, err := version.NewVersion(least); {
	case is.GreaterThan(version.Must(version.NewVersion(newest))):
		return s, fmt.Sprintf("it says cdiVersion %s, which engines of today do not read", raw.Version)
	case engine != "" && is.GreaterThan(version.Must(version.NewVersion(engine))):
		return s, fmt.Sprintf("it says cdiVersion %s, and the container engine here reads none after %s", raw.Version, engine)
	case err == nil && is.LessThan(needs):
		return s, fmt.Sprintf("it says cdiVersion %s, and what it has came with %s", raw.Version, least)
	}
	return s, ""
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
func cdiDevices(d host.Driver) (list []cdiDevice) {
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
			for _, i := range g.Instances {
				for _, c := range i.Compute {
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
	} else if err != nil {
		return "", err
	}
	s, why := read(text, "")
	if s.Spec == nil || why != "" {
		return why, nil
	}
	if problem := otherDevices(s, want); problem != "" {
		return problem, nil
	}
	return otherFiles(s, v, d.Version)
}

// otherDevices compares devices: by UUID if the spec names them so, as the service's defaults do;
// else by their number.
func otherDevices(s lib.Spec, want []cdiDevice) string {
	nodes, others := map[string][]string{}, 0
	for _, e := range s.Devices {
		if strings.HasPrefix(e.Name, "GPU-") || strings.HasPrefix(e.Name, "MIG-") {
			for _, n := range e.ContainerEdits.DeviceNodes {
				nodes[e.Name] = append(nodes[e.Name], n.Path)
			}
		} else if e.Name != "all" {
			others++
		}
	}
	if len(nodes) == 0 || slices.ContainsFunc(want, func(d cdiDevice) bool { return d.uuid == "" }) {
		if n := max(others, len(nodes)); n != len(want) {
			return fmt.Sprintf("it has %s, the driver has %d", trouble.Count(n, "device"), len(want))
		}
		return ""
	}
	for _, d := range want {
		has, there := nodes[d.uuid]
		if !there {
			return d.uuid + " is not in it"
		}
		if d.node != "" && !slices.Contains(has, d.node) {
			return fmt.Sprintf("it gives %s without %s", d.uuid, d.node)
		}
		delete(nodes, d.uuid)
	}
	for _, e := range s.Devices {
		if _, left := nodes[e.Name]; left {
			return fmt.Sprintf("it names %s, which is not there", e.Name)
		}
	}
	return ""
}

// otherFiles checks the files that containers get: they must exist, and the driver's libraries must
// have its version in their names.
func otherFiles(s lib.Spec, v host.View, version string) (string, error) {
	var names []string
	all := []lib.ContainerEdits{{ContainerEdits: &s.ContainerEdits}}
	for i := range s.Devices {
		all = append(all, lib.ContainerEdits{ContainerEdits: &s.Devices[i].ContainerEdits})
	}
	for _, e := range all {
		for _, m := range e.Mounts {
			for _, library := range []string{"libcuda.so.", "libnvidia-ml.so."} {
				is, of := strings.CutPrefix(path.Base(m.HostPath), library)
				if of && strings.Contains(is, ".") && version != "" && is != version {
					return fmt.Sprintf("it mounts the driver %s, and %s is loaded", is, version), nil
				}
			}
			names = append(names, m.HostPath)
		}
		for _, n := range e.DeviceNodes {
			names = append(names, cmp.Or(n.HostPath, n.Path))
		}
		for _, h := range e.Hooks {
			names = append(names, h.Path)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if _, err := v.Stat(name); host.NotExist(err) {
			return fmt.Sprintf("it names %s, which is not there", name), nil
		} else if err != nil {
			return "", err
		}
	}
	return "", nil
}

// OtherSpecs are the CDI specs on a machine except the toolkit's own, each read once.
type OtherSpecs struct {
	ours  string              // the toolkit's
	list  map[string]lib.Spec // by path
	wrong map[string]string   // by path, why an engine does not use one
}

// ReadOtherSpecs reads all other specs, as an engine does that knows versions up to this one; and
// the toolkit's own for its version. A missing folder has none.
func ReadOtherSpecs(v host.View, engine string) OtherSpecs {
	all := OtherSpecs{Output(v), map[string]lib.Spec{}, map[string]string{}}
	at, err := v.Resolve(all.ours)
	if err != nil {
		at = all.ours
	}
	for _, dir := range lib.DefaultSpecDirs {
		names, _ := v.ReadDir(dir)
		for _, name := range names {
			file := path.Join(dir, name)
			if ext := path.Ext(name); ext != ".yaml" && ext != ".json" {
				continue
			}
			text, err := v.ReadFile(file)
			if err != nil {
				continue
			}
			s, why := read(text, engine)
			if is, err := v.Resolve(file); err == nil && is == at {
				if _, broken := read(text, ""); broken == "" && why != "" { // what is broken, the toolkit's service writes again
					all.wrong[file] = why
				}
				continue
			}
			if all.wrong[file] = why; s.Spec != nil {
				all.list[file] = s
			}
		}
	}
	return all
}

// Offers says whether a usable spec in these folders is for a kind of devices; no folders are the
// usual ones.
func Offers(v host.View, kind string, folders []string) bool {
	if folders == nil {
		folders = lib.DefaultSpecDirs
	}
	for _, dir := range folders {
		names, _ := v.ReadDir(dir)
		for _, name := range names {
			if ext := path.Ext(name); ext != ".yaml" && ext != ".json" {
				continue
			}
			text, _ := v.ReadFile(path.Join(dir, name))
			if s, why := read(text, ""); why == "" && s.Kind == kind {
				return true
			}
		}
	}
	return false
}

// Notes name the other specs that no engine uses, or that are for the toolkit's kind of devices,
// and what to do about them.
func (o OtherSpecs) Notes(v host.View) (notes []string) {
	for _, s := range o.Foreign(v) {
		note := s.File + ": " + s.Problem
		if s.Kind == Kind {
			note = fmt.Sprintf("%s is a CDI spec for %s too, and nothing here keeps it current", s.File, Kind)
			if s.Conflicts {
				note += "; devices that " + o.ours + " names as well cannot be used: remove one of the two"
			}
			if s.Problem != "" {
				note += "; " + s.Problem + ": remove it"
			}
		}
		notes = append(notes, note)
	}
	return notes
}

// A ForeignSpec is a CDI spec that gpuadm does not keep current, and that is for nvidia.com/gpu or
// that engines cannot use.
type ForeignSpec struct {
	File, Kind string
	Conflicts  bool   // it is in the folder of the toolkit's spec
	Problem    string // why it is not used, or which of its files is not there; "" if all is well
}

// Foreign lists them. If two specs in one folder name the same device, engines use neither; of two
// folders the last one wins.
// Sources: "CDI JSON Definition" and refresh in pkg/cdi/cache.go of
// https://github.com/cncf-tags/container-device-interface;
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html on
// /etc/cdi and /var/run/cdi.
func (o OtherSpecs) Foreign(v host.View) (list []ForeignSpec) {
	first := map[string]string{} // by folder and device
	for _, file := range slices.Sorted(maps.Keys(o.wrong)) {
		f := ForeignSpec{File: file, Problem: o.wrong[file]}
		if s, ok := o.list[file]; ok {
			f.Kind = s.Kind
			for _, d := range s.Devices {
				at := path.Dir(file) + " " + s.Kind + "=" + d.Name
				if other := first[at]; other != "" && other != file && f.Problem == "" {
					f.Problem = fmt.Sprintf("%s names %s=%s as well, so engines use neither", other, s.Kind, d.Name)
				}
				first[at] = file
			}
			if f.Kind == Kind && f.Problem == "" {
				f.Problem, _ = otherFiles(s, v, "") // "" if the files cannot be looked at
			}
		}
		if f.Conflicts = f.Kind == Kind && path.Dir(o.ours) == path.Dir(file); f.Kind == Kind || f.Problem != "" {
			list = append(list, f)
		}
	}
	return list
}

// Injectors are the programs that give containers GPUs by CDI devices of their own, recognised by
// their specs: then no handler is needed. The GPU Operator's NRI plugin writes no spec, so gpuadm
// cannot see it.
// Sources: cmd/nvidia-device-plugin/plugin-manager.go of
// https://github.com/NVIDIA/k8s-device-plugin (k8s.device-plugin.nvidia.com);
// cmd/gpu-kubelet-plugin/cdi.go of https://github.com/NVIDIA/k8s-dra-driver-gpu ("k8s." and the
// driver's name, gpu.nvidia.com).
func (o OtherSpecs) Injectors() (who []string) {
	for file, s := range o.list {
		for vendor, is := range map[string]string{"k8s.device-plugin.nvidia.com": "a device plugin", "k8s.gpu.nvidia.com": "the DRA driver"} {
			if path.Dir(file) == "/var/run/cdi" && strings.HasPrefix(s.Kind, vendor+"/") && !slices.Contains(who, is) {
				who = append(who, is)
			}
		}
	}
	slices.Sort(who)
	return who
}
