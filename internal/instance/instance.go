// SPDX-License-Identifier: Apache-2.0

// Package instance identifies a cloud's machine: its cloud and, on EC2, its type and its cluster.
//
// Detect reads files and never uses the network. Ask asks EC2's metadata service, which tells each
// machine about itself at a fixed address. AskCluster asks the APIs of EKS and EC2, if no nearer
// source knows the cluster.
package instance

import (
	"context"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Instance is EC2's metadata of the machine.
type Instance struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`           // p5.48xlarge
	Region    string            `json:"region"`         // us-east-1
	Zone      string            `json:"zone,omitempty"` // us-east-1a
	PrivateIP string            `json:"privateIP,omitempty"`
	IPv6      string            `json:"ipv6,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"` // where the instance may see them

	UserCluster *Cluster `json:"userCluster,omitempty"` // from the user data's NodeConfig; the rest of it is not kept
}

// askPatience limits all requests of Ask together.
const askPatience = patience + 5*time.Second

// Ask asks EC2's metadata service about the machine. It never uses a proxy, and never takes longer
// than half a minute; if the service refuses, Ask returns at once. Errors are *trouble.Error, or a
// host.Later in a root folder.
func Ask(ctx context.Context, v host.View, c Cloud) (*Instance, error) {
	tooSlow := &trouble.Error{
		What:    "cannot ask EC2's metadata service: it answers too slowly",
		Passing: true,
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askPatience, tooSlow)
	defer cancel()

	m, err := openIMDS(v, c.InstanceID)
	if err != nil {
		return nil, err
	}
	i, err := m.identity(ctx)
	if err != nil {
		return nil, err
	}

	i.IPv6, err = m.ipv6(ctx)
	if err != nil {
		return nil, err
	}
	i.Tags, err = m.tags(ctx)
	if err != nil {
		return nil, err
	}
	i.UserCluster, err = m.userCluster(ctx)
	return i, err
}
