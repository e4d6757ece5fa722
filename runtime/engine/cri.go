// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Status asks an engine for its CRI status: which conditions are false, such as RuntimeReady and
// NetworkReady, each with the engine's own words; and the configuration that it has loaded, ""
// where it does not say. StatusResponse of k8s.io/cri-api, api.proto: field 1 is the status with
// its conditions in field 1, each with type (1), status (2), reason (3) and message (4); field 2 is
// the info map.
func Status(ctx context.Context, v host.View, e facts.Engine) (problems map[string]string, config string, err error) {
	response, err := v.Call(ctx, e.Socket, "/runtime.v1.RuntimeService/Status", []byte{0x08, 0x01}) // verbose = true
	if err != nil {
		return nil, "", err
	}
	problems = map[string]string{}
	err = host.ProtoFields(response, func(n int, value []byte) error {
		if n == 2 {
			if key, _ := text(value, 1); key == "config" {
				config, err = text(value, 2)
			}
			return err
		} else if n != 1 {
			return nil
		}
		return host.ProtoFields(value, func(n int, condition []byte) error {
			ready := false
			err := host.ProtoAll(condition, func(n int, _ []byte, number uint64) error {
				ready = ready || n == 2 && number != 0
				return nil
			})
			if n != 1 || ready || err != nil {
				return err
			}
			kind, _ := text(condition, 1)
			reason, _ := text(condition, 3)
			message, _ := text(condition, 4)
			problems[kind] = cmp.Or(message, reason, kind+" is false")
			return nil
		})
	})
	return problems, config, err
}

// Sandboxes are the handlers of an engine's pod sandboxes, by the pod's name; "" is the default
// handler. PodSandbox of k8s.io/cri-api, pkg/apis/runtime/v1/api.proto: metadata (2) with the name
// (1), runtime_handler (7).
func Sandboxes(ctx context.Context, v host.View, e facts.Engine) (map[string]string, error) {
	answer, err := v.Call(ctx, e.Socket, "/runtime.v1.RuntimeService/ListPodSandbox", nil)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	return found, host.ProtoFields(answer, func(_ int, sandbox []byte) error {
		handler, err := text(sandbox, 7)
		if err != nil {
			return err
		}
		return host.ProtoFields(sandbox, func(n int, metadata []byte) error {
			if n != 2 {
				return nil
			}
			name, err := text(metadata, 1)
			found[name] = handler
			return err
		})
	})
}

// text is the text in a field of a message.
func text(message []byte, field int) (found string, err error) {
	err = host.ProtoFields(message, func(n int, value []byte) error {
		if n == field {
			found = string(value)
		}
		return nil
	})
	return found, err
}
