// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"cmp"
	"context"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/things"
)

// signOf returns the sign that the machine is of a kind that its owner provides as a whole; ""
// if it is not.
func signOf(kind platform.Sealed, f facts.Facts) string {
	others := kind.System != "" && kind.System != f.OS.ID ||
		kind.Platform != "" && kind.Platform != f.Cloud.Managed ||
		kind.Label != "" && kind.Value != f.Kubelet.Labels[kind.Label] ||
		!strings.HasPrefix(f.Hostname, kind.Host)
	if others {
		return ""
	}

	switch {
	case kind.Host != "":
		return "the name " + f.Hostname + ", since " + kind.HostWhy
	case kind.Label != "":
		return "kubelet's label " + kind.Label + "=" + kind.Value
	case kind.System != "":
		return "ID=" + kind.System + " in os-release"
	}

	return f.Cloud.ManagedWhy
}

// sealed refuses a machine that gpuadm cannot prepare.
func sealed(f facts.Facts) []converge.Want {
	for _, kind := range platform.AllSealed() {
		sign := signOf(kind, f)
		if sign == "" {
			continue
		}
		refuse := func(context.Context, host.View) (string, error) {
			return "cannot prepare a node of " + kind.Name + ": " + kind.Why + "\nthe sign: " + sign, nil
		}
		check := things.Check("gpuadm can prepare a node of "+kind.Name, refuse, sign, "use "+kind.Use)
		return []converge.Want{check}
	}
	return nil
}

// Limits says in one sentence what gpuadm cannot do on a node that it prepares only in part.
func Limits(f facts.Facts) []string {
	limit := cmp.Or(platform.SystemOf(f.OS.ID).Limit, platform.Of(f.Cloud.Managed).Limit)
	if limit == "" {
		return nil
	}
	return []string{limit}
}

// isSealed reports whether the machine's operating system is provided as a whole, and its driver
// with it.
func isSealed(f facts.Facts) bool { return platform.SystemOf(f.OS.ID).ID != "" }
