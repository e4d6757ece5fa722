// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// login wants kubelet to log in as the machine's role.
func (n *ownNode) login() converge.Want {
	command := []string{"eks", "--cluster", n.cluster.Name, "--region", n.region}
	kubeconfig := kubelet.LoginFile(n.cluster.Server, command...)
	w := things.Exact(kubelet.Kubeconfig, kubeconfig, 0o600, "has kubelet log in as the machine's role")
	w.Thing = node.Login(w.Thing.(*things.FileThing))
	return w
}

// accepted wants EKS to map the machine's role to the node's name, before gpuadm writes anything:
// EKS refuses a kubelet with another name for ever, and only kubelet's log shows that.
func (n *ownNode) accepted(via host.Via) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		if !v.Live() {
			return "", host.FirstBoot
		}

		if _, err := v.Stat(kubelet.Plugin); host.NotExist(err) {
			return "", &trouble.Error{
				What: fmt.Sprintf("cannot join EKS: %s is not installed, which kubelet calls for its credentials", kubelet.Plugin),
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
	const why = "EKS refuses a kubelet of another name for ever"
	return things.Check("EKS knows this machine as its node", look, why)
}

// refused says why the cluster does not accept the machine as this node; nil if it does.
func (n *ownNode) refused(user kube.User, err error) error {
	kubeletUser := "system:node:" + n.name
	switch {
	case errors.Is(err, kube.Unauthorized):
		entry := "aws eks create-access-entry --region " + n.region + " --cluster-name " + n.cluster.Name +
			" --type EC2_LINUX --principal-arn ARN"
		return &trouble.Error{
			What: fmt.Sprintf("cannot join EKS: the cluster %s does not know this machine's role", n.cluster.Name),
			Because: []string{
				trouble.OneLine(err.Error()),
				"or " + n.cluster.Server + " is another cluster's",
			},
			Try: []string{
				entry + ", with the ARN of the machine's role",
				"aws sts get-caller-identity, on this machine, prints its role",
			},
			Err: err,
		}
	case errors.Is(err, kube.Forbidden) || errors.Is(err, kube.Missing):
		return nil // the cluster offers no such review; kubelet will report a refusal
	case err != nil:
		return err
	case user.Username != kubeletUser || !slices.Contains(user.Groups, "system:nodes"):
		const text = "cannot join EKS: the cluster knows this machine as %q, and its kubelet would register as %s"
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
