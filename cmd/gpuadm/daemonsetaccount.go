// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	podAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	podToken   = podHome + "/token"
	podCA      = podHome + "/ca.crt"
	// podRenews is how often a token is brought to the machine during an apply. Kubelet renews it in the pod after 80 % of its life:
	// https://kubernetes.io/docs/concepts/storage/projected-volumes/#serviceaccounttoken and kubernetes, pkg/kubelet/token (maxTTL).
	podRenews = time.Minute
)

// account is what is known of the pod's ServiceAccount.
type account struct {
	withoutPolicy bool   // lend it, whatever it may do
	narrow        bool   // the cluster's last answer: the policy narrows it
	unknown       bool   // the cluster has not answered yet
	warned        string // the last warning about it: it is printed once
}

// lend lends the pod's ServiceAccount to the machine, by a token that is short-lived and bound to the pod. Without one
// apply does what kubelet's identity may do.
func (p *pod) lend(ctx context.Context, machine host.Host) error {
	token, err := p.read(podAccount + "/token")
	if err != nil {
		return nil
	}
	if !p.mayLend(ctx) {
		return withdraw(machine)
	}
	ca, err := p.read(podAccount + "/ca.crt")
	if err != nil {
		return fmt.Errorf("cannot read the cluster's CA: %w", cause(err))
	}
	name, port := p.getenv("KUBERNETES_SERVICE_HOST"), p.getenv("KUBERNETES_SERVICE_PORT")
	if name == "" {
		return errors.New("cannot find the API server: KUBERNETES_SERVICE_HOST is not set, so this is not a pod")
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{podToken, token},
		{podCA, ca},
		{node.PodKubeconfig, node.TokenKubeconfig(name, port, podCA, podToken)},
	} {
		if err := put(machine, f.name, f.data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// mayLend says whether the account may be lent. While the cluster does not answer, its last answer counts.
func (p *pod) mayLend(ctx context.Context) bool {
	if p.withoutPolicy {
		return true
	}
	told := (*trouble.Error)(nil)
	self, err := p.ownFiles()
	if err == nil {
		told, err = node.ProbePolicy(ctx, self)
	}
	if err != nil {
		p.unknown = !p.narrow
		told = &trouble.Error{What: "cannot check whether the policy limits the DaemonSet's ServiceAccount: " + err.Error()}
	} else {
		p.narrow, p.unknown = told == nil, false
	}
	warning := ""
	if told != nil {
		warning = told.Error()
	}
	if warning != p.warned && warning != "" {
		failureOf(told).print(p.env)
	}
	p.warned = warning
	return p.narrow
}

// withdraw takes from the machine what an earlier pod has lent to it.
func withdraw(machine host.Host) error {
	for _, name := range []string{node.PodKubeconfig, podToken, podCA} {
		if err := machine.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// renew brings the pod's token to the machine at each tick, where one was lent: an apply that installs a driver may take longer
// than a token has left. What fails is tried again at the next tick, and before the next apply.
func (p *pod) renew(ctx context.Context, machine host.Host, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		token, err := p.read(podAccount + "/token")
		if err != nil {
			continue
		}
		if lent, err := machine.ReadFile(podToken); err == nil && !bytes.Equal(lent, token) {
			_ = machine.WriteFile(podToken, token, host.Attr{Mode: 0o600})
		}
	}
}
