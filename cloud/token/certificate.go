// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Kubelet asks for its certificate itself, as after kubeadm join. It is given the kubeconfig bootstrapKubeconfig, with the token; it
// writes kubelet.Kubeconfig at once, which names kubelet.CurrentCertificate, and that file once its request was signed. A kubelet whose
// certificate is valid does not read bootstrapKubeconfig. Sources: kubernetes, pkg/kubelet/certificate/bootstrap/bootstrap.go,
// LoadClientConfig; https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/.
const (
	bootstrapKubeconfig = "/etc/kubernetes/bootstrap-kubelet.conf"

	certificatePrefix = "kubelet-client"
)

// certificate is by what the cluster knows the node: kubelet's kubeconfig and client certificate, or the bootstrap kubeconfig by
// which kubelet asks for them. Its state is whose it is, "system:node:NAME", and no part of it.
type certificate struct {
	path string
	join *join // nil when built again for undo: it can be removed, not made

	*verdict
}

// verdict is why the machine cannot join, as far as it was found out before anything was touched.
type verdict struct {
	mu  sync.Mutex
	err error
}

const (
	ranOut  = ", which has run out"
	unclear = "unreadable"
)

// want wants the certificate of this node.
func (c certificate) want() converge.Want {
	c.verdict = &verdict{}
	whose := "system:node:" + c.join.name
	// Registration says so too, but kubelet may register the node before gpuadm looks, or have done so before.
	left := node.LeftInCluster(c.join.name)
	return converge.Want{Thing: c, AsFound: true, Why: "the cluster knows the node by it", Leaves: left, To: func(found converge.State) (converge.State, error) {
		user, _ := strings.CutSuffix(string(found), ranOut)
		switch {
		case user == whose && string(found) == whose:
			return found, nil
		case found != "" && user != whose && user != unclear:
			return "", &trouble.Error{
				What:    fmt.Sprintf("cannot join as %s: this machine holds the certificate of %s", c.join.name, strings.TrimPrefix(user, "system:node:")),
				Because: []string{"a node cannot be given another name"},
				Try:     []string{fmt.Sprintf("write node_name = %q in [join]", strings.TrimPrefix(user, "system:node:")), "or " + trouble.Command("undo --to all") + ", which takes the machine out of the cluster, then apply again"},
			}
		}
		c.verdict.mu.Lock()
		defer c.verdict.mu.Unlock()
		if c.verdict.err != nil {
			return "", c.verdict.err
		}
		return converge.State(whose), nil
	}}
}

// NewCertificate names a node's client certificate, for undo.
func NewCertificate(name string) converge.Thing { return certificate{path: name} }

func (c certificate) Ref() converge.Ref { return converge.Ref{Kind: "bootstrap", Name: c.path} }

// Look reads whose certificate is there. Where one has to be asked for, it finds out whether that can go well.
func (c certificate) Look(ctx context.Context, v host.View) (converge.State, error) {
	found, err := c.look(v)
	if err != nil || c.join == nil || found == converge.State("system:node:"+c.join.name) {
		return found, err
	}
	err = c.join.try(ctx, v)
	if later := (host.Later{}); errors.As(err, &later) {
		return "", later
	}
	c.verdict.mu.Lock()
	defer c.verdict.mu.Unlock()
	c.verdict.err = c.unrenewed(v, found, err)
	return found, nil
}

// unrenewed says of what keeps a node from a certificate that its last one has run out, and since when.
func (c certificate) unrenewed(v host.View, found converge.State, err error) error {
	t := (*trouble.Error)(nil)
	user, over := strings.CutSuffix(string(found), ranOut)
	data, _ := v.ReadFile(kubelet.CurrentCertificate)
	list := certificates(data)
	if !over || len(list) == 0 || !errors.As(err, &t) {
		return err
	}
	why := t.What
	if none := (noToken{}); errors.As(err, &none) {
		why = "that takes a new bootstrap token, and " + none.Error()
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot renew the certificate of node %s, which ran out on %s: %s",
			strings.TrimPrefix(user, "system:node:"), list[0].NotAfter.UTC().Format("2006-01-02 15:04 MST"), why),
		Because: append([]string{"kubelet renews a certificate by itself only while it holds: the machine was off, or cut off, for too long"}, t.Because...),
		Try:     t.Try,
		Err:     err,
	}
}

// look reads whose certificate is there, or is asked for. While a part of it is left to remove it is not gone.
func (c certificate) look(v host.View) (converge.State, error) {
	data, err := v.ReadFile(kubelet.CurrentCertificate)
	if err != nil && !host.NotExist(err) {
		return "", err
	}
	state := converge.State("")
	if err == nil {
		state = unclear
	}
	if list := certificates(data); len(list) > 0 && list[0].Subject.CommonName != "" {
		state = converge.State(list[0].Subject.CommonName)
		if !v.Now().After(list[0].NotAfter) {
			return state, nil
		}
		state += ranOut
	}
	if whose, err := c.asksAs(v); whose != "" || err != nil {
		return converge.State(whose), err
	}
	if state == "" && namesCertificate(v) {
		state = unclear
	}
	return state, nil
}

// asksAs is whose certificate kubelet asks for by gpuadm's bootstrap kubeconfig, "" if by none. One with another token or of
// another server than node.toml names counts as none: it is written again.
func (c certificate) asksAs(v host.View) (string, error) {
	data, err := v.ReadFile(bootstrapKubeconfig)
	if err != nil || !bytes.HasPrefix(data, []byte(kubelet.Written)) {
		return "", unlessMissing(err)
	}
	if c.join != nil {
		if token, err := c.join.read(v); err == nil && !bytes.Equal(data, c.join.bootstrap(token)) {
			return "", nil
		}
	}
	var is struct {
		Current string `yaml:"current-context"`
	}
	_ = yaml.Unmarshal(data, &is) // ours can be read
	return is.Current, nil
}

// namesCertificate says whether kubelet's kubeconfig is one that kubelet writes to go by its certificate.
func namesCertificate(v host.View) bool {
	data, err := v.ReadFile(kubelet.Kubeconfig)
	return err == nil && bytes.Contains(data, []byte(kubelet.CurrentCertificate))
}

// unlessMissing is an error but for that of a file that is not there.
func unlessMissing(err error) error {
	if host.NotExist(err) {
		return nil
	}
	return err
}

// Breaks refuses to take the certificate away while pods run here.
func (c certificate) Breaks(ctx context.Context, v host.View, before, after converge.State) ([]string, map[string][]string, error) {
	if before == "" || after != "" {
		return nil, nil, nil
	}
	return nil, nil, node.RefuseWhilePodsRun(ctx, v)
}

// TakeOut is converge.Merger's: a certificate that has run out meanwhile is the one that was made.
func (c certificate) TakeOut(_ host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	user, _ := strings.CutSuffix(string(found), ranOut)
	switch {
	case before == after:
		return found, nil, nil
	case user != string(after) && user != unclear:
		return found, []string{fmt.Sprintf("%s is the certificate of %s, gpuadm had got that of %s", kubelet.CurrentCertificate, user, after)}, nil
	}
	return before, nil, nil
}

func (c certificate) Make(ctx context.Context, h host.Host, to converge.State) error {
	switch {
	case to == "":
		return c.remove(h)
	case c.join != nil && to == converge.State("system:node:"+c.join.name):
		return c.join.enter(ctx, h)
	}
	return unlessMissing(h.Remove(bootstrapKubeconfig)) // kubelet has not used it: what it had before is still there
}

// remove removes what kubelet has asked by, all certificates that it has had, and last the kubeconfig that names them: while that is
// there, they are not gone.
func (c certificate) remove(h host.Host) error {
	names, err := h.ReadDir(kubelet.PKI)
	if err != nil && !host.NotExist(err) {
		return err
	}
	all := []string{bootstrapKubeconfig, kubelet.CurrentCertificate}
	for _, n := range names {
		if full := path.Join(kubelet.PKI, n); full != kubelet.CurrentCertificate && strings.HasPrefix(n, certificatePrefix) {
			all = append(all, full)
		}
	}
	if namesCertificate(h) {
		all = append(all, kubelet.Kubeconfig)
	}
	for _, name := range all {
		if err := unlessMissing(h.Remove(name)); err != nil {
			return err
		}
	}
	return nil
}

// enter writes the kubeconfig by which kubelet asks for its certificate. A kubelet that runs has read the one before it: it is
// started again, and where a power cut comes between, it ends by itself (client-go: no valid client certificate for 5 minutes).
func (t *join) enter(ctx context.Context, h host.Host) error {
	if err := t.try(ctx, h); err != nil {
		return err
	}
	token, err := t.read(h)
	if err != nil {
		return err
	}
	if t.unchecked {
		converge.Warn(ctx, fmt.Sprintf("the name %s was not checked: this token may not read the cluster's nodes", t.name))
	}
	if err := h.WriteFile(bootstrapKubeconfig, t.bootstrap(token), host.Attr{Mode: 0o600}); err != nil {
		return err
	}
	if u, err := h.Unit(ctx, kubelet.Unit); err == nil && u.Active == "active" {
		return h.SetUnit(ctx, kubelet.Unit, host.UnitChange{Job: "restart"})
	}
	return nil
}

// certified says whether kubelet has a valid certificate of this node.
func (t *join) certified(v host.View) bool {
	data, err := v.ReadFile(kubelet.CurrentCertificate)
	list := certificates(data)
	return err == nil && len(list) > 0 && list[0].Subject.CommonName == "system:node:"+t.name && !v.Now().After(list[0].NotAfter)
}

// nameFree asks, by the token, whether the cluster has a node of this name that is another machine. A node that is not ready may be
// what an earlier machine has left; kubeadm takes over its name too (kubernetes, cmd/kubeadm/app/cmd/phases/join/kubelet.go). A token
// of kubeadm's may get nodes (cmd/kubeadm/app/phases/bootstraptoken/node/tlsbootstrap.go, AllowBootstrapTokensToGetNodes).
func (t *join) nameFree(ctx context.Context, v host.View, c *kube.Client) error {
	there, err := c.Node(ctx, t.name)
	switch {
	case errors.Is(err, kube.Missing):
		return nil
	case errors.Is(err, kube.Forbidden):
		t.unchecked = true
		return nil
	case err != nil:
		return t.explain(err)
	}
	is := there.Status.NodeInfo
	ours := systemUUID(v)
	sameMachine := is.MachineID == "" || t.machineID == "" || is.MachineID == t.machineID
	sameBoard := is.SystemUUID == "" || ours == "" || strings.EqualFold(is.SystemUUID, ours)
	if sameMachine && sameBoard || node.Unready(there, "") != "" {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot join as %s: another machine is that node, and is ready", t.name),
		Because: []string{
			fmt.Sprintf("the node's machine id is %s and its system UUID %s; ours are %s and %s", is.MachineID, is.SystemUUID, t.machineID, ours),
			"two machines of one name would take turns at being it; nothing of the node was changed",
		},
		Try: []string{
			`write another node_name in [join], or hostnamectl set-hostname NAME`,
			fmt.Sprintf("if it was this machine before it was reinstalled: kubectl delete node %s", t.name),
		},
	}
}

// systemUUID is the board's, as kubelet tells it: cadvisor, utils/sysfs, GetSystemUUID.
func systemUUID(v host.View) string {
	for _, name := range []string{"/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id", "/proc/device-tree/vm,uuid"} {
		if data, err := v.ReadFile(name); err == nil {
			return strings.TrimSpace(strings.TrimRight(string(data), "\x00"))
		}
	}
	return ""
}
