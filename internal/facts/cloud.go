// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// asked is what a cloud answered in this run, or why it did not. Neither is asked again before each
// stage: what they say holds for the machine's life, and a service that does not answer would cost
// each stage half a minute.
type asked struct {
	instance   *instance.Instance
	noInstance *trouble.Error
	cluster    *instance.Cluster
	noCluster  *trouble.Error
	ref        instance.ClusterRef // the cluster that was asked about
}

// askCloud asks the cloud, once a run, what it was asked for.
func (c *Cache) askCloud(ctx context.Context, g *gathering, f *Facts, needs Needs) {
	if ref := needs.Cluster; ref != nil && (f.Cloud.Name != "aws" || f.Cloud.Managed != "") {
		needs.Cluster = nil // in no cluster of EKS, or its own scripts know which one
	} else if ref != nil && f.Live {
		if f.Instance, f.Cluster = instance.Kept(g.v, f.Cloud, *ref); f.Cluster != nil {
			return
		}
	}
	if needs.Cluster == nil || !f.Live {
		return
	}
	a := &c.asked
	if a.instance == nil && a.noInstance == nil {
		var err error
		a.instance, err = instance.Ask(ctx, g.v, f.Cloud)
		a.noInstance = g.unanswered("ask", "EC2's metadata service", err)
	}
	f.Instance, f.NoInstance = a.instance, a.noInstance
	if f.Instance == nil {
		return
	}
	if same := a.ref.Name == needs.Cluster.Name && a.ref.Region == needs.Cluster.Region; !same || (a.cluster == nil && a.noCluster == nil) {
		cluster, err := instance.AskCluster(ctx, g.v, f.Instance, *needs.Cluster)
		a.ref, a.cluster, a.noCluster = *needs.Cluster, cluster, g.unanswered("ask for", "the cluster", err)
	}
	f.Cluster, f.NoCluster = a.cluster, a.noCluster
}

// unanswered separates a cloud that does not answer, which is a fact, from an error on this
// machine.
func (g *gathering) unanswered(verb, object string, err error) *trouble.Error {
	refused, later := (*trouble.Error)(nil), host.Later{}
	switch {
	case err == nil || errors.As(err, &later):
	case errors.As(err, &refused):
		return refused
	default:
		g.fail(verb, object, err)
	}
	return nil
}
