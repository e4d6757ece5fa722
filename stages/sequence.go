// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package stages holds the whole bootstrap: which stages there are and in which order.
package stages

import (
	"slices"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/packages/apt"
	"github.com/gpuadm/gpuadm/internal/packages/dnf"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/runtime"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
)

// Sequence returns the bootstrap, first stage first. A stage may rely on what those before it have settled.
func Sequence() []converge.Stage { return sequence(new(node.Session), packagers()) }

// Run returns the bootstrap for one run, with what builds its things again: together they ask for the Node object once.
func Run(session *node.Session) ([]converge.Stage, func(converge.Ref) (converge.Thing, error)) {
	database := packagers()
	return sequence(session, database), func(ref converge.Ref) (converge.Thing, error) { return thingOf(session, database, ref) }
}

// packagers are those that gpuadm knows, with one reading of the machine's package database for all who share it.
func packagers() *packages.Reading { return packages.NewReading(apt.New(), dnf.New()) }

// sequence is the bootstrap; session is the Node object, as the stages of one run know it.
func sequence(session *node.Session, database *packages.Reading) []converge.Stage {
	driver := drivers.New()
	return []converge.Stage{
		node.NewGuard(session),                  // no pods come before this boot's GPUs are verified
		preflight(),                             // what must hold before the first touch
		sources(driver, database),               // where packages come from, and whose key signs them
		packageStage(driver, database),          // driver and toolkit, each in its one version: one transaction
		driver.Modules(database),                // for every kernel that may boot; the running one has it loaded
		driver.Services(),                       // what keeps the GPUs ready, and joins them over NVSwitch
		mig.Stage,                               // partitioned, before anything can hold them
		toolkit.Stage,                           // what containers get them by follows the partitions
		runtime.Stage,                           // the container engine runs the NVIDIA runtime
		node.Stage(),                            // labels and taints, where kubelet takes them from when it registers
		node.GPUs(),                             // the GPUs answer: verified before kubelet may start
		cloud.Join(session),                     // EKS, GKE, AKS, or a token
		cloud.Joined(session),                   // the cluster has the node
		node.NewReady(session, runtime.Answers), // all of it verified once more; only then pods may come
	}
}

// BeforeKubelet returns the stages that must be converged before kubelet may start: the later ones need a running kubelet.
func BeforeKubelet() []converge.Stage {
	all := Sequence()
	return all[:slices.IndexFunc(all, func(st converge.Stage) bool { return st.Name == "join" })]
}

// BeforeNodeadm is BeforeKubelet where EKS's nodeadm makes the machine a node: its configuration must be written by then, too.
func BeforeNodeadm() []converge.Stage {
	all := Sequence()
	return all[:1+slices.IndexFunc(all, func(st converge.Stage) bool { return st.Name == "join" })]
}
