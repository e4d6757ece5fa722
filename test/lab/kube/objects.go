// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// bootstrappers are those who come with a bootstrap token of kubeadm.
const bootstrappers = "system:bootstrappers:kubeadm:default-node-token"

// prepare makes what kubeadm init makes for those who join: who may do what, and where the cluster
// is.
func (c *Cluster) prepare(ctx context.Context) error {
	where, err := c.kubeconfig(Server, nil, "")
	if err != nil {
		return err
	}
	group := func(name string) Object {
		return Object{"apiGroup": rbac, "kind": "Group", "name": name}
	}
	objects := []Object{
		clusterBinding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(bootstrappers)),
		clusterBinding("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", group(bootstrappers)),
		clusterBinding("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", group("system:nodes")),
		{
			"apiVersion": rbac + "/v1", "kind": "ClusterRole", "metadata": Object{"name": "kubeadm:get-nodes"},
			"rules": []Object{{"apiGroups": []string{""}, "resources": []string{"nodes"}, "verbs": []string{"get"}}},
		},
		clusterBinding("kubeadm:get-nodes", "kubeadm:get-nodes", group(bootstrappers)),
		{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": Object{"name": "cluster-info", "namespace": "kube-public"},
			"data": Object{"kubeconfig": where},
		},
	}
	objects = append(objects, readable("kube-public", "cluster-info", "kubeadm:bootstrap-signer-clusterinfo",
		Object{"apiGroup": rbac, "kind": "User", "name": "system:anonymous"})...)
	for name, data := range map[string]Object{
		"kubelet-config": {"kubelet": configFile(kubeletConfig())},
		"kubeadm-config": {"ClusterConfiguration": clusterConfiguration(c.version)},
	} {
		objects = append(objects, Object{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": Object{"name": name, "namespace": "kube-system"}, "data": data,
		})
		objects = append(objects, readable("kube-system", name, "kubeadm:nodes-"+name, group("system:nodes"), group(bootstrappers))...)
	}

	return c.Admin.Apply(ctx, objects...)
}

// clusterConfiguration is what kubeadm init has noted of the cluster, and kubeadm join reads.
// Source:
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/#kubeadm-k8s-io-v1beta4-ClusterConfiguration.
func clusterConfiguration(version string) string {
	return fmt.Sprintf("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: %s\nclusterName: kubernetes\ncontrolPlaneEndpoint: %s:%s\n"+
		"networking: {dnsDomain: cluster.local, serviceSubnet: %s}\n", version, address, port, services)
}

const rbac = "rbac.authorization.k8s.io"

func clusterBinding(name, role string, subjects ...Object) Object {
	return Object{
		"apiVersion": rbac + "/v1", "kind": "ClusterRoleBinding", "metadata": Object{"name": name},
		"roleRef":  Object{"apiGroup": rbac, "kind": "ClusterRole", "name": role},
		"subjects": subjects,
	}
}

// readable lets subjects read one ConfigMap.
func readable(namespace, what, name string, subjects ...Object) []Object {
	at := Object{"name": name, "namespace": namespace}
	return []Object{
		{
			"apiVersion": rbac + "/v1", "kind": "Role", "metadata": at,
			"rules": []Object{{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "resourceNames": []string{what}, "verbs": []string{"get"}}},
		},
		{
			"apiVersion": rbac + "/v1", "kind": "RoleBinding", "metadata": at,
			"roleRef": Object{"apiGroup": rbac, "kind": "Role", "name": name}, "subjects": subjects,
		},
	}
}

// kubeconfig is a kubeconfig in JSON, which is YAML too: of a certificate's owner, a token's, or an
// anonymous client's.
func (c *Cluster) kubeconfig(server string, cert *tls.Certificate, token string) (string, error) {
	user := Object{}
	if cert != nil {
		key, err := keyPEM(cert.PrivateKey)
		if err != nil {
			return "", err
		}
		user["client-certificate-data"], user["client-key-data"] = certPEM(*cert), key
	}

	if token != "" {
		user["token"] = token
	}
	o := Object{
		"apiVersion": "v1", "kind": "Config",
		"clusters": []Object{{"name": "", "cluster": Object{"server": server, "certificate-authority-data": c.keys.ca.pem}}},
	}
	if len(user) > 0 { // the one of cluster-info has none
		o["clusters"].([]Object)[0]["name"] = "lab"
		o["users"] = []Object{{"name": "lab", "user": user}}
		o["contexts"] = []Object{{"name": "lab", "context": Object{"cluster": "lab", "user": "lab"}}}
		o["current-context"] = "lab"
	}

	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return "", fmt.Errorf("cannot write a kubeconfig: %w", err)
	}
	return string(text) + "\n", nil
}

// AdminConfig is a kubeconfig of a user who may do anything.
func (c *Cluster) AdminConfig(server string) (string, error) {
	cert, err := c.keys.certify("admin", "system:masters")
	if err != nil {
		return "", err
	}
	return c.kubeconfig(server, &cert, "")
}

// NodeConfig is a kubeconfig of a node's kubelet.
func (c *Cluster) NodeConfig(server, node string) (string, error) {
	cert, err := c.keys.certify("system:node:"+node, "system:nodes")
	if err != nil {
		return "", err
	}
	return c.kubeconfig(server, &cert, "")
}

// Expired is a node's certificate that has run out, with its key, as kubelet keeps both in one
// file.
func (c *Cluster) Expired(node string) (string, error) { return c.keys.expired(node) }

// BearerConfig is a kubeconfig of a token's owner.
func (c *Cluster) BearerConfig(server, token string) (string, error) {
	return c.kubeconfig(server, nil, token)
}

// CA is the cluster's authority in PEM, and its Pin the sum that kubeadm join takes.
func (c *Cluster) CA() []byte { return c.keys.ca.pem }

// Pin is "sha256:…", the sum of CA's public key.
func (c *Cluster) Pin() string { return c.keys.ca.pin() }

// BootstrapToken makes a bootstrap token as kubeadm does, and waits until cluster-info is signed
// with it. It is good for the given time, for any use.
func (c *Cluster) BootstrapToken(ctx context.Context, good time.Duration) (string, error) {
	random := strings.ToLower(rand.Text())
	id, secret := random[:6], random[6:22] // [a-z0-9]{6} and [a-z0-9]{16}
	err := c.Admin.Apply(ctx, Object{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": Object{"name": "bootstrap-token-" + id, "namespace": "kube-system"},
		"stringData": Object{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": bootstrappers, "expiration": time.Now().Add(good).UTC().Format(time.RFC3339),
		},
	})
	if err != nil {
		return "", err
	}
	return id + "." + secret, c.wait(ctx, c.processes[1], "cluster-info is signed", func(ctx context.Context) error {
		info, err := c.Admin.Get(ctx, "/api/v1/namespaces/kube-public/configmaps/cluster-info")
		if err == nil && Text(info, "data", "jws-kubeconfig-"+id) == "" {
			err = fmt.Errorf("it has no jws-kubeconfig-%s", id)
		}
		return err
	})
}

// Pod is a pod that a token is bound to; the zero Pod is none.
type Pod struct{ Name, UID string }

// AccountToken asks for a ServiceAccount's token, which the API server takes for an hour or as long
// as its pod is there. A token bound to a pod says on which node that is.
func (c *Cluster) AccountToken(ctx context.Context, namespace, account string, pod Pod) (string, error) {
	spec := Object{"expirationSeconds": 3600}
	if pod != (Pod{}) {
		spec["boundObjectRef"] = Object{"apiVersion": "v1", "kind": "Pod", "name": pod.Name, "uid": pod.UID}
	}
	got, err := c.Admin.Create(ctx, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token",
		Object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	return Text(got, "status", "token"), err
}
