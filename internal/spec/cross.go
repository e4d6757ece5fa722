// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// This file checks several keys together, over all files. It skips a key whose own check has
// failed.

// passed reports whether the own check of each key has passed.
func (d *decoder) passed(keys ...string) bool {
	isBad := func(key string) bool { return d.places[key].bad }
	return !slices.ContainsFunc(keys, isBad)
}

// refuse notes a fault at the place of a key.
func (d *decoder) refuse(key, fix, format string, args ...any) {
	if place := d.places[key]; place.src != nil {
		place.src.addf(place.at, fix, format, args...)
	}
}

// A crossRule refuses a combination of two sections. Pairs of sections without a rule do not depend
// on each other: a test lists all pairs.
type crossRule struct {
	a, b  string
	check func(*decoder, Spec)
}

func crossRules() []crossRule {
	return []crossRule{
		{"sharing", "mig", (*decoder).mps},
		{"sharing", "mig", (*decoder).single},
		{"mig", "driver", (*decoder).indices},
		{"mig", "node", (*decoder).follows},
	}
}

func (d *decoder) cross() {
	d.repo("driver", d.spec.Driver.Repo)
	d.repo("toolkit", d.spec.Toolkit.Repo)
	d.runfile(d.spec.Driver)
	d.imex(d.spec.Driver)
	d.join(d.spec.Join)
	d.mig(d.spec.MIG)
	d.sharing(d.spec.Sharing)
	d.inject(d.spec.Runtime)
	d.labels(d.spec.Node)
	d.startupTaint(d.spec.Node)
	for _, r := range crossRules() {
		r.check(d, d.spec)
	}
}

// repo requires a fingerprint: a key without one is no protection.
func (d *decoder) repo(section string, r Repo) {
	section += ".repo"
	url := section + ".url"
	key := section + ".key"
	fingerprint := section + ".fingerprint"
	if !d.passed(url, key, fingerprint) {
		return
	}

	name := header(section)
	switch {
	case r.URL == "" && r.Key != "":
		d.refuse(key, "write the repository's url, or take the key out", "%s has a key, but no url", name)
	case r.URL == "" && r.Fingerprint != "":
		d.refuse(fingerprint,
			"write the repository's url, or take the fingerprint out",
			"%s has a fingerprint, but no url", name)
	case r.URL == "": // no repository is meant
	case r.Key == "":
		d.refuse(url,
			`write key = "/etc/gpuadm/keys/NAME.asc"`,
			"%s has no key: packages without a signature are refused", name)
	case r.Fingerprint == "":
		d.refuse(url,
			"write fingerprint = what gpg --show-keys "+r.Key+" prints, if it is the right one",
			"%s has no fingerprint of its key", name)
	}
}

// runfile requires a digest, since the script runs as root, and an exact version.
func (d *decoder) runfile(v Driver) {
	const (
		source  = "driver.source"
		version = "driver.version"
		url     = "driver.runfile.url"
		digest  = "driver.runfile.sha256"
	)
	if !d.passed(source, version, url, digest) {
		return
	}

	wanted := v.Source == "runfile"
	isBranch := v.Version != "" && !strings.Contains(v.Version, ".")
	switch {
	case !wanted && v.Runfile.URL != "":
		d.refuse(url,
			`write source = "runfile" in [driver], or take the url out`,
			"[driver.runfile] has a url, but the driver comes from elsewhere")
	case !wanted && v.Runfile.SHA256 != "":
		d.refuse(digest,
			`write source = "runfile" in [driver], or take it out`,
			"[driver.runfile] has a sha256, but the driver comes from elsewhere")
	case !wanted:
	case v.Runfile.SHA256 == "":
		d.refuse(source,
			"write sha256 = what sha256sum FILE says in [driver.runfile], if it is the right one",
			`source = "runfile" needs the file's sha256: it runs as root`)
	case isBranch:
		d.refuse(version,
			`write version = "580.95.05", or another exact one`,
			"a runfile is of one exact version, not of a branch")
	}
}

// imex refuses a list of nodes without an IMEX on the host.
func (d *decoder) imex(v Driver) {
	if v.IMEX == "host" || len(v.IMEXNodes) == 0 || !d.passed("driver.imex", "driver.imex_nodes") {
		return
	}
	d.refuse("driver.imex_nodes",
		`write imex = "host" in [driver], or take imex_nodes out`,
		"imex_nodes names the nodes of the host's IMEX, and the host runs none")
}

// inject checks inject = "cdi", which configures no handler that could be the default, and needs
// CDI.
func (d *decoder) inject(r Runtime) {
	if r.Inject != "cdi" || !d.passed("runtime.inject", "runtime.set_as_default", "runtime.cdi") {
		return
	}
	switch {
	case r.SetAsDefault:
		d.refuse("runtime.set_as_default",
			`write inject = "handler" in [runtime], or take it out`,
			`inject = "cdi" configures no handler that could be the default`)
	case !r.CDI:
		d.refuse("runtime.cdi",
			`write inject = "handler" in [runtime], or take it out`,
			`inject = "cdi" gives no container a GPU without CDI`)
	}
}

// mostByMPS is how many clients an MPS server serves, on Volta and later GPUs.
// Sources: https://docs.nvidia.com/deploy/mps, "Volta MPS"; NVIDIA/k8s-device-plugin,
// cmd/mps-control-daemon/mps/device.go (assertReplicas).
const mostByMPS = 48

// sharing refuses mps with time_slicing, like the device plugin, and more pods than MPS serves.
// Source: api/config/v1/sharing.go of https://github.com/NVIDIA/k8s-device-plugin.
func (d *decoder) sharing(s Sharing) {
	if s.MPS > 0 && s.TimeSlicing > 0 && d.passed("sharing.mps", "sharing.time_slicing") {
		d.refuse("sharing.mps", "keep one of the two", "[sharing] has mps and time_slicing")
	}
	if s.MPS > mostByMPS && d.passed("sharing.mps") {
		d.refuse("sharing.mps",
			fmt.Sprintf("write %d or less, or time_slicing, which has no such limit", mostByMPS),
			"an MPS server serves at most %d clients, and NVIDIA's control daemon starts none for more pods", mostByMPS)
	}
}

func (d *decoder) labels(n Node) {
	if n.Kubeconfig != "" || !d.passed("node.kubeconfig") {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		if !RestrictedLabel(key) {
			continue
		}
		_, name, _ := strings.Cut(key, "/")
		ownPrefix := `use a prefix of your own, such as "example.com/` + name + `"`
		byHand := "kubectl label node NODE " + key + "=" + n.Labels[key]
		d.refuse("node.labels."+key,
			ownPrefix+"; or name in kubeconfig a ServiceAccount's that may set it; or take it out here, and once the node has joined: "+byHand,
			"kubelet may not set the label %s on its own node (NodeRestriction)", show(key))
	}
}

// startupTaint refuses one taint as both: gpuadm would remove the lasting one once the GPUs are
// ready. Two taints with the same key and effect are the same taint.
func (d *decoder) startupTaint(n Node) {
	isTaint := n.StartupTaint != "auto" && n.StartupTaint != "none"
	if !isTaint || !d.passed("node.startup_taint", "node.taints") {
		return
	}

	startup, fault := parseTaint(n.StartupTaint)
	isSame := func(t Taint) bool { return t.Key == startup.Key && t.Effect == startup.Effect }
	if fault != nil || !slices.ContainsFunc(n.Taints, isSame) {
		return
	}
	d.refuse("node.startup_taint",
		`write another key, such as startup_taint = "example.com/gpu-starting:NoSchedule", or take one of the two out`,
		"startup_taint %s is one of taints, too: gpuadm would remove it once the GPUs are ready", startup)
}
