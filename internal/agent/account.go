// SPDX-License-Identifier: Apache-2.0

package agent

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
	// podRenews is how often the pod copies its token to the machine during an apply. Kubelet
	// renews it in the pod after 80 % of its life:
	// https://kubernetes.io/docs/concepts/storage/projected-volumes/#serviceaccounttoken and
	// kubernetes, pkg/kubelet/token (maxTTL).
	podRenews = time.Minute
)

// lend writes a kubeconfig for the machine's apply, with the pod's token, which is short-lived and
// bound to the pod. Without that file apply uses kubelet's identity.
func (p *Pod) lend(ctx context.Context, machine host.Host) error {
	token, err := p.Read(podAccount + "/token")
	if err != nil {
		return nil
	}
	lent := p.mayLend(ctx, machine)
	if err := p.tellUnsure(machine, lent); err != nil {
		return err
	}
	if !lent {
		return withdraw(machine)
	}

	ca, err := p.Read(podAccount + "/ca.crt")
	if err != nil {
		return fmt.Errorf("cannot read the cluster's CA: %w", cause(err))
	}
	name := p.Getenv("KUBERNETES_SERVICE_HOST")
	port := p.Getenv("KUBERNETES_SERVICE_PORT")
	if name == "" {
		return errors.New("cannot find the API server: KUBERNETES_SERVICE_HOST is not set, so this is not a pod")
	}

	kubeconfig := node.TokenKubeconfig(name, port, podCA, podToken)
	for _, f := range []struct {
		name string
		data []byte
	}{
		{podToken, token},
		{podCA, ca},
		{node.PodKubeconfig, kubeconfig},
	} {
		if err := put(machine, f.name, f.data, 0o600); err != nil {
			return err
		}
	}

	return nil
}

// mayLend says whether the machine may use the account. Only an answer changes that: if the cluster
// does not answer, does not know the account or gives it no rights, its last answer counts, or, for
// a container that has just started, what the one before it has lent.
func (p *Pod) mayLend(ctx context.Context, machine host.Host) bool {
	if p.WithoutPolicy {
		return true
	}

	refused, err := p.probePolicy(ctx)
	switch {
	case err != nil:
		refused = &trouble.Error{What: "cannot check whether the policy limits the DaemonSet's ServiceAccount: " + err.Error()}
	case node.LacksRight(refused):
	default:
		p.narrow = refused == nil
		p.answered = true
	}

	if !p.answered {
		p.narrow = p.narrow || lends(machine)
	}
	p.unknown = err != nil && !p.answered && !p.narrow

	warning := ""
	if refused != nil {
		warning = refused.Error()
	}
	if warning != "" && warning != p.warned {
		p.Say(Event{What: Warning, Err: refused})
	}
	p.warned = warning
	return p.narrow
}

// lends reports whether a pod has lent the machine its account.
func lends(machine host.View) bool {
	_, err := machine.Stat(node.PodKubeconfig)
	return err == nil
}

// tellUnsure tells the machine's apply whether the account is missing though the cluster
// did not say no.
func (p *Pod) tellUnsure(machine host.Host, lent bool) error {
	if !lent && !p.answered {
		return put(machine, node.PodUnsure, []byte("the cluster did not say whether the account may be used\n"), 0o600)
	}
	return remove(machine, node.PodUnsure)
}

// probePolicy asks the cluster whether a policy limits the account; refused says why it does not.
func (p *Pod) probePolicy(ctx context.Context) (refused *trouble.Error, err error) {
	self, err := p.ownFiles()
	if err != nil {
		return nil, err
	}
	return node.ProbePolicy(ctx, self)
}

// withdraw removes lend's kubeconfig from the machine.
func withdraw(machine host.Host) error {
	for _, name := range []string{node.PodKubeconfig, podToken, podCA} {
		if err := remove(machine, name); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file, if it is there.
func remove(machine host.Host, name string) error {
	err := machine.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// withdrawOwn withdraws what this pod has lent, since its token ends with it. What another pod has
// lent since stays.
func (p *Pod) withdrawOwn(machine host.Host) {
	own, err := p.Read(podAccount + "/token")
	lent, lentErr := machine.ReadFile(podToken)
	if err == nil && lentErr == nil && bytes.Equal(own, lent) {
		_ = withdraw(machine)
	}
}

// renew copies the pod's token to the machine at each tick, if the machine has a token: the
// installation of a driver may take longer than a token is valid. After an error the next tick
// retries, and the next apply. Once the pod ends, renew withdraws the token.
func (p *Pod) renew(ctx context.Context, machine host.Host, tick <-chan time.Time, stop <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			p.withdrawOwn(machine)
			return
		case <-tick:
		}

		token, err := p.Read(podAccount + "/token")
		if err != nil {
			continue
		}
		lent, err := machine.ReadFile(podToken)
		if err == nil && !bytes.Equal(lent, token) {
			_ = machine.WriteFile(podToken, token, host.Attr{Mode: 0o600})
		}
	}
}
