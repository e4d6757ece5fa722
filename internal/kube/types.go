// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strconv"
	"strings"
	"time"
)

// The parts of Kubernetes' objects that gpuadm reads or writes, under their names in the API.
// k8s.io/api and client-go would make the binary a quarter larger. Decoding ignores fields that are
// not named here, and patches send no others.
// Source: https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/, and its
// pages event-v1 and pod-v1.

// Meta is an object's metadata.
type Meta struct {
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	// DeletionTimestamp is set while the object ends.
	DeletionTimestamp string  `json:"deletionTimestamp,omitempty"`
	OwnerReferences   []Owner `json:"ownerReferences,omitempty"`
}

// Owner is an object that another one belongs to.
type Owner struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Controller bool   `json:"controller,omitempty"`
}

// Node is a machine as the cluster knows it.
type Node struct {
	Meta `json:"metadata"`
	Spec struct {
		Taints        []Taint `json:"taints,omitempty"`
		Unschedulable bool    `json:"unschedulable,omitempty"`
	} `json:"spec"`
	Status struct {
		Allocatable map[string]Quantity `json:"allocatable,omitempty"`
		Capacity    map[string]Quantity `json:"capacity,omitempty"`
		Conditions  []Condition         `json:"conditions,omitempty"`
		NodeInfo    struct {
			MachineID  string `json:"machineID"`
			SystemUUID string `json:"systemUUID"`
			BootID     string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// Taint keeps pods off a Node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"` // NoSchedule, PreferNoSchedule, NoExecute
	// The taint manager sets TimeAdded of a NoExecute taint. A patch replaces the whole list, so
	// gpuadm sends it back unchanged.
	TimeAdded string `json:"timeAdded,omitempty"`
}

// String returns the taint as kubectl writes it: KEY=VALUE:EFFECT.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Condition is a condition of a Node, identified by its type.
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"` // True, False, Unknown
	LastHeartbeatTime  time.Time `json:"lastHeartbeatTime,omitzero"`
	LastTransitionTime time.Time `json:"lastTransitionTime,omitzero"`
	Reason             string    `json:"reason,omitempty"`
	Message            string    `json:"message,omitempty"`
}

// The values of a Condition's Status.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Quantity is an amount as the API writes it: "8", "1k", "126Gi".
type Quantity string

// Count returns the number of whole devices; 0 if the text is not a number. The API server writes
// 1000 as "1k".
// Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
func (q Quantity) Count() int64 {
	digits, thousands := strings.CutSuffix(string(q), "k")
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return 0
	}
	if thousands {
		n *= 1000
	}
	return n
}

// Event describes what happened to an object.
type Event struct {
	Kind           string `json:"kind"`
	APIVersion     string `json:"apiVersion"`
	Meta           `json:"metadata"`
	InvolvedObject Reference `json:"involvedObject"`
	Type           string    `json:"type,omitempty"` // Normal, Warning
	Reason         string    `json:"reason,omitempty"`
	Message        string    `json:"message,omitempty"`
	Count          int32     `json:"count,omitempty"`
	FirstTimestamp time.Time `json:"firstTimestamp,omitzero"`
	LastTimestamp  time.Time `json:"lastTimestamp,omitzero"`
	Source         struct {
		Component string `json:"component,omitempty"`
	} `json:"source"`
}

// Reference names an object.
type Reference struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
	UID        string `json:"uid,omitempty"`
}

// Pod is a pod that runs on a node.
type Pod struct {
	Meta `json:"metadata"`
	Spec struct {
		NodeSelector map[string]string `json:"nodeSelector,omitempty"`
		Containers   []Container       `json:"containers,omitempty"`
	} `json:"spec"`
	Status struct {
		Phase      string    `json:"phase,omitempty"`
		Containers []Started `json:"containerStatuses,omitempty"`
		Init       []Started `json:"initContainerStatuses,omitempty"`
	} `json:"status"`
}

// Container is a container of a pod.
type Container struct {
	Env []EnvVar `json:"env,omitempty"`
}

// EnvVar is a variable. Its value is here, or in another object.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// Started is what kubelet says of a pod's container.
type Started struct {
	Name     string `json:"name"`
	Restarts int    `json:"restartCount,omitempty"`
	State    struct {
		Waiting struct {
			Reason  string `json:"reason,omitempty"` // CrashLoopBackOff, ImagePullBackOff
			Message string `json:"message,omitempty"`
		} `json:"waiting"`
	} `json:"state"`
}

// refusal is a Status, which the API server returns instead of an object.
type refusal struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Details *struct {
		Causes []struct {
			Message string `json:"message"`
		} `json:"causes"`
	} `json:"details"`
}
