// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// imdsDoor asks EC2's metadata service, only by version 2: version 1 also answers an attacker who
// makes a program on the machine fetch a URL. Source:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
type imdsDoor struct {
	*door
	api    *imds.Client
	silent int // how often the server accepted the request for a token without an answer
	id     string
}

// openIMDS prepares the requests. id is the instance's id from the firmware, for error messages.
func openIMDS(v host.View, id string) (*imdsDoor, error) {
	d, err := open(v, host.Web{}, metadataMost)
	if err != nil {
		return nil, err
	}
	return &imdsDoor{door: d, id: id, api: imds.New(imds.Options{
		HTTPClient: d.client(), Retryer: aws.NopRetryer{}, EnableFallback: aws.FalseTernary,
	})}, nil
}

// identity asks for the instance identity document.
func (e *imdsDoor) identity(ctx context.Context) (*Instance, error) {
	var doc imds.InstanceIdentityDocument
	err := e.try(ctx, func(ctx context.Context) error {
		out, err := e.api.GetInstanceIdentityDocument(ctx, nil)
		if err == nil {
			doc = out.InstanceIdentityDocument
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	switch {
	case !ec2ID().MatchString(doc.InstanceID):
		return nil, malformedAnswer("instanceId")
	case !plain(doc.InstanceType):
		return nil, malformedAnswer("instanceType")
	case !plain(doc.Region):
		return nil, malformedAnswer("region")
	}
	return &Instance{
		ID: doc.InstanceID, Type: doc.InstanceType, Region: doc.Region, Zone: orNone(doc.AvailabilityZone),
		PrivateIP: address([]string{doc.PrivateIP}),
	}, nil
}

// tags returns the instance's tags, if it may read them: InstanceMetadataTags.
func (e *imdsDoor) tags(ctx context.Context) (map[string]string, error) {
	names, err := e.text(ctx, "tags/instance/")
	if err != nil || names == "" {
		return nil, err
	}
	tags := map[string]string{}
	for _, name := range strings.Split(names, "\n") {
		if !plain(name) || strings.ContainsAny(name, "?#%") || len(tags) == 50 { // EC2 allows no more, and only plain names here
			continue
		}
		if tags[name], err = e.text(ctx, "tags/instance/"+name); err != nil {
			return nil, err
		}
	}
	return keep(tags), nil
}

// userCluster reads the cluster from the user data. gpuadm discards the rest, which may have
// secrets.
func (e *imdsDoor) userCluster(ctx context.Context) (c *Cluster, err error) {
	err = e.try(ctx, func(ctx context.Context) error {
		out, err := e.api.GetUserData(ctx, nil)
		if err != nil {
			return err
		}
		defer out.Content.Close()
		data, err := io.ReadAll(out.Content)
		if err == nil {
			c = nodeConfig(data)
		}
		return err
	})
	if errors.Is(err, errMissing) {
		return nil, nil
	}
	return c, err
}

// text asks for one word or list; "" if the service does not have it.
func (e *imdsDoor) text(ctx context.Context, path string) (string, error) {
	var text string
	err := e.try(ctx, func(ctx context.Context) error {
		out, err := e.api.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
		if err != nil {
			return err
		}
		defer out.Content.Close()
		data, err := io.ReadAll(out.Content)
		text = strings.TrimSpace(string(data))
		return err
	})
	if errors.Is(err, errMissing) {
		return "", nil
	}
	return text, err
}

// errMissing is the cause of a *trouble.Error for a value that the service does not have.
var errMissing = errors.New("not there")

// try asks until there is an answer or a retry is useless, and explains why.
func (e *imdsDoor) try(ctx context.Context, do func(context.Context) error) error {
	refused := 0
	err := tries(ctx, do, func(err error) bool {
		f := e.outcome()
		switch {
		case f.method == http.MethodPut && f.connected && f.status == 0:
			e.silent++
			return e.silent == 3
		case f.status == http.StatusUnauthorized:
			refused++
			return refused == 2 // the token has expired: the SDK discards it and gets another
		}
		return !retryable(f, err)
	})
	if err == nil {
		return nil
	}
	return e.explain(ctx, err)
}

// retryable says whether the same request may succeed a moment later.
func retryable(f outcome, err error) bool {
	var parsing *smithy.DeserializationError
	switch {
	case f.tooLong || errors.As(err, &parsing):
		return false
	case f.status == 0 || f.status == http.StatusTooManyRequests || f.status >= 500:
		return true
	}
	return f.status == http.StatusOK && brokenOff(err)
}

// brokenOff says whether an answer was cut short.
func brokenOff(err error) bool {
	var network net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network)
}

// orNone returns s if it is a plain word, else "none".
func orNone(s string) string {
	if plain(s) {
		return s
	}
	return ""
}

// endpointName returns the service name of a VPC endpoint. Outside the first partitions each
// service has its own prefix.
// Source: https://docs.aws.amazon.com/vpc/latest/privatelink/aws-services-privatelink-support.html,
// and its page of China.
func (a *awsAPI) endpointName(service string) string {
	if awsDomain(a.region) != "amazonaws.com" {
		return "NAME    (aws ec2 describe-vpc-endpoint-services lists them; it ends in " + service + ")"
	}
	return "com.amazonaws." + a.region + "." + service
}

// malformedAnswer returns the error for an answer of AWS without a required field.
func (a *awsAPI) malformedAnswer(call string) *trouble.Error {
	return &trouble.Error{
		What:    "cannot read AWS's answer to " + call + ": it is not of the form that AWS gives",
		Because: []string{"a proxy may have answered in AWS's place"},
		Try:     []string{"[proxy] no_proxy = [\"" + awsDomain(a.region) + "\"], where the VPC has endpoints of its own"},
	}
}

// explain says why AWS refused, and how to fix it. It includes AWS's message in one short line,
// which names roles and resources, never keys.
func (a *awsAPI) explain(ctx context.Context, call, object string, err error) *trouble.Error {
	var cause *trouble.Error
	if errors.As(context.Cause(ctx), &cause) { // the time is over: the last answer says more, if there was one
		if f := a.outcome(); f.status == 0 {
			return a.unreached(call, err)
		}
	}

	var refusal smithy.APIError
	var code, message string
	if errors.As(err, &refusal) {
		code = refusal.ErrorCode()
		message = clean(refusal.ErrorMessage(), 300)
	}
	f := a.outcome()
	if wrong := wrongClock(f.clockOff, "AWS's"); wrong != nil && f.status >= 400 {
		wrong.Err = err
		return wrong
	}

	e := &trouble.Error{
		What: fmt.Sprintf("cannot ask %s about %s in %s: ", call, object, a.region),
		Err:  err,
	}
	if message != "" {
		e.Because = []string{"AWS says: " + message}
	}

	switch {
	case f.status == http.StatusTooManyRequests, throttled(code):
		e.What += "AWS limits the request rate"
		e.Passing = true
		e.Because = append(e.Because, "all machines of the account share one limit")
		e.Try = []string{
			"wait, and run apply again",
			"[join] server, ca_file and service_cidr: then EKS is not asked at all",
			"the same in the user data's NodeConfig",
		}
		if strings.HasPrefix(call, "ec2:") {
			e.Try = []string{"wait, and run apply again", "[join] node_name: then EC2 is not asked for it"}
		}
	case f.status == http.StatusNotFound, code == "ResourceNotFoundException":
		e.What += "not found"
		e.Try = []string{
			"aws eks list-clusters --region " + a.region,
			"[join] cluster and region: the region is " + a.region + " where none is stated, since the machine is there",
		}
	case denied(code):
		e.What += "the instance's role lacks the permission"
		e.Try = []string{
			"allow " + call + " to the role; AWS's policy AmazonEKSWorkerNodePolicy does",
			"or [join] server, ca_file, service_cidr and node_name: then AWS is not asked",
		}
	case strings.HasPrefix(code, "ExpiredToken"), code == "RequestExpired":
		e.What += "the keys of the instance's role have expired"
		e.Passing = true
		e.Try = []string{
			"timedatectl    shows whether the clock is right",
			"wait: EC2 hands out new keys before the old ones end",
		}
	case f.status == http.StatusUnauthorized, f.status == http.StatusForbidden:
		e.What += "AWS rejects the role's signature"
		e.Try = []string{
			"timedatectl    shows whether the clock is right",
			"aws iam get-role --role-name ROLE: a role that was deleted and created again does not accept the old keys",
		}
	case f.status == 0:
		return a.unreached(call, err)
	case f.tooLong:
		return a.malformedAnswer(call)
	case f.status >= 500:
		e.What += fmt.Sprintf("AWS fails (status %d)", f.status)
		e.Passing = true
		e.Try = []string{"wait, and run apply again", "https://health.aws.amazon.com"}
	default:
		return a.malformedAnswer(call)
	}
	return e
}

// throttled recognises the throttling errors of EKS and EC2.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func throttled(code string) bool {
	switch code {
	case "ThrottlingException", "Throttling", "TooManyRequestsException",
		"RequestLimitExceeded", "RequestThrottled", "RequestThrottledException":
		return true
	}
	return false
}

func denied(code string) bool {
	return code == "AccessDeniedException" || code == "AccessDenied" || code == "UnauthorizedOperation"
}

// unreached returns the error for an API of AWS that does not answer.
func (a *awsAPI) unreached(call string, err error) *trouble.Error {
	f := a.outcome()
	const createEndpoint = "aws ec2 create-vpc-endpoint --vpc-endpoint-type Interface --service-name "
	e := &trouble.Error{
		What:    fmt.Sprintf("cannot ask %s in %s: %s cannot be reached", call, a.region, f.host),
		Because: []string{"a private subnet needs a NAT gateway, a VPC endpoint of the service, or a proxy"},
		Try: []string{
			"[proxy] https = \"http://PROXY:PORT\"",
			createEndpoint + a.endpointName(call[:3]),
			"or [join] server, ca_file, service_cidr and node_name: then AWS is not asked",
		},
		Passing: true,
		Err:     err,
	}

	var lookup *net.DNSError
	if errors.As(err, &lookup) || strings.Contains(err.Error(), "no such host") {
		e.What = fmt.Sprintf("cannot ask %s in %s: the name %s is not known", call, a.region, f.host)
		e.Because = []string{"there is no such region, or the machine's DNS does not answer yet"}
		e.Try = append([]string{
			"[join] region = \"…\", if " + a.region + " is not where the cluster is",
			"getent hosts " + f.host,
		}, e.Try...)
	}

	return e
}
