// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Kind is what the toolkit's spec offers. The device plugin's and the DRA driver's have kinds of their own.
const Kind = "nvidia.com/gpu"

// cdiFile is what gpuadm reads of a CDI spec, which is YAML or JSON.
// Source: SPEC.md and specs-go/config.go of https://github.com/cncf-tags/container-device-interface.
type cdiFile struct {
	Kind    string
	Devices []cdiEntry
	Edits   cdiEdits `yaml:"containerEdits"`
}

type cdiEntry struct {
	Name  string
	Edits cdiEdits `yaml:"containerEdits"`
}

type cdiEdits struct {
	Nodes  []cdiNode `yaml:"deviceNodes"`
	Mounts []cdiNode
	Hooks  []cdiNode
}

type cdiNode struct {
	Path     string // of a device node in the container, of a hook on the host
	HostPath string `yaml:"hostPath"`
}

// A cdiDevice is a device for containers.
type cdiDevice struct {
	uuid string
	node string // /dev/nvidia3, of the GPU that it is, or is a part of; "" if unknown
}

// cdiDevices are those that the toolkit's spec offers: GPUs without MIG, and the compute instances of those with it.
// Source: getDeviceSpecGeneratorsForAllDevices in pkg/nvcdi/lib-nvml.go of https://github.com/NVIDIA/nvidia-container-toolkit;
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

// cdiProblem says in what a spec differs from what the driver has; "" if in nothing. No clock is asked: a spec that is older than
// a driver or a partition differs from it, or does not matter.
func cdiProblem(v host.View, name string, d host.Driver, want []cdiDevice) (string, error) {
	text, err := v.ReadFile(name)
	if host.NotExist(err) {
		return "it is not there", nil
	} else if err != nil {
		return "", err
	}
	var s cdiFile
	if err := yaml.Unmarshal(text, &s); err != nil || s.Kind == "" {
		return "it is no CDI spec", nil
	}
	if problem := s.otherDevices(want); problem != "" {
		return problem, nil
	}
	return s.otherFiles(v, d.Version)
}

// otherDevices compares devices. They are named by UUID where the service's own words leave that as it is, else they are counted.
func (s cdiFile) otherDevices(want []cdiDevice) string {
	nodes, others := map[string]cdiEdits{}, 0
	for _, e := range s.Devices {
		if strings.HasPrefix(e.Name, "GPU-") || strings.HasPrefix(e.Name, "MIG-") {
			nodes[e.Name] = e.Edits
		} else if e.Name != "all" {
			others++
		}
	}
	if len(nodes) == 0 || slices.ContainsFunc(want, func(d cdiDevice) bool { return d.uuid == "" }) {
		if n := max(others, len(nodes)); n != len(want) {
			return fmt.Sprintf("it has %d devices, the driver has %d", n, len(want))
		}
		return ""
	}
	for _, d := range want {
		edits, there := nodes[d.uuid]
		if !there {
			return d.uuid + " is not in it"
		}
		if d.node != "" && !slices.ContainsFunc(edits.Nodes, func(n cdiNode) bool { return n.Path == d.node }) {
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

// otherFiles compares the files that containers get: they must be there, and the driver's libraries have its version in their names.
func (s cdiFile) otherFiles(v host.View, version string) (string, error) {
	var names []string
	for _, e := range append([]cdiEntry{{Edits: s.Edits}}, s.Devices...) {
		for _, m := range e.Edits.Mounts {
			for _, library := range []string{"libcuda.so.", "libnvidia-ml.so."} {
				is, of := strings.CutPrefix(path.Base(m.HostPath), library)
				if of && strings.Contains(is, ".") && version != "" && is != version {
					return fmt.Sprintf("it mounts the driver %s, and %s is loaded", is, version), nil
				}
			}
			names = append(names, m.HostPath)
		}
		for _, n := range e.Edits.Nodes {
			if n.HostPath == "" {
				n.HostPath = n.Path
			}
			names = append(names, n.HostPath)
		}
		for _, h := range e.Edits.Hooks {
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

// OtherSpecs are the CDI specs on a machine beside the toolkit's own, each read once.
type OtherSpecs struct {
	ours string             // the toolkit's
	list map[string]cdiFile // by path
}

// ReadOtherSpecs reads them. A folder that is not there has none, and what is no CDI spec is none.
func ReadOtherSpecs(v host.View) OtherSpecs {
	all := OtherSpecs{Output(v), map[string]cdiFile{}}
	at, err := v.Resolve(all.ours)
	if err != nil {
		at = all.ours
	}
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		names, _ := v.ReadDir(dir)
		for _, name := range names {
			file := path.Join(dir, name)
			if ext := path.Ext(name); ext != ".yaml" && ext != ".json" {
				continue
			}
			if is, err := v.Resolve(file); err == nil && is == at {
				continue
			}
			var s cdiFile
			if text, err := v.ReadFile(file); err == nil && yaml.Unmarshal(text, &s) == nil {
				all.list[file] = s
			}
		}
	}
	return all
}

// Notes say which specs of others offer the devices that the toolkit's spec offers, and what follows. Where two specs of one
// folder name a device neither counts; of two folders the last counts. Only what the toolkit's spec does not name, and what is there
// without it, comes from them.
// Sources: "CDI JSON Definition" and pkg/cdi/cache.go of https://github.com/cncf-tags/container-device-interface;
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html on /etc/cdi and /var/run/cdi.
func (o OtherSpecs) Notes(v host.View) (notes []string) {
	for _, s := range o.Foreign(v) {
		note := fmt.Sprintf("%s is a CDI spec for %s too, and nothing here keeps it current", s.File, Kind)
		if s.Conflicts {
			note += "; devices that " + o.ours + " names as well cannot be used: remove one of the two"
		}
		if s.Problem != "" {
			note += "; " + s.Problem + ": remove it"
		}
		notes = append(notes, note)
	}
	return notes
}

// A ForeignSpec is a CDI spec for nvidia.com/gpu that nothing keeps current.
type ForeignSpec struct {
	File      string
	Conflicts bool   // it lies in the folder of the toolkit's spec
	Problem   string // which of its files is not there; "" if all are
}

// Foreign finds them.
func (o OtherSpecs) Foreign(v host.View) (list []ForeignSpec) {
	for _, file := range slices.Sorted(maps.Keys(o.list)) {
		if s := o.list[file]; s.Kind == Kind {
			problem, _ := s.otherFiles(v, "") // none where a file cannot be looked for
			list = append(list, ForeignSpec{file, path.Dir(o.ours) == path.Dir(file), problem})
		}
	}
	return list
}

// Injectors are those who name CDI devices of their own to the engine here, by the specs that they write: then containers get GPUs
// without a handler. The GPU Operator's NRI plugin writes none, so gpuadm cannot see it.
// Sources: cmd/nvidia-device-plugin/plugin-manager.go of https://github.com/NVIDIA/k8s-device-plugin (k8s.device-plugin.nvidia.com);
// cmd/gpu-kubelet-plugin/cdi.go of https://github.com/NVIDIA/k8s-dra-driver-gpu ("k8s." and the driver's name, gpu.nvidia.com).
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
