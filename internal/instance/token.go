// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
		return "", time.Time{}, &trouble.Error{What: "cannot make a token: a name of a cluster is needed", Try: []string{"[join] cluster = \"NAME\""}}
	}
	m, err := openIMDS(v, "")
	if err != nil {
		return "", time.Time{}, err
	}
	if region == "" {
		if region, err = m.text(ctx, "placement/region"); err != nil {
			return "", time.Time{}, err
		}
	}
	if !isRegion(region) {
		return "", time.Time{}, &trouble.Error{What: "cannot make a token: the region is not known", Try: []string{"[join] region = \"us-east-1\""}}
	}
	keys, err := m.role(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	if wrong := wrongClock(m.outcome().clockOff, "EC2's metadata service"); wrong != nil {
		return "", time.Time{}, wrong
	}
	now := v.Now()
	url, err := presigned(ctx, keys, cluster, region, now)
	if err != nil {
		return "", time.Time{}, &trouble.Error{What: "cannot make a token: the request to STS cannot be signed", Try: []string{"[join] region: it is " + region}, Err: err}
	}
	return "k8s-aws-v1." + base64.RawURLEncoding.EncodeToString([]byte(url)), now.Add(tokenLife), nil
}

// presigned signs the request GetCallerIdentity to STS with the SDK's signer, by the machine's clock, as all else goes by it. For one request
// that it does not send, gpuadm does without the SDK's client of STS, as for EC2 and EKS.
// Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html, and aws-iam-authenticator's pkg/token: the
// header x-k8s-aws-id is signed too; API servers look at the date, and want 60 for X-Amz-Expires.
func presigned(ctx context.Context, keys aws.Credentials, cluster, region string, now time.Time) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://sts."+region+"."+awsDomain(region)+"/?Action=GetCallerIdentity&Version=2011-06-15&X-Amz-Expires=60", nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("x-k8s-aws-id", cluster)
	nothing := sha256.Sum256(nil)
	url, _, err := v4.NewSigner().PresignHTTP(ctx, keys, r, hex.EncodeToString(nothing[:]), "sts", region, now)
	return url, err
}
