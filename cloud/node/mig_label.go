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
		deploy + "device-plugin", deploy + "gpu-feature-discovery",
		deploy + "dcgm-exporter", deploy + "dcgm", deploy + "nvsm",
		deploy + "client",
	}
}

const (
	// migKept is a file with the label's last value, for a boot without the API server.
	migKept = converge.Home + "/mig-layout"
	// migAnswers is how long gpuadm waits for the API server to return the label.
	migAnswers = 5 * time.Second
	// migClientsEnd is how long gpuadm waits for the clients' pods, as the manager does.
	migClientsEnd = 5 * time.Minute
)

// A MIGLabel does the work of NVIDIA's MIG manager on a node with follow_label in [mig].
type MIGLabel struct {
	session  *Session
	identity identity
}

// MIGLabel identifies the Node whose label to follow.
func (s *Session) MIGLabel(ctx context.Context, v host.View, sp spec.Spec) (*MIGLabel, error) {
	f, err := facts.Gather(ctx, v, facts.Needs{})
	return &MIGLabel{session: s, identity: identityOf(sp, f)}, err
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
	name := strings.TrimSpace(string(kept))
	followed := FollowedMIG{Layout: name, Kept: name}
	if m.identity.later.Until != "" {
		return followed, nil
	}

	n, err := m.session.lookWithin(ctx, v, m.identity, migAnswers)
	if err != nil {
		m.session.forget() // the other stages wait longer for an answer
		return followed, nil
	}
	if n.Labels[migManager] == "true" {
		return followed, managerRuns(n.Name)
	}

	followed.Asked = true
	followed.State = n.Labels[migState]
	if name := n.Labels[MIGConfig]; name != "" {
		followed.Layout = name
	}
	return followed, nil
}

// managerRuns says that the GPU Operator's manager follows the label on this node.
func managerRuns(node string) error {
	return &trouble.Error{
		What:    "cannot follow the label " + MIGConfig + ": the GPU Operator's MIG manager follows it on this node",
		Because: []string{"the node has the label " + migManager + "=true, by which the operator runs its manager"},
		Try:     []string{"kubectl label node " + node + " --overwrite " + migManager + "=false, or follow_label = false in [mig]"},
		Err:     managerFollows,
	}
}

// Keep keeps the name for boots at which no API server answers.
func (m *MIGLabel) Keep(h host.Host, f FollowedMIG) error {
	if f.Layout == f.Kept {
		return nil
	}
	return writeState(h, migKept, f.Layout)
}

// Clients finds the pods that Begin pauses.
func (m *MIGLabel) Clients(ctx context.Context, h host.Host) (paused func(pod string) bool, err error) {
	n, err := m.session.look(ctx, h, m.identity)
	if err != nil {
		return nil, err
	}
	pods, err := m.clientPods(ctx, h, n.Name, runningClients(n))
	return func(pod string) bool { return slices.Contains(pods, pod) }, err
}

// runningClients returns the clients' labels that Begin may change. It leaves out a label that is
// missing, since the client is not the operator's, and a label "false", since an administrator has
// switched the client off. It leaves out a label without a value, too: the operator's DaemonSets
// select "true", so that client does not run, and End would start it. Where a client is missing,
// the operator's driver manager writes its label without a value, mostly that of NVSM.
// Source: maybeSetPaused in cmd/driver-manager/main.go of
// https://github.com/NVIDIA/k8s-driver-manager. NVIDIA's MIG manager would write "true".
func runningClients(n *kube.Node) []string {
	return slices.DeleteFunc(migClients(), func(key string) bool {
		value := n.Labels[key] // "" if it is missing
		return value == "" || value == "false"
	})
}

// pausedClients returns the clients' labels that pause the client.
func pausedClients(n *kube.Node) []string {
	return slices.DeleteFunc(migClients(), func(key string) bool {
		return n.Labels[key] != migPaused
	})
}

// clientPods returns the node's pods whose nodeSelector has one of the clients' labels.
func (m *MIGLabel) clientPods(
	ctx context.Context, h host.Host, node string, labels []string,
) ([]string, error) {
	client, err := m.session.reader(h, m.identity)
	if err != nil {
		return nil, err
	}
	pods, err := client.Pods(ctx, node)
	if err != nil {
		return nil, err
	}

	var names []string
	for _, p := range pods {
		selects := func(key string) bool { return p.Spec.NodeSelector[key] != "" }
		if slices.ContainsFunc(labels, selects) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}

	return names, nil
}

// Begin reports that the partitions change. It makes the GPU Operator pause the GPU's clients, and
// waits until their pods have ended.
func (m *MIGLabel) Begin(ctx context.Context, h host.Host) error {
	n, err := m.write(ctx, h, func(n *kube.Node) map[string]string {
		labels := map[string]string{migState: MIGPending}
		for _, key := range runningClients(n) {
			labels[key] = migPaused
		}
		return labels
	})
	if err != nil {
		return err
	}
	paused := pausedClients(n)
	if len(paused) == 0 {
		return nil
	}

	began := h.Now()
	for {
		pods, err := m.clientPods(ctx, h, n.Name, paused)
		if err != nil || len(pods) == 0 {
			return err
		}
		if h.Now().Sub(began) >= migClientsEnd {
			const text = "cannot pause the GPU's clients: after %v these pods have not ended: %s"
			return &trouble.Error{
				What: fmt.Sprintf(text, migClientsEnd, strings.Join(pods, ", ")),
				Try:  []string{"check that the GPU Operator runs: it ends pods by their nodeSelector; or delete them"},
				Err:  podsStay,
			}
		}

		if err := host.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// End reports the result of the change, makes the GPU Operator resume the paused clients, and
// returns whether any was paused.
func (m *MIGLabel) End(ctx context.Context, h host.Host, state string) (resumed bool, err error) {
	_, err = m.write(ctx, h, func(n *kube.Node) map[string]string {
		labels := map[string]string{migState: state}
		for _, key := range pausedClients(n) {
			labels[key] = "true"
			resumed = true
		}

		return labels
	})
	return resumed, err
}

// labelsFunc computes labels of a Node.
type labelsFunc func(*kube.Node) map[string]string

// write sets labels of the Node as kubelet, and returns the Node. They show a state, like the
// condition, so the journal does not record them.
func (m *MIGLabel) write(ctx context.Context, h host.Host, labelsFor labelsFunc) (*kube.Node, error) {
	m.session.forget()
	n, err := m.session.look(ctx, h, m.identity)
	if err != nil {
		return nil, err
	}

	labels := labelsFor(n)
	var edits []partEdit
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		e := editOf(n, nodePart{what: partLabel, key: key}, valueState(labels[key]))
		if e.before != e.after {
			edits = append(edits, e)
		}
	}

	if len(edits) == 0 {
		return n, nil
	}

	if err := m.session.patch(ctx, h, m.identity, edits); err != nil {
		return nil, err
	}
	return m.session.look(ctx, h, m.identity)
}

// PodsMIGLabel returns the label of the pod's own Node, which the DaemonSet's pod reads with its
// ServiceAccount from the API server's cache.
func PodsMIGLabel(ctx context.Context, pod host.View) (string, error) {
	client, err := new(kube.Clients).Ask(pod, kube.From{Pod: true})
	if err != nil {
		return "", err
	}
	account, err := client.Whoami(ctx)
	if err != nil || account.Node() == "" {
		return "", err
	}
	n, err := client.CachedNode(ctx, account.Node())
	if err != nil {
		return "", err
	}
	return n.Labels[MIGConfig], nil
}
