// SPDX-License-Identifier: Apache-2.0

// Package platform has what gpuadm knows of what makes a machine a node: a cloud's image, a
// Kubernetes distribution, a sealed system. Each is one value in a file of its own; no other
// package names one. A platform is data: what gpuadm does about it is chosen by the kinds below.
package platform

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Platform is one way in which a machine becomes a node. What it does not say is the machine's own.
type Platform struct {
	Name  string // in facts and answers: aks
	Title string // in sentences: AKS
	Cloud string // the only cloud where it can be: aws, azure, gce; "" = any, or none
	Signs
	Join   Join
	Engine Engine
	Driver Driver
	MIG    MIG
	Plugin Plugin
	Labels []string // domains and keys of labels and taints that are its to set
	Snap   *Snap    // where a snap has its daemons
	Limit  string   // what gpuadm cannot do there, for plan and for its page
}

// Signs are how a platform is recognised: all of Every, one of One, and the system's name. Names
// without a slash are units.
type Signs struct {
	Every, One []string
	OS         string // ID in os-release; "" = any
}

// Join says who makes the machine a node.
type Join struct {
	Method string   // of [join] in node.toml; "" = none of its own
	By     string   // what joins the machine and writes kubelet's files at each boot; "" = no program
	Unseen bool     // its kubelet runs out of sight, in a container
	Done   string   // the file that is there once its scripts have ended, well or not; until then nothing is touched
	Log    string   // of those scripts
	Looked string   // where a machine without the signs was looked at
	Try    string   // how a machine gets into it
	Begin  string   // what it writes, for the check before the first change
	AtBoot []string // what to do instead of a driver at boot, where its scripts wait for gpuadm then
	Notes  []string // %s is the sign
	Taints string   // %s are the taints; where it takes them
}

// How is what the stage runtime does about an engine's configuration that another program writes.
type How string

const (
	Edits  How = ""       // the file is edited, and the daemon restarted
	Entry  How = "entry"  // an entry of the owner's must run a program that is there
	NoNeed How = "none"   // pods get the GPUs without a handler
	After  How = "after"  // once the owner's scripts have ended, the file is edited
	Boot   How = "boot"   // the owner writes it after gpuadm in a boot
	Render How = "render" // the owner's daemon renders it at each start
	Folder How = "folder" // the owner merges a folder of additions into it
)

// Engine says who writes the engine's configuration.
type Engine struct {
	Writer  string // its name in facts; "" = no program
	How     How
	Handler string // its own handler, where it has one and calls it otherwise than nvidia
}

// Driver says by which signs the driver is the platform's.
type Driver struct {
	Title      string // "the EKS image"; "" = the platform brings none
	Files      []string
	Unpackaged bool   // a driver of no package is its doing
	Installer  string // the folder by which its use of NVIDIA's installer is known
	TakeOver   string // how an operator gets to manage it
}

// MIG says what of its own units partitions the GPUs.
type MIG struct{ Ends string }

// Plugin is a unit by which it offers GPUs to kubelet.
type Plugin struct {
	Units []string
	Ends  string
}

// Snap is where a snap has the arguments of its daemons, and their units.
type Snap struct{ Args, Engine, Kubelet string }

// All lists the narrower ones first.
func All() []Platform {
	return []Platform{eks, eksHybrid, eksUbuntu, eksAL2, aksFlex, aks, gke, oke, microK8s, k8sSnap}
}

// Of is the platform of a name; one without a name where there is none.
func Of(name string) Platform {
	for _, p := range All() {
		if p.Name == name && name != "" {
			return p
		}
	}
	return Platform{}
}

// ByMethod is the first platform whose machines join by a method of [join].
func ByMethod(method string) Platform {
	i := slices.IndexFunc(All(), func(p Platform) bool { return p.Join.Method == method && p.Join.Looked != "" })
	if i < 0 {
		return Platform{}
	}
	return All()[i]
}

// Writes says whether a program of a name joins machines, and so writes kubelet's and the engine's
// files at each boot.
func Writes(name string) bool {
	return name != "" && slices.ContainsFunc(All(), func(p Platform) bool { return p.Engine.Writer == name && p.Join.By != "" })
}

// WriterOf is the platform whose program of a name writes the engine's configuration.
func WriterOf(name string) Platform {
	for _, p := range All() {
		if p.Engine.Writer == name && name != "" {
			return p
		}
	}
	return Platform{}
}

// Done are the files that are there once a platform's scripts have ended.
func Done() (files []string) {
	for _, p := range All() {
		if p.Join.Done != "" {
			files = append(files, p.Join.Done)
		}
	}
	return files
}

// Detect finds the platform by its files.
func Detect(v host.View) (p Platform, why string) {
	for _, p := range All() {
		if why := p.sign(v); why != "" {
			return p, why
		}
	}
	return Platform{}, ""
}

// sign names the signs that were found, "" if a required one is missing.
func (s Signs) sign(v host.View) string {
	if s.OS != "" && s.OS != systemID(v) {
		return ""
	}
	if len(s.Every) == 0 || slices.ContainsFunc(s.Every, func(name string) bool { return !has(v, name) }) {
		return ""
	}
	if len(s.One) == 0 {
		return strings.Join(s.Every, " and ")
	}
	for _, name := range s.One {
		switch {
		case !has(v, name):
		case strings.HasPrefix(name, "/"):
			return name
		default:
			return s.Every[0] + " and " + name
		}
	}
	return ""
}

// has says whether a file is there, or a unit's file in one of systemd's folders. If it cannot be
// read, the answer is no.
func has(v host.View, name string) bool {
	dirs := []string{"/etc/systemd/system/", "/run/systemd/system/", "/usr/local/lib/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/"}
	if strings.HasPrefix(name, "/") {
		dirs = []string{""}
	}
	return slices.ContainsFunc(dirs, func(dir string) bool { _, err := v.Stat(dir + name); return err == nil })
}

// systemID is ID in os-release, "" if it cannot be read. Source: os-release(5).
func systemID(v host.View) string {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := v.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if id, ok := strings.CutPrefix(strings.TrimSpace(line), "ID="); ok {
				return strings.Trim(id, `"'`)
			}
		}
		return ""
	}
	return ""
}
