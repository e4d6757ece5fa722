// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// pluginChecks are the checks before the first change on a platform whose own device plugin finds
// no driver that gpuadm installs.
func pluginChecks(s spec.Spec, f facts.Facts) []converge.Want {
	p := platform.Of(f.Cloud.Managed)
	hasDriver := s.Has("driver") && s.Driver.Version != "" && s.Driver.Owner != "other"
	if p.Plugin.Driver == "" || isSealed(f) || !hasDriver {
		return nil
	}

	look := func(context.Context, host.View) (string, error) {
		if f.Kubelet.Labels[p.Plugin.Off] == "true" {
			return "", nil
		}
		return fmt.Sprintf("cannot install a driver on this node of %s: its pool lacks the label %s=true, and %[1]s's own device plugin finds no driver but %[3]s",
			p.Title, p.Plugin.Off, p.Plugin.Driver), nil
	}

	check := things.Check(p.Title+"'s own device plugin stays off this node", look,
		"it gives pods "+p.Plugin.Driver+" driver only", p.Plugin.OffTry...)
	return []converge.Want{check}
}
