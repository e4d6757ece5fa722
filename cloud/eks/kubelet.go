// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// On EKS's own images nodeadm configures kubelet, and gpuadm's join must give the same node: the
// keys and their values are from https://github.com/awslabs/amazon-eks-ami,
// nodeadm/internal/kubelet/config.go. A test compares the two, and states the reason for each
// difference.

// plugin is the program that kubelet calls for a token: gpuadm.
const plugin = "/usr/local/sbin/gpuadm"

// config are EKS's keys of kubelet's configuration.
func (n *ownNode) config(f facts.Facts) map[string]any {
	pods := maxPods(n.cluster)
	c := map[string]any{
		"clusterDNS":    n.cluster.DNS,
		"clusterDomain": "cluster.local",
		"maxPods":       pods,
		// The cloud controller finds the machine by it:
		// https://kubernetes.io/docs/concepts/architecture/cloud-controller/
		"providerID":          "aws:///" + n.machine.Zone + "/" + n.machine.ID,
		"serverTLSBootstrap":  true, // EKS signs the certificate of its server
		"serializeImagePulls": false,
		"evictionHard": map[string]any{
			"memory.available":  "100Mi",
			"nodefs.available":  "10%",
			"nodefs.inodesFree": "5%",
		},
		"tlsCipherSuites": []string{
			"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
			"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
			"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
			"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
			"TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_256_GCM_SHA384",
		},
	}
	if r := kubelet.Reserved(f, pods); r != nil {
		c["kubeReserved"] = r
	}
	return c
}

// maxPods returns the number of pods for which the VPC CNI has addresses: each interface keeps one
// for itself, and two pods use the host's network. 110 if the type is not known.
// Source: https://github.com/awslabs/amazon-eks-ami, templates/shared/runtime/eni-max-pods.txt.
func maxPods(c instance.Cluster) int {
	if c.ENIs < 1 || c.IPv4PerENI < 2 {
		return 110
	}
	return c.ENIs*(c.IPv4PerENI-1) + 2
}

// flags returns the settings that kubelet accepts only on its command line.
func (n *ownNode) flags(f facts.Facts) []string {
	return append([]string{"--cloud-provider=external", "--node-ip=" + n.ip}, ecrFlags(f)...)
}

// kubeconfig makes kubelet call gpuadm for a token whenever it needs one. It has no secret.
func (n *ownNode) kubeconfig() []byte {
	named := func(kind, name string, value map[string]any) []any {
		return []any{map[string]any{"name": name, kind: value}}
	}
	cluster := map[string]any{
		"server":                n.cluster.Server,
		"certificate-authority": kubelet.ClusterCA,
	}
	exec := map[string]any{
		"apiVersion":      "client.authentication.k8s.io/v1", // kubelets from 1.22 on
		"command":         plugin,
		"args":            []string{"token", "eks", "--cluster", n.cluster.Name, "--region", n.region},
		"interactiveMode": "Never",
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "node",
		"clusters":        named("cluster", "cluster", cluster),
		"users":           named("user", "node", map[string]any{"exec": exec}),
		"contexts":        named("context", "node", map[string]any{"cluster": "cluster", "user": "node"}),
	})
	if err != nil {
		return nil // maps of strings can be written
	}
	return append([]byte(kubelet.Written), text...)
}

// accepted wants EKS to map the machine's role to the node's name, before gpuadm writes anything:
// EKS refuses a kubelet with another name for ever, and only kubelet's log shows that.
func (n *ownNode) accepted(via host.Via) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		if !v.Live() {
			return "", host.FirstBoot
		}
		if _, err := v.Stat(plugin); host.NotExist(err) {
			return "", &trouble.Error{
				What: fmt.Sprintf("cannot join EKS: %s is not installed, which kubelet calls for its credentials", plugin),
				Try:  []string{trouble.Command("apply --install")},
			}
		}

		token, _, err := instance.Token(ctx, v, n.cluster.Name, n.region)
		if err != nil {
			return "", err
		}
		client, err := kube.WithToken(v, n.cluster.Server, n.cluster.CA, token, via)
		if err != nil {
			return "", err
		}
		user, err := client.Whoami(ctx)
		return "", n.refused(user, err)
	}
	return things.Check("EKS takes this machine for its node", look, "EKS refuses a kubelet of another name for ever")
}

// refused says why the cluster does not accept the machine as this node; nil if it does.
func (n *ownNode) refused(user kube.User, err error) error {
	kubeletUser := "system:node:" + n.name
	switch {
	case errors.Is(err, kube.Unauthorized):
		return &trouble.Error{
			What:    fmt.Sprintf("cannot join EKS: the cluster %s does not know this machine's role", n.cluster.Name),
			Because: []string{trouble.OneLine(err.Error()), "or " + n.cluster.Server + " is another cluster's"},
			Try: []string{
				"aws eks create-access-entry --cluster-name " + n.cluster.Name + " --type EC2_LINUX --principal-arn ARN, with the ARN of the machine's role",
				"aws sts get-caller-identity, on this machine, prints its role",
			},
			Err: err,
		}
	case errors.Is(err, kube.Forbidden) || errors.Is(err, kube.Missing):
		return nil // the cluster offers no such review; kubelet will report a refusal
	case err != nil:
		return err
	case user.Username != kubeletUser || !slices.Contains(user.Groups, "system:nodes"):
		const text = "cannot join EKS: the cluster takes this machine for %q, and its kubelet would be %s"
		return &trouble.Error{
			What:    fmt.Sprintf(text, trouble.OneLine(user.Username), kubeletUser),
			Because: []string{"a node's name and the name that EKS gives its role must be the same"},
			Try: []string{
				"give the role an access entry of type EC2_LINUX, in place of another type",
				"and drop node_name from [join], if it is there: EKS calls a machine by its private DNS name",
			},
		}
	}
	return nil
}
