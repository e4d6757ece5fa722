// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// wantsRancher wants the handler in the configuration that K3s and RKE2 generate at each start,
// with a handler for each NVIDIA program that they find. gpuadm takes the first that suffices:
// nothing; a restart of their unit; a drop-in, if the generated file imports a folder (since pull
// 13680 of k3s-io/k3s, 2026). It never edits the generated file. Sources: k3s-io/k3s,
// pkg/agent/containerd/config.go and runtimes.go, pkg/agent/templates/templates.go;
// https://docs.k3s.io/advanced. RKE2 has the same code as a module: rancher/rke2, go.mod.
func wantsRancher(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	generated := len(treeOf(e).Root.Data) > 0
	runs := e.Unit != "" && f.Kubelet.Unit == e.Unit && f.Kubelet.Active == "active"
	if !generated && runs {
		return nil, rancherFileNotFound(e)
	}
	if !generated || e.Unit == "" {
		return nil, nil // it has not started yet: it looks for the program when it does
	}

	target := rancherDropIn(e)
	if missing(withoutFile(e, target), h) == "" {
		want := engine.Verify(e, h, missing(e, h))
		want.Why = e.Owner + " has written the handler"
		return []converge.Want{want}, nil
	}

	if !s.Has("toolkit") && !slices.Contains(h.Programs, h.Binary) {
		return nil, nil // the stage notes it: K3s writes the handler once the program is installed
	}

	switch {
	case h.Name == "nvidia" && !h.Default:
		return []converge.Want{handlerWritten(e, h), rancherRestarted(f, e, h)}, nil
	case target != "":
		return editWants(s, f, e, h, target, []string{target})
	}

	return nil, noDropInFolder(e, h)
}

// rancherFileNotFound says that K3s or RKE2 runs, and its file is not where gpuadm looks.
func rancherFileNotFound(e facts.Engine) error {
	return &trouble.Error{
		What:    fmt.Sprintf("cannot find the configuration that %s has made for containerd: %s is not there, and %s runs", e.Owner, e.Config, e.Unit),
		Because: []string{"gpuadm takes the data folder from the unit, its environment files and the config files"},
		Try: []string{
			"systemctl show --property=ExecStart,EnvironmentFiles " + e.Unit + ", and look for its data folder",
			`write config = "PATH/agent/etc/containerd/config.toml" into [runtime]`,
		},
	}
}

// rancherDropIn is the path of gpuadm's file in the folder that the generated file imports, "" if
// it imports none.
func rancherDropIn(e facts.Engine) string {
	c, err := readEngine(e)
	if err != nil {
		return ""
	}
	target, _ := c.dropInPath()
	return target
}

// withoutFile is the engine without one of its files.
func withoutFile(e facts.Engine, name string) facts.Engine {
	if name != "" {
		e.Files = slices.DeleteFunc(slices.Clone(e.Files), func(f facts.File) bool {
			return f.Path == name
		})
	}
	return e
}

// rancherRestarted wants the unit to have started after the program was installed, and to serve the
// handler then. The file to compare with must not be the generated one, which is always newer than
// the unit's process.
func rancherRestarted(f facts.Facts, e facts.Engine, h engine.Handler) converge.Want {
	unchanged := func(found []byte) ([]byte, error) { return found, nil }
	want := restarted(f, e, h, []string{h.Binary}, h.Binary, unchanged)
	want.Why = fmt.Sprintf("%s writes the handler when it starts", e.Owner)
	return want
}

// handlerWritten finds a problem if the unit has started since the program was installed, and has
// not written the handler: another restart would not help.
func handlerWritten(e facts.Engine, h engine.Handler) converge.Want {
	restart := things.NewRestart(e.Unit, []string{h.Binary}, nil)
	look := func(ctx context.Context, v host.View) (string, error) {
		state, err := restart.Look(ctx, v)
		if err != nil || state != things.UpToDate {
			return "", err
		}
		return fmt.Sprintf("cannot use the handler %s: %s has started after %s was there, and has not written it", h.Name, e.Unit, h.Binary), nil
	}

	why := e.Owner + " writes it when it starts"
	return things.Check(fmt.Sprintf("handler %s in %s", h.Name, e.Config), look, why,
		fmt.Sprintf("journalctl -u %s | grep -i runtime, which says where it looked", e.Unit),
		fmt.Sprintf("if %s has a template of its own, add the handler there, or {{ template \"base\" . }}", path.Dir(e.Config)))
}

// noDropInFolder refuses what only the folder of a newer K3s or RKE2 takes: a handler that they do
// not write themselves, or the default.
func noDropInFolder(e facts.Engine, h engine.Handler) error {
	if h.Default {
		return &trouble.Error{
			What: fmt.Sprintf("cannot make %s the default runtime: %s generates %s", h.Name, e.Owner, e.Config),
			Try:  []string{fmt.Sprintf("write default-runtime: %s into /etc/rancher/%s/config.yaml, and drop set_as_default", h.Name, e.Owner)},
		}
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot add the handler %s: %s imports no folder, and %s writes the handler nvidia alone", h.Name, e.Config, e.Owner),
		Try: []string{
			`write handler = "nvidia" into [runtime]`,
			fmt.Sprintf("or update %s: releases since March 2026 import config-v3.toml.d", e.Owner),
			"or add it to a template beside that file: https://docs.k3s.io/advanced",
		},
	}
}
