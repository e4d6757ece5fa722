// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"context"
	"fmt"
	"path"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// A join by a bootstrap token goes the way of kubeadm (https://kubernetes.io/docs/reference/setup-tools/kubeadm/implementation-details/),
// but for one step: the certificate is asked for by us, before kubelet is started for the first time. So we can look, with the
// new identity, whether another machine has this name already, while nothing is written to its Node.

// tokenWants are the wants of how = "token".
func tokenWants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	name := nodeName(s, f)
	if joinedByOthers(f) {
		return nil, nil // a node already, which somebody else has set up: its files are theirs
	}
	if err := nameFits(name, s); err != nil && (f.Live || s.Join.NodeName != "") { // an image's machine gets its name when it boots
		return nil, err
	}
	t := newTokenJoin(s, f)
	k := ownKubelet{Kubeconfig: kubeletKubeconfig, Env: proxyEnv(s), held: t.entered}
	if len(s.Join.ClusterDNS) == 0 {
		k.learn = t.dns
	}
	own, err := k.wants(s, f)
	if err != nil {
		return nil, err
	}
	credentials := certificate{path: currentCertificate, join: t}
	wants := []converge.Want{}
	for _, folder := range []string{path.Dir(clusterCA), kubeletPKI} {
		wants = append(wants, things.Folders(folder, "holds the node's credentials")...)
	}
	ca := &learned{FileThing: things.NewFile(clusterCA, nil), write: t.authority}
	wants = append(wants,
		ca.want("whom kubelet trusts to be the API server"),
		credentials.want(),
		things.Exact(kubeletKubeconfig, kubeconfigOf(s.Join.Server), 0o600, "tells kubelet its server and its certificate"),
	)
	wants = unique(append(wants, own...))
	if !f.Kubelet.Joined {
		there := waitRegistered(s, f, name, kubeletKubeconfig)
		r := there.Thing.(registered)
		r.join = t
		there.Thing = r
		wants = append(wants, there)
	}
	return append(wants, spent(t)), nil
}

// unique leaves out folders that are wanted twice.
func unique(wants []converge.Want) (list []converge.Want) {
	seen := map[string]bool{}
	for _, w := range wants {
		id := w.Kind() + " " + w.Name()
		if !seen[id] {
			list = append(list, w)
		}
		seen[id] = true
	}
	return list
}

// joinedByOthers says whether the machine is a node that somebody else has set up: kubeadm, most often. A kubeconfig of ours
// that was edited stays ours while our drop-in or unit runs kubelet.
func joinedByOthers(f facts.Facts) bool {
	there, ok := f.Files[kubeletKubeconfig]
	switch {
	case bytes.HasPrefix(there, []byte(written)), setUpByUs(f):
		return false
	case f.Kubelet.Joined && f.Kubelet.Kubeconfig != kubeletKubeconfig: // k3s and many others have their own places
		return true
	}
	return ok
}

// kubeconfigOf is a kubeconfig that names files only: nothing in it is secret, and kubelet renews what it names.
func kubeconfigOf(server string) []byte {
	named := func(kind, name string, value table) []any { return []any{table{"name": name, kind: value}} }
	text, err := yaml.Marshal(table{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "node",
		"clusters":        named("cluster", "cluster", table{"server": server, "certificate-authority": clusterCA}),
		"users":           named("user", "node", table{"client-certificate": currentCertificate, "client-key": currentCertificate}),
		"contexts":        named("context", "node", table{"cluster": "cluster", "user": "node"}),
	})
	if err != nil {
		return nil // maps of strings can be written
	}
	return append([]byte(written), text...)
}

// tokenFile is a file with a bootstrap token, to be removed once it was used.
type tokenFile struct {
	converge.Thing
	join *tokenJoin
}

// spent wants the token's file away.
func spent(t *tokenJoin) converge.Want {
	return converge.Want{
		Thing: tokenFile{things.NewSecret(t.tokenFile), t},
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
	return t.Thing.Look(ctx, v)
}
