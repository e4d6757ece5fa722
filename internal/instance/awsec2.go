// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/ec2query"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/gpuadm/gpuadm/internal/host"
)

// askEC2API asks EC2's query API for one action and decodes the answer. The SDK's own client of EC2 knows 700 actions, and
// compiles for a minute; gpuadm needs two, so the SDK's signer, retryer and error reader are used without it.
//
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html, and the serializers of aws-sdk-go-v2's
// service/ec2 for the names of parameters and elements.
func (a *awsAPI) askEC2API(ctx context.Context, action string, params url.Values, into any) error {
	params.Set("Action", action)
	params.Set("Version", "2016-11-15")
	body := params.Encode()
	retryer := retryer()
	for nth := 1; ; nth++ {
		err := a.askEC2Once(ctx, body, into)
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

func (a *awsAPI) askEC2Once(ctx context.Context, body string, into any) error {
	at := "https://ec2." + a.region + "." + a.domain() + "/"
	r, err := http.NewRequestWithContext(host.Looks(ctx), http.MethodPost, at, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	hash := sha256.Sum256([]byte(body))
	if err := v4.NewSigner().SignHTTP(ctx, a.keys, r, hex.EncodeToString(hash[:]), "ec2", a.region, a.now()); err != nil {
		return err
	}
	answer, err := a.client().Do(r)
	if err != nil {
		return &smithyhttp.RequestSendError{Err: err}
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		if err := xml.NewDecoder(answer.Body).Decode(into); err != nil {
			return &smithy.DeserializationError{Err: err}
		}
		return nil
	}
	reply, err := ec2query.GetErrorResponseComponents(answer.Body)
	if err == nil {
		err = &smithy.GenericAPIError{Code: reply.Code, Message: reply.Message}
	}
	return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: answer}, Err: err}
}
