// SPDX-License-Identifier: Apache-2.0

// Package node describes the machine to the cluster: the labels and taints that its node registers
// with (stage node), the taint that keeps pods off (stage guard), and the condition that the GPUs
// are ready (stages gpus and ready). The Node object's parts are things.
//
// Read the files in this order:
//
//   - the Node and how it is asked: identity.go, session.go
//   - what a node registers with: registration.go, node_stage.go, gpu_labels.go, gpu_labels_mig.go,
//     autoscaler_labels.go, owners.go
//   - what keeps pods off: startup_taint.go, karpenter.go, gate.go, guard.go
//   - the Node's parts as things: part.go, condition.go, patch.go, record.go, gpu_record.go
//   - whether the GPUs are ready: ready.go, ready_checks.go, gpus_stage.go, gpu_checks.go, cuda.go,
//     repair.go, allocatable.go, device_plugin.go, dra.go
//   - what a join waits for: node_wait.go, reported_wait.go, registered.go, joined.go
//   - what the cluster is told: report.go, events.go
//   - pods that leave: drain.go, cordon.go, mig_label.go, pods.go
//   - the DaemonSet and the device plugin: policy_probe.go, pod_kubeconfig.go, sharing.go
//   - fault.go has the codes of all faults
package node
