// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"bytes"
	"context"
	_ "embed"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/runtime"
)

// Part is one part of the path by which pods get GPUs. It has an owner, or a reason why it has
// none.
type Part struct {
	Name   string  `json:"name"`
	Owner  *Claim  `json:"owner,omitempty"`
	None   string  `json:"none,omitempty"`   // why it has no owner
	Others []Claim `json:"others,omitempty"` // other programs that try to manage it: a conflict
}

// Claim is one program that manages a part, or tries to.
type Claim struct {
	Who  string `json:"who"`
	By   string `json:"by"`             // the evidence
	Ends []Ends `json:"ends,omitempty"` // what makes this one leave the part to the others
}

// Ends is a setting that ends a claim.
type Ends struct {
	Where   string `json:"where"` // ClusterPolicy, GPUCluster, pool, node.toml, …
	Setting string `json:"setting"`
}

const (
	ownerGPUADM  = "gpuadm"
	ownerToolkit = "NVIDIA's Container Toolkit"
	ownerDRA     = "NVIDIA's DRA driver"
	ownerPlugin  = "the device plugin"
)

// operatorEnds says how the GPU Operator leaves a part to others; ends.tsv has the sources.
func operatorEnds(part string) (all []Ends) {
	for line := range strings.Lines(endsTable) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); f[0] == part {
			all = append(all, Ends{f[1], f[2]})
		}
	}
	return all
}

//go:embed ends.tsv
var endsTable string

// OwnersNeeds says which facts Owners needs.
func OwnersNeeds(s spec.Spec) facts.Needs {
	return facts.Needs{Driver: true, Modules: true}.And(drivers.Needs(s)).And(runtime.Stage.Needs(s))
}

// Owners says who owns each part of this node, as the stages decide it.
func Owners(ctx context.Context, v host.View, s spec.Spec, f facts.Facts) []Part {
	other := drivers.New().Other(f)
	plugin, dra, domains := node.Allocators(ctx, v, f.Kubelet)
	image := imageClaim(f, other)
	return []Part{
		driverPart(v, s, f, other, image),
		toolkitPart(s, f, image),
		cdiPart(ctx, v, image),
		handlerPart(s, f),
		migPart(s, f),
		imexPart(s, other, domains),
		allocationPart(f, plugin, dra, managedPlugin(ctx, v, f)),
	}
}

// part is a Part whose owner is the first claim.
func part(name, none string, claims ...Claim) Part {
	if len(claims) == 0 {
		return Part{Name: name, None: none}
	}
	return Part{Name: name, Owner: &claims[0], Others: claims[1:]}
}

// asks is gpuadm's claim, by a table of node.toml.
func asks(table, leave string) Claim {
	return Claim{Who: ownerGPUADM, By: table + " in node.toml", Ends: []Ends{{"node.toml", leave}}}
}

// imageClaim is the claim of an image that has a driver; nil if it has none. Such an image may have
// the toolkit, too.
func imageClaim(f facts.Facts, other drivers.Other) *Claim {
	switch o := f.DriverOwner; {
	case o != nil && o.Name != facts.GPUOperator:
		return &Claim{Who: o.Name, By: o.Why}
	case o == nil && other.Owner != "":
		return &Claim{Who: other.Owner, By: "ID=" + f.OS.ID + " in os-release"}
	}
	return nil
}

func driverPart(v host.View, s spec.Spec, f facts.Facts, other drivers.Other, image *Claim) Part {
	var claims []Claim
	switch {
	case image != nil:
		claims = append(claims, Claim{image.Who, image.By, []Ends{{"this node", strings.TrimPrefix(other.TakeOver, "or ")}}})
	case other.Owner != "":
		claims = append(claims, Claim{f.DriverOwner.Name, f.DriverOwner.Why, operatorEnds("driver")})
	}
	if by, err := drivers.ByInstaller(v); err == nil && by != "" && len(claims) == 0 && s.Driver.Source != drivers.SourceRunfile {
		claims = append(claims, Claim{"NVIDIA's installer", "it has installed driver " + string(by), []Ends{{"this node", "nvidia-uninstall --silent"}}})
	}
	// With owner = "auto" the stages only verify a driver that another program brings.
	wanted := s.Has("driver") && s.Driver.Version != "" && s.Driver.Owner != "other"
	if wanted && (other.Owner == "" || s.Driver.Owner == ownerGPUADM) {
		claims = append(claims, asks("[driver]", `owner = "other" in [driver]`))
	}
	none := "no driver answers, and no [driver] in node.toml asks for one"
	if f.Driver != nil {
		none = "the driver " + f.Driver.Version + " is loaded, no sign names who brought it, and gpuadm leaves it alone"
	}
	return part("driver", none, claims...)
}

func toolkitPart(s spec.Spec, f facts.Facts, image *Claim) Part {
	var claims []Claim
	if s.Has("toolkit") {
		claims = append(claims, asks("[toolkit]", "remove [toolkit]"))
	}
	if slices.Contains(f.Programs, facts.RuntimeOfOperator) {
		claims = append(claims, Claim{facts.GPUOperator, facts.RuntimeOfOperator + " is there", operatorEnds("toolkit")})
	}
	none := "no NVIDIA runtime is there, and no [toolkit] in node.toml asks for one"
	if len(f.Programs) > 0 {
		if len(claims) == 0 && image != nil {
			claims = append(claims, Claim{Who: image.Who, By: f.Programs[0] + " is there, and " + image.By})
		}
		none = f.Programs[0] + " is there, no sign names who brought it, and gpuadm leaves it alone"
	}
	return part("toolkit", none, claims...)
}

// cdiPart is the CDI spec of the host's own devices. The operator, its device plugin and the DRA
// driver write specs of other kinds.
func cdiPart(ctx context.Context, v host.View, image *Claim) Part {
	if u, err := v.Unit(ctx, cdi.Unit); err == nil && u.Load != "not-found" && u.Load != "masked" && u.Load != "" {
		return part("CDI", "", Claim{ownerToolkit, cdi.Unit + " writes " + cdi.Output(v), []Ends{
			{"this node", "systemctl mask " + cdi.Unit + " " + cdi.Path},
		}})
	}
	if _, err := v.Stat(cdi.Output(v)); err == nil && image != nil { // as the service ext-nvidia-cdi-gen of Talos writes it
		return part("CDI", "", Claim{Who: image.Who, By: cdi.Output(v) + " is there without " + cdi.Unit + ", and " + image.By})
	}
	return part("CDI", cdi.Unit+" is not installed or is masked, so nothing on the host writes "+cdi.Output(v))
}

func handlerPart(s spec.Spec, f facts.Facts) Part {
	h, err := runtime.HandlerOwner(s, f)
	switch {
	case err != nil:
		return part("handler", err.Error())
	case h.Name == "":
		return part("handler", h.Engine.Config+" needs no handler: pods get the GPUs without one")
	}
	var claims []Claim
	if h.Owner != "" {
		claims = append(claims, Claim{h.Owner, h.Why, []Ends{{"node.toml", `owner = "gpuadm" in [runtime], if it writes the file no more`}}})
	}
	for _, file := range h.Engine.Files {
		if bytes.Contains(file.Data, []byte(facts.RuntimeOfOperator)) {
			claims = append(claims, Claim{facts.GPUOperator, file.Path + " names " + facts.RuntimeOfOperator, operatorEnds("toolkit")})
			break
		}
	}
	// The runtime stage leaves the operator's entry alone, unless gpuadm installs the toolkit.
	if s.Has("runtime") && h.Owner == "" && (len(claims) == 0 || s.Has("toolkit")) {
		claims = append([]Claim{asks("[runtime]", "remove [runtime]")}, claims...)
	}
	return part("handler", "no [runtime] in node.toml asks for one, and no other program writes "+h.Engine.Config, claims...)
}

func migPart(s spec.Spec, f facts.Facts) Part {
	var claims []Claim
	if f.DynamicMIG != "" {
		claims = append(claims, Claim{ownerDRA, "DynamicMIG, " + f.DynamicMIG, operatorEnds("dynamic MIG")})
	}
	if o := f.MIGOwner; o != nil {
		ends := []Ends{{"this node", o.Ends}}
		if o.Name == "nvidia-mig-manager" {
			ends = operatorEnds("MIG")
		}
		claims = append(claims, Claim{o.Name, o.Why, ends})
	}
	if s.MIG.Asked() {
		claims = append(claims, asks("[mig]", "remove [mig]"))
	}
	return part("MIG", "no [mig] in node.toml asks for partitions, and no sign of another owner is there", claims...)
}

func imexPart(s spec.Spec, other drivers.Other, domains string) Part {
	var claims []Claim
	if other.Rack && s.Driver.IMEX == "host" {
		claims = append(claims, asks(`imex = "host" in [driver]`, `imex = "auto" in [driver]`))
	}
	if domains != "" {
		claims = append(claims, Claim{"ComputeDomains of " + ownerDRA, domains + " is there", operatorEnds("IMEX")})
	}
	none := "no sign of ComputeDomains is there, and node.toml has no imex = \"host\""
	if !other.Rack {
		none = "no GPU here is joined to those of other machines, as GB200's and GB300's are"
		claims = nil
	}
	return part("IMEX", none, claims...)
}

// managedPlugin is the unit by which the platform itself offers GPUs; "" if there is none.
func managedPlugin(ctx context.Context, v host.View, f facts.Facts) string {
	for _, unit := range platform.Of(f.Cloud.Managed).Plugin.Units {
		if u, err := v.Unit(ctx, unit); err == nil && u.Enabled == "enabled" {
			return unit
		}
	}
	return ""
}

func allocationPart(f facts.Facts, plugin, dra, managed string) Part {
	var claims []Claim
	if managed != "" {
		plugin, dra = "", ""
		p := platform.Of(f.Cloud.Managed)
		claims = append(claims, Claim{p.Title, managed + " is enabled", []Ends{{"pool", p.Plugin.Ends}}})
	}
	if dra != "" {
		claims = append(claims, Claim{ownerDRA, dra + " is there", operatorEnds("DRA")})
	}
	if plugin != "" {
		ends := operatorEnds("plugin")
		if f.Cloud.Managed == "gke" {
			ends = []Ends{{"GKE", "label the pool gke-no-default-nvidia-gpu-device-plugin=true"}}
		}
		claims = append(claims, Claim{ownerPlugin, plugin + " answers", ends})
	}
	return part("device plugin or DRA", "neither a device plugin nor the DRA driver has registered with kubelet", claims...)
}
