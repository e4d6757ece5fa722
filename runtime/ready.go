// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

const (
	// patience is how long a daemon has to answer CRI after its restart. Starting takes well under a second; a node
	// with thousands of containers to look over has been seen to take many.
	patience = 60 * time.Second
	// answerPatience is how long a daemon has that was not touched.
	answerPatience = 3 * time.Second
	// defaultSocket is where containerd listens if its configuration does not say.
	defaultSocket = "/run/containerd/containerd.sock"
)

// Ready waits until the daemon behind a restart thing answers CRI again. What a restart thing reads starts with the
// daemon's configuration, which says where it listens.
func Ready(ctx context.Context, v host.View, unit string, files []string) error {
	isCRIO := strings.HasPrefix(unit, "crio") || strings.HasPrefix(unit, "cri-o")
	if !strings.HasPrefix(unit, "containerd") && !isCRIO || len(files) == 0 {
		return nil
	}
	engines, err := facts.Engines(ctx, v)
	if err != nil {
		return err
	}
	for _, e := range engines {
		switch {
		case e.Config != files[0]:
		case isCRIO:
			return crioReady(ctx, v, crioSocket(e), crioMustBy(v, path.Join(e.Folder, crioDropIn)))
		default:
			return answers(ctx, v, socket(e), "")
		}
	}
	return nil
}

// Answers says whether the container engine that pods run on answers now, and has loaded the handler that the spec asks for.
func Answers(ctx context.Context, v host.View, s spec.Spec, f facts.Facts) error {
	if !s.Has("runtime") {
		return nil
	}
	e, err := engine(s.Runtime, f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	h := plainHandler(s.Runtime)
	if s.Runtime.Inject == "cdi" {
		h.Name, h.Default = "", false
	}
	switch e.Name {
	case "crio":
		must := crioMust{}
		if h.Name != "" {
			must.handlers = []string{h.Name}
		}
		if h.Default {
			must.byDefault = h.Name
		}
		return crioReady(ctx, v, crioSocket(e), must)
	case "docker":
		return dockerAnswers(ctx, v, e, h)
	}
	if h.Name != "" {
		h.Name = handlerOf(s, f, e).Name
	}
	return answers(ctx, v, socket(e), h.Name)
}

// answers waits until the CRI plugin says that it is ready, and knows the handler if one is named. A daemon whose CRI
// plugin did not load answers too, with status 12 (it knows no such service): nothing to wait for.
func answers(ctx context.Context, v host.View, socket, handler string) error {
	began := time.Now()
	var status []byte
	err := untilDone(ctx, func(ctx context.Context) (err error) {
		status, err = v.Call(ctx, socket, "/runtime.v1.RuntimeService/Status", []byte{0x08, 0x01}) // verbose = true
		if err != nil && strings.Contains(err.Error(), "gRPC status 12") {
			return errNoCRI
		}
		return err
	})
	switch {
	case err == nil:
		return judgeStatus(status, handler)
	case errors.As(err, &host.Later{}):
		return nil // no daemon answers here
	case errors.Is(err, errNoCRI):
		return err
	}
	return fmt.Errorf("containerd did not answer CRI within %v: %w", time.Since(began).Round(time.Second), err)
}

var errNoCRI = errors.New("containerd runs, and its CRI plugin does not: journalctl -u containerd says why")

// untilDone tries until it is done or a daemon's patience is over. A Later is done, and so is a daemon without its CRI plugin.
func untilDone(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || errors.As(err, &host.Later{}) || errors.Is(err, errNoCRI) || host.Pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
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

// judge wants the runtime ready. The network is not: its plugin comes as a pod.
func (c condition) judge() error {
	if c.kind != "RuntimeReady" || c.ready {
		return nil
	}
	return fmt.Errorf("containerd says its runtime is not ready: %s: %s", c.reason, c.message)
}

// NoNetwork returns the reason for which an engine that answers says that the pods' network is not ready; "" if it says nothing of that.
func NoNetwork(ctx context.Context, v host.View, e facts.Engine) (why string) {
	at := socket(e)
	if e.Name == "crio" {
		at = crioSocket(e)
	}
	status, err := v.Call(ctx, at, "/runtime.v1.RuntimeService/Status", nil)
	if err != nil {
		return ""
	}
	err = host.ProtoFields(status, func(n int, value []byte) error {
		if n != 1 {
			return nil
		}
		return host.ProtoFields(value, func(n int, of []byte) error {
			c, err := readCondition(of)
			if n == 1 && c.kind == "NetworkReady" && !c.ready {
				why = cmp.Or(c.message, c.reason, c.kind+" is false")
			}
			return err
		})
	})
	if err != nil {
		return ""
	}
	return why
}

// knows looks for the handler in the configuration that the daemon has loaded, as JSON.
func knows(config, handler string) error {
	var loaded struct {
		Containerd struct {
			Runtimes map[string]json.RawMessage `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &loaded); err != nil || len(loaded.Containerd.Runtimes) == 0 {
		return nil // it tells nothing of its runtimes: its configuration was proven before
	}
	if loaded.Containerd.Runtimes[handler] == nil {
		return fmt.Errorf("containerd has loaded its configuration without the handler %s", handler)
	}
	return nil
}
