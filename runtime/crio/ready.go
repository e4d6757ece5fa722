// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// wanted is what CRI-O must have loaded: handlers, and the default one if that is named.
type wanted struct {
	handlers  []string
	byDefault string
}

// wantedBy is what gpuadm's drop-in asks for. One that is not there asks for nothing: the files from before gpuadm are back.
func wantedBy(v host.View, file string) (m wanted) {
	data, err := v.ReadFile(file)
	if err != nil {
		return m
	}
	tree, _ := toml.Values(data) // CRI-O judges it
	settings := toml.Sub(tree, "crio", "runtime")
	return wanted{slices.Sorted(maps.Keys(toml.Sub(settings, "runtimes"))), toml.String(settings, "default_runtime")}
}

// waitFor waits until CRI-O answers CRI, then has it say what it has loaded.
func waitFor(ctx context.Context, v host.View, socket string, must wanted) error {
	var loaded []byte
	err := engine.UntilDone(ctx, func(ctx context.Context) error {
		_, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/Status", nil)
		if err == nil {
			loaded, err = host.AskSocket(ctx, v, socket, "/config")
		}
		return err
	})
	if later := (host.Later{}); errors.As(err, &later) {
		return nil // no daemon runs here
	} else if err != nil {
		return fmt.Errorf("CRI-O does not answer at %s: %w", socket, err)
	}
	return judgeLoaded(loaded, must)
}

// judgeLoaded judges what CRI-O has loaded, as TOML: what `crio status config` prints, which asks the same socket for the same path in
// all versions. CRI-O drops a handler whose program is missing, and says so in its log only.
// Sources: ConfigInfo in internal/client/client.go and InspectConfigEndpoint in server/inspect.go of https://github.com/cri-o/cri-o at
// v1.23.0 and v1.36.3; ValidateRuntimes in pkg/config/config.go there.
func judgeLoaded(loaded []byte, must wanted) error {
	tree, err := toml.Values(loaded)
	if err != nil {
		return fmt.Errorf("cannot read the configuration that CRI-O has loaded: %w", err)
	}
	settings := toml.Sub(tree, "crio", "runtime")
	for _, name := range must.handlers {
		if toml.Sub(settings, "runtimes")[name] == nil {
			return fmt.Errorf("CRI-O runs without the handler %s, as it does if the handler's program is missing: journalctl -u crio says why", name)
		}
	}
	if is := toml.String(settings, "default_runtime"); must.byDefault != "" && is != must.byDefault {
		return fmt.Errorf("CRI-O has loaded its configuration with the default runtime %q, not %q", is, must.byDefault)
	}
	return nil
}

// Ready waits until CRI-O answers with what gpuadm's drop-in asks for.
func Ready(ctx context.Context, v host.View, e facts.Engine) error {
	return waitFor(ctx, v, Socket(e), wantedBy(v, path.Join(e.Folder, dropIn)))
}

// Answers says whether CRI-O answers now, and has loaded the handler if it has a name.
func Answers(ctx context.Context, v host.View, e facts.Engine, h engine.Handler) error {
	must := wanted{}
	if h.Name != "" {
		must.handlers = []string{h.Name}
	}
	if h.Default {
		must.byDefault = h.Name
	}
	return waitFor(ctx, v, Socket(e), must)
}
