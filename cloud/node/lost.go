// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// LostGPUs says how it is known that a machine whose PCI bus shows no GPU had some; "" where no witness knows of any: then it is a
// machine without GPUs, as in a mixed pool. GPUs that fall off the bus leave nothing behind on it, so what was said of them
// before is asked: the instance type in the firmware, the labels that kubelet registers with, the journal, and, where kubelet
// runs, the Node.
func LostGPUs(ctx context.Context, v host.View, se *Session, s spec.Spec, f facts.Facts) string {
	return WhyLost(ctx, v, se, s, f).Why
}

// Lost says that a machine has lost all its GPUs.
type Lost struct {
	Why   string // how that is known; "" where it has not
	Meant string // what to do if it is as it shall be
}

// WhyLost is LostGPUs with the way out.
func WhyLost(ctx context.Context, v host.View, se *Session, s spec.Spec, f facts.Facts) Lost {
	if hasGPU(f) || !f.Live {
		return Lost{}
	}
	if why := typeHas(f.Cloud.Name, f.Cloud.Type); why != "" {
		return Lost{why, withoutGPUs}
	}
	const count = "nvidia.com/gpu.count"
	if n, err := strconv.Atoi(f.Kubelet.Labels[count]); err == nil && n > 0 && s.Node.Labels[count] == "" {
		return Lost{
			fmt.Sprintf("kubelet registers with the label %s=%d", count, n),
			takenOut + "take the label out of kubelet's node-labels; where gpuadm has put it there: " + trouble.Command("undo --to all") + ", then apply again",
		}
	}
	if why := journalHas(v); why != "" {
		return Lost{why, takenOut + trouble.Command("undo --to all") + ", then apply again"}
	}
	return nodeHas(ctx, v, se, s, f)
}

const (
	takenOut = "if the GPUs were taken out for good: "
	// No instance type with GPUs comes without them, so there is nothing to expect less of it. Without a spec kubelet's gate is open.
	withoutGPUs = "if it shall be a node without them: take " + specHome + "/node.toml away"
)

// typeHas says how many GPUs an instance type has, where that was verified.
func typeHas(cloud, name string) string {
	if t, ok := instance.TypeOf(cloud, name); ok && t.GPUs > 0 && t.Verified {
		return fmt.Sprintf("a %s has %d", name, t.GPUs)
	}
	return ""
}

// journalHas is with how many GPUs the node was last made ready here, unless that was undone.
func journalHas(v host.View) string {
	all := remembered(v, "record "+gpuRecord)
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	return fmt.Sprintf("on %s the node was ready with %s", last.on, recordedCount(stateValue(converge.State(last.after))))
}

// recordedCount is how many GPUs a record names.
func recordedCount(record string) string {
	if n := len(strings.Split(record, ",")); n > 1 {
		return fmt.Sprintf("%d GPUs", n)
	}
	return "1 GPU"
}

// memory is how a run of the journal left a part of the Node.
type memory struct{ on, after string }

// remembered are the runs that made a part of the Node here and were not undone, the latest last.
func remembered(v host.View, part string) (list []memory) {
	for _, run := range converge.ReadJournal(v).Runs() {
		if run.Undone || len(run.Undoes) > 0 {
			continue
		}
		for _, c := range run.Makes {
			if c.Kind == "node" && c.Name == part {
				list = append(list, memory{run.Time.Format("2006-01-02"), string(c.After)})
			}
		}
	}
	return list
}

// nodeHas asks the Node, once and without patience. A kubelet that does not run is not started by what a cluster says.
func nodeHas(ctx context.Context, v host.View, se *Session, s spec.Spec, f facts.Facts) Lost {
	w := whose(s, f)
	if se == nil || !TellsCluster(s) || w.later.Until != "" || f.Kubelet.Active != "active" {
		return Lost{}
	}
	n, err := se.look(kube.Within(ctx, 0), v, w, &nodeLooks{}, "lost")
	if err != nil {
		return Lost{}
	}
	// The journal does not know of it, so undo leaves it; a kubelet registers again when it starts.
	deleteNode := takenOut + "kubectl delete node " + n.Name + ", then systemctl restart kubelet"
	if record := n.Annotations[gpuRecord]; record != "" {
		return Lost{"the node was ready with " + recordedCount(record), deleteNode}
	}
	if c := conditionOf(n, GPUReady); c != nil && c.Status == kube.False {
		return Lost{"the node has the condition " + GPUReady + ", as only nodes with GPUs do", deleteNode}
	}
	if why := typeHas(f.Cloud.Name, n.Labels[kube.InstanceType]); why != "" {
		return Lost{why, withoutGPUs}
	}
	return Lost{}
}
