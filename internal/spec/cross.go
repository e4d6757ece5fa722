// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Checks of several keys together, over all files. They skip a key whose own check has failed.

// ok says whether the own check of each key has passed.
func (d *decoder) ok(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return d.places[k].bad })
}

// blame notes a fault at the place of a key.
func (d *decoder) blame(key, fix, format string, args ...any) {
	if p := d.places[key]; p.src != nil {
		p.src.addf(p.at, fix, format, args...)
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
	for _, r := range crossRules() {
		r.check(d, d.spec)
	}
}

// repo requires a fingerprint: a key without one is no protection.
func (d *decoder) repo(section string, r Repo) {
	section += ".repo"
	keys := []string{section + ".url", section + ".key", section + ".fingerprint"}
	if !d.ok(keys...) {
		return
	}
	in := header(section)
	switch {
	case r.URL == "" && r.Key != "":
		d.blame(keys[1], "write the repository's url, or take the key out", "%s has a key, but no url", in)
	case r.URL == "" && r.Fingerprint != "":
		d.blame(keys[2], "write the repository's url, or take the fingerprint out", "%s has a fingerprint, but no url", in)
	case r.URL == "":
	case r.Key == "":
		d.blame(keys[0], `write key = "/etc/gpuadm/keys/NAME.asc"`, "%s has no key: packages without a signature are refused", in)
	case r.Fingerprint == "":
		d.blame(keys[0], "write fingerprint = what gpg --show-keys "+r.Key+" prints, if it is the right one", "%s has no fingerprint of its key", in)
	}
}

// runfile requires a digest, since the script runs as root, and an exact version.
func (d *decoder) runfile(v Driver) {
	const source, url, sum = "driver.source", "driver.runfile.url", "driver.runfile.sha256"
	if !d.ok(source, url, sum, "driver.version") {
		return
	}
	switch {
	case v.Source != "runfile" && v.Runfile.URL != "":
		d.blame(url, `write source = "runfile" in [driver], or take the url out`, "[driver.runfile] has a url, but the driver comes from elsewhere")
	case v.Source != "runfile" && v.Runfile.SHA256 != "":
		d.blame(sum, `write source = "runfile" in [driver], or take it out`, "[driver.runfile] has a sha256, but the driver comes from elsewhere")
	case v.Source != "runfile":
	case v.Runfile.SHA256 == "":
		d.blame(source, "write sha256 = what sha256sum FILE says in [driver.runfile], if it is the right one", `source = "runfile" needs the file's sha256: it runs as root`)
	case v.Version != "" && !strings.Contains(v.Version, "."):
		d.blame("driver.version", `write version = "580.95.05", or another exact one`, "a runfile is of one exact version, not of a branch")
	}
}

// imex refuses a list of nodes without an IMEX on the host.
func (d *decoder) imex(v Driver) {
	if d.ok("driver.imex", "driver.imex_nodes") && v.IMEX != "host" && len(v.IMEXNodes) > 0 {
		d.blame("driver.imex_nodes", `write imex = "host" in [driver], or take imex_nodes out`, "imex_nodes names the nodes of the host's IMEX, and the host runs none")
	}
}

func (d *decoder) mig(m MIG) {
	if m.FollowLabel && d.ok("mig.follow_label", "mig.layout", "mig.file", "mig.gpu") && (m.File == "" || m.Layout != "" || len(m.GPU) > 0) {
		d.blame("mig.follow_label", `write file = "/etc/gpuadm/mig.yaml", and neither layout nor [[mig.gpu]]`, "follow_label needs file, and excludes layout and [[mig.gpu]]")
		return
	}
	if !d.ok("mig.layout", "mig.file", "mig.gpu") || m.Layout == "" {
		return
	}
	if len(m.GPU) > 0 {
		fix := "keep one of the two"
		if d.places["mig.layout"].src != d.places["mig.gpu"].src {
			fix = `keep one of the two; layout = "" or gpu = [] in [mig] takes away what an earlier file says`
		}
		d.blame("mig.layout", fix, "[mig] has a layout and [[mig.gpu]] tables")
		return
	}
	if m.File == "" {
		d.blame("mig.layout", `write file = "/etc/gpuadm/mig.yaml", or [[mig.gpu]] tables in place of the layout`, "no file says what the layout %s is", show(m.Layout))
	}
}

// migGPU checks one [[mig.gpu]] alone.
func (d *decoder) migGPU(v *value) {
	gpu := &d.spec.MIG.GPU[len(d.spec.MIG.GPU)-1]
	if !gpu.Enabled && (len(gpu.Layout) > 0 || len(gpu.Placements) > 0) {
		d.src.addf(v.find("enabled").key, "write enabled = true, or take the layout out", "without MIG there are no partitions")
		return
	}
	if len(gpu.Placements) == 0 {
		return
	}
	placed := map[string]int{}
	for _, p := range gpu.Placements {
		placed[p.Profile]++
	}
	at := v.find("placements").key
	for i, p := range gpu.Placements {
		if slices.Contains(gpu.Placements[:i], p) {
			d.src.addf(at, "give each partition a start of its own", "two of the placements are the same: %s at %d", p.Profile, p.Start)
			return
		}
	}
	if len(gpu.Layout) > 0 && !maps.Equal(gpu.Layout, placed) {
		d.src.addf(at, "give every partition of the layout its place, or leave the layout or the placements out", "the placements are not those of the layout")
	}
}

// inject checks inject = "cdi", which configures no handler that could be the default, and needs
// CDI.
func (d *decoder) inject(r Runtime) {
	if r.Inject != "cdi" || !d.ok("runtime.inject", "runtime.set_as_default", "runtime.cdi") {
		return
	}
	switch {
	case r.SetAsDefault:
		d.blame("runtime.set_as_default", `write inject = "handler" in [runtime], or take it out`, `inject = "cdi" configures no handler that could be the default`)
	case !r.CDI:
		d.blame("runtime.cdi", `write inject = "handler" in [runtime], or take it out`, `inject = "cdi" gives no container a GPU without CDI`)
	}
}

// sharing refuses mps with time_slicing, like the device plugin. Source: api/config/v1/sharing.go
// of https://github.com/NVIDIA/k8s-device-plugin.
func (d *decoder) sharing(s Sharing) {
	if s.MPS > 0 && s.TimeSlicing > 0 && d.ok("sharing.mps", "sharing.time_slicing") {
		d.blame("sharing.mps", "keep one of the two", "[sharing] has mps and time_slicing")
	}
}

// mps refuses MPS on GPUs with MIG and with strategy = "mixed", like the device plugin. Sources:
// "With CUDA MPS" in its README, validateFlags in cmd/nvidia-device-plugin/main.go;
// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html.
func (d *decoder) mps(s Spec) {
	if s.Sharing.MPS == 0 || s.Sharing.TimeSlicing > 0 || !d.ok("sharing.mps", "sharing.time_slicing", "sharing.strategy", "mig.layout", "mig.file", "mig.gpu") {
		return
	}
	mig := s.MIG.Layout != "" || s.MIG.File != "" && len(s.MIG.GPU) == 0 || slices.ContainsFunc(s.MIG.GPU, func(g MIGGPU) bool { return g.Enabled })
	if mig || s.Sharing.Strategy == "mixed" {
		d.blame("sharing.mps", "take mps out, or MIG", "the device plugin does not share GPUs with MIG by MPS")
	}
}

// single checks the tables for the same GPUs together: tables for other models may be for other
// machines.
func (d *decoder) single(s Spec) {
	if !d.ok("sharing.strategy", "mig.gpu") {
		return
	}
	for i, last := range s.MIG.GPU {
		var all []Offers
		for j, g := range s.MIG.GPU[:i+1] {
			if slices.Equal(g.Match, last.Match) {
				all = append(all, Offers{GPU: fmt.Sprintf("[[mig.gpu]] %d", j+1), MIG: g.Enabled, Kinds: g.kinds()})
			}
		}
		if t := s.Sharing.Single(all); t != nil {
			d.blame("sharing.strategy", strings.Join(t.Try, ", or "), "%s", strings.TrimPrefix(t.What, "cannot offer the GPUs: "))
			return
		}
	}
}

// kinds returns the profiles of a table.
func (g MIGGPU) kinds() []string {
	all := slices.Sorted(maps.Keys(g.Layout))
	for _, p := range g.Placements {
		all = append(all, p.Profile)
	}
	return slices.DeleteFunc(all, func(name string) bool { n, has := g.Layout[name]; return has && n == 0 })
}

// indices checks the indices of GPUs, which count from 0.
func (d *decoder) indices(s Spec) {
	for _, g := range s.MIG.GPU {
		i := len(g.Devices.Index) - 1
		if i < 0 || s.Driver.GPUCount == 0 || g.Devices.Index[i] < s.Driver.GPUCount || !d.ok("driver.gpu_count", "mig.gpu") {
			continue
		}
		d.blame("driver.gpu_count", "write devices from 0 to "+strconv.Itoa(s.Driver.GPUCount-1)+", or another gpu_count",
			"[[mig.gpu]] names GPU %d, and with gpu_count = %d there is none", g.Devices.Index[i], s.Driver.GPUCount)
		return
	}
}

// follows refuses the label in [node]: gpuadm would follow a label that it sets itself.
func (d *decoder) follows(s Spec) {
	if _, set := s.Node.Labels[migLabel]; set && s.MIG.FollowLabel && d.ok("mig.follow_label", "node.labels."+migLabel) {
		d.blame("node.labels."+migLabel, "take the label out, or write layout in place of follow_label in [mig]",
			"follow_label has gpuadm follow the label %s, and [node] sets it", migLabel)
	}
}

// migLabel names the layout for NVIDIA's MIG manager, or for gpuadm in its place.
const migLabel = "nvidia.com/mig.config"

func (d *decoder) labels(n Node) {
	if n.Kubeconfig != "" || !d.ok("node.kubeconfig") {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		if !RestrictedLabel(key) {
			continue
		}
		_, name, _ := strings.Cut(key, "/")
		d.blame("node.labels."+key,
			"use a prefix of your own, such as \"example.com/"+name+"\"; or name in kubeconfig a ServiceAccount's that may set it; or take it out here, and once the node has joined: kubectl label node NODE "+key+"="+n.Labels[key],
			"kubelet may not set the label %s on its own node (NodeRestriction)", show(key))
	}
}
