// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/gpuadm/gpuadm/internal/trouble"

// Codes of faults that keep a node from being ready, from registering as wanted, or from leaving
// its cluster.
const (
	anotherMachine   trouble.Code = "another-machine"
	changedMeanwhile trouble.Code = "changed-meanwhile"
	fabricForming    trouble.Code = "fabric-forming"
	noLicence        trouble.Code = "no-licence"
	foreignKey       trouble.Code = "foreign-key"
	joinerRuns       trouble.Code = "joiner-runs" // it has not started kubelet yet
	managerFollows   trouble.Code = "mig-manager-follows"
	mpsNotReady      trouble.Code = "mps-not-ready"
	noAccount        trouble.Code = "no-account" // that may change a taint, or a label of Kubernetes' own
	noKubeconfig     trouble.Code = "no-kubeconfig"
	noPlaceForTaint  trouble.Code = "no-place-for-taint"
	noPolicy         trouble.Code = "no-policy"
	notRegistered    trouble.Code = "not-registered"
	notReported      trouble.Code = "not-reported" // by kubelet, since this boot
	otherName        trouble.Code = "other-name"   // of kubelet than its credentials'
	offersOther      trouble.Code = "offers-other" // number of devices than planned
	pluginStaysAway  trouble.Code = "plugin-stays-away"
	podsStay         trouble.Code = "pods-stay"
	rightLacking     trouble.Code = "right-lacking"
	secondOwner      trouble.Code = "second-owner"
	taintTwice       trouble.Code = "taint-twice"
	underRepair      trouble.Code = "under-repair"
	waitedEnough     trouble.Code = "waited-enough"
)
