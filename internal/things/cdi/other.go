// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	lib "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuadm/gpuadm/internal/host"
)

// OtherSpecs are the CDI specs on a machine except the toolkit's own, each read once.
type OtherSpecs struct {
	toolkit string              // the toolkit's own, by path
	list    map[string]lib.Spec // by path
	wrong   map[string]string   // by path, why an engine does not use one
}

// ReadOtherSpecs reads all other specs, as an engine does that knows versions up to this one; and
// the toolkit's own for its version. A missing folder has none; no folders are the usual ones.
func ReadOtherSpecs(v host.View, engine string, folders ...string) OtherSpecs {
	if len(folders) == 0 {
		folders = lib.DefaultSpecDirs
	}

	all := OtherSpecs{
		toolkit: Output(v),
		list:    map[string]lib.Spec{},
		wrong:   map[string]string{},
	}
	toolkit, err := v.Resolve(all.toolkit)
	if err != nil {
		toolkit = all.toolkit
	}

	for _, file := range specFiles(v, folders) {
		text, err := v.ReadFile(file)
		if err != nil {
			continue
		}
		s, why := read(text, engine)
		target, err := v.Resolve(file)
		if err == nil && target == toolkit {
			_, broken := read(text, "") // the toolkit's service writes a broken one again
			if broken == "" && why != "" {
				all.wrong[file] = why
			}
			continue
		}

		all.wrong[file] = why
		if s.Spec != nil {
			all.list[file] = s
		}
	}

	return all
}

// specFiles are the files in the folders that engines read as specs.
func specFiles(v host.View, folders []string) []string {
	var files []string
	for _, folder := range folders {
		names, _ := v.ReadDir(folder)
		for _, name := range names {
			ext := path.Ext(name)
			if ext == ".yaml" || ext == ".json" {
				files = append(files, path.Join(folder, name))
			}
		}
	}

	return files
}

// Offers reports whether a usable spec in these folders is for a kind of devices; no folders are
// the usual ones. A spec that is gone by now offers nothing.
func Offers(v host.View, kind string, folders []string) (bool, error) {
	if folders == nil {
		folders = lib.DefaultSpecDirs
	}

	var unread error
	for _, folder := range folders {
		_, err := v.ReadDir(folder)
		if !host.NotExist(err) {
			unread = cmp.Or(unread, err)
		}
	}

	for _, file := range specFiles(v, folders) {
		text, err := v.ReadFile(file)
		if err != nil && !host.NotExist(err) {
			unread = cmp.Or(unread, err)
		}
		s, why := read(text, "")
		if why == "" && s.Kind == kind {
			return true, nil
		}
	}

	return false, unread
}

// Unread is the toolkit's spec where it lies in none of the folders in which an engine looks; ""
// where the engine finds it, or where there is none. Links are followed: /var/run is one.
func Unread(v host.View, folders []string) string {
	name := Output(v)
	if _, err := v.Stat(name); err != nil {
		return ""
	}
	lies, err := v.Resolve(path.Dir(name))
	if err != nil {
		return ""
	}

	for _, folder := range folders {
		looks, err := v.Resolve(folder)
		if err == nil && looks == lies {
			return ""
		}
	}

	return name
}

// Notes name the other specs that no engine uses, or that are for the toolkit's kind of devices,
// and what to do about them.
func (o OtherSpecs) Notes(v host.View) []string {
	var notes []string
	for _, s := range o.Foreign(v) {
		if s.Kind != Kind {
			notes = append(notes, s.File+": "+s.Problem)
			continue
		}
		note := fmt.Sprintf("%s is a CDI spec for %s too, and nothing here keeps it current", s.File, Kind)
		if s.Conflicts {
			note += "; devices that " + o.toolkit + " names as well cannot be used: remove one of the two"
		}
		if s.Problem != "" {
			note += "; " + s.Problem + ": remove it"
		}
		notes = append(notes, note)
	}

	return notes
}

// A ForeignSpec is a CDI spec that gpuadm does not keep current, and that is for nvidia.com/gpu or
// that engines cannot use.
type ForeignSpec struct {
	File      string
	Kind      string
	Conflicts bool   // it is in the folder of the toolkit's spec
	Problem   string // why it is not used, or which of its files is missing; "" if all is well
}

// Foreign lists them. If two specs in one folder name the same device, engines use neither; of two
// folders the last one wins.
// Sources: "CDI JSON Definition" and refresh in pkg/cdi/cache.go of
// https://github.com/cncf-tags/container-device-interface;
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html on
// /etc/cdi and /var/run/cdi.
func (o OtherSpecs) Foreign(v host.View) []ForeignSpec {
	var list []ForeignSpec
	named := map[string]string{} // the last file that names a device, by folder and device
	for _, file := range slices.Sorted(maps.Keys(o.wrong)) {
		f := ForeignSpec{File: file, Problem: o.wrong[file]}
		s, readable := o.list[file]
		if readable {
			f.Kind = s.Kind
			f.Problem = problemOf(v, f, s, named)
		}
		if f.Kind == Kind || f.Problem != "" {
			f.Conflicts = f.Kind == Kind && path.Dir(o.toolkit) == path.Dir(file)
			list = append(list, f)
		}
	}

	return list
}

// problemOf is the problem of f, or else a device that another file in its folder names too, or
// else a missing file. It adds f's devices to named if engines use f.
func problemOf(v host.View, f ForeignSpec, s lib.Spec, named map[string]string) string {
	if f.Problem != "" { // engines leave the whole file out
		return f.Problem
	}

	problem := ""
	for _, d := range s.Devices {
		device := s.Kind + "=" + d.Name
		key := path.Dir(f.File) + " " + device
		other := named[key]
		if other != "" && other != f.File && problem == "" {
			problem = fmt.Sprintf("%s names %s as well, so engines use neither", other, device)
		}
		named[key] = f.File
	}

	if problem == "" && s.Kind == Kind {
		problem, _ = wrongFiles(s, v, "") // "" if the files cannot be looked at
	}

	return problem
}

// Injectors are the programs that give containers GPUs by CDI devices of their own, recognised by
// their specs: then no handler is needed. The GPU Operator's NRI plugin writes no spec, so gpuadm
// cannot see it.
// Sources: cmd/nvidia-device-plugin/plugin-manager.go of
// https://github.com/NVIDIA/k8s-device-plugin (k8s.device-plugin.nvidia.com);
// cmd/gpu-kubelet-plugin/cdi.go of https://github.com/NVIDIA/k8s-dra-driver-gpu ("k8s." and the
// driver's name, gpu.nvidia.com).
func (o OtherSpecs) Injectors() []string {
	programs := []struct{ vendor, name string }{
		{"k8s.device-plugin.nvidia.com", "a device plugin"},
		{"k8s.gpu.nvidia.com", "the DRA driver"},
	}

	var found []string
	for file, s := range o.list {
		for _, p := range programs {
			writes := path.Dir(file) == "/var/run/cdi" && strings.HasPrefix(s.Kind, p.vendor+"/")
			if writes && !slices.Contains(found, p.name) {
				found = append(found, p.name)
			}
		}
	}

	slices.Sort(found)

	return found
}
