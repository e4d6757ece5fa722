// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/runtime"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
)

// Part is one part of the path by which pods get GPUs. It has an owner, or a reason why it has none
// or is not known.
type Part struct {
	Name   string  `json:"name"`
	Owner  *Claim  `json:"owner,omitempty"`
	None   string  `json:"none,omitempty"`   // why it has no owner
	Others []Claim `json:"others,omitempty"` // other programs that try to manage it: a conflict
	// Unknown says what could not be looked at: then another program may manage the part.
	Unknown string `json:"unknown,omitempty"`
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

	ownerKubeVirt = "NVIDIA's KubeVirt device plugin"
)

//go:embed ends.tsv
var endsTable string

// operatorEnds says how the GPU Operator leaves a part to others; ends.tsv has the sources.
func operatorEnds(part string) (all []Ends) {
	for line := range strings.Lines(endsTable) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if fields[0] == part {
			all = append(all, Ends{Where: fields[1], Setting: fields[2]})
		}
	}
	return all
}

// OwnersNeeds says which facts Owners needs.
func OwnersNeeds(s spec.Spec) facts.Needs {
	return facts.Needs{
		Driver:  true,
		Modules: true,
	}.And(drivers.Needs(s)).And(runtime.Stage.Needs(s)).And(node.Stage().Needs(s))
}

// Owners says who owns each part of this node, as the stages decide it.
func Owners(ctx context.Context, v host.View, s spec.Spec, f facts.Facts) []Part {
	other := drivers.New(nil).Other(f)
	plugin, dra, domains := node.Allocators(ctx, v, f.Kubelet)
	image := imageClaim(f, other)
	return []Part{
		driverPart(v, s, f, other, image),
		toolkitPart(s, f, image),
		cdiPart(ctx, v, s, f, image),
		handlerPart(s, f),
		migPart(s, f),
		imexPart(s, other, domains),
		allocationPart(ctx, v, f, plugin, dra),
		kubeletPart(s, f),
	}
}

// part is a Part whose owner is the first claim.
func part(name, none string, claims ...Claim) Part {
	if len(claims) == 0 {
		return Part{Name: name, None: none}
	}
	return Part{Name: name, Owner: &claims[0], Others: claims[1:]}
}

// orUnknown returns the part, as unknown if an error kept gpuadm from a look at a sign.
func (p Part) orUnknown(err error) Part {
	if err != nil {
		p.None = ""
		p.Unknown = err.Error()
	}
	return p
}

// byTable is gpuadm's claim, by a table of node.toml.
func byTable(table, leave string) Claim {
	return Claim{
		Who:  ownerGPUADM,
		By:   table + " in node.toml",
		Ends: []Ends{{"node.toml", leave}},
	}
}

// imageClaim is the claim of an image that has a driver; nil if it has none. Such an image may have
// the toolkit, too.
func imageClaim(f facts.Facts, other drivers.Other) *Claim {
	owner := f.DriverOwner
	switch {
	case owner != nil && owner.Name != facts.GPUOperator:
		return &Claim{Who: owner.Name, By: owner.Why}
	case owner == nil && other.Owner != "":
		return &Claim{Who: other.Owner, By: "ID=" + f.OS.ID + " in os-release"}
	}

	return nil
}

func driverPart(v host.View, s spec.Spec, f facts.Facts, other drivers.Other, image *Claim) Part {
	var claims []Claim
	var lookErr error
	switch {
	case image != nil:
		leave := strings.TrimPrefix(other.TakeOver, "or ")
		claims = append(claims, Claim{image.Who, image.By, []Ends{{"this node", leave}}})
	case other.Owner != "":
		claims = append(claims, Claim{f.DriverOwner.Name, f.DriverOwner.Why, operatorEnds("driver")})
	case s.Driver.Source != drivers.SourceRunfile:
		claims, lookErr = installerClaims(v)
	}

	// With owner = "auto" the stages only verify a driver that another program brings.
	asked := s.Has("driver") && s.Driver.Version != "" && s.Driver.Owner != "other"
	if asked && (other.Owner == "" || s.Driver.Owner == ownerGPUADM) {
		claims = append(claims, byTable("[driver]", `owner = "other" in [driver]`))
	}

	none := "no driver answers, and no [driver] in node.toml asks for one"
	if f.Driver != nil {
		none = "the driver " + f.Driver.Version + " is loaded, no sign names who brought it, and gpuadm leaves it alone"
	}
	return part("driver", none, claims...).orUnknown(lookErr)
}

// installerClaims has the claim of NVIDIA's installer, if it has installed a driver.
func installerClaims(v host.View) ([]Claim, error) {
	version, err := drivers.ByInstaller(v)
	if err != nil || version == "" {
		return nil, err
	}
	return []Claim{{
		Who:  "NVIDIA's installer",
		By:   "it has installed driver " + string(version),
		Ends: []Ends{{"this node", "nvidia-uninstall --silent"}},
	}}, nil
}

func toolkitPart(s spec.Spec, f facts.Facts, image *Claim) Part {
	var claims []Claim
	if s.Has("toolkit") {
		claims = append(claims, byTable("[toolkit]", "remove [toolkit]"))
	}
	if i := slices.IndexFunc(f.Programs, facts.OfOperator); i >= 0 {
		claims = append(claims, Claim{
			Who:  facts.GPUOperator,
			By:   f.Programs[i] + " is there",
			Ends: operatorEnds("toolkit"),
		})
	}

	if len(f.Programs) == 0 {
		return part("toolkit", "no NVIDIA runtime is there, and no [toolkit] in node.toml asks for one", claims...)
	}

	program := f.Programs[0]
	if len(claims) == 0 && image != nil {
		claims = append(claims, Claim{
			Who: image.Who,
			By:  program + " is there, and " + image.By,
		})
	}

	return part("toolkit", program+" is there, no sign names who brought it, and gpuadm leaves it alone", claims...)
}

// cdiPart is the CDI spec of the host's own devices. The operator, its device plugin and the DRA
// driver write specs of other kinds.
func cdiPart(ctx context.Context, v host.View, s spec.Spec, f facts.Facts, image *Claim) Part {
	file := cdi.Output(v)
	unit, err := v.Unit(ctx, cdi.Unit)
	var later host.Later
	if err != nil && !errors.As(err, &later) {
		return part("CDI", "").orUnknown(fmt.Errorf("cannot ask systemd about %s: %w", cdi.Unit, err))
	}

	isMissing := slices.Contains([]string{"not-found", "masked", ""}, unit.Load)
	if !isMissing {
		leave := "systemctl mask " + cdi.Unit + " " + cdi.Path
		if slices.Contains(unit.Files, unitDir+cdi.Unit) {
			// Packages of NVIDIA's before https://github.com/NVIDIA/nvidia-container-toolkit/pull/1827
			// have it where systemctl mask would put its link.
			leave = "systemctl disable --now " + cdi.Path + " " + cdi.Unit
		}
		return part("CDI", "", Claim{
			Who:  ownerToolkit,
			By:   cdi.Unit + " writes " + file,
			Ends: []Ends{{"this node", leave}},
		})
	}

	_, fileErr := v.Stat(file)
	switch {
	case image == nil:
	case fileErr == nil: // as the service ext-nvidia-cdi-gen of Talos writes it
		return part("CDI", "", Claim{
			Who: image.Who,
			By:  file + " is there without " + cdi.Unit + ", and " + image.By,
		})
	case !host.NotExist(fileErr):
		return part("CDI", "").orUnknown(fileErr)
	}

	lacks, err := cdi.LacksService(ctx, v)
	switch {
	case err != nil && !errors.As(err, &later):
		return part("CDI", "").orUnknown(err)
	case lacks && toolkit.GeneratesCDI(s, f):
		return part("CDI", "", byTable("[runtime]", "cdi = false"))
	}
	return part("CDI", cdi.Unit+" is not installed or is masked, so nothing on the host writes "+file)
}

func handlerPart(s spec.Spec, f facts.Facts) Part {
	h, err := runtime.HandlerOwner(s, f)
	switch {
	case err != nil && h.Engine.Name != "": // and gpuadm cannot tell that kubelet uses it
		return part("handler", "").orUnknown(err)
	case err != nil:
		return part("handler", err.Error())
	}

	var claims []Claim
	if h.Owner != "" && h.Name != "" {
		const leave = `owner = "gpuadm" in [runtime], if it writes the file no more`
		claims = append(claims, Claim{h.Owner, h.Why, []Ends{{"node.toml", leave}}})
	}
	for _, file := range h.Engine.Files {
		if owner, why := runtime.FileOwner(f, file.Path); owner != "" {
			claims = append(claims, Claim{owner, why, operatorEnds("toolkit")})
			break
		}
	}

	if h.Name == "" {
		return part("handler", h.Engine.Config+" needs no handler: pods get the GPUs without one", claims...)
	}

	// The runtime stage leaves the operator's entry alone, unless gpuadm installs the toolkit.
	unclaimed := len(claims) == 0 || s.Has("toolkit")
	if s.Has("runtime") && h.Owner == "" && unclaimed {
		claims = append([]Claim{byTable("[runtime]", "remove [runtime]")}, claims...)
	}
	none := "no [runtime] in node.toml asks for one, and no other program writes " + h.Engine.Config
	return part("handler", none, claims...)
}

func migPart(s spec.Spec, f facts.Facts) Part {
	var claims []Claim
	if f.DynamicMIG != "" {
		claims = append(claims, Claim{ownerDRA, "DynamicMIG, " + f.DynamicMIG, operatorEnds("dynamic MIG")})
	}
	owners := f.MIGAlso
	if f.MIGOwner != nil {
		owners = append([]facts.Owner{*f.MIGOwner}, owners...)
	}
	for _, owner := range owners {
		ends := []Ends{{"this node", owner.Ends}}
		if owner.Name == "nvidia-mig-manager" {
			ends = operatorEnds("MIG")
		}
		claims = append(claims, Claim{owner.Name, owner.Why, ends})
	}

	if s.MIG.Asked() {
		claims = append(claims, byTable("[mig]", "remove [mig]"))
	}
	return part("MIG", "no [mig] in node.toml asks for partitions, and no sign of another owner is there", claims...)
}

func imexPart(s spec.Spec, other drivers.Other, domains string) Part {
	if !other.Rack {
		return part("IMEX", "no GPU here is joined to those of other machines, as GB200's and GB300's are")
	}

	var claims []Claim
	if s.Driver.IMEX == "host" {
		claims = append(claims, byTable(`imex = "host" in [driver]`, `imex = "auto" in [driver]`))
	}
	if domains != "" {
		claims = append(claims, Claim{
			"ComputeDomains of " + ownerDRA, domains + " is there", operatorEnds("IMEX"),
		})
	}
	return part("IMEX", `no sign of ComputeDomains is there, and node.toml has no imex = "host"`, claims...)
}

// kubeletPart is who writes the files of the kubelet that a unit runs.
func kubeletPart(s spec.Spec, f facts.Facts) Part {
	const name = "kubelet"
	k := f.Kubelet
	runs := cmp.Or(k.Unit, k.Binary)
	who := cmp.Or(k.ConfigOwner, kindOf(f).Kubelet)
	switch {
	case cloud.SetsUpKubelet(s, f):
		return part(name, "", byTable("[join]", "remove [join]"))
	case runs == "" && who != "" && k.ConfigOwner == "": // Talos runs it in a container
		return part(name, "", Claim{Who: who, By: "ID=" + f.OS.ID + " in os-release"})
	case runs == "":
		return part(name, "no kubelet is installed")
	case who == "":
		return part(name, runs+" runs it, and no program is known to write its files")
	}

	return part(name, "", Claim{
		Who: who,
		By:  runs + " runs it, and " + who + " writes its files",
	})
}

// kindOf is the kind of node that a machine is.
func kindOf(f facts.Facts) platform.Node {
	return platform.NodeOf(f.Cloud.Managed, f.OS.ID)
}

// allocationPart is what offers GPUs to kubelet: a unit or a pod of a device plugin or of the DRA
// driver, or what has registered with kubelet.
func allocationPart(ctx context.Context, v host.View, f facts.Facts, plugin, dra string) Part {
	const name = "device plugin or DRA"
	ours := kindOf(f).Plugin
	found, err := facts.Offering(ctx, v)
	unit, unitErr := enabledOf(ctx, v, ours.Units)

	var claims []Claim
	programs := map[string]bool{}
	isFound := false
	for _, r := range found {
		claims = append(claims, offerClaim(r, ours, f))
		programs[r.Program] = true
		// The platform's units for plugin and DRA driver exclude each other.
		isFound = isFound || ours.UnitOf(r.Unit) != ""
	}

	if unit != "" && !isFound {
		claims = append(claims, Claim{ours.Who, unit + " is enabled", []Ends{{"pool", ours.Ends}}})
	}
	if dra != "" && !programs[facts.DRAPlugin] {
		claims = append(claims, Claim{ownerDRA, dra + " is there", operatorEnds("DRA")})
	}
	if plugin != "" && !programs[facts.NvidiaPlugin] && !programs[facts.GooglePlugin] {
		claims = append(claims, socketClaim(plugin, ours, f))
	}

	p := part(name, "neither a device plugin nor the DRA driver has registered with kubelet, and no enabled unit runs one", claims...)
	return p.orUnknown(cmp.Or(err, unitErr))
}

// offerClaim is the claim of a program that offers GPUs to kubelet.
func offerClaim(r facts.Runner, ours platform.Plugin, f facts.Facts) Claim {
	by := r.Program + " runs in a pod: process " + r.Process
	switch {
	case r.Unit != "" && r.Process != "":
		by = r.Unit + " runs " + r.Program + ": process " + r.Process
	case r.Unit != "":
		by = r.Unit + " is enabled and starts " + r.Program
	}

	switch owner := ours.UnitOf(r.Unit); {
	case owner != "":
		return Claim{owner, by, []Ends{{"pool", ours.Ends}}}
	case r.Unit != "":
		return Claim{r.Unit, by, []Ends{{"this node", "systemctl disable --now " + r.Unit}}}
	case r.Program == facts.GooglePlugin:
		return Claim{cmp.Or(ours.Who, "Google's device plugin"), by, []Ends{{"pool", ours.Ends}}}
	case r.Program == facts.DRAPlugin:
		return Claim{ownerDRA, by, operatorEnds("DRA")}
	case r.Program == facts.KubeVirtPlugin:
		return Claim{ownerKubeVirt, by, operatorEnds("virtual machines")}
	case r.Program == ours.Program && f.Kubelet.Labels[ours.Off] != "true":
		return Claim{ours.Who, by, []Ends{{"pool", ours.Ends}}}
	}

	return Claim{ownerPlugin, by, operatorEnds("plugin")}
}

// socketClaim is the claim of a device plugin of which only the socket is seen. A platform that
// runs its plugin in pods has one on each node that it may come to.
func socketClaim(socket string, ours platform.Plugin, f facts.Facts) Claim {
	if ours.Off != "" && f.Kubelet.Labels[ours.Off] != "true" {
		return Claim{ours.Who, socket + " answers", []Ends{{"pool", ours.Ends}}}
	}
	return Claim{ownerPlugin, socket + " answers", operatorEnds("plugin")}
}

// enabledOf returns the first of the units that is enabled; "" if none is.
func enabledOf(ctx context.Context, v host.View, units []string) (string, error) {
	for _, name := range units {
		unit, err := v.Unit(ctx, name)
		var later host.Later
		if err != nil && !errors.As(err, &later) {
			return "", fmt.Errorf("cannot ask systemd about %s: %w", name, err)
		}
		if unit.Enabled == "enabled" {
			return name, nil
		}
	}
	return "", nil
}
