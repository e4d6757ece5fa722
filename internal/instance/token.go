// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/gpuadm/gpuadm/internal/host"
)

// tokenLife is how long a token may be used: API servers take it for fifteen minutes, less one for clocks that differ.
// Source: https://github.com/kubernetes-sigs/aws-iam-authenticator, pkg/token: presignedURLExpiration
const tokenLife = 14 * time.Minute

// Token makes a bearer token that EKS's API server takes: a request to STS, signed in advance, that says who the machine's
// role is. STS is not asked: the API server does that. The metadata service hands out the role's keys. region "" is the
// machine's own. The token is a secret.
// Source: https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster
func Token(ctx context.Context, v host.View, cluster, region string) (token string, expires time.Time, err error) {
	if !clusterName(cluster) {
		return "", time.Time{}, &Error{What: "cannot make a token: a name of a cluster is needed", Try: []string{"[join] cluster = \"NAME\""}}
	}
	m, err := openIMDS(v, "")
	if err != nil {
		return "", time.Time{}, err
	}
	if region == "" {
		if region, err = m.text(ctx, "placement/region", patience); err != nil {
			return "", time.Time{}, err
		}
	}
	if !plain(region) || strings.ContainsAny(region, "./:@?#%") {
		return "", time.Time{}, &Error{What: "cannot make a token: the region is not known", Try: []string{"[join] region = \"us-east-1\""}}
	}
	keys, err := m.role(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	if wrong := wrongClock(m.outcome().clockOff, "EC2's metadata service"); wrong != nil {
		return "", time.Time{}, wrong
	}
	now := v.Now()
	sign := sts.NewPresignClient(sts.New(sts.Options{
		Region: region, Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return keys, nil }),
	}), func(o *sts.PresignOptions) { o.Presigner = signer{v4.NewSigner(), now} })
	signed, err := sign.PresignGetCallerIdentity(ctx, nil, func(o *sts.PresignOptions) {
		o.ClientOptions = append(o.ClientOptions, sts.WithAPIOptions(
			smithyhttp.AddHeaderValue("x-k8s-aws-id", cluster),
			smithyhttp.AddHeaderValue("X-Amz-Expires", "60"), // API servers look at the date, and want a number here
		))
	})
	if err != nil {
		return "", time.Time{}, &Error{What: "cannot make a token: STS has no address in region " + region, Try: []string{"[join] region"}, Err: err}
	}
	return "k8s-aws-v1." + base64.RawURLEncoding.EncodeToString([]byte(signed.URL)), now.Add(tokenLife), nil
}

// signer signs by the machine's clock, as all else goes by it.
type signer struct {
	with *v4.Signer
	now  time.Time
}

// PresignHTTP is sts.HTTPPresignerV4's.
func (s signer) PresignHTTP(ctx context.Context, keys aws.Credentials, r *http.Request, hash, service, region string, _ time.Time, opts ...func(*v4.SignerOptions)) (string, http.Header, error) {
	return s.with.PresignHTTP(ctx, keys, r, hash, service, region, s.now, opts...)
}
