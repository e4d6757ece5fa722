// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The labels of NVIDIA's MIG manager and their values: https://github.com/NVIDIA/mig-parted at
// bd7160f4, pkg/mig/reconfigure/reconfigure.go and deployments/container/reconfigure-mig.sh. The
// GPU Operator runs the manager on a node with migManager "true":
// https://github.com/NVIDIA/gpu-operator at a22dbf67, assets/state-mig-manager/0600_daemonset.yaml;
// it does not change "false": controllers/state_manager.go, hasMIGManagerLabel.
const (
	MIGConfig  = "nvidia.com/mig.config"
	migState   = MIGConfig + ".state"
	migManager = "nvidia.com/gpu.deploy.mig-manager"
	migPaused  = "paused-for-mig-change"

	MIGPending   = "pending"
	MIGRebooting = "rebooting"
	MIGSuccess   = "success"
	MIGFailed    = "failed"
)

// migClients returns the labels with which the manager pauses the pods that use GPUs. The
// operator's DaemonSets select nodes by them.
func migClients() []string {
	const deploy = "nvidia.com/gpu.deploy."
	return []string{
		deploy + "device-plugin", deploy + "gpu-feature-discovery", deploy + "dcgm-exporter", deploy + "dcgm", deploy + "nvsm", deploy + "client",
	}
}

const (
	migKept       = converge.Home + "/mig-layout" // the label's last value, for a boot without the API server
	migAnswers    = 5 * time.Second               // for the API server to return the label
	migClientsEnd = 5 * time.Minute               // for the clients' pods, as the manager waits
)

// A MIGLabel does the work of NVIDIA's MIG manager on a node with follow_label in [mig].
type MIGLabel struct {
	session *Session
	who     who
}

// MIGLabel identifies the Node whose label to follow.
func (s *Session) MIGLabel(ctx context.Context, v host.View, sp spec.Spec) (*MIGLabel, error) {
	f, err := facts.Gather(ctx, v, facts.Needs{})
	return &MIGLabel{s, whose(sp, f)}, err
}

// FollowedMIG is the content of the label.
type FollowedMIG struct {
	Layout string // from the label, or from Kept; "": no label has named a layout yet
	Kept   string // the name that the last apply followed
	State  string // of the last change, as the Node's label has it
	Asked  bool   // the API server has answered
}

// Layout reads the label. Without an answer of the API server, or without a label, the last name
// counts. The error is a *trouble.Error, for example if the GPU Operator's own manager acts on this
// node.
func (m *MIGLabel) Layout(ctx context.Context, v host.View) (FollowedMIG, error) {
	kept, err := v.ReadFile(migKept)
	if err != nil && !host.NotExist(err) {
		return FollowedMIG{}, err
	}
	is := FollowedMIG{Kept: strings.TrimSpace(string(kept))}
	is.Layout = is.Kept
	if m.who.later.Until != "" {
		return is, nil
	}
	n, err := m.session.look(kube.Within(ctx, migAnswers), v, m.who)
	if err != nil {
		m.session.forget() // the other stages wait longer for an answer
		return is, nil
	}
	if n.Labels[migManager] == "true" {
		return is, &trouble.Error{
			What:    fmt.Sprintf("cannot follow the label %s: the GPU Operator's MIG manager follows it on this node", MIGConfig),
			Because: []string{fmt.Sprintf("the node has the label %s=true, by which the operator runs its manager", migManager)},
			Try:     []string{fmt.Sprintf("kubectl label node %s --overwrite %s=false, or follow_label = false in [mig]", n.Name, migManager)}, Err: managerFollows,
		}
	}
	is.Asked, is.State = true, n.Labels[migState]
	if name := n.Labels[MIGConfig]; name != "" {
		is.Layout = name
	}
	return is, nil
}

// Keep keeps the name for boots at which no API server answers.
func (m *MIGLabel) Keep(h host.Host, f FollowedMIG) error {
	if f.Layout == f.Kept {
		return nil
	}
	return keep(h, migKept, f.Layout)
}

// Clients finds the pods that Begin pauses.
func (m *MIGLabel) Clients(ctx context.Context, h host.Host) (paused func(pod string) bool, err error) {
	n, err := m.session.look(ctx, h, m.who)
	if err != nil {
		return nil, err
	}
	pods, err := m.pods(ctx, h, n.Name, func(key string) bool { value, has := n.Labels[key]; return has && value != "false" })
	return func(pod string) bool { return slices.Contains(pods, pod) }, err
}

// pods returns the node's pods whose nodeSelector has one of the clients' labels.
func (m *MIGLabel) pods(ctx context.Context, h host.Host, node string, of func(key string) bool) (names []string, err error) {
	c, err := m.session.ask(h, m.who)
	if err != nil {
		return nil, err
	}
	pods, err := c.Pods(ctx, node)
	for _, p := range pods {
		if slices.ContainsFunc(migClients(), func(key string) bool { return of(key) && p.Spec.NodeSelector[key] != "" }) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names, err
}

// Begin reports that the partitions change. It makes the GPU Operator pause the GPU's clients, and
// waits until their pods have ended. It does not touch a client's label that is missing or "false":
// that client is not the operator's, or an administrator has switched it off.
func (m *MIGLabel) Begin(ctx context.Context, h host.Host) error {
	n, err := m.write(ctx, h, func(n *kube.Node) map[string]string {
		to := map[string]string{migState: MIGPending}
		for _, key := range migClients() {
			if value, has := n.Labels[key]; has && value != "false" {
				to[key] = migPaused
			}
		}
		return to
	})
	if err != nil {
		return err
	}
	paused := func(key string) bool { return n.Labels[key] == migPaused }
	for began := h.Now(); slices.ContainsFunc(migClients(), paused); {
		run, err := m.pods(ctx, h, n.Name, paused)
		if err != nil {
			return err
		}
		if len(run) == 0 {
			return nil
		}
		if h.Now().Sub(began) >= migClientsEnd {
			return &trouble.Error{
				What: fmt.Sprintf("cannot pause the GPU's clients: after %v these pods have not ended: %s", migClientsEnd, strings.Join(run, ", ")),
				Try:  []string{"see that the GPU Operator runs: it ends pods by their nodeSelector; or delete them"}, Err: podsStay,
			}
		}
		if err := host.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// End reports the result of the change, makes the GPU Operator resume the paused clients, and
// returns whether any was paused.
func (m *MIGLabel) End(ctx context.Context, h host.Host, state string) (resumed bool, err error) {
	_, err = m.write(ctx, h, func(n *kube.Node) map[string]string {
		to := map[string]string{migState: state}
		for _, key := range migClients() {
			if n.Labels[key] == migPaused {
				to[key], resumed = "true", true
			}
		}
		return to
	})
	return resumed, err
}

// write sets labels of the Node as kubelet, and returns the Node. They show a state, like the
// condition, so the journal does not record them.
func (m *MIGLabel) write(ctx context.Context, h host.Host, to func(*kube.Node) map[string]string) (*kube.Node, error) {
	m.session.forget()
	n, err := m.session.look(ctx, h, m.who)
	if err != nil {
		return nil, err
	}
	var edits []partEdit
	labels := to(n)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		p := nodePart{what: partLabel, key: key, session: m.session, who: &m.who}
		if after := valueState(labels[key]); p.of(n) != after {
			edits = append(edits, partEdit{p, p.of(n), after})
		}
	}
	if len(edits) == 0 {
		return n, nil
	}
	if err := m.session.patch(ctx, h, m.who, edits); err != nil {
		return nil, err
	}
	return m.session.look(ctx, h, m.who)
}

// PodsMIGLabel returns the label of the pod's own Node, which the DaemonSet's pod reads with its
// ServiceAccount from the API server's cache.
func PodsMIGLabel(ctx context.Context, pod host.View) (string, error) {
	c, err := new(kube.Clients).Ask(pod, kube.From{Pod: true})
	if err != nil {
		return "", err
	}
	is, err := c.Whoami(ctx)
	if err != nil || is.Node() == "" {
		return "", err
	}
	n, err := c.CachedNode(ctx, is.Node())
	if err != nil {
		return "", err
	}
	return n.Labels[MIGConfig], nil
}
