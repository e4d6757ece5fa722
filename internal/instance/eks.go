// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/restjson"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// ECRPlugin is the path, in EKS's images, of kubelet's plugin that logs in to ECR, the registry of
// AWS.
const ECRPlugin = "/etc/eks/image-credential-provider/ecr-credential-provider"

// ECRConfig is that plugin's configuration, beside it.
const ECRConfig = "/etc/eks/image-credential-provider/config.json"

// nodePolicy is AWS's own policy for the role of a node: it allows all that gpuadm asks.
const nodePolicy = "AmazonEKSWorkerNodePolicy"

// IdentityHint says how a cluster learns to know the identity of a machine.
const IdentityHint = "on EKS: an access entry, or aws-auth"

// describesCluster is the one call to EKS.
var describesCluster = action{
	name: "eks:DescribeCluster",
	around: []string{
		"[join] server, ca_file and service_cidr: then EKS is not asked at all",
		"the same in the user data's NodeConfig",
	},
	list: "aws eks list-clusters",
}

// noRole is the error for an instance without a role.
func noRole(instance string, err error) error {
	return &trouble.Error{
		What:    "cannot sign requests to AWS: the instance has no role",
		Because: []string{"a node of EKS identifies itself by the role of its instance"},
		Try: []string{
			"aws ec2 associate-iam-instance-profile --instance-id " + instance + " --iam-instance-profile Name=PROFILE",
			"the role needs the policies " + nodePolicy + " and AmazonEC2ContainerRegistryPullOnly",
		},
		Err: err,
	}
}

// describeCluster asks EKS.
// Source: https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeCluster.html
func (a *awsAPI) describeCluster(ctx context.Context, c *Cluster) error {
	var reply struct {
		Cluster *struct {
			Name      string  `json:"name"`
			Version   string  `json:"version"`
			Endpoint  *string `json:"endpoint"`
			Authority *struct {
				Data string `json:"data"`
			} `json:"certificateAuthority"`
			Network *struct {
				Family string `json:"ipFamily"`
				IPv4   string `json:"serviceIpv4Cidr"`
				IPv6   string `json:"serviceIpv6Cidr"`
			} `json:"kubernetesNetworkConfig"`
		} `json:"cluster"`
	}
	if err := a.askEKS(ctx, "/clusters/"+url.PathEscape(c.Name), &reply); err != nil {
		return a.explain(ctx, describesCluster, c.Name, err)
	}
	if wrong := wrongClock(a.outcome().clockOff, "AWS's"); wrong != nil {
		return wrong
	}

	cluster := reply.Cluster
	if cluster != nil && cluster.Endpoint == nil { // while it is CREATING
		return &trouble.Error{
			What:    "cannot join cluster " + c.Name + ": it is still being made",
			Try:     []string{"aws eks wait cluster-active --name " + c.Name + " --region " + a.region},
			Passing: true,
		}
	}

	if cluster == nil || cluster.Authority == nil || cluster.Network == nil {
		return a.malformedAnswer(describesCluster)
	}

	cidr := cluster.Network.IPv4
	if cluster.Network.Family == "ipv6" {
		cidr = cluster.Network.IPv6
	}
	prefix, err := netip.ParsePrefix(cidr)
	ca := authority(cluster.Authority.Data)
	if err != nil || ca == nil || !server(*cluster.Endpoint) || cluster.Name != c.Name {
		return a.malformedAnswer(describesCluster)
	}

	c.Server = *cluster.Endpoint
	c.CA = ca
	c.ServiceCIDR = prefix.String()
	c.DNS = ClusterDNS(prefix)
	c.Version = plainOrNone(cluster.Version)
	c.From = "DescribeCluster"
	return nil
}

// askEKS gets a path of EKS's API and decodes the answer. Source: the deserializers of
// aws-sdk-go-v2's service/eks.
func (a *awsAPI) askEKS(ctx context.Context, path string, into any) error {
	return a.ask(ctx, call{
		service: "eks",
		method:  http.MethodGet,
		path:    path,
		kind:    "application/json",
		decode:  func(body io.Reader) error { return json.NewDecoder(body).Decode(into) },
		refusal: func(answer *http.Response) (code, message string, err error) {
			code, message, err = restjson.GetErrorInfo(json.NewDecoder(answer.Body))
			inHeader := restjson.SanitizeErrorCode(answer.Header.Get("X-Amzn-ErrorType"))
			return cmp.Or(inHeader, code), message, err
		},
	})
}

// clusterName says whether s is a valid name for EKS:
// https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateCluster.html
func clusterName(s string) bool {
	const first = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	if s == "" || len(s) > 100 {
		return false
	}
	hasOthers := strings.Trim(s, first+"-_") != ""
	return !hasOthers && strings.Contains(first, s[:1])
}

// ClusterDNS returns the address of the cluster's DNS in EKS: the services' tenth.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/api/defaults.go:
// GetClusterDns
func ClusterDNS(cidr netip.Prefix) []string {
	ip := cidr.Masked().Addr()
	for range 10 {
		ip = ip.Next()
	}

	if !ip.IsValid() {
		return nil
	}
	return []string{ip.String()}
}

// TokenOf returns the cluster and the region of the token that a command makes, if it makes tokens
// for EKS and is called as EKS's own images call it; else "".
// Sources: awslabs/amazon-eks-ami, nodeadm/internal/kubelet/kubeconfig.template.yaml and, before
// its pull 2645, templates/al2/runtime/kubelet-kubeconfig; aws/aws-cli,
// awscli/customizations/eks/get_token.py; kubernetes-sigs/aws-iam-authenticator.
func TokenOf(argv []string) (cluster, region string) {
	var begins []string
	switch path.Base(argv[0]) {
	case "aws":
		begins = []string{"eks", "get-token", "--cluster-name"}
	case "aws-iam-authenticator":
		begins = []string{"token", "-i"}
	default:
		return "", ""
	}

	args := argv[1:]
	n := len(begins)
	if len(args) != n+3 || !slices.Equal(args[:n], begins) || args[n+1] != "--region" {
		return "", ""
	}
	return args[n], args[n+2]
}
