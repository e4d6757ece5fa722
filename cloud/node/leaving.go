// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Leaving refuses to begin anything on a machine that its cloud is about to take away: a driver that takes ten minutes to build
// is not done on a machine that has two. It is asked before the first touch, so nothing is left half done. Waiting does not
// help where the next call would come to a machine that is gone; it does where the cloud restarts the machine.
//
// A recommendation to rebalance and a maintenance that the machine survives are no reason: EC2 sends the first when the risk
// is higher than usual, and the machine may live on for weeks.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
func Leaving(f facts.Facts) error {
	if f.Instance == nil {
		return nil
	}
	return leaves(f.Instance.Cloud, f.Instance.Notice)
}

// AskLeaving is Leaving, where the facts do not tell: then the metadata service is asked once, for two seconds at most. It
// is for a caller that is about to touch something; a converged machine needs not ask. Where Azure's service must be woken, the
// answer to the first stage's question is there for one of the next.
func (s *Session) AskLeaving(ctx context.Context, v host.View, f facts.Facts) error {
	if f.Instance != nil && f.Instance.Notice != nil || f.Cloud.Name == "" || !f.Live {
		return Leaving(f)
	}
	// A machine that is no spot one has nothing at the place that is asked, and says so. On Azure the events go by a name that
	// the metadata alone tells, so there it is asked first who the machine is.
	asked := &instance.Instance{Cloud: f.Cloud.Name, ID: f.Cloud.InstanceID, Spot: true}
	if f.Instance != nil {
		asked = f.Instance
	}
	return leaves(asked.Cloud, s.notices.Ask(ctx, v, asked))
}

// leaves turns a notice into a refusal; nil where the machine stays.
func leaves(cloud string, n *instance.Notice) error {
	if n == nil {
		return nil
	}
	does, try, err := "takes this machine away", "run it on the machine that comes in its place", error(nil)
	switch n.What {
	case "rebalance", "maintenance", "freeze":
		return nil
	case "reboot", "redeploy":
		does, try, err = "restarts this machine", "run the same command again once it has restarted", trouble.Wait{For: "the restart"}
		if n.What == "redeploy" {
			does = "restarts this machine on other hardware"
		}
	case "stop", "hibernate":
		does, try = "stops this machine", "run the same command again once it has started again, or on the machine that comes in its place"
	}
	name := map[string]string{"aws": "EC2", "gce": "Google", "azure": "Azure"}[cloud]
	when := "at any moment"
	if !n.At.IsZero() {
		when = "at " + n.At.UTC().Format(time.RFC3339)
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot begin: %s %s %s", name, does, when),
		Because: []string{fmt.Sprintf("the metadata service has the notice %q; nothing was touched", n.What)},
		Try:     []string{try},
		Err:     err,
	}
}
