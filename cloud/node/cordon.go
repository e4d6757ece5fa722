// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	// cordonedBy is the annotation that gpuadm sets and removes in the same patch as its cordon: a
	// cordon without it is an operator's.
	cordonedBy = "nvidia.com/gpuadm.cordoned"
	// mayBeCordoned is a file that exists from before gpuadm cordons its Node until it has
	// uncordoned it: after a kill or a reboot the next run finds it, and a run without the file
	// does not ask the API server for a cordon.
	mayBeCordoned = converge.Home + "/cordoned"
)

// cordon cordons the Node, unless it is unschedulable already.
func (s *Session) cordon(ctx context.Context, h host.Host, id identity) error {
	return s.patchCordon(ctx, h, id, func(n *kube.Node) (kube.Patch, error) {
		if n.Spec.Unschedulable {
			return nil, nil
		}
		if err := writeState(h, mayBeCordoned, n.Name); err != nil {
			return nil, err
		}
		return cordonPatch(n, h.Now().UTC().Format(time.RFC3339), true), nil
	})
}

// Uncordon ends gpuadm's own cordon, also that of a killed run; an operator's cordon stays. It asks
// the API server only if gpuadm may have cordoned. If sp is nil it reads the machine's spec.
func (s *Session) Uncordon(ctx context.Context, h host.Host, sp *spec.Spec) error {
	_, err := h.Stat(mayBeCordoned)
	if host.NotExist(err) || !h.Live() {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil {
		return err
	}
	if sp == nil {
		onMachine := machineSpec(h)
		sp = &onMachine
	}
	id := identityOf(*sp, f)
	if id.later.Until != "" {
		return nil // a later run uncordons
	}

	err = s.patchCordon(ctx, h, id, func(n *kube.Node) (kube.Patch, error) {
		_, isOurs := n.Annotations[cordonedBy]
		if !isOurs {
			return nil, nil
		}
		return cordonPatch(n, nil, nil), nil
	})
	if err != nil && !errors.Is(err, notRegistered) {
		return &trouble.Error{
			What: "cannot uncordon this node: " + err.Error(),
			Try:  []string{"run the same command again, or kubectl uncordon it"},
			Err:  errors.Join(trouble.Wait{For: "the API server"}, err),
		}
	}

	return h.Remove(mayBeCordoned)
}

// patchFunc computes a patch of a Node. A nil patch changes nothing.
type patchFunc func(*kube.Node) (kube.Patch, error)

// patchCordon patches the Node, and computes the patch again if the Node has changed since it was
// read.
func (s *Session) patchCordon(ctx context.Context, h host.Host, id identity, patchFor patchFunc) error {
	client, err := s.kubeletClient(h, id)
	if err != nil {
		return err
	}
	defer s.forget()

	for try := range patchTries {
		n, err := s.look(ctx, h, id)
		if err != nil {
			return err
		}
		patch, err := patchFor(n)
		if err != nil || patch == nil {
			return err
		}

		_, err = client.PatchNode(ctx, n.Name, patch)
		if !errors.Is(err, kube.Conflict) || try == patchTries-1 {
			return err
		}
		s.forget()
		if err := backOff(ctx, try); err != nil {
			return err
		}
	}

	return nil
}

// cordonPatch sets or, with nil, removes the annotation and the field. The API server refuses the
// patch if the Node has changed since it was read.
func cordonPatch(n *kube.Node, mark, unschedulable any) kube.Patch {
	return kube.Patch{
		"metadata": kube.Patch{
			"resourceVersion": n.ResourceVersion,
			"annotations":     kube.Patch{cordonedBy: mark},
		},
		"spec": kube.Patch{"unschedulable": unschedulable},
	}
}

// writeState writes a line into a file of gpuadm's home, for later runs.
func writeState(h host.Host, name, line string) error {
	err := h.Mkdir(converge.Home, host.Attr{Mode: 0o700})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return h.WriteFile(name, []byte(line+"\n"), host.Attr{Mode: 0o600})
}
