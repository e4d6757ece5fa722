// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// leftTo leaves the join to the platform's own scripts.
func leftTo(method string, f facts.Facts) ([]converge.Want, error) {
	switch p := platform.Of(f.Cloud.Managed); {
	case p.Join.Method != method:
		p = platform.ByMethod(method)
		return nil, &trouble.Error{
			What:    "cannot join " + p.Title + ": this machine is in none of its node pools",
			Because: []string{"looked for " + p.Join.Looked}, Try: []string{p.Join.Try},
		}
	case p.Join.Done != "":
		return []converge.Want{ended(p, f.Booting)}, nil
	}
	return nil, nil
}

// beginAfter are the checks before the first change, where the platform's scripts write what gpuadm
// reads, or remove what it installs.
func beginAfter(s spec.Spec, f facts.Facts) []converge.Want {
	switch p := platform.Of(f.Cloud.Managed); {
	case p.Join.Done == "":
		return nil
	case f.Booting && s.Has("driver"):
		return []converge.Want{noDriverAtBoot(p)}
	default:
		return []converge.Want{ended(p, f.Booting)}
	}
}

// noDriverAtBoot refuses a deadlock at boot: gpuadm would wait for scripts that wait for kubelet,
// which waits for gpuadm.
func noDriverAtBoot(p platform.Platform) converge.Want {
	return things.Check(p.Title+"'s own scripts before the driver", func(_ context.Context, v host.View) (string, error) {
		if _, err := v.Stat(p.Join.Done); err == nil || !host.NotExist(err) {
			return "", err
		}
		return "", &trouble.Error{
			What:    "cannot touch the driver before " + p.Title + "'s own scripts have ended, and at a boot they wait for kubelet, which waits for gpuadm",
			Because: []string{p.Join.Done + " is not there"}, Try: p.Join.AtBoot,
		}
	}, "they remove a driver of their image by its paths")
}

// ended wants the platform's scripts to have ended: facts that gpuadm reads before that will
// change. But if kubelet waits for gpuadm at boot, the scripts wait too, since they start kubelet.
func ended(p platform.Platform, booting bool) converge.Want {
	return things.Check(p.Title+"'s own scripts have set this machine up", func(_ context.Context, v host.View) (string, error) {
		switch _, err := v.Stat(p.Join.Done); {
		case err == nil:
			return "", nil
		case !host.NotExist(err):
			return "", err
		case !v.Live():
			return "", host.FirstBoot
		case booting:
			return "", host.Later{Until: "once " + p.Title + "'s own scripts have run"}
		}
		return "", trouble.Wait{
			For: p.Title + "'s own scripts to have set this machine up (" + p.Join.Done + " is not there)",
			Try: []string{"tail " + p.Join.Log},
		}
	}, cmp.Or(p.Join.Begin, p.Title+" writes kubelet's files"))
}

// leftNotes say what the platform's own tools do and what gpuadm does.
func leftNotes(s spec.Spec, f facts.Facts) (notes []string) {
	p := platform.Of(f.Cloud.Managed)
	for _, note := range p.Join.Notes {
		notes = append(notes, strings.ReplaceAll(note, "%s", f.Cloud.ManagedWhy))
	}
	if _, taints, err := node.Registration(s, f); p.Join.Taints != "" && err == nil && len(taints) > 0 {
		notes = append(notes, fmt.Sprintf(p.Join.Taints, kubelet.TaintTexts(taints)))
	}
	return notes
}
