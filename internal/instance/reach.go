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

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// isRegion says whether a name can be that of a region.
func isRegion(name string) bool { return plain(name) && !strings.ContainsAny(name, " ./:@?#%") }

// awsDomain is the DNS suffix of the partition of AWS that a region is in. A region that is not known yet is in the first one.
// Sources: internal/endpoints/awsrulesfn/partitions.json of https://github.com/aws/aws-sdk-go-v2, and botocore/data/partitions.json of
// https://github.com/boto/botocore; TestDomainIsTheSDKs compares.
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

// ReachEKS says why a machine that is not in EC2 could not sign in to EKS: AWS cannot be reached from it, or its clock is off.
// It shows no credentials, so AWS refuses the request, and that is answer enough. Errors are *trouble.Error.
func ReachEKS(ctx context.Context, v host.View, region string, via host.Via) error {
	if !isRegion(region) {
		return &trouble.Error{What: fmt.Sprintf("cannot reach EKS: %q is no region of AWS", clean(region, 50)), Try: []string{"[join] region = \"us-east-1\""}}
	}
	at := "eks." + region + "." + awsDomain(region)
	d, err := open(v, host.Web{Via: via}, apiMost)
	if err != nil {
		return err
	}
	err = tries(ctx, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+"/clusters", nil)
		if err != nil {
			return err
		}
		answer, err := d.client().Do(r)
		if err == nil {
			answer.Body.Close()
		}
		return err
	}, func(error) bool { return false })
	if err == nil {
		if wrong := wrongClock(d.outcome().clockOff, "AWS's"); wrong != nil {
			return wrong
		}
		return nil
	}
	e := &trouble.Error{
		What:    fmt.Sprintf("cannot reach EKS in %s: %s does not answer", region, at),
		Because: []string{"a hybrid node asks AWS for its credentials whenever it signs in to the cluster"},
		Try:     []string{"[proxy] https = \"http://PROXY:PORT\", and the same in nodeadm's environment", "curl -v https://" + at + "/clusters    shows where it ends; 403 is right"},
		Passing: true, Err: err,
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
