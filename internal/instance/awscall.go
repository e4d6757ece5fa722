// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/ec2query"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/restjson"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/gpuadm/gpuadm/internal/host"
)

// call is a request to one of AWS's APIs, and how its answers are read.
//
// The SDK's own clients know hundreds of actions, and gpuadm needs three: EC2's compiles for a minute, and EKS's makes tables at each
// start of a process. So the SDK's signer, retryer and error readers are used without them.
type call struct {
	service, method, path, body, kind string
	decode                            func(io.Reader) error
	refusal                           func(*http.Response) (code, message string, err error)
}

// askEKS asks EKS's API for what is at a path and decodes the answer. Source: the deserializers of aws-sdk-go-v2's service/eks.
func (a *awsAPI) askEKS(ctx context.Context, path string, into any) error {
	return a.ask(ctx, call{
		service: "eks", method: http.MethodGet, path: path, kind: "application/json",
		decode: func(body io.Reader) error { return json.NewDecoder(body).Decode(into) },
		refusal: func(answer *http.Response) (code, message string, err error) {
			code, message, err = restjson.GetErrorInfo(json.NewDecoder(answer.Body))
			return cmp.Or(restjson.SanitizeErrorCode(answer.Header.Get("X-Amzn-ErrorType")), code), message, err
		},
	})
}

// askEC2API asks EC2's query API for one action and decodes the answer.
//
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html, and the serializers of aws-sdk-go-v2's
// service/ec2 for the names of parameters and elements.
func (a *awsAPI) askEC2API(ctx context.Context, action string, params url.Values, into any) error {
	params.Set("Action", action)
	params.Set("Version", "2016-11-15")
	return a.ask(ctx, call{
		service: "ec2", method: http.MethodPost, path: "/", body: params.Encode(), kind: "application/x-www-form-urlencoded",
		decode: func(body io.Reader) error { return xml.NewDecoder(body).Decode(into) },
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
		pause, err2 := retryer.RetryDelay(nth, err)
		if err2 != nil {
			return err
		}
		if host.Pause(ctx, pause) != nil {
			return err
		}
	}
}

func (a *awsAPI) askOnce(ctx context.Context, c call) error {
	at := "https://" + c.service + "." + a.region + "." + awsDomain(a.region) + c.path
	r, err := http.NewRequestWithContext(host.Looks(ctx), c.method, at, strings.NewReader(c.body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", c.kind)
	hash := sha256.Sum256([]byte(c.body))
	if err := v4.NewSigner().SignHTTP(ctx, a.keys, r, hex.EncodeToString(hash[:]), c.service, a.region, a.now()); err != nil {
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
