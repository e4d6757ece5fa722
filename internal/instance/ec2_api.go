// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/ec2query"
	"github.com/aws/smithy-go"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// describesInstance is the call for the node's name.
var describesInstance = action{
	name:   "ec2:DescribeInstances",
	around: []string{"[join] node_name: then EC2 is not asked for it"},
}

// describeInstance asks EC2 for the private DNS name, which must be the node's name unless the node
// is named by its id. IMDS's local-hostname differs from it if DHCP sets another domain.
// Source: https://github.com/awslabs/amazon-eks-ami/issues/1263
func (a *awsAPI) describeInstance(ctx context.Context, i *Instance, c *Cluster) error {
	for pause := time.Second; ; pause = min(2*pause, 8*time.Second) {
		name, err := a.privateDNS(ctx, i)
		switch {
		case err != nil:
			return err
		case plain(name):
			c.PrivateDNS = name
			return nil
		case name != "":
			return a.malformedAnswer(describesInstance)
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

// privateDNS asks EC2 once for the private DNS name; "" if EC2 does not know it yet.
func (a *awsAPI) privateDNS(ctx context.Context, i *Instance) (string, error) {
	var names struct {
		Private []string `xml:"reservationSet>item>instancesSet>item>privateDnsName"`
	}
	params := url.Values{"InstanceId.1": {i.ID}}
	ec2 := a.inRegionOf(i)
	err := ec2.askEC2API(ctx, "DescribeInstances", params, &names)

	var refusal smithy.APIError
	if errors.As(err, &refusal) && refusal.ErrorCode() == "InvalidInstanceID.NotFound" {
		return "", nil // EC2 is eventually consistent
	}
	if err != nil {
		return "", ec2.explain(ctx, describesInstance, i.ID, err)
	}
	if wrong := wrongClock(a.outcome().clockOff, "AWS's"); wrong != nil {
		return "", wrong
	}

	if len(names.Private) == 0 {
		return "", nil
	}
	return names.Private[0], nil
}

// inRegionOf returns the API of the instance's region, wherever the cluster is.
func (a *awsAPI) inRegionOf(i *Instance) *awsAPI {
	api := *a
	api.region = i.Region
	return &api
}

// describeType asks EC2 how many addresses the type can have, for the number of pods. Without an
// answer the number of pods has a default.
func (a *awsAPI) describeType(ctx context.Context, i *Instance, c *Cluster) {
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
	params := url.Values{"InstanceType.1": {i.Type}}
	err := a.inRegionOf(i).askEC2API(ctx, "DescribeInstanceTypes", params, &reply)
	if err != nil || len(reply.Types) == 0 {
		return
	}

	kind := reply.Types[0]
	for _, card := range kind.Cards {
		isDefault := card.Index == kind.Card
		if isDefault && plausible(card.Most) && plausible(kind.Addresses) {
			c.ENIs = card.Most
			c.IPv4PerENI = kind.Addresses
		}
	}
}

// plausible says whether a number of interfaces or addresses can be one.
func plausible(n int) bool { return n > 0 && n < 1000 }

// askEC2API calls one action of EC2's query API and decodes the answer.
//
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html, and the
// serializers of aws-sdk-go-v2's service/ec2 for the names of parameters and elements.
func (a *awsAPI) askEC2API(ctx context.Context, action string, params url.Values, into any) error {
	params.Set("Action", action)
	params.Set("Version", "2016-11-15")
	return a.ask(ctx, call{
		service: "ec2",
		method:  http.MethodPost,
		path:    "/",
		body:    params.Encode(),
		kind:    "application/x-www-form-urlencoded",
		decode:  func(body io.Reader) error { return xml.NewDecoder(body).Decode(into) },
		refusal: func(answer *http.Response) (code, message string, err error) {
			reply, err := ec2query.GetErrorResponseComponents(answer.Body)
			return reply.Code, reply.Message, err
		},
	})
}
