// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/smithy-go"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// awsAPI asks AWS's API as the instance's role.
type awsAPI struct {
	*door
	region string
	keys   aws.Credentials
}

// openAWS makes ready to ask.
func openAWS(ctx context.Context, v host.View, i *Instance, want ClusterRef) (*awsAPI, error) {
	a := &awsAPI{region: want.Region}
	if a.region == "" {
		a.region = i.Region
	}
	if !isRegion(a.region) {
		return nil, &trouble.Error{What: "cannot ask AWS about the cluster: its region is not known", Try: []string{"[join] region = \"us-east-1\""}}
	}
	m, err := openIMDS(v, i.ID)
	if err != nil {
		return nil, err
	}
	if a.keys, err = m.role(ctx); err != nil {
		return nil, err
	}
	a.door, err = open(v, host.Web{Via: want.Via}, apiMost)
	return a, err
}

// role gets the keys of the instance's role. They go nowhere but into signatures.
func (m *imdsDoor) role(ctx context.Context) (aws.Credentials, error) {
	var keys aws.Credentials
	from := ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = m.api })
	err := m.try(ctx, func(ctx context.Context) (err error) {
		keys, err = from.Retrieve(ctx)
		return err
	})
	var api smithy.APIError
	switch {
	case errors.Is(err, errMissing):
		return keys, &trouble.Error{
			What:    "cannot sign requests to AWS: the instance has no role",
			Because: []string{"a node of EKS says who it is by the role of its instance"},
			Try: []string{
				"aws ec2 associate-iam-instance-profile --instance-id " + m.name() + " --iam-instance-profile Name=PROFILE",
				"the role needs the policies AmazonEKSWorkerNodePolicy and AmazonEC2ContainerRegistryPullOnly",
			},
			Err: err,
		}
	case errors.As(err, &api):
		return keys, &trouble.Error{
			What:    "cannot sign requests to AWS: EC2 has no keys for the instance's role: " + clean(api.ErrorCode(), 100),
			Because: []string{"the role was removed, or does not trust EC2"},
			Try:     []string{"aws iam get-role --role-name ROLE    shows which services it trusts"},
			Err:     err,
		}
	case err != nil:
		return keys, err
	case keys.AccessKeyID == "" || keys.SecretAccessKey == "":
		return keys, strange("the role's keys")
	}
	return keys, nil
}

// retryer asks six times within a quarter of a minute or so, with jittered exponential backoff.
func retryer() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = 6, 10*time.Second })
}

// describeCluster asks EKS. Source: https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeCluster.html
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
		return a.explain(ctx, "eks:DescribeCluster", c.Name, err)
	}
	if wrong := wrongClock(a.outcome().clockOff, "AWS's"); wrong != nil {
		return wrong
	}
	is := reply.Cluster
	if is == nil || is.Authority == nil || is.Network == nil || is.Endpoint == nil {
		if is != nil && is.Endpoint == nil { // while it is CREATING
			return &trouble.Error{What: "cannot join cluster " + c.Name + ": it is still being made", Try: []string{"aws eks wait cluster-active --name " + c.Name}, Passing: true}
		}
		return a.strange("eks:DescribeCluster")
	}
	cidr := is.Network.IPv4
	if is.Network.Family == "ipv6" {
		cidr = is.Network.IPv6
	}
	prefix, err := netip.ParsePrefix(cidr)
	ca := authority(is.Authority.Data)
	if err != nil || ca == nil || !server(*is.Endpoint) || is.Name != c.Name {
		return a.strange("eks:DescribeCluster")
	}
	c.Server, c.CA, c.ServiceCIDR, c.DNS = *is.Endpoint, ca, prefix.String(), ClusterDNS(prefix)
	c.Version, c.From = orNone(is.Version), "DescribeCluster"
	return nil
}

// describeInstance asks EC2 for the private DNS name: what the node must be called where it does not go by its id.
// IMDS's local-hostname is another one where DHCP has a domain of its own.
// Source: https://github.com/awslabs/amazon-eks-ami/issues/1263
func (a *awsAPI) describeInstance(ctx context.Context, i *Instance, c *Cluster) error {
	own := *a
	own.region = i.Region // the instance's, wherever the cluster is
	for pause := time.Second; ; pause = min(2*pause, 8*time.Second) {
		var names struct {
			Private []string `xml:"reservationSet>item>instancesSet>item>privateDnsName"`
		}
		err := own.askEC2API(ctx, "DescribeInstances", url.Values{"InstanceId.1": {i.ID}}, &names)
		var reply smithy.APIError
		switch {
		case errors.As(err, &reply) && reply.ErrorCode() == "InvalidInstanceID.NotFound": // EC2 has not told all its parts yet
		case err != nil:
			return a.explain(ctx, "ec2:DescribeInstances", i.ID, err)
		case wrongClock(a.outcome().clockOff, "AWS's") != nil:
			return wrongClock(a.outcome().clockOff, "AWS's")
		case len(names.Private) > 0:
			name := names.Private[0]
			if plain(name) {
				c.PrivateDNS = name
				return nil
			}
			if name != "" {
				return a.strange("ec2:DescribeInstances")
			}
		}
		if host.Pause(ctx, pause) != nil {
			return &trouble.Error{
				What:    "cannot find out the node's name: EC2 tells no private DNS name of " + i.ID,
				Because: []string{"it may lag behind for minutes after a launch; where the VPC has no DNS host names it never comes"},
				Try:     []string{"[join] node_name = \"" + i.ID + "\", with an access entry of type EC2 and {{SessionName}}"},
				Passing: true,
			}
		}
	}
}

// describeType asks EC2 how many addresses the type can have, for the number of pods. No answer is no failure: the number
// of pods has a default.
func (a *awsAPI) describeType(ctx context.Context, i *Instance, c *Cluster) {
	own := *a
	own.region = i.Region
	var reply struct {
		Types []struct {
			Addresses int `xml:"networkInfo>ipv4AddressesPerInterface"`
			Card      int `xml:"networkInfo>defaultNetworkCardIndex"`
			Cards     []struct {
				Index int `xml:"networkCardIndex"`
				Most  int `xml:"maximumNetworkInterfaces"`
			} `xml:"networkInfo>networkCards>item"`
		} `xml:"instanceTypeSet>item"`
	}
	if err := own.askEC2API(ctx, "DescribeInstanceTypes", url.Values{"InstanceType.1": {i.Type}}, &reply); err != nil || len(reply.Types) == 0 {
		return
	}
	kind := reply.Types[0]
	for _, card := range kind.Cards {
		if card.Index == kind.Card && card.Most > 0 && card.Most < 1000 && kind.Addresses > 0 && kind.Addresses < 1000 {
			c.ENIs, c.IPv4PerENI = card.Most, kind.Addresses
		}
	}
}
