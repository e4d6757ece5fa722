// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
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
	ConfigOwner  string   `json:"configOwner,omitempty"`  // who writes its files: kubeadm (at join only), nodeadm, aks, gke, k3s, rke2; "" = nobody
	CgroupDriver string   `json:"cgroupDriver,omitempty"` // systemd, cgroupfs; "" if unknown
	Endpoint     string   `json:"endpoint,omitempty"`     // containerRuntimeEndpoint, where stated

	Kubeconfig string    `json:"kubeconfig,omitempty"` // as its command line states it
	Bootstrap  string    `json:"bootstrap,omitempty"`  // the kubeconfig it asks for a certificate with, as its command line states it
	NodeName   string    `json:"nodeName,omitempty"`   // as its command line states it, else the host's name in lower case; a cloud may give another
	Joined     bool      `json:"joined,omitempty"`     // the kubeconfig is there, and what it names as credentials too
	Expired    time.Time `json:"expired,omitzero"`     // when its client certificate ends; zero if it has none

	Labels   map[string]string `json:"labels,omitempty"` // those it registers the node with, as its command line states them
	Taints   []Taint           `json:"taints,omitempty"` // those it registers the node with
	LabelsAt Place             `json:"labelsAt,omitzero"`
	TaintsAt Place             `json:"taintsAt,omitzero"`
	Files    []File            `json:"files,omitempty"` // its unit's environment files and its config files, there or not, in the order in which they are read
}

// Taint is one taint of a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"` // NoSchedule, PreferNoSchedule, NoExecute
}

// Place is where a change to kubelet's labels or taints must go, so that kubelet reads it and its owner keeps it.
type Place struct {
	// How is one of
	//   - "env": the variable Var of the file File of KEY=VALUE lines holds flags; the file need not be there
	//   - "config": the key Key of the file File, a KubeletConfiguration in YAML or JSON
	//   - "drop-in": a file of our own in the folder File, which need not be there, read by name after those that are: a
	//     KubeletConfiguration NAME.conf with the whole list under Key, or of K3s and RKE2 NAME.yaml, whose Key "node-label+"
	//     adds to the list
	//   - "unit": File is a drop-in of our own of kubelet's unit; where Var is set it sets Environment=Var, else it
	//     empties ExecStart and repeats it with a flag more
	//   - "": there is no such place, and Why says why
	How  string `json:"how,omitempty"`
	File string `json:"file,omitempty"`
	Var  string `json:"var,omitempty"`
	Key  string `json:"key,omitempty"`
	Why  string `json:"why,omitempty"`

	// Value is what to begin with, as it would be without File: what Var holds then, wherever it is set (a file's line hides
	// the unit's, so the whole must be carried over), or the ExecStart to repeat.
	Value string `json:"-"`
	// Private says that a file of the unit, from which Value may be, is not readable by all: then no copy of it may be either.
	Private bool `json:"-"`
}

// Uses says whether the kubelet is told to use an engine, by its socket. Without a stated endpoint nobody can tell.
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
