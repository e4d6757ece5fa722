// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/ec2query"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/restjson"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// awsAPI calls AWS's APIs with the instance's role.
type awsAPI struct {
	*transport
	region string
	keys   aws.Credentials
}

// openAWS prepares the calls.
func openAWS(ctx context.Context, v host.View, i *Instance, want ClusterRef) (*awsAPI, error) {
	region := cmp.Or(want.Region, i.Region)
	if !isRegion(region) {
		return nil, &trouble.Error{
			What: "cannot ask AWS about the cluster: its region is not known",
			Try:  []string{"[join] region = \"us-east-1\""},
		}
	}

	m, err := openIMDS(v, i.ID)
	if err != nil {
		return nil, err
	}
	keys, err := m.role(ctx)
	if err != nil {
		return nil, err
	}
	t, err := newTransport(v, host.Web{Queries: true, Via: want.Via}, maxAPI)
	if err != nil {
		return nil, err
	}
	return &awsAPI{transport: t, region: region, keys: keys}, nil
}

// role gets the keys of the instance's role. gpuadm uses them only for signatures.
func (m *imdsClient) role(ctx context.Context) (aws.Credentials, error) {
	provider := ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = m.api })
	var keys aws.Credentials
	err := m.try(ctx, func(ctx context.Context) (err error) {
		keys, err = provider.Retrieve(ctx)
		return err
	})

	var api smithy.APIError
	switch {
	case errors.Is(err, errMissing):
		return keys, &trouble.Error{
			What:    "cannot sign requests to AWS: the instance has no role",
			Because: []string{"a node of EKS identifies itself by the role of its instance"},
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
		return keys, malformedAnswer("the role's keys")
	}
	return keys, nil
}

// retryer makes six tries within about 15 seconds, with jittered exponential backoff.
func retryer() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = 6
		o.MaxBackoff = 10 * time.Second
	})
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
		return a.explain(ctx, "eks:DescribeCluster", c.Name, err)
	}
	if wrong := wrongClock(a.outcome().clockOff, "AWS's"); wrong != nil {
		return wrong
	}

	cluster := reply.Cluster
	if cluster != nil && cluster.Endpoint == nil { // while it is CREATING
		return &trouble.Error{
			What:    "cannot join cluster " + c.Name + ": it is still being made",
			Try:     []string{"aws eks wait cluster-active --name " + c.Name},
			Passing: true,
		}
	}
	if cluster == nil || cluster.Authority == nil || cluster.Network == nil {
		return a.malformedAnswer("eks:DescribeCluster")
	}

	cidr := cluster.Network.IPv4
	if cluster.Network.Family == "ipv6" {
		cidr = cluster.Network.IPv6
	}
	prefix, err := netip.ParsePrefix(cidr)
	ca := authority(cluster.Authority.Data)
	if err != nil || ca == nil || !server(*cluster.Endpoint) || cluster.Name != c.Name {
		return a.malformedAnswer("eks:DescribeCluster")
	}

	c.Server = *cluster.Endpoint
	c.CA = ca
	c.ServiceCIDR = prefix.String()
	c.DNS = ClusterDNS(prefix)
	c.Version = plainOrNone(cluster.Version)
	c.From = "DescribeCluster"
	return nil
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
			return a.malformedAnswer("ec2:DescribeInstances")
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
	err := a.inRegionOf(i).askEC2API(ctx, "DescribeInstances", params, &names)

	var refusal smithy.APIError
	notYet := errors.As(err, &refusal) && refusal.ErrorCode() == "InvalidInstanceID.NotFound" // EC2 is eventually consistent
	if notYet {
		return "", nil
	}
	if err != nil {
		return "", a.explain(ctx, "ec2:DescribeInstances", i.ID, err)
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

// call is a request to one of AWS's APIs, and the reader of its answer.
//
// The SDK's own clients have hundreds of actions, and gpuadm needs three: EC2's takes a minute to
// compile, and EKS's builds tables at each start of a process. So gpuadm uses only the SDK's
// signer, retryer and error readers.
type call struct {
	service string // such as "eks"
	method  string
	path    string
	body    string
	kind    string // the body's Content-Type

	decode  func(io.Reader) error
	refusal func(*http.Response) (code, message string, err error)
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

// ask sends a request as often as the SDK would.
func (a *awsAPI) ask(ctx context.Context, c call) error {
	retryer := retryer()
	for nth := 1; ; nth++ {
		err := a.askOnce(ctx, c)
		if err == nil || nth == retryer.MaxAttempts() || !retryer.IsErrorRetryable(err) {
			return err
		}
		pause, noDelay := retryer.RetryDelay(nth, err)
		if noDelay != nil || host.Pause(ctx, pause) != nil {
			return err
		}
	}
}

func (a *awsAPI) askOnce(ctx context.Context, c call) error {
	at := "https://" + c.service + "." + a.region + "." + awsDomain(a.region) + c.path
	r, err := http.NewRequestWithContext(ctx, c.method, at, strings.NewReader(c.body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", c.kind)
	hash := sha256.Sum256([]byte(c.body))
	signer := v4.NewSigner()
	err = signer.SignHTTP(ctx, a.keys, r, hex.EncodeToString(hash[:]), c.service, a.region, a.now())
	if err != nil {
		return err
	}

	answer, err := a.client().Do(r)
	if err != nil {
		return &smithyhttp.RequestSendError{Err: err}
	}
	defer answer.Body.Close()

	if answer.StatusCode == http.StatusOK {
		if err := c.decode(answer.Body); err != nil {
			return &smithy.DeserializationError{Err: err}
		}
		return nil
	}

	code, message, err := c.refusal(answer)
	if err == nil {
		err = &smithy.GenericAPIError{Code: code, Message: message}
	}
	return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: answer}, Err: err}
}
