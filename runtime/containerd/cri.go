// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// defaultSocket is where containerd listens if its configuration does not say.
const defaultSocket = "/run/containerd/containerd.sock"

// Answers waits until the CRI plugin is ready, and knows the handler if one is named. A daemon whose CRI plugin did not load answers with
// gRPC status 12 (unimplemented): then waiting does not help.
func Answers(ctx context.Context, v host.View, socket, handler string) error {
	began := time.Now()
	var status []byte
	noCRI := false
	err := engine.UntilDone(ctx, func(ctx context.Context) (err error) {
		status, err = v.Call(ctx, socket, "/runtime.v1.RuntimeService/Status", []byte{0x08, 0x01}) // verbose = true
		if noCRI = err != nil && strings.Contains(err.Error(), "gRPC status 12"); noCRI {
			return nil
		}
		return err
	})
	switch {
	case noCRI:
		return errors.New("containerd runs, and its CRI plugin does not: journalctl -u containerd says why")
	case err == nil:
		return judgeStatus(status, handler)
	case errors.As(err, &host.Later{}):
		return nil // no daemon answers here
	}
	return fmt.Errorf("containerd did not answer CRI within %v: %w", time.Since(began).Round(time.Second), err)
}

// judgeStatus reads a StatusResponse (k8s.io/cri-api, api.proto): field 1 is the status with its conditions in field 1,
// each type (1), status (2), reason (3), message (4); field 2 is the info map, whose "config" is what the daemon loaded.
func judgeStatus(response []byte, handler string) error {
	var problem error
	config := ""
	err := host.ProtoAll(response, func(n int, value []byte, _ uint64) error {
		switch n {
		case 1:
			return host.ProtoAll(value, func(n int, condition []byte, _ uint64) error {
				if n == 1 {
					c, err := readCondition(condition)
					if problem = cmp.Or(problem, err); err == nil {
						problem = cmp.Or(problem, c.judge())
					}
				}
				return nil
			})
		case 2:
			var key, val string
			err := host.ProtoAll(value, func(n int, v []byte, _ uint64) error {
				if n == 1 {
					key = string(v)
				} else {
					val = string(v)
				}
				return nil
			})
			if key == "config" {
				config = val
			}
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot read the daemon's status: %w", err)
	}
	if problem == nil && handler != "" && config != "" {
		problem = knows(config, handler)
	}
	return problem
}

// condition is one of a StatusResponse.
type condition struct {
	kind, reason, message string
	ready                 bool
}

func readCondition(of []byte) (c condition, err error) {
	err = host.ProtoAll(of, func(n int, value []byte, number uint64) error {
		switch n {
		case 1:
			c.kind = string(value)
		case 2:
			c.ready = number != 0
		case 3:
			c.reason = string(value)
		case 4:
			c.message = string(value)
		}
		return nil
	})
	return c, err
}

// judge wants the runtime ready. The network need not be ready: its plugin comes as a pod.
func (c condition) judge() error {
	if c.kind != "RuntimeReady" || c.ready {
		return nil
	}
	return fmt.Errorf("containerd says its runtime is not ready: %s: %s", c.reason, c.message)
}

// NotReady asks an engine at its CRI socket which of RuntimeReady and NetworkReady is false; the values are the engine's own words.
func NotReady(ctx context.Context, v host.View, socket string) (map[string]string, error) {
	status, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/Status", nil)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	return found, host.ProtoFields(status, func(n int, value []byte) error {
		if n != 1 {
			return nil
		}
		return host.ProtoFields(value, func(n int, of []byte) error {
			c, err := readCondition(of)
			if n == 1 && !c.ready && (c.kind == "RuntimeReady" || c.kind == "NetworkReady") {
				found[c.kind] = cmp.Or(c.message, c.reason, c.kind+" is false")
			}
			return err
		})
	})
}

// Sandboxes are the handlers of an engine's pod sandboxes, by the pod's name; "" is the default handler. PodSandbox of
// k8s.io/cri-api, pkg/apis/runtime/v1/api.proto: metadata (2) with the name (1), runtime_handler (7).
func Sandboxes(ctx context.Context, v host.View, socket string) (map[string]string, error) {
	answer, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/ListPodSandbox", nil)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	return found, host.ProtoFields(answer, func(_ int, sandbox []byte) error {
		name, handler := "", ""
		err := host.ProtoAll(sandbox, func(n int, value []byte, _ uint64) error {
			switch n {
			case 2:
				return host.ProtoAll(value, func(n int, value []byte, _ uint64) error {
					if n == 1 {
						name = string(value)
					}
					return nil
				})
			case 7:
				handler = string(value)
			}
			return nil
		})
		found[name] = handler
		return err
	})
}

// knows looks for the handler in the configuration that the daemon has loaded, as JSON.
func knows(config, handler string) error {
	var loaded struct {
		Containerd struct {
			Runtimes map[string]json.RawMessage `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &loaded); err != nil || len(loaded.Containerd.Runtimes) == 0 {
		return nil // the status lists no runtimes: Validate has judged the configuration
	}
	if loaded.Containerd.Runtimes[handler] == nil {
		return fmt.Errorf("containerd has loaded its configuration without the handler %s", handler)
	}
	return nil
}

// Socket is where containerd listens.
func Socket(e facts.Engine) string {
	if e.Socket == "" {
		return defaultSocket
	}
	return e.Socket
}
