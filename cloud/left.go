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

// isOwnWay reports whether a method is gpuadm's own way to join this machine. It is not if the
// machine's platform joins it by the same method: a second kubelet would break the node.
func isOwnWay(method string, f facts.Facts) bool {
	ofMachine := platform.Of(f.Cloud.Managed).Join
	joinsItself := ofMachine.Left && ofMachine.Method == method
	return platform.Of(method).Join.Own && !joinsItself
}

// leftTo leaves the join to the platform's own scripts.
func leftTo(method string, f facts.Facts) ([]converge.Want, error) {
	p := platform.Of(f.Cloud.Managed)
	switch {
	case p.Join.Method != method:
		return nil, notOn(platform.Of(method))
	case p.Join.Done != "":
		return []converge.Want{scriptsEnded(p, f.Booting)}, nil
	}

	return nil, nil
}

// notOn says that the machine is not one of the platform's.
func notOn(p platform.Platform) error {
	return &trouble.Error{
		What: "cannot join " + p.Title + ": " +
			cmp.Or(p.Join.Closed, "this machine is in none of its node pools"),
		Because: p.Join.Looked,
		Try:     p.Join.Try,
	}
}

// scriptChecks are the checks before the first change on a platform whose scripts write what gpuadm
// reads, or remove what it installs.
func scriptChecks(s spec.Spec, f facts.Facts) []converge.Want {
	p := platform.Of(f.Cloud.Managed)
	switch {
	case p.Join.Done == "":
		return nil
	case f.Booting && s.Has("driver"):
		return []converge.Want{noDriverAtBoot(p)}
	}

	return []converge.Want{scriptsEnded(p, f.Booting)}
}

// noDriverAtBoot refuses a deadlock at boot: gpuadm would wait for scripts that wait for kubelet,
// which waits for gpuadm.
func noDriverAtBoot(p platform.Platform) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if _, err := v.Stat(p.Join.Done); err == nil || !host.NotExist(err) {
			return "", err
		}
		return "", &trouble.Error{
			What:    "cannot touch the driver before " + p.Title + "'s own scripts have ended, and at a boot they wait for kubelet, which waits for gpuadm",
			Because: []string{p.Join.Done + " is not there"},
			Try:     p.Join.AtBoot,
		}
	}
	const why = "they remove a driver of their image by its paths"
	return things.Check(p.Title+"'s own scripts before the driver", look, why)
}

// scriptsEnded wants the platform's scripts to have ended: facts that gpuadm reads before that will
// change. But if kubelet waits for gpuadm at boot, the scripts wait too, since they start kubelet.
func scriptsEnded(p platform.Platform, booting bool) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		_, err := v.Stat(p.Join.Done)
		switch {
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
	}

	why := cmp.Or(p.Join.Begin, p.Title+" writes kubelet's files")
	return things.Check(p.Title+"'s own scripts have set this machine up", look, why)
}

// leftNotes say what the platform's own tools do, and what gpuadm does, on a node that they join.
func leftNotes(method string, s spec.Spec, f facts.Facts) []string {
	p := platform.Of(f.Cloud.Managed)
	if p.Join.Method != method {
		return nil
	}

	texts := p.Join.Notes
	if p.Join.Sealed != nil && isSealed(f) {
		texts = p.Join.Sealed
	}
	var notes []string
	for _, note := range texts {
		notes = append(notes, strings.ReplaceAll(note, "%s", f.Cloud.ManagedWhy))
	}
	_, taints, err := node.Registration(s, f)
	if p.Join.Taints != "" && err == nil && len(taints) > 0 {
		notes = append(notes, fmt.Sprintf(p.Join.Taints, kubelet.TaintTexts(taints)))
	}
	return notes
}
