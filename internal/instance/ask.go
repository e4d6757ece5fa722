// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Ask asks EC2's metadata service about the machine. It never goes through a proxy, and never lasts longer than half a minute; where the
// service refuses, Ask returns at once. Errors are *trouble.Error, or a host.Later in a root folder.
func Ask(ctx context.Context, v host.View, c Cloud) (*Instance, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience+5*time.Second, &trouble.Error{What: "cannot ask EC2's metadata service: it answers too slowly", Passing: true})
	defer cancel()
	e, err := openIMDS(v, c.InstanceID)
	if err != nil {
		return nil, err
	}
	i, err := e.identity(ctx)
	if err != nil {
		return nil, err
	}
	text, err := e.text(ctx, "mac")
	if err != nil {
		return nil, err
	}
	if mac, err := net.ParseMAC(text); err == nil {
		if text, err = e.text(ctx, "network/interfaces/macs/"+mac.String()+"/ipv6s"); err != nil {
			return nil, err
		}
		i.IPv6 = address(strings.Fields(text))
	}
	if i.Tags, err = e.tags(ctx); err != nil {
		return nil, err
	}
	i.UserCluster, err = e.userCluster(ctx)
	return i, err
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
