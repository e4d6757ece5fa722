// SPDX-License-Identifier: Apache-2.0

// Package stages holds the whole bootstrap: its stages and their order.
package stages

import (
	"context"
	"slices"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/apt"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/runtime"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
)

// Sequence returns the bootstrap, first stage first. A stage may rely on the stages before it.
func Sequence() []converge.Stage { return sequence(new(node.Session), packagers(nil), nil) }

// Run returns the bootstrap for one run, and the function that builds its things again from the
// journal. They share the Node object. memory, or nil, knows what files said.
func Run(
	session *node.Session, memory *recall.Memory,
) ([]converge.Stage, func(converge.Ref) (converge.Thing, error)) {
	database := packagers(memory)
	all := kinds(session, database)
	build := func(ref converge.Ref) (converge.Thing, error) { return thingOf(all, ref) }
	return sequence(session, database, memory), build
}

// packagers returns one reading of the machine's package database, by the packagers that gpuadm
// knows, for all stages.
func packagers(memory *recall.Memory) *packages.Reading {
	return packages.NewReading(apt.New(), dnf.New(memory))
}

// sequence is the bootstrap; session holds the Node object for the stages of one run.
func sequence(
	session *node.Session, database *packages.Reading, memory *recall.Memory,
) []converge.Stage {
	driver := drivers.New(memory)
	return []converge.Stage{
		node.NewGuard(session),             // no pods come before this boot's GPUs are verified
		preflight(),                        // what must hold before the first touch
		sources(driver, database),          // where packages come from, and whose key signs them
		packageStage(driver, database),     // driver and toolkit, each in its one version: one transaction
		driver.Modules(database),           // the driver for every kernel that may boot
		driver.Services(),                  // daemons that keep GPUs ready and join them over NVSwitch
		mig.Stage,                          // partitions the GPUs before a process can hold them
		toolkit.Stage(runtime.SpecFolders), // the toolkit and its CDI spec, which names the partitions
		runtime.Stage,                      // the container engine has a handler that runs the NVIDIA runtime
		node.Stage(),                       // labels and taints with which kubelet registers
		node.GPUs(),                        // the GPUs answer: verified before kubelet may start
		cloud.Join(session),                // EKS, GKE or AKS
		cloud.Joined(session),              // the cluster has the node

		// Everything is verified once more; only then may pods come.
		node.NewReady(session, runtime.Answers, runtime.LacksCDI),
	}
}

// OfSection returns the stages that make what a section of node.toml asks for, if none
// has its name.
func OfSection(section string) []string {
	if section == "driver" {
		return []string{"sources", "packages", "modules", "services"}
	}
	return nil
}

// BeforeKubelet returns the stages that must be converged before kubelet may start: the later ones
// need a running kubelet.
func BeforeKubelet() []converge.Stage {
	all := Sequence()
	return all[:indexOfJoin(all)]
}

// BeforeJoiner is BeforeKubelet where a unit of the platform starts kubelet: stage join must have
// written that unit's settings by then, too.
func BeforeJoiner() []converge.Stage {
	all := Sequence()
	return all[:indexOfJoin(all)+1]
}

func indexOfJoin(all []converge.Stage) int {
	return slices.IndexFunc(all, func(st converge.Stage) bool { return st.Name == "join" })
}

// Prune removes kept packages and installers that no undo needs any more.
func Prune(ctx context.Context, h host.Host, needed []converge.Change) error {
	return host.Join(
		packagers(nil).Prune(ctx, h, needed),
		drivers.PruneRunfiles(ctx, h, needed),
		things.PruneKeys(h, needed),
	)
}
