// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
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
		return keys, noRole(m.name(), err)
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
	return &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: answer},
		Err:      err,
	}
}
