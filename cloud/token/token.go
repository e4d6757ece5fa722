// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package token joins any cluster by a bootstrap token, the way kubeadm join goes.
package token

import (
	"context"
	"fmt"
	"path"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// A join by a bootstrap token goes the way of kubeadm join (https://kubernetes.io/docs/reference/setup-tools/kubeadm/implementation-details/):
// who is to be trusted and whether the name is free is found out by the token; then kubelet asks for its certificate itself.

// Wants are the wants of method = "token".
func Wants(se *node.Session, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	name := method.NodeName(s, f)
	if method.JoinedByOthers(f) {
		return nil, nil // a node already, which another tool has set up: its files are that tool's
	}
	if err := method.NameFits(name, s); err != nil && (f.Live || s.Join.NodeName != "") { // an image's machine gets its name when it boots
		return nil, err
	}
	t := newJoin(se, s, f)
	server := things.Edited(things.NewFile(kubelet.Kubeconfig, nil), t.kubeconfig, "tells kubelet its server and its certificate")
	server.AsFound = true // kubelet has written it
	k := kubelet.Own{
		Kubeconfig: kubelet.Kubeconfig, Flags: []string{"--bootstrap-kubeconfig=" + bootstrapKubeconfig}, Env: kubelet.ProxyEnv(s), Held: t.entered,
		Login: []converge.Want{server, certificate{path: kubelet.Kubeconfig, join: t}.want()},
	}
	if len(s.Join.ClusterDNS) == 0 {
		k.Learn = t.dns
	}
	own, err := node.OwnKubelet(k, s, f)
	if err != nil {
		return nil, err
	}
	wants := []converge.Want{}
	for _, folder := range []string{path.Dir(kubelet.ClusterCA), kubelet.PKI} {
		wants = append(wants, things.Folders(folder, "holds the node's credentials")...)
	}
	ca := &kubelet.Learned{FileThing: things.NewFile(kubelet.ClusterCA, nil), Write: t.authority}
	wants = node.Unique(append(append(wants, ca.Want("the CA by which kubelet verifies the API server")), own...))
	wants = append(wants, spent(t, f.Booting))
	if !f.Kubelet.Joined {
		wants = append(wants, node.WaitRegistered(se, s, f, name, kubelet.Kubeconfig, t.entered))
	}
	return wants, nil
}

// kubeconfig is what kubelet's kubeconfig shall be: as kubelet has written it, unless node.toml names another server by now.
func (t *join) kubeconfig(found []byte) ([]byte, error) {
	var is struct {
		Clusters []struct{ Cluster struct{ Server string } }
	}
	if found == nil || yaml.Unmarshal(found, &is) == nil && len(is.Clusters) == 1 && is.Clusters[0].Cluster.Server == t.server {
		return found, nil
	}
	return t.kubeconfigOf(map[string]any{"client-certificate": kubelet.CurrentCertificate, "client-key": kubelet.CurrentCertificate}), nil
}

// bootstrap is the kubeconfig by which kubelet asks for its certificate.
func (t *join) bootstrap(token bootstrapToken) []byte {
	return t.kubeconfigOf(map[string]any{"token": token.bearer()})
}

// kubeconfigOf is a kubeconfig of a user, who is called as the node will be.
func (t *join) kubeconfigOf(user map[string]any) []byte {
	name := "system:node:" + t.name
	named := func(kind string, value map[string]any) []any { return []any{map[string]any{"name": name, kind: value}} }
	text, err := yaml.Marshal(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": name,
		"clusters":        named("cluster", map[string]any{"server": t.server, "certificate-authority": kubelet.ClusterCA}),
		"users":           named("user", user),
		"contexts":        named("context", map[string]any{"cluster": name, "user": name}),
	})
	if err != nil {
		return nil // maps of strings can be written
	}
	return append([]byte(kubelet.Written), text...)
}

// tokenFile is the file with the bootstrap token, and the bootstrap kubeconfig that has it too: both are removed once kubelet has its
// certificate. kubeadm join removes its bootstrap kubeconfig then (kubernetes, cmd/kubeadm/app/cmd/phases/join/kubelet.go).
type tokenFile struct {
	converge.Thing
	join    *join
	booting bool
}

// spent wants the token away.
func spent(t *join, booting bool) converge.Want {
	return converge.Want{
		Thing: tokenFile{things.NewSecret(t.tokenFile), t, booting},
		Why:   "it is not needed any more, and is worth something to others",
		To:    func(converge.State) (converge.State, error) { return "", nil },
		Keeps: fmt.Sprintf("the token in %s is gone; to join again: %s", t.tokenFile, t.another()),
	}
}

// Look says nothing of an image's token: it is for the machine that boots from it. One that is still to be used stays.
func (t tokenFile) Look(ctx context.Context, v host.View) (converge.State, error) {
	if !v.Live() {
		return "", host.FirstBoot
	}
	if err := t.join.entered(ctx, v); err != nil {
		return "", err
	}
	if t.booting && !t.join.certified(v) {
		return "", host.Later{Until: "once kubelet runs"}
	}
	found, err := t.Thing.Look(ctx, v)
	if whose, berr := (certificate{}).asksAs(v); found == "" && err == nil && whose != "" {
		return "in " + bootstrapKubeconfig, berr
	}
	return found, err
}

// Make waits for kubelet's certificate first.
func (t tokenFile) Make(ctx context.Context, h host.Host, to converge.State) error {
	if err := t.join.waitCertified(ctx, h); err != nil {
		return err
	}
	if whose, err := (certificate{}).asksAs(h); whose != "" || err != nil {
		if err := h.Remove(bootstrapKubeconfig); err != nil {
			return err
		}
	}
	return t.Thing.Make(ctx, h, to)
}
