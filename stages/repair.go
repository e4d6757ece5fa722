// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime"
)

// A Repair is the fix of one fault, as a stage of its own. The stage is not in the sequence, so no
// later apply reverts what it made.
type Repair struct {
	Code    string `json:"code"`              // of the fault, as doctor names it
	About   string `json:"about"`             // what it does
	Section string `json:"section,omitempty"` // of node.toml: if the spec has it, apply is the fix

	needs facts.Needs
	wants func(facts.Facts) ([]converge.Want, error)
}

// Repairs are the faults that gpuadm can repair without a section in node.toml.
func Repairs() []Repair {
	modules := facts.Needs{Modules: true}
	return []Repair{
		{
			Code:    "PKG-001",
			About:   "have the packager finish the driver's half-done packages",
			Section: "driver",
			wants:   finishPackages,
		},
		{
			Code:  "PKG-002",
			About: "have the packager finish its half-done packages",
			wants: finishPackages,
		},
		{
			Code:  "PKG-004",
			About: "have the packager finish what was interrupted",
			wants: finishPackages,
		},

		{
			Code:    "DRV-005",
			About:   "load the driver's module",
			Section: "driver",
			needs:   modules,
			wants:   reload,
		},
		{
			Code:    "DRV-006",
			About:   "keep the kernel's own drivers away from the GPUs",
			Section: "driver",
			needs:   modules,
			wants:   drivers.NoOtherDriver,
		},
		{
			Code:    "DRV-014",
			About:   "load the driver's module as it lies on disk",
			Section: "driver",
			needs:   modules,
			wants:   reload,
		},

		{
			Code:    "GPU-010",
			About:   "start nvidia-persistenced",
			Section: "driver",
			wants:   only(drivers.Serving(drivers.PersistencedUnit)...),
		},
		{
			Code:    "FAB-002",
			About:   "start the fabric manager",
			Section: "driver",
			wants:   only(drivers.Serving(drivers.FabricManagerUnit)...),
		},
		{
			Code:  "CDI-001",
			About: "have NVIDIA's Container Toolkit write its CDI spec again",
			wants: only(cdi.Spec()),
		},
		{
			Code:  "CDI-005",
			About: "have systemd watch for a new driver again, and the CDI spec written where it is wrong",
			wants: only(cdi.Refresh(), cdi.Spec()),
		},

		{
			Code:    "RUN-001",
			About:   "add NVIDIA's handler to the container engine",
			Section: "runtime",
			needs:   runtime.Stage.Needs(spec.Spec{}),
			wants:   handler,
		},
		{
			Code:  "RUN-002",
			About: "restart the container engine, which reads its configuration then",
			wants: runtime.Reread,
		},
		{
			Code:  "RUN-005",
			About: "start the container engine",
			wants: startEngine,
		},

		{
			Code:  "KUB-001",
			About: "start kubelet",
			wants: startKubelet,
		},
		{
			Code:  "KUB-007",
			About: "restart kubelet, which reads its configuration then",
			wants: rereadKubelet,
		},
	}
}

// Stage is the repair as a stage of the engine. Each want gets the state found, so that earlier
// changes of gpuadm stay.
func (r Repair) Stage() converge.Stage {
	return converge.Stage{
		Name:  "repair",
		About: r.About,
		Needs: func(spec.Spec) facts.Needs { return r.needs },
		Wants: func(_ spec.Spec, f facts.Facts) ([]converge.Want, error) {
			wants, err := r.wants(f)
			for i := range wants {
				if err := mayEdit(f, wants[i].Ref()); err != nil {
					return nil, err
				}
				wants[i].AsFound = true
				wants[i].Section = ""
			}

			return wants, err
		},
	}
}

// mayEdit refuses the edit of a file that another program writes: that program would
// write it again.
func mayEdit(f facts.Facts, r converge.Ref) error {
	owner, why := runtime.FileOwner(f, r.Name)
	if r.Kind != "file" || owner == "" {
		return nil
	}

	t := &trouble.Error{
		What:    fmt.Sprintf("cannot edit %s: %s writes it", r.Name, owner),
		Because: []string{why},
		Try:     []string{"have " + owner + " write it again: its toolkit's pod does so when it starts"},
	}
	for _, end := range operatorEnds("toolkit") {
		t.Try = append(t.Try, fmt.Sprintf("or end its claim (%s): %s", end.Where, end.Setting))
	}
	return t
}

// only wants the same of every machine.
func only(wants ...converge.Want) func(facts.Facts) ([]converge.Want, error) {
	return func(facts.Facts) ([]converge.Want, error) { return slices.Clone(wants), nil }
}

func reload(f facts.Facts) ([]converge.Want, error) { return drivers.Reload(f), nil }

// finishPackages wants a package database without half-done jobs. The operator asks for one more
// try, also for packages that gpuadm did not install.
func finishPackages(f facts.Facts) ([]converge.Want, error) {
	const why = "no package can be installed on top of a half-done job"
	w := packages.Database(packages.NewSet(packagers(nil)), f.OS.Packager().Name, why)
	finish := w.To
	w.To = func(found converge.State) (converge.State, error) {
		if _, broken := packages.Broken(found); broken {
			found = "interrupted"
		}
		return finish(found)
	}

	return []converge.Want{w}, nil
}

// handler wants what [runtime] without a key would.
func handler(f facts.Facts) ([]converge.Want, error) {
	s, err := spec.Parse(spec.File{Name: "repair", Data: []byte("format = 1\n[runtime]\n")})
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	return runtime.Stage.Wants(s, f)
}

func startEngine(f facts.Facts) ([]converge.Want, error) {
	e, err := runtime.ForPods(f)
	if err != nil {
		return nil, err
	}
	running := things.Running(e.Unit, "pods run on it")
	return []converge.Want{things.StartJudged(running, runtime.Verdict(e.Unit, []string{e.Config}))}, nil
}

func startKubelet(f facts.Facts) ([]converge.Want, error) {
	return withKubelet(f, things.Running(f.Kubelet.Unit, "without it the cluster has no node here"))
}

func rereadKubelet(f facts.Facts) ([]converge.Want, error) {
	const why = "kubelet reads its configuration when it starts"
	return withKubelet(f, kubelet.Fresh(f.Kubelet, f.Kubelet.Reads(), why))
}

// withKubelet is a want of the kubelet's unit. It refuses a machine that has none.
func withKubelet(f facts.Facts, w converge.Want) ([]converge.Want, error) {
	if f.Kubelet.Unit == "" {
		return nil, &trouble.Error{
			What: "cannot start kubelet: this machine has no unit of it",
			Try:  []string{"[join] in node.toml, which makes the machine a node"},
		}
	}
	return []converge.Want{w}, nil
}
