// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// addOn is a module of another package, with its own version, that DKMS builds against the driver's
// modules: nvidia-fs. The kernel loads it only with the driver that it was built against, so DKMS
// must rebuild it for another driver, also at undo.
type addOn struct {
	name   string
	kernel string
	built  AddOnFunc
}

// An AddOnFunc returns the state of an add-on for a kernel, and which version of its source DKMS is
// to build.
type AddOnFunc func(v host.View, name, kernel string) (version string, state converge.State, err error)

// States of an add-on. It fits if it was built against the installed driver, or if there is nothing
// to build, or no driver to build it against.
const (
	AddOnNotBuilt = converge.State("not built")
	AddOnOld      = converge.State("of another driver")
	AddOnFits     = converge.State("fits")
)

// FormAddOn is the form of an add-on, for the journal.
const FormAddOn = "beside"

// DKMSAddOn wants an add-on of a kernel built against the driver's modules.
func DKMSAddOn(name, kernel string, proof AddOnFunc, why string) converge.Want {
	to := func(converge.State) (converge.State, error) { return AddOnFits, nil }
	return converge.Want{Thing: addOn{name, kernel, proof}, Why: why, To: to}
}

// NewDKMSAddOn builds the thing again from its name.
func NewDKMSAddOn(name string, proof AddOnFunc) converge.Thing {
	what, kernel, _ := strings.Cut(name, " for ")
	return addOn{what, kernel, proof}
}

// Ref names it "nvidia-fs for 6.8.0-88-generic", without a version: its package decides that.
func (a addOn) Ref() converge.Ref {
	return converge.Ref{
		Kind: "dkms",
		Name: a.name + " for " + a.kernel,
		Form: FormAddOn,
	}
}

func (a addOn) Look(_ context.Context, v host.View) (converge.State, error) {
	_, state, err := a.built(v, a.name, a.kernel)
	if err == nil && state != AddOnFits && !v.Runs() {
		return "", host.FirstBoot // nothing can be built there
	}
	return state, err
}

// Affected says that another driver needs a rebuild, whether DKMS builds that driver or packages
// bring it.
func (a addOn) Affected(found converge.State, by converge.Change) converge.State {
	removes := by.After == "" && by.Before != ""
	if removes && slices.Contains(by.Brings, a.name) {
		return AddOnFits // its package is removed
	}

	buildsDriver := by.Kind == "dkms" && strings.HasPrefix(by.Name, "nvidia/")
	if len(by.Brings) > 0 || buildsDriver && strings.HasSuffix(by.Name, " "+a.kernel) {
		return AddOnOld
	}

	return found
}

// Current is always "fits".
func (a addOn) Current(converge.State) converge.State { return AddOnFits }

// Make removes the earlier build first: else dkms installs that again.
func (a addOn) Make(ctx context.Context, h host.Host, _ converge.State) error {
	version, found, err := a.built(h, a.name, a.kernel)
	if err != nil || found == AddOnFits {
		return err
	}
	if err := refuseWithoutHeaders(h, a.kernel); err != nil {
		return err
	}

	source := []string{"-m", a.name, "-v", version}
	build := []string{"-m", a.name, "-v", version, "-k", a.kernel}
	tree := dkmsTree + "/" + a.name + "/" + version
	if _, err := h.Stat(tree + "/" + a.kernel); err == nil {
		if _, err := h.Do(ctx, append([]string{"dkms", "remove"}, build...)...); err != nil {
			return err
		}
	}
	// DKMS removes the tree with its last kernel, though the package is still installed.
	if _, err := h.Stat(tree); host.NotExist(err) {
		if _, err := h.Do(ctx, append([]string{"dkms", "add"}, source...)...); err != nil {
			return err
		}
	}

	if _, err := h.Do(ctx, dkmsCommand(h, "install", build)...); err != nil {
		return NotBuilt(h, dkmsTree, a.name, version, a.kernel, err)
	}

	_, state, err := a.built(h, a.name, a.kernel)
	if err == nil && state != AddOnFits {
		return &trouble.Error{
			What: fmt.Sprintf("cannot use the module %s %s built for %s: it is %s, though dkms reported success", a.name, version, a.kernel, state),
			Try:  []string{"dkms status, which lists what was built", "or write gds = false in [driver]"},
		}
	}

	return err
}
