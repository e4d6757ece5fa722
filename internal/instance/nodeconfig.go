// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A NodeConfig tells nodeadm, the program of EKS that makes a machine a node, about the cluster and
// about kubelet.
const (
	nodeConfigGroup   = "node.eks.aws"
	NodeConfigVersion = nodeConfigGroup + "/v1alpha1"
	NodeConfigKind    = "NodeConfig"
)

// nodeConfigDocument has the facts about a cluster in a NodeConfig.
type nodeConfigDocument struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Spec       struct {
		Cluster struct {
			Name        string
			Server      string `yaml:"apiServerEndpoint"`
			CA          string `yaml:"certificateAuthority"`
			ServiceCIDR string `yaml:"cidr"`
		}
	}
}

// nodeConfig reads the cluster from user data as nodeadm accepts it: NodeConfig documents of
// node.eks.aws, alone or as parts of a MIME message, packed by gzip and base64 or not; later
// documents win. It ignores the rest. nil if there is no document, or none with facts about the
// cluster.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/configprovider/userdata.go
func nodeConfig(data []byte) *Cluster {
	var c Cluster
	found := false
	for _, text := range documents(unpack(data), "application/"+nodeConfigGroup) {
		var doc nodeConfigDocument
		err := yaml.Unmarshal(text, &doc)
		ofNodeadm := doc.Kind == NodeConfigKind && strings.HasPrefix(doc.APIVersion, nodeConfigGroup+"/")
		if err == nil && ofNodeadm && c.merge(doc) {
			found = true
		}
	}

	if !found {
		return nil
	}

	c.From = "user data"
	return &c
}

// merge takes over the valid facts of a document, and says whether it has any.
func (c *Cluster) merge(doc nodeConfigDocument) (found bool) {
	stated := doc.Spec.Cluster
	if clusterName(stated.Name) {
		c.Name = stated.Name
		found = true
	}
	if server(stated.Server) {
		c.Server = stated.Server
		found = true
	}
	if ca := authority(stated.CA); ca != nil {
		c.CA = ca
		found = true
	}
	if services, err := netip.ParsePrefix(stated.ServiceCIDR); err == nil {
		c.ServiceCIDR = services.String()
		c.DNS = ClusterDNS(services)
		found = true
	}

	return found
}

// UserKubelet has the parts of kubelet in the user data that gpuadm reads.
type UserKubelet struct {
	Flags  []string
	Config struct {
		RegisterWithTaints []struct{ Key, Value, Effect string }
	}
}

type resolvedNodeConfig struct {
	APIVersion string `json:"apiVersion"`
	Spec       struct{ Kubelet *UserKubelet }
}

// ReadResolved reads kubelet in the NodeConfig that nodeadm has resolved from the user data and,
// after nodeadm-run has run, from gpuadm's file. There is none yet in an image, or too early in the
// boot: the result is empty. A NodeConfig of a version that gpuadm does not know may have its
// taints in another place, and is an error. file is its name in that error.
//
// nodeadm keeps its internal version, which Kubernetes' libraries write without an apiVersion, and
// always with a kubelet. Sources: awslabs/amazon-eks-ami, nodeadm/internal/api/bridge/encode.go and
// types.go; kubernetes/apimachinery, pkg/runtime/scheme.go (setTargetKind).
func ReadResolved(file string, data []byte) (k UserKubelet, err error) {
	if len(bytes.Trim(data, " \t\r\n\x00")) == 0 {
		return k, nil
	}

	const newerGpuadm = "use a gpuadm that is newer than this image's nodeadm"
	var n resolvedNodeConfig
	if err := json.Unmarshal(data, &n); err != nil {
		return k, unread(file, "it is not what nodeadm writes: "+trouble.OneLine(err.Error()),
			"nodeadm init, or a reboot, which rewrites it")
	}
	switch {
	case n.APIVersion != "" && n.APIVersion != NodeConfigVersion:
		why := fmt.Sprintf("its apiVersion is %q, and gpuadm knows %s", n.APIVersion, NodeConfigVersion)
		return k, unread(file, why, newerGpuadm)
	case n.Spec.Kubelet == nil:
		why := "it has no spec.kubelet, which each NodeConfig of " + NodeConfigVersion + " has"
		return k, unread(file, why, newerGpuadm)
	}

	return *n.Spec.Kubelet, nil
}

// unread says that gpuadm cannot read what nodeadm has resolved.
func unread(file, why, try string) error {
	return &trouble.Error{
		What:    "cannot read " + file + ": " + why,
		Because: []string{"the taints of the user data are in there, and gpuadm's list in their place would remove them"},
		Try: []string{
			try,
			"or give labels and taints in the NodeConfig of the user data, and write method = \"none\" in [join]",
		},
	}
}
