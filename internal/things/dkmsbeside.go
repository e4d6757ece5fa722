// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// beside is a module that DKMS builds against the driver's, of a package with a version of its own: nvidia-fs. What it was
// built against is what the kernel compares when it is loaded, so DKMS must rebuild it for another driver, also at undo. Its
// states are "not built", "of another driver" and "fits": built for the driver that is there, or there is nothing to build, or
// no driver to build it against.
type beside struct {
	name, kernel string
	built        BesideFunc
}

// A BesideFunc returns the state of such a module for a kernel, and which version of its source DKMS is to build.
type BesideFunc func(v host.View, name, kernel string) (version string, state converge.State, err error)

const (
	// BesideNotBuilt, BesideOld and BesideFits are states of a module that is built beside the driver's.
	BesideNotBuilt = converge.State("not built")
	BesideOld      = converge.State("of another driver")
	BesideFits     = converge.State("fits")
)

// DKMSBeside wants a module built against the driver's that the kernel has.
func DKMSBeside(name, kernel string, proof BesideFunc, why string) converge.Want {
	b := beside{name, kernel, proof}
	return converge.Want{Thing: b, Why: why, To: func(converge.State) (converge.State, error) { return BesideFits, nil }}
}

// NewDKMSBeside builds the thing again from its name; false if that is the name of the driver's own modules.
func NewDKMSBeside(name string, proof BesideFunc) (converge.Thing, bool) {
	what, kernel, _ := strings.Cut(name, " for ")
	return beside{what, kernel, proof}, kernel != ""
}

// Ref names it "nvidia-fs for 6.8.0-88-generic": which version is its package's affair.
func (b beside) Ref() converge.Ref {
	return converge.Ref{Kind: "dkms", Name: b.name + " for " + b.kernel}
}

func (b beside) Look(_ context.Context, v host.View) (converge.State, error) {
	_, state, err := b.built(v, b.name, b.kernel)
	if err == nil && state != BesideFits && !v.Runs() {
		return "", host.FirstBoot // nothing can be built there
	}
	return state, err
}

// Unsettled says that another driver needs a rebuild, whether DKMS builds that driver or packages bring it.
func (b beside) Unsettled(found converge.State, by converge.Change) converge.State {
	switch {
	case by.Kind == "package" && strings.HasPrefix(by.Name, b.name) && by.After == "" && by.Before != "":
		return BesideFits // it goes
	case by.Kind == "package" && bringsModule(by), by.Kind == "dkms" && strings.HasPrefix(by.Name, "nvidia/") && strings.HasSuffix(by.Name, " "+b.kernel):
		return BesideOld
	}
	return found
}

// Settled is always what fits.
func (b beside) Settled(converge.State) converge.State { return BesideFits }

// Make removes the earlier build first: else dkms would install that again.
func (b beside) Make(ctx context.Context, h host.Host, _ converge.State) error {
	version, now, err := b.built(h, b.name, b.kernel)
	if err != nil || now == BesideFits {
		return err
	}
	if err := headers(h, b.kernel); err != nil {
		return err
	}
	about := []string{"-m", b.name, "-v", version}
	tree := "/var/lib/dkms/" + b.name + "/" + version
	if _, err := h.Stat(tree + "/" + b.kernel); err == nil {
		if _, err := h.Do(ctx, append(append([]string{"dkms", "remove"}, about...), "-k", b.kernel)...); err != nil {
			return err
		}
	}
	if _, err := h.Stat(tree); missing(err) { // it goes with the last kernel, though its package is still there
		if _, err := h.Do(ctx, append([]string{"dkms", "add"}, about...)...); err != nil {
			return err
		}
	}
	jobs := strconv.Itoa(BuildJobs(h))
	d := dkmsBuild{version: version, kernel: b.kernel}
	_, err = h.Do(ctx, append(append([]string{"env", "OMP_NUM_THREADS=" + jobs, "dkms", "install", "-j", jobs}, about...), "-k", b.kernel)...)
	if err != nil {
		return d.notBuilt(h, b.name, err)
	}
	if _, now, err = b.built(h, b.name, b.kernel); err == nil && now != BesideFits {
		return &trouble.Error{
			What: fmt.Sprintf("cannot use the module %s %s built for %s: it is %s, though dkms says that it went well", b.name, version, b.kernel, now),
			Try:  []string{"dkms status, which lists what was built", "or write gds = false in [driver]"},
		}
	}
	return err
}
