// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
)

// Built returns the name and the state of a version in DKMS's tree for a kernel. If DKMS reports it
// as installed, Built checks the files, and the state also says why the kernel would not load them.
func Built(v host.View, version, kernel string) (name string, state converge.State, err error) {
	return KernelSide{}.built(v, version, kernel)
}

func (k KernelSide) built(
	v host.View, version, kernel string,
) (name string, state converge.State, err error) {
	builds, err := facts.Builds(v)
	if err != nil {
		return "", "", err
	}

	for _, build := range builds {
		if build.Version != version {
			continue
		}
		name = build.Name
		if build.Kernel == kernel && state != "installed" {
			state = converge.State(build.State)
		}
	}

	if name == "" {
		name, err = unregistered(v, version)
	}
	if err != nil || state != "installed" {
		return name, state, err
	}

	problem, err := k.installedProblem(v, version, kernel)
	if err != nil {
		return name, "", err
	}
	if problem != "" {
		state += converge.State(", " + problem)
	}
	return name, state, nil
}

// unregistered returns the name of the driver's source that is in /usr/src and that DKMS does not
// know, "" if there is none.
func unregistered(v host.View, version string) (string, error) {
	names, err := v.ReadDir("/usr/src")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}

	found := ""
	for _, name := range names {
		source, ok := strings.CutSuffix(name, "-"+version)
		if ok && strings.HasPrefix(source, "nvidia") {
			found = source
		}
	}

	return found, nil
}

// installedProblem says why a kernel would not load the version that DKMS reports as installed, ""
// if it would.
func (k KernelSide) installedProblem(v host.View, version, kernel string) (string, error) {
	m, err := k.onDisk(v, kernel)
	switch {
	case err != nil:
		return "", err
	case m == nil:
		return "modprobe finds no module nvidia", nil
	case m.Version != version:
		return "modprobe would load " + m.Version + " from " + m.Path, nil
	}

	return k.faults(v, kernel, *m)
}

// OnDisk returns version and flavour of the module that modprobe would load for a kernel.
func OnDisk(v host.View, kernel string) (string, error) {
	return KernelSide{}.stateOnDisk(v, kernel)
}

func (k KernelSide) stateOnDisk(v host.View, kernel string) (string, error) {
	m, err := k.onDisk(v, kernel)
	if err != nil || m == nil {
		return "", err
	}
	return m.Version + " " + m.Flavour(), nil
}

// OnDiskLoadable is OnDisk, and after a comma why the kernel would not load it.
func OnDiskLoadable(v host.View, kernel string) (converge.State, error) {
	return KernelSide{}.loadableState(v, kernel)
}

func (k KernelSide) loadableState(v host.View, kernel string) (converge.State, error) {
	m, err := k.onDisk(v, kernel)
	if err != nil || m == nil {
		return "", err
	}

	state := m.Version + " " + m.Flavour()
	problem, err := k.faults(v, kernel, *m)
	if problem != "" {
		state += ", " + problem
	}
	return converge.State(state), err
}

// loadable says whether a kernel has modules of the version, and would load them.
func (k KernelSide) loadable(v host.View, kernel string) (bool, error) {
	state, err := k.loadableState(v, kernel)
	return err == nil && string(state) == k.Version+" "+k.Flavour, err
}

// allLoadable says whether nothing has to be built: each kernel has modules of the version, and
// would load them. A machine with a baked image must not build: bake has signed the modules, and
// the key is not on the machine.
func (k KernelSide) allLoadable(v host.View) (bool, error) {
	for _, kernel := range k.Kernels {
		loadable, err := k.loadable(v, kernel)
		if err != nil || !loadable {
			return false, err
		}
	}
	return true, nil
}

// onDisk returns the module that modprobe would load for a kernel, nil if there is none.
func (k KernelSide) onDisk(v host.View, kernel string) (*modinfo.Module, error) {
	name, err := facts.NvidiaModule(v, kernel)
	if err != nil || name == "" {
		return nil, err
	}

	m, err := modinfo.ReadOnce(k.Memory, v, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // modules.dep is older than its removal
	}
	return &m, err
}

// trust returns which signatures the machines that load the modules require.
func (k KernelSide) trust(v host.View) (facts.Trust, error) {
	if k.Image != nil {
		return *k.Image, nil
	}
	return facts.ReadTrustDemanded(v)
}

// faults says why a kernel would not load the module nvidia or, in an image, one of the modules
// built with it. On a machine gpuadm loads those, and the kernel itself says why it refuses one.
func (k KernelSide) faults(v host.View, kernel string, m modinfo.Module) (string, error) {
	problem, err := k.fault(v, kernel, m)
	if k.Image == nil || problem != "" || err != nil {
		return problem, err
	}

	files, err := facts.NvidiaModules(v, kernel)
	if err != nil {
		return "", err
	}
	for _, name := range files {
		file := path.Base(name)
		if strings.HasPrefix(file, Storage+".") { // DKMS builds it separately: builtBeside
			continue
		}

		m, err := modinfo.ReadOnce(k.Memory, v, name)
		if err != nil {
			return "", err
		}
		problem, err := k.fault(v, kernel, m)
		if problem != "" || err != nil {
			return file + ": " + problem, err
		}
	}

	return "", nil
}

// fault says why a kernel would not load a module, "" if it would.
func (k KernelSide) fault(v host.View, kernel string, m modinfo.Module) (string, error) {
	if m.Kernel() != kernel {
		return "it is built for kernel " + m.Kernel(), nil
	}

	trust, err := k.trust(v)
	if err != nil || !trust.Demands() || trust.Trusts(m.Signer) {
		return "", err
	}
	if m.Signer == nil {
		return "it is not signed, and the kernel demands that", nil
	}

	signed := "it is signed by " + signerName(*m.Signer)
	switch {
	case k.Image != nil && k.Build == "precompiled":
		return "", nil // a distribution's kernels know its keys, and the image does not say which
	case k.Image != nil && trust.Build != nil:
		return signed + ", and not by the key of --module-key, " + signerName(*trust.Build), nil
	}
	return signed + ", which the kernel does not trust", nil
}

func signerName(k modinfo.Key) string {
	if k.Name != "" {
		return fmt.Sprintf("%s (serial %s)", k.Name, k.Serial)
	}
	return "the key with the id " + k.ID
}
