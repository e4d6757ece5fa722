// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// defaultSocket is where containerd listens if its configuration does not say.
const defaultSocket = "/run/containerd/containerd.sock"

// Answers waits until the CRI plugin says that it is ready, and knows the handler if one is named. A daemon whose CRI
// plugin did not load answers too, with status 12 (it knows no such service): nothing to wait for.
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

// judge wants the runtime ready. The network is not: its plugin comes as a pod.
func (c condition) judge() error {
	if c.kind != "RuntimeReady" || c.ready {
		return nil
	}
	return fmt.Errorf("containerd says its runtime is not ready: %s: %s", c.reason, c.message)
}

// NotReady is what an engine that answers CRI at a socket says is not ready, in its words: RuntimeReady, NetworkReady.
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

// Sandboxes are the handlers of the pods' sandboxes that an engine has, by the pod's name; "" is the default one. PodSandbox of
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

// checkSpelling refuses a file with a setting that containerd 1.x passes over because of how its name is written: what gpuadm would write
// beside it, the daemon would pass over too. 1.x reads its own field names as written or in capitals (go-toml v1), 2.x in any case of the
// letters (go-toml v2). 1.x does not decode escapes in the names of tables either. Measured on 1.6.20, 1.7.24, 2.1.9, 2.3.4 and 2.4.2.
func (f configFile) checkSpelling(r criReader) error {
	if !r.known || r.merge != mergeWhole {
		return nil
	}
	var found [][2]string // as it is written, and as it must be
	read := func(table map[string]any, fields ...string) {
		for key := range table {
			i := slices.IndexFunc(fields, func(name string) bool { return strings.EqualFold(name, key) })
			if i >= 0 && key != fields[i] && key != strings.ToUpper(fields[i]) {
				found = append(found, [2]string{key, fields[i]})
			}
		}
	}
	read(f.tree, "version", "imports", "plugins", "disabled_plugins")
	cri := f.plugin(criV2)
	read(cri, "containerd", "enable_cdi")
	containerd := toml.Sub(cri, "containerd")
	read(containerd, "runtimes", "default_runtime_name", "default_runtime")
	for _, entry := range toml.Sub(containerd, "runtimes") {
		table, _ := entry.(map[string]any)
		read(table, "runtime_type", "runtime_engine", "runtime_root", "options")
	}
	if len(found) == 0 && !bytes.ContainsRune(f.data, '\\') {
		return nil
	}
	d, err := toml.Parse(f.data)
	if err != nil {
		return err
	}
	for path, raw := range d.Keys() {
		name := path[len(path)-1]
		if i := slices.IndexFunc(found, func(f [2]string) bool { return f[0] == name }); i >= 0 {
			return f.refuse(RefusedNames, path, fmt.Sprintf("%s does not read %s: it minds upper and lower case", r.daemon, name), "write "+found[i][1])
		}
		if len(path) == 2 && name == criV2 && strings.ContainsRune(raw, '\\') {
			return f.refuse(RefusedNames, path, fmt.Sprintf("%s does not decode the escape in %s", r.daemon, raw), fmt.Sprintf("write %q", name))
		}
	}
	return nil
}

// Refused is why a configuration cannot be edited: the cause of the error that says it to an operator.
type Refused = trouble.Code

const (
	RefusedDisabled Refused = "cri-disabled"
	RefusedNames    Refused = "plugin-names"
	RefusedTemplate Refused = "template"
	RefusedSyntax   Refused = "invalid-toml"
	RefusedVersion  Refused = "version"
	RefusedShape    Refused = "structure"
	RefusedSize     Refused = "too-large"
	RefusedStart    Refused = "does-not-start"
)

// refuse says why a file cannot be edited. Line is 0 where it is not one place.
func refuse(code Refused, file string, line int, reason, fix string) error {
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	return &trouble.Error{What: fmt.Sprintf("cannot edit %s: %s", file, reason), Try: []string{fix}, Err: code}
}

// refuse names the line of the key at path.
func (f configFile) refuse(code Refused, path []string, reason, fix string) error {
	line := 0
	if d, err := toml.Parse(f.data); err == nil && len(path) > 0 {
		line = d.LineOf(path)
	}
	return refuse(code, f.path, line, reason, fix)
}
