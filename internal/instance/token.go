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

// tokenLife is how long a token is used: API servers accept it for fifteen minutes, less one for
// clock differences.
// Source: https://github.com/kubernetes-sigs/aws-iam-authenticator, pkg/token:
// presignedURLExpiration
const tokenLife = 14 * time.Minute

// Token makes a bearer token for EKS's API server: a presigned request to STS that identifies the
// machine's role. Only the API server sends that request to STS. The role's keys come from the
// metadata service. region "" is the machine's own. The token is a secret.
// Source:
// https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster
func Token(
	ctx context.Context, v host.View, cluster, region string,
) (token string, expires time.Time, err error) {
	url, now, err := tokenRequest(ctx, v, cluster, region)
	if err != nil {
		return "", time.Time{}, err
	}
	return "k8s-aws-v1." + base64.RawURLEncoding.EncodeToString([]byte(url)), now.Add(tokenLife), nil
}

// tokenRequest returns the presigned request, and the time of its signature.
func tokenRequest(
	ctx context.Context, v host.View, cluster, region string,
) (url string, now time.Time, err error) {
	if !clusterName(cluster) {
		return "", now, &trouble.Error{
			What: "cannot make a token: a name of a cluster is needed",
			Try:  []string{"[join] cluster = \"NAME\""},
		}
	}

	m, err := openIMDS(v, "")
	if err != nil {
		return "", now, err
	}
	if region == "" {
		region, err = m.text(ctx, "placement/region")
		if err != nil {
			return "", now, err
		}
	}

	if !isRegion(region) {
		return "", now, &trouble.Error{
			What: "cannot make a token: the region is not known",
			Try:  []string{"[join] region = \"us-east-1\""},
		}
	}

	keys, err := m.role(ctx)
	if err != nil {
		return "", now, err
	}
	if wrong := wrongClock(m.outcome().clockOff, "EC2's metadata service"); wrong != nil {
		return "", now, wrong
	}

	now = v.Now()
	url, err = presigned(ctx, keys, cluster, region, now)
	if err != nil {
		return "", now, &trouble.Error{
			What: "cannot make a token: the request to STS cannot be signed",
			Try:  []string{"[join] region: it is " + region},
			Err:  err,
		}
	}

	return url, now, nil
}

// presigned signs the request GetCallerIdentity to STS with the SDK's signer and the machine's
// clock. It does not use the SDK's client of STS for one request that it never sends; nor does
// gpuadm for EC2 and EKS.
// Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html, and
// aws-iam-authenticator's pkg/token: the header x-k8s-aws-id is signed too; API servers check the
// date, and require 60 for X-Amz-Expires.
func presigned(
	ctx context.Context, keys aws.Credentials, cluster, region string, now time.Time,
) (string, error) {
	const query = "/?Action=GetCallerIdentity&Version=2011-06-15&X-Amz-Expires=60"
	at := "https://sts." + region + "." + awsDomain(region) + query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("x-k8s-aws-id", cluster)

	noBody := sha256.Sum256(nil)
	signer := v4.NewSigner()
	url, _, err := signer.PresignHTTP(ctx, keys, request, hex.EncodeToString(noBody[:]), "sts", region, now)
	return url, err
}
