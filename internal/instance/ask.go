// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"net/netip"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Ask asks the cloud's metadata service. It never goes through a proxy, and never lasts longer than half a minute; where the
// service refuses, Ask returns at once. Errors are *Error, or a host.Later in a root folder.
func Ask(ctx context.Context, v host.View, c Cloud) (*Instance, error) {
	bound, cancel := context.WithTimeoutCause(ctx, patience+5*time.Second, &Error{
		What: "cannot ask the cloud's metadata service: it answers too slowly", Waiting: true,
	})
	defer cancel()
	switch c.Name {
	case "aws":
		return askEC2(bound, v, c)
	case "gce":
		return askGCE(bound, v)
	case "azure":
		return askAzure(bound, v)
	}
	return nil, &Error{
		What:    "cannot ask a cloud's metadata service: neither firmware nor files say that the machine is in EC2, GCE or Azure",
		Because: []string{"outside these clouds any host may answer at " + serviceAt},
		Try:     []string{"cat /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name", "in no cloud: [join] method = \"token\""},
	}
}

// address is the first of the texts, where it is an IP address.
func address(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	ip, err := netip.ParseAddr(texts[0])
	if err != nil || ip.Zone() != "" {
		return ""
	}
	return ip.String()
}
