// SPDX-License-Identifier: Apache-2.0

package instance

import "strings"

// isRegion says whether a name can be a region's name.
func isRegion(name string) bool {
	return plain(name) && !strings.ContainsAny(name, " ./:@?#%")
}

// firstDomain is the DNS suffix of the first partition.
const firstDomain = "amazonaws.com"

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
	return firstDomain
}

// endpointName returns the service name of a VPC endpoint. Outside the first partitions each
// service has its own prefix.
// Source: https://docs.aws.amazon.com/vpc/latest/privatelink/aws-services-privatelink-support.html,
// and its page of China.
func endpointName(region, service string) string {
	if awsDomain(region) != firstDomain {
		return "NAME    (aws ec2 describe-vpc-endpoint-services lists them; it ends in " + service + ")"
	}
	return "com.amazonaws." + region + "." + service
}
