// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/host"
)

// runningPods names the pods that run on the machine, static ones included, as the container engine knows them: the API server
// may be away, and kubelet may be stopped. Where the engine cannot be asked, kubelet's own folder tells how many there are.
func runningPods(ctx context.Context, v host.View) ([]string, error) {
	socket := "/run/containerd/containerd.sock"
	var is struct {
		Endpoint string `yaml:"containerRuntimeEndpoint"`
	}
	if data, err := v.ReadFile(kubeletConfig); err == nil && yaml.Unmarshal(data, &is) == nil && is.Endpoint != "" {
		socket = strings.TrimPrefix(is.Endpoint, "unix://")
	}
	// ListPodSandboxRequest{filter: {state: {state: SANDBOX_READY}}}, of k8s.io/cri-api, api.proto
	answer, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/ListPodSandbox", []byte{0x0a, 0x02, 0x12, 0x00})
	if err == nil {
		return sandboxes(answer)
	}
	uids, err := v.ReadDir("/var/lib/kubelet/pods")
	if errors.Is(err, host.Later{}) || notThere(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for i, uid := range uids {
		uids[i] = "the pod with UID " + uid
	}
	return uids, nil
}

// sandboxes reads a ListPodSandboxResponse: items (1), each with metadata (2): name (1), namespace (3).
func sandboxes(answer []byte) (pods []string, err error) {
	err = protoFields(answer, func(n protowire.Number, item []byte) error {
		if n != 1 {
			return nil
		}
		return protoFields(item, func(n protowire.Number, about []byte) error {
			if n != 2 {
				return nil
			}
			name, namespace := "", ""
			err := protoFields(about, func(n protowire.Number, value []byte) error {
				switch n {
				case 1:
					name = string(value)
				case 3:
					namespace = string(value)
				}
				return nil
			})
			pods = append(pods, oneLine(fmt.Sprintf("pod %s/%s", namespace, name)))
			return err
		})
	})
	slices.Sort(pods)
	return pods, err
}

// protoFields calls see for each field of a message that holds bytes.
func protoFields(message []byte, see func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return fmt.Errorf("cannot read the container engine's answer: %w", protowire.ParseError(size))
		}
		message = message[size:]
		if kind != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
				return fmt.Errorf("cannot read the container engine's answer: %w", protowire.ParseError(size))
			}
			message = message[size:]
			continue
		}
		value, size := protowire.ConsumeBytes(message)
		if size < 0 {
			return fmt.Errorf("cannot read the container engine's answer: %w", protowire.ParseError(size))
		}
		message = message[size:]
		if err := see(n, value); err != nil {
			return err
		}
	}
	return nil
}
