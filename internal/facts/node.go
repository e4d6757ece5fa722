// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"slices"
	"strings"
	"time"
)

// Kubelet is what is known of the kubelet before and after it has joined.
type Kubelet struct {
	Binary       string   `json:"binary,omitempty"`
	Version      string   `json:"version,omitempty"`      // if it can be read; kubelet is not run to ask
	Unit         string   `json:"unit,omitempty"`         // kubelet.service; of K3s and RKE2 their own, which the kubelet is a part of
	Active       string   `json:"active,omitempty"`       // systemd's ActiveState of the unit; "" where no systemd runs
	Requires     []string `json:"requires,omitempty"`     // units whose restart restarts it
	Config       string   `json:"config,omitempty"`       // its KubeletConfiguration file
	ConfigOwner  string   `json:"configOwner,omitempty"`  // who writes its files: kubeadm (at join only), nodeadm, aks, gke, k3s, rke2; "" = no program
	CgroupDriver string   `json:"cgroupDriver,omitempty"` // systemd, cgroupfs; "" if unknown
	Endpoint     string   `json:"endpoint,omitempty"`     // containerRuntimeEndpoint, where stated

	Kubeconfig string    `json:"kubeconfig,omitempty"` // as its command line states it
	NodeName   string    `json:"nodeName,omitempty"`   // as its command line states it, else the host's name in lower case; a cloud may give another
	Joined     bool      `json:"joined,omitempty"`     // the kubeconfig is there, and what it names as credentials too
	Expired    time.Time `json:"expired,omitzero"`     // when its client certificate ends; zero if it has none

	Labels   map[string]string `json:"labels,omitempty"` // those it registers the node with, as its command line states them
	Taints   []Taint           `json:"taints,omitempty"` // those it registers the node with
	LabelsAt Place             `json:"labelsAt,omitzero"`
	TaintsAt Place             `json:"taintsAt,omitzero"`
	Files    []File            `json:"files,omitempty"` // its unit's environment files and its config files, there or not, in the order in which they are read
}

// Reads are the files that it reads at its start, each once.
func (k Kubelet) Reads() (names []string) {
	for _, file := range k.Files {
		if !slices.Contains(names, file.Path) {
			names = append(names, file.Path)
		}
	}
	return names
}

// Taint is one taint of a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"` // NoSchedule, PreferNoSchedule, NoExecute
}

// Place is where gpuadm writes its labels or taints: kubelet reads them there, and the owner of its other files keeps them.
type Place struct {
	// How is one of
	//   - "env": the variable Var of the file File of KEY=VALUE lines holds an administrator's flags; the file need not exist
	//   - "drop-in": gpuadm's file in the folder File, which need not exist: OwnConf, a KubeletConfiguration with the whole list
	//     under Key, or OwnSettings, of K3s and RKE2, with the Key "node-label+" that adds to the list
	//   - "": there is no such place, and Why says why
	How  string `json:"how,omitempty"`
	File string `json:"file,omitempty"`
	Var  string `json:"var,omitempty"`
	Key  string `json:"key,omitempty"`
	Why  string `json:"why,omitempty"`

	// Others are the taints that kubelet would register with if neither Var nor OwnConf named any. A list replaces those before
	// it, so what is written to the place must repeat them.
	Others []Taint `json:"-"`
}

// gpuadm's files beside an owner's: the daemons read both folders in the order of names, and the last file wins.
const (
	OwnConf     = "zz-gpuadm.conf" // kubelet reads only names that end in .conf
	OwnSettings = "zz-gpuadm.yaml" // K3s and RKE2 read .yaml and .yml
)

// Uses says whether kubelet's endpoint is an engine's socket. Without a stated endpoint it is unknown.
func (k Kubelet) Uses(e Engine) bool {
	socket := func(s string) string {
		s = strings.TrimPrefix(s, "unix://")
		if rest, ok := strings.CutPrefix(s, "/var/run/"); ok {
			return "/run/" + rest // /var/run is a link to it, and kubeadm writes the old name
		}
		return s
	}
	return k.Endpoint != "" && socket(k.Endpoint) == socket(e.Socket)
}
