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
	if !p.mayLend(ctx) {
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

// mayLend says whether the machine may use the account. If the cluster does not answer, its last
// answer counts.
func (p *Pod) mayLend(ctx context.Context) bool {
	if p.WithoutPolicy {
		return true
	}

	refused, err := p.probePolicy(ctx)
	if err == nil {
		p.narrow = refused == nil
		p.unknown = false
	} else {
		p.unknown = !p.narrow
		refused = &trouble.Error{What: "cannot check whether the policy limits the DaemonSet's ServiceAccount: " + err.Error()}
	}

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
		err := machine.Remove(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// renew copies the pod's token to the machine at each tick, if the machine has a token: the
// installation of a driver may take longer than a token is valid. After an error the next tick
// retries, and the next apply.
func (p *Pod) renew(ctx context.Context, machine host.Host, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
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
