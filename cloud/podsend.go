// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// podGrace is how long a container has to end when its machine leaves the cluster: as long as Kubernetes gives it where its pod
// does not say otherwise (terminationGracePeriodSeconds).
const podGrace = 30 * time.Second

// engineAnswers is how long a container engine has to say what runs.
const engineAnswers = 10 * time.Second

// kubeletPods is where kubelet has a folder for each pod.
const kubeletPods = "/var/lib/kubelet/pods"

// withoutPods ends the pods of a machine that leaves its cluster, and has it leave while kubelet is stopped: that would start
// them again. Nobody else would ever end them. They would hold the GPUs, and a pod that the cluster gives to another node when
// this one is gone would run twice. They are stopped and not removed: their logs and files stay for whoever wants to see them.
func withoutPods(ctx context.Context, h host.Host, leave func() error) (err error) {
	socket, err := engineSocket(ctx, h)
	if err != nil {
		return err
	}
	pods, err := sandboxesAt(ctx, h, socket)
	switch {
	case notThere(err):
		if err := engineGone(ctx, h, socket); err != nil {
			return err
		}
		return leave()
	case errors.As(err, &host.Later{}):
		return leave()
	case err != nil:
		return endTrouble(socket, "cannot stop the pods of this machine: its container engine does not answer", []string{oneLine(err.Error())},
			"start the container engine, and undo again: systemctl status containerd")
	case len(pods) == 0:
		return leave()
	}
	// A kubelet that ran before us, in vain mostly, as kubeadm's package has it, is not undo's to stop: it runs again afterwards.
	if u, uerr := h.Unit(ctx, kubeletUnit); uerr == nil && (u.Active == "active" || u.Active == "activating") {
		if err := h.SetUnit(ctx, kubeletUnit, host.UnitChange{Job: "stop"}); err != nil {
			return err
		}
		defer func() { // by a run that was ended meanwhile, too
			if serr := h.SetUnit(context.WithoutCancel(ctx), kubeletUnit, host.UnitChange{Job: "start"}); err == nil {
				err = serr
			}
		}()
	}
	if err := endPods(ctx, h, socket, pods); err != nil {
		return err
	}
	return leave()
}

// engineGone says whether there is no engine, and so there are no pods. Containers outlive one that was only stopped: where kubelet has
// left pods behind, an engine that is installed has to be asked.
func engineGone(ctx context.Context, h host.Host, socket string) error {
	pods, err := h.ReadDir(kubeletPods)
	if err != nil && !notThere(err) {
		return err
	}
	f, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil || len(pods) == 0 {
		return err
	}
	e, err := ownEngine(spec.Spec{}, f)
	if err != nil || e.Unit == "" {
		return nil // none is installed
	}
	return endTrouble(socket, "cannot stop the pods of this machine: its container engine does not run",
		[]string{"containers outlive an engine that was stopped, and " + kubeletPods + " has what kubelet has left of pods"},
		"start the container engine, and undo again: systemctl start "+e.Unit)
}

// endPods stops pods, and says which could not be. One whose process hangs, in the driver say, keeps none of the others running.
func endPods(ctx context.Context, h host.Host, socket string, pods []sandbox) error {
	converge.Say(ctx, fmt.Sprintf("for %d pods to end, up to %v", len(pods), 3*podGrace))
	ids, err := containersAt(ctx, h, socket)
	if err != nil {
		return err
	}
	var containers, sandboxes [][]byte
	for _, id := range ids { // StopContainerRequest{container_id, timeout}
		containers = append(containers, protowire.AppendVarint(protowire.AppendTag(protoText(1, id), 2, protowire.VarintType), uint64(podGrace/time.Second)))
	}
	for _, p := range pods { // StopPodSandboxRequest{pod_sandbox_id}
		sandboxes = append(sandboxes, protoText(1, p.id))
	}
	_ = stopAll(ctx, h, socket, "StopContainer", 2*podGrace, containers) // what fails is seen below
	err = stopAll(ctx, h, socket, "StopPodSandbox", podGrace, sandboxes)
	left, lerr := sandboxesAt(ctx, h, socket)
	if lerr != nil {
		return lerr
	}
	if len(left) == 0 {
		return nil // a network that could not be taken down keeps nothing running
	}
	because, try := []string{}, []string{}
	for _, p := range left {
		because, try = append(because, p.name+" still runs"), append(try, "crictl -r unix://"+socket+" stopp "+p.id)
	}
	if err != nil {
		because = append(because, oneLine(err.Error()))
	}
	return endTrouble(socket, "cannot take the machine out of its cluster: some of its pods could not be stopped", because, append(try, "then undo again")...)
}

// stopAll makes all requests at once, each for so long at most.
func stopAll(ctx context.Context, h host.Host, socket, method string, limit time.Duration, requests [][]byte) error {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	errs := make([]error, len(requests))
	var wait sync.WaitGroup
	for i, request := range requests {
		wait.Go(func() { _, errs[i] = h.DoCall(ctx, socket, "/runtime.v1.RuntimeService/"+method, request) })
	}
	wait.Wait()
	return host.Join(errs...)
}

func endTrouble(socket, what string, because []string, try ...string) error {
	return &converge.Trouble{What: what, Because: append(because, "the engine was asked at "+socket), Try: try}
}

// engineSocket is the socket of the engine that kubelet uses: as its configuration says while that is there, else of the engine
// that is installed.
func engineSocket(ctx context.Context, v host.View) (string, error) {
	if socket := kubeletsSocket(v); socket != "" {
		return socket, nil
	}
	f, err := facts.Gather(ctx, v, facts.Needs{})
	if err != nil {
		return "", err
	}
	e, err := ownEngine(spec.Spec{}, f)
	if err != nil {
		e = facts.Engine{}
	}
	return strings.TrimPrefix(endpoint(e), "unix://"), nil
}

// containersAt lists the containers that run, by id: ListContainersRequest{filter: {state: {state: CONTAINER_RUNNING}}}.
func containersAt(ctx context.Context, v host.View, socket string) (ids []string, err error) {
	ctx, stop := context.WithTimeout(ctx, engineAnswers)
	defer stop()
	answer, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/ListContainers", []byte{0x0a, 0x04, 0x12, 0x02, 0x08, 0x01})
	if err != nil {
		return nil, err
	}
	err = protoFields(answer, func(n protowire.Number, item []byte) error {
		if n != 1 {
			return nil
		}
		return protoFields(item, func(n protowire.Number, value []byte) error {
			if n == 1 {
				ids = append(ids, string(value))
			}
			return nil
		})
	})
	return ids, err
}

// protoText is a message with one text.
func protoText(n protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), text)
}
