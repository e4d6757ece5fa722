// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
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

// presigned signs the request GetCallerIdentity to STS with the SDK's signer and the machine's
// clock. It does not use the SDK's client of STS for one request that it never sends; nor does
// gpuadm for EC2 and EKS.
// Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html, and
// aws-iam-authenticator's pkg/token: the header x-k8s-aws-id is signed too; API servers check the
// date, and require 60 for X-Amz-Expires.
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

// isRegion says whether a name can be a region's name.
func isRegion(name string) bool { return plain(name) && !strings.ContainsAny(name, " ./:@?#%") }

// awsDomain returns the DNS suffix of a region's AWS partition. A region that is not known yet
// counts as in the first partition.
// Sources: internal/endpoints/awsrulesfn/partitions.json of https://github.com/aws/aws-sdk-go-v2,
// and botocore/data/partitions.json of https://github.com/boto/botocore; TestDomainIsTheSDKs
// compares.
func awsDomain(region string) string {
	for _, partition := range [...]struct{ regions, domain string }{
		{"cn-", "amazonaws.com.cn"},
		{"eusc-", "amazonaws.eu"},
		{"us-iso-", "c2s.ic.gov"},
		{"us-isob-", "sc2s.sgov.gov"},
		{"eu-isoe-", "cloud.adc-e.uk"},
		{"us-isof-", "csp.hci.ic.gov"},
	} {
		if strings.HasPrefix(region, partition.regions) {
			return partition.domain
		}
	}
	return "amazonaws.com"
}
