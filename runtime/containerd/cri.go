// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// errNoCRI says that the daemon runs, and has no CRI service.
var errNoCRI = errors.New("containerd runs, and its CRI plugin does not: journalctl -u containerd says why")

// Answers waits until the CRI plugin is ready, and knows the handler if it has a name. A daemon
// whose CRI plugin did not load has no such service: then waiting does not help.
func Answers(ctx context.Context, v host.View, e facts.Engine, h engine.Handler) error {
	began := time.Now()
	var problems map[string]string
	config := ""
	noCRI := false
	err := engine.UntilDone(ctx, func(ctx context.Context) error {
		var err error
		problems, config, err = engine.Status(ctx, v, e)
		refused := (*host.CallError)(nil)
		noCRI = errors.As(err, &refused) && refused.Code == host.Unimplemented
		if noCRI {
			return nil
		}
		return err
	})

	switch {
	case noCRI:
		return errNoCRI
	case errors.As(err, &host.Later{}):
		return nil // no daemon answers here
	case err != nil:
		return fmt.Errorf("containerd did not answer CRI within %v: %w", time.Since(began).Round(time.Second), err)
	}
	// The network need not be ready: its plugin comes as a pod.
	if why := problems["RuntimeReady"]; why != "" {
		return fmt.Errorf("containerd says its runtime is not ready: %s", why)
	}
	if h.Name == "" {
		return nil
	}
	return checkLoaded(config, h.Name)
}

// checkLoaded looks for the handler in the configuration that the daemon has loaded, as JSON.
func checkLoaded(config, handler string) error {
	var loaded struct {
		Containerd struct {
			Runtimes map[string]json.RawMessage `json:"runtimes"`
		} `json:"containerd"`
	}
	err := json.Unmarshal([]byte(config), &loaded)
	runtimes := loaded.Containerd.Runtimes
	if err != nil || len(runtimes) == 0 {
		return nil // the status lists no runtimes: Validate has judged the configuration
	}

	if runtimes[handler] == nil {
		return fmt.Errorf("containerd has loaded its configuration without the handler %s", handler)
	}
	return nil
}
