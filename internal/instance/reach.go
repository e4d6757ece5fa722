// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/eks"

	"github.com/gpuadm/gpuadm/internal/host"
)

// eksHost is where EKS is in a region, whichever of AWS's partitions that is in, as AWS's SDK knows it.
func eksHost(ctx context.Context, region string) (string, error) {
	at, err := eks.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, eks.EndpointParameters{Region: &region})
	if err != nil || !plain(region) || strings.ContainsAny(region, " ./:@?#%") {
		return "", &Error{What: fmt.Sprintf("cannot reach EKS: %q is no region of AWS", clean(region, 50)), Try: []string{"[join] region = \"us-east-1\""}, Err: err}
	}
	return at.URI.Host, nil
}

// awsDomain is the DNS suffix of AWS in the region's partition: what follows the region in the name of EKS's host.
func awsDomain(ctx context.Context, region string) (string, error) {
	at, err := eksHost(ctx, region)
	if err != nil {
		return "", err
	}
	_, domain, ok := strings.Cut(at, "."+region+".")
	if !ok {
		return "", fmt.Errorf("cannot find AWS's domain: %s does not name region %s", at, region)
	}
	return domain, nil
}

// ReachEKS says why a machine that is not in EC2 could not sign in to EKS: AWS cannot be reached from it, or its clock is off.
// It shows no credentials, so AWS refuses the request, and that is answer enough. Errors are *Error.
func ReachEKS(ctx context.Context, v host.View, region string, via host.Via) error {
	at, err := eksHost(ctx, region)
	if err != nil {
		return err
	}
	d, err := open(v, host.Web{Via: via}, apiMost)
	if err != nil {
		return err
	}
	err = tries(ctx, patience, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+"/clusters", nil)
		if err != nil {
			return err
		}
		answer, err := d.client().Do(r)
		if err == nil {
			answer.Body.Close()
		}
		return err
	}, func(int, error) bool { return false })
	if err == nil {
		if wrong := wrongClock(d.outcome().clockOff, "AWS's"); wrong != nil {
			return wrong
		}
		return nil
	}
	e := &Error{
		What:    fmt.Sprintf("cannot reach EKS in %s: %s does not answer", region, at),
		Because: []string{"a hybrid node asks AWS for its credentials whenever it signs in to the cluster"},
		Try:     []string{"[proxy] https = \"http://PROXY:PORT\", and the same in nodeadm's environment", "curl -v https://" + at + "/clusters    shows where it ends; 403 is right"},
		Waiting: true, Err: err,
	}
	if name := (*net.DNSError)(nil); errors.As(err, &name) || strings.Contains(err.Error(), "no such host") {
		e.What = fmt.Sprintf("cannot reach EKS in %s: the name %s is not known", region, at)
		e.Try = append([]string{"[join] region = \"…\", if there is no region " + region, "getent hosts " + at}, e.Try...)
	}
	if strings.Contains(err.Error(), "x509:") {
		e.What = fmt.Sprintf("cannot reach EKS in %s: the certificate of %s is not trusted", region, at)
		e.Because = []string{"a proxy that looks into connections shows its own, or the clock is off"}
		e.Try = []string{"[proxy] ca_file = \"/etc/…\", and the same among the machine's own certificates: nodeadm and the AWS CLI need it too", "timedatectl    shows whether the clock is right"}
	}
	return e
}
