// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// cloudAnswers is what a cloud answered in this run, or why it did not. It is not asked again
// before each stage: what it says holds for the machine's life, and a service that does not answer
// would cost each stage half a minute.
type cloudAnswers struct {
	instance   *instance.Instance
	noInstance *trouble.Error
	cluster    *instance.Cluster
	noCluster  *trouble.Error
	ref        instance.ClusterRef // the cluster that was asked about
}

// askCloud finds out what a node of an EKS cluster must know: from the file that a join kept, else
// once a run from the cloud.
func (g *gathering) askCloud(ctx context.Context, f *Facts, ref *instance.ClusterRef) {
	// EKS's own scripts know the cluster of a node that they manage.
	selfManaged := f.Cloud.Name == "aws" && f.Cloud.Managed == ""
	if ref == nil || !selfManaged || !f.Live {
		return
	}
	f.Instance, f.Cluster = instance.Kept(g.v, f.Cloud, *ref)
	if f.Cluster != nil {
		return
	}

	a := &g.cache.asked
	if a.instance == nil && a.noInstance == nil {
		var err error
		a.instance, err = instance.Ask(ctx, g.v, f.Cloud)
		a.noInstance = g.unanswered("ask", "EC2's metadata service", err)
	}

	f.Instance = a.instance
	f.NoInstance = a.noInstance
	if f.Instance == nil {
		return
	}

	sameCluster := a.ref.Name == ref.Name && a.ref.Region == ref.Region
	answered := a.cluster != nil || a.noCluster != nil
	if !sameCluster || !answered {
		cluster, err := instance.AskCluster(ctx, g.v, f.Instance, *ref)
		a.ref = *ref
		a.cluster = cluster
		a.noCluster = g.unanswered("ask for", "the cluster", err)
	}

	f.Cluster = a.cluster
	f.NoCluster = a.noCluster
}

// unanswered separates a cloud that does not answer, which is a fact, from an error on this
// machine.
func (g *gathering) unanswered(verb, object string, err error) *trouble.Error {
	var refused *trouble.Error
	var later host.Later
	switch {
	case err == nil || errors.As(err, &later):
		return nil
	case errors.As(err, &refused):
		return refused
	}

	g.fail(verb, object, err)
	return nil
}
