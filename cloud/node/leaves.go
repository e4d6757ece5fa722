// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Leaves is converge.Leaver's. An undo outlives the account: with the DaemonSet's release its
// account goes, and so do its rights, its policy and its kubeconfig. Kubelet's own identity
// undoes the rest.
func (p nodePart) Leaves(ctx context.Context, v host.View, _, to converge.State) string {
	if !p.needsAccount() {
		return ""
	}
	id, err := p.identityOn(ctx, v)
	if err != nil || id.later.Until != "" {
		return ""
	}
	why := p.session.lacksAccount(ctx, v, id)
	if why == "" {
		return ""
	}
	commands := []string{p.command(p.session.nodeName(id), to)}
	for _, t := range p.heldBy(ctx, v, id, to) {
		commands = append(commands, removeTaintCommand(p.session.nodeName(id), t))
	}
	return leftToOperator(why, commands)
}

// heldBy returns the startup taints that the removal of their record would take off the Node.
func (p nodePart) heldBy(ctx context.Context, v host.View, id identity, to converge.State) []spec.Taint {
	if p.key != taintRecord || to != "" {
		return nil
	}
	n, err := p.session.look(ctx, v, id)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(recordedTaints(p.stateOn(n)), func(t spec.Taint) bool {
		return taintPart(t).stateOn(n) != valueState(t.Value)
	})
}

// Finishes makes the part a converge.Finisher: a startup taint whose removal was cut short would
// keep pods off for ever.
func (p nodePart) Finishes() {}

// command is the line by which an operator brings the part to a state; "" removes it.
func (p nodePart) command(node string, to converge.State) string {
	value := "=" + stateValue(to)
	if to == "" {
		value = "-"
	}

	overwrite := ""
	if to != "" {
		overwrite = " --overwrite"
	}
	switch {
	case p.what == partTaint && to == "":
		return fmt.Sprintf("kubectl taint node %s %s:%s-", node, p.key, p.effect)
	case p.what == partTaint:
		return fmt.Sprintf("kubectl taint node %s %s%s:%s --overwrite", node, p.key, value, p.effect)
	case p.what == partRecord:
		return fmt.Sprintf("kubectl annotate node %s %s%s%s", node, p.key, value, overwrite)
	}

	return fmt.Sprintf("kubectl label node %s %s%s%s", node, p.key, value, overwrite)
}

// leftToOperator words what undo leaves.
func leftToOperator(why string, commands []string) string {
	return why + ", so it stays on the Node: " + strings.Join(commands, "; ")
}

// lacksAccount says why no account here may change taints of the Node any more; "" if one may, or
// if the cluster does not say. It asks once a session.
func (s *Session) lacksAccount(ctx context.Context, v host.View, id identity) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.accountAsked {
		s.accountLost = s.askAccount(ctx, v, id)
		s.accountAsked = true
	}
	return s.accountLost
}

// askAccount asks the cluster what the account may do; the session is locked.
func (s *Session) askAccount(ctx context.Context, v host.View, id identity) string {
	account := id.serviceAccount(v)
	if account == "" {
		return "no account here may change it"
	}
	_, err := v.Stat(account)
	if host.NotExist(err) {
		return "its account's kubeconfig " + account + " is gone"
	}
	client, err := s.clients.Ask(v, id.from(account))
	if err != nil {
		return "its account's kubeconfig " + account + " cannot be used"
	}

	may, err := client.MayPatchNode(ctx, s.nodeName(id))
	switch {
	case errors.Is(err, kube.Unauthorized):
		return "the cluster does not know the account of " + account + " any more"
	case errors.Is(err, kube.Forbidden), err == nil && !may:
		return "the account of " + account + " may not change it any more"
	}

	return ""
}
