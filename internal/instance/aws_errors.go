// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/aws/smithy-go"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// An action is a call to one of AWS's services, and what helps where AWS refuses it.
type action struct {
	name   string   // in policies: ec2:DescribeInstances
	around []string // how gpuadm does without it
	list   string   // the command that lists what can be asked about; "" = none
}

// service returns the service's name in policies and in the names of endpoints.
func (a action) service() string {
	service, _, _ := strings.Cut(a.name, ":")
	return service
}

// explain says why AWS refused, and how to fix it. It includes AWS's message in one short line,
// which names roles and resources, never keys.
func (a *awsAPI) explain(ctx context.Context, asked action, object string, err error) *trouble.Error {
	last := a.outcome()
	var cause *trouble.Error
	timeIsOver := errors.As(context.Cause(ctx), &cause)
	if timeIsOver && last.status == 0 {
		return a.unreached(asked, err)
	}
	if wrong := wrongClock(last.clockOff, "AWS's"); wrong != nil && last.status >= 400 {
		wrong.Err = err
		return wrong
	}

	e := &trouble.Error{
		What: fmt.Sprintf("cannot ask %s about %s in %s: ", asked.name, object, a.region),
		Err:  err,
	}
	var code string
	var refusal smithy.APIError
	if errors.As(err, &refusal) {
		code = refusal.ErrorCode()
		if message := clean(refusal.ErrorMessage(), 300); message != "" {
			e.Because = []string{"AWS says: " + message}
		}
	}

	switch {
	case a.explainRefusal(e, asked, code, last.status):
		return e
	case last.status == 0:
		return a.unreached(asked, err)
	case last.tooLong || last.status < 500:
		return a.malformedAnswer(asked)
	}

	e.What += fmt.Sprintf("AWS fails (status %d)", last.status)
	e.Passing = true
	e.Try = []string{"wait, and run apply again", "https://health.aws.amazon.com"}
	return e
}

// explainRefusal completes an error by AWS's code and status; false if they are not a refusal's.
func (a *awsAPI) explainRefusal(e *trouble.Error, asked action, code string, status int) bool {
	switch {
	case status == http.StatusTooManyRequests, throttled(code):
		e.What += "AWS limits the request rate"
		e.Passing = true
		e.Because = append(e.Because, "all machines of the account share one limit")
		e.Try = append([]string{"wait, and run apply again"}, asked.around...)
	case asked.list != "" && (status == http.StatusNotFound || code == "ResourceNotFoundException"):
		e.What += "not found"
		e.Try = []string{
			asked.list + " --region " + a.region,
			"[join] cluster and region: the region is " + a.region + " where none is stated, since the machine is there",
		}
	case denied(code):
		e.What += "the instance's role lacks the permission"
		e.Try = []string{
			"allow " + asked.name + " to the role; AWS's policy " + nodePolicy + " does",
			"or [join] server, ca_file, service_cidr and node_name: then AWS is not asked",
		}
	case strings.HasPrefix(code, "ExpiredToken"), code == "RequestExpired":
		e.What += "the keys of the instance's role have expired"
		e.Passing = true
		e.Try = []string{
			"timedatectl    shows whether the clock is right",
			"wait: EC2 hands out new keys before the old ones end",
		}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		e.What += "AWS rejects the role's signature"
		e.Try = []string{
			"timedatectl    shows whether the clock is right",
			"aws iam get-role --role-name ROLE: a role that was deleted and created again does not accept the old keys",
		}
	default:
		return false
	}
	return true
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
func (a *awsAPI) unreached(asked action, err error) *trouble.Error {
	f := a.outcome()
	const createEndpoint = "aws ec2 create-vpc-endpoint --vpc-id VPC --subnet-ids SUBNET" +
		" --vpc-endpoint-type Interface --service-name "
	e := &trouble.Error{
		What:    fmt.Sprintf("cannot ask %s in %s: %s cannot be reached", asked.name, a.region, f.host),
		Because: []string{"a private subnet needs a NAT gateway, a VPC endpoint of the service, or a proxy"},
		Try: []string{
			"[proxy] https = \"http://PROXY:PORT\"",
			createEndpoint + endpointName(a.region, asked.service()),
			"or [join] server, ca_file, service_cidr and node_name: then AWS is not asked",
		},
		Passing: true,
		Err:     err,
	}

	var lookup *net.DNSError
	if errors.As(err, &lookup) || strings.Contains(err.Error(), "no such host") {
		e.What = fmt.Sprintf("cannot ask %s in %s: the name %s is not known", asked.name, a.region, f.host)
		e.Because = []string{"there is no such region, or the machine's DNS does not answer yet"}
		e.Try = append([]string{
			"[join] region = \"…\", if " + a.region + " is not where the cluster is",
			"getent hosts " + f.host,
		}, e.Try...)
	}

	return e
}

// malformedAnswer returns the error for an answer of AWS without a required field.
func (a *awsAPI) malformedAnswer(asked action) *trouble.Error {
	return &trouble.Error{
		What:    "cannot read AWS's answer to " + asked.name + ": it is not of the form that AWS gives",
		Because: []string{"a proxy may have answered in AWS's place"},
		Try:     []string{"[proxy] no_proxy = [\"" + awsDomain(a.region) + "\"], where the VPC has endpoints of its own"},
	}
}
