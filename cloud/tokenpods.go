// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"cmp"
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
	socket := cmp.Or(kubeletsSocket(v), "/run/containerd/containerd.sock")
	pods, err := sandboxesAt(ctx, v, socket)
	if err == nil {
		var names []string
		for _, p := range pods {
			names = append(names, p.name)
		}
		return names, nil
	}
	uids, err := v.ReadDir(kubeletPods)
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

// kubeletsSocket is the engine's socket as kubelet's configuration of ours has it, "" where there is none.
func kubeletsSocket(v host.View) string {
	var is struct {
		Endpoint string `yaml:"containerRuntimeEndpoint"`
	}
	data, err := v.ReadFile(kubeletConfig)
	if err != nil || yaml.Unmarshal(data, &is) != nil {
		return ""
	}
	return strings.TrimPrefix(is.Endpoint, "unix://")
}

// sandbox is a pod as the container engine knows it.
type sandbox struct{ id, name string }

// sandboxesAt lists the pods that run: ListPodSandboxRequest{filter: {state: {state: SANDBOX_READY}}}, of k8s.io/cri-api,
// api.proto.
func sandboxesAt(ctx context.Context, v host.View, socket string) ([]sandbox, error) {
	ctx, stop := context.WithTimeout(ctx, engineAnswers)
	defer stop()
	answer, err := v.Call(ctx, socket, "/runtime.v1.RuntimeService/ListPodSandbox", []byte{0x0a, 0x02, 0x12, 0x00})
	if err != nil {
		return nil, err
	}
	return sandboxes(answer)
}

// sandboxes reads a ListPodSandboxResponse: items (1), each with an id (1) and metadata (2): name (1), namespace (3).
func sandboxes(answer []byte) (pods []sandbox, err error) {
	err = protoFields(answer, func(n protowire.Number, item []byte) error {
		if n != 1 {
			return nil
		}
		var id, name, namespace string
		err := protoFields(item, func(n protowire.Number, about []byte) error {
			switch n {
			case 1:
				id = string(about)
			case 2:
				return protoFields(about, func(n protowire.Number, value []byte) error {
					switch n {
					case 1:
						name = string(value)
					case 3:
						namespace = string(value)
					}
					return nil
				})
			}
			return nil
		})
		pods = append(pods, sandbox{id, oneLine(fmt.Sprintf("pod %s/%s", namespace, name))})
		return err
	})
	slices.SortFunc(pods, func(a, b sandbox) int { return strings.Compare(a.name, b.name) })
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
