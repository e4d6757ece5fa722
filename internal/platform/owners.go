// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"cmp"
	"slices"
	"strings"
)

// Node is a kind of node: a platform on an operating system. Each part that pods with GPUs need has
// one owner there; an empty one is the machine's operator, who may give the part to gpuadm.
// stages.Owners finds on the machine which unit, pod or file has a part, and names its owner and
// the setting that ends the claim by this table; docs/who-owns-what.md is made of it.
type Node struct {
	Name    string
	ID      string // of the platform
	System  string // ID in os-release; "" = any
	Driver  Driver
	Toolkit string // who brings NVIDIA's Container Toolkit
	Engine  Engine
	Kubelet string // who writes kubelet's files
	Env     string // Join.Env
	MIG     MIG
	Plugin  Plugin
}

// NodeOf returns the owners on a platform with an operating system. What a system's maker provides
// goes before what a platform says of other systems.
func NodeOf(id, system string) Node {
	if id == "" && system == openShift.System {
		return openShift
	}
	p := Of(id)
	s := SystemOf(system)
	n := Node{
		Name:    cmp.Or(p.Title, s.Title),
		ID:      id,
		System:  system,
		Driver:  p.Driver,
		Toolkit: cmp.Or(s.Toolkit, p.Toolkit),
		Engine:  p.Engine,
		Kubelet: cmp.Or(p.Join.By, s.Kubelet),
		MIG:     p.MIG,
		Plugin:  p.Plugin,
	}
	if n.Kubelet == "" && (p.Snap != nil || p.Units != nil) {
		n.Kubelet = p.Title
	}
	if s.Driver.Title != "" {
		n.Driver = s.Driver
	}
	if n.Engine.Writer == "" && s.Engine.Writer != "" {
		n.Engine = s.Engine
	}
	if s.MIG.Ends != "" {
		n.MIG = s.MIG
	}
	if len(s.Plugin.Units) > 0 || s.Plugin.Who != "" {
		n.Plugin = s.Plugin
	}
	return n
}

// Of kubeadm's and OpenShift's nodes gpuadm sees the owners by other signs than a platform's files.
var (
	// https://kubernetes.io/docs/reference/setup-tools/kubeadm/implementation-details/, and the
	// package's 10-kubeadm.conf.
	kubeadm = Node{
		Name:    "kubeadm",
		Kubelet: "kubeadm, at init, join and upgrade",
		Env:     "/var/lib/kubelet/kubeadm-flags.env",
	}

	// openshift/machine-config-operator, docs/MachineConfig.md and templates/common/_base;
	// https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/ (the operator brings
	// driver, toolkit and plugin to RHEL CoreOS).
	openShift = Node{
		Name:   "OpenShift",
		System: "rhcos",
		Driver: Driver{
			Title:    "the GPU Operator",
			TakeOver: "driver.enabled=false in its ClusterPolicy",
		},
		Toolkit: "the GPU Operator",
		Engine: Engine{
			Writer: "machine-config-operator",
			Made:   "generated from MachineConfigs and ContainerRuntimeConfigs; gpuadm adds a file next to it",
		},
		Kubelet: "machine-config-operator",
		MIG: MIG{
			Who:  "the GPU Operator",
			Ends: "migManager.enabled=false in its ClusterPolicy",
		},
		Plugin: Plugin{
			Who:  "the GPU Operator",
			Ends: "devicePlugin.enabled=false in its ClusterPolicy",
		},
	}
)

// KubeletWriter names the program that writes kubelet's file of variables; "" if none is known to
// write a file of this name.
func KubeletWriter(file string) string {
	for _, p := range All() {
		if p.Join.Env == file && file != "" {
			return p.Join.By
		}
	}

	if file == kubeadm.Env {
		return kubeadm.Name
	}
	return ""
}

// Envs returns the files of variables that the programs which join machines write for kubelet. They
// have kubelet's flags and nothing else, and may leave the machine in a recording, masked. Sources:
// kubeadm's 10-kubeadm.conf; nodeadm's kubelet.service.
func Envs() []string {
	files := []string{kubeadm.Env}
	for _, p := range All() {
		if p.Join.Env != "" {
			files = append(files, p.Join.Env)
		}
	}

	return files
}

// Tool makes nodes on one platform or several, and alone sets the labels and taints of its domains.
type Tool struct {
	Name    string
	Domains []string
}

// LabelOwner names the platform or the tool that alone sets a label or taint of a key, "" if
// none does. free says that the platform leaves the key to operators, whatever owns its domain.
func LabelOwner(key string) (owner string, free bool) {
	for _, p := range All() {
		switch {
		case slices.Contains(p.Free, key):
			return "", true
		case covered(p.Labels, key):
			return p.Title, false
		}
	}

	for _, tool := range Tools() {
		if covered(tool.Domains, key) {
			return tool.Name, false
		}
	}

	return "", false
}

func covered(patterns []string, key string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return Covers(pattern, key)
	})
}

// Covers reports whether a pattern, which is one key, or a domain with its slash, covers a key.
func Covers(pattern, key string) bool {
	isDomain := strings.HasSuffix(pattern, "/")
	return key == pattern || isDomain && strings.HasPrefix(key, pattern)
}

// UnitOf names the owner of a unit that offers GPUs to kubelet; "" if the machine's kind of node
// has no such unit.
func (p Plugin) UnitOf(unit string) string {
	for _, name := range p.Units {
		if name == unit {
			return p.Who
		}
	}
	return ""
}
