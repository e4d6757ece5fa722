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
func Status(
	ctx context.Context, v host.View, e facts.Engine,
) (problems map[string]string, config string, err error) {
	const verbose = "\x08\x01" // StatusRequest with verbose = true
	response, err := v.Call(ctx, e.Socket, "/runtime.v1.RuntimeService/Status", []byte(verbose))
	if err != nil {
		return nil, "", err
	}

	problems = map[string]string{}
	err = host.ProtoFields(response, func(field int, value []byte) error {
		switch field {
		case 1:
			return readConditions(value, problems)
		case 2:
			key, _ := text(value, 1)
			if key != "config" {
				return nil
			}
			config, err = text(value, 2)
			return err
		}
		return nil
	})
	return problems, config, err
}

// readConditions adds the false conditions of a status to problems.
func readConditions(status []byte, problems map[string]string) error {
	return host.ProtoFields(status, func(field int, condition []byte) error {
		if field != 1 {
			return nil
		}
		ready, err := isTrue(condition)
		if err != nil || ready {
			return err
		}

		kind, _ := text(condition, 1)
		reason, _ := text(condition, 3)
		message, _ := text(condition, 4)
		problems[kind] = cmp.Or(message, reason, kind+" is false")
		return nil
	})
}

// isTrue says whether a condition's status is true.
func isTrue(condition []byte) (bool, error) {
	status := false
	err := host.ProtoAll(condition, func(field int, _ []byte, number uint64) error {
		if field == 2 && number != 0 {
			status = true
		}
		return nil
	})
	return status, err
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
	err = host.ProtoFields(answer, func(_ int, sandbox []byte) error {
		handler, err := text(sandbox, 7)
		if err != nil {
			return err
		}
		return host.ProtoFields(sandbox, func(field int, metadata []byte) error {
			if field != 2 {
				return nil
			}
			name, err := text(metadata, 1)
			found[name] = handler
			return err
		})
	})
	return found, err
}

// text is the text in a field of a message.
func text(message []byte, field int) (string, error) {
	found := ""
	err := host.ProtoFields(message, func(number int, value []byte) error {
		if number == field {
			found = string(value)
		}
		return nil
	})
	return found, err
}
