package parts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/test/must"
)

const (
	// Names of the CRI plugins in a dump, by the daemon's version.
	criRuntime = "io.containerd.cri.v1.runtime" // 2.x: the runtimes
	criImages  = "io.containerd.cri.v1.images"  // 2.x: the images
	criService = "io.containerd.grpc.v1.cri"    // 1.x: all of it; 2.x: the service
	// patience is how long one run of a part may take: only a part that hangs reaches it. On a busy
	// machine a boot of containerd was seen to take 39 seconds.
	patience = 5 * time.Minute
)

// Dump asks the daemon what the config tree under root (see Lay) means to
// it: "config dump" of root/config.toml. The dump is the daemon's own, parsed,
// with /etc/containerd in place of the temporary folder. If the daemon
// rejects the tree the error is an *exec.ExitError and stderr says why.
func (p Part) Dump(t testing.TB, root string) (dump map[string]any, stderr string, err error) {
	t.Helper()
	args := []string{"--config", filepath.Join(root, "config.toml"), "config", "dump"}
	file := p.question(root, args...)
	a, ok := known(file)
	if !ok {
		var failed error
		a.Stdout, stderr, failed = p.exec(t, root, args...)
		a.Stderr = []byte(stderr)
		if exit := (*exec.ExitError)(nil); errors.As(failed, &exit) {
			a.Exit = exit.ExitCode()
		}
		learn(file, a)
	}

	stdout, stderr := a.Stdout, string(a.Stderr)
	if a.Exit != 0 {
		err = &exec.ExitError{Stderr: a.Stderr}
	}
	if err != nil {
		return nil, stderr, fmt.Errorf("cannot dump with containerd %s: %w", p.Version, err)
	}
	if err := toml.Unmarshal(stdout, &dump); err != nil {
		return nil, stderr, fmt.Errorf("cannot parse the dump of containerd %s: %w", p.Version, err)
	}
	return dump, stderr, nil
}

// exec runs the part with a time limit; a run that does not end fails the
// test. Both outputs have /etc/containerd in place of root.
func (p Part) exec(t testing.TB, root string, args ...string) (stdout []byte, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Path, args...)
	cmd.Dir = "/" // as systemd runs a service: some versions take relative imports from there
	cmd.WaitDelay = time.Second
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err = cmd.Run()
	exit := (*exec.ExitError)(nil)
	must.That(t, err == nil || (ctx.Err() == nil && errors.As(err, &exit)), "cannot run %s %s: %v", p.Name, p.Version, err)
	return unroot(out.Bytes(), root), string(unroot(log.Bytes(), root)), err
}

// Effect is a dump taken apart, so that a test can say "after is before plus
// nvidia, and nothing else changed".
type Effect struct {
	// DefaultRuntime is default_runtime_name.
	DefaultRuntime string
	// Runtimes are the runtimes' tables without what means the same as
	// nothing: zero values, and the sandboxer "podsandbox".
	Runtimes map[string]map[string]any
	// EnableCDI is nil for daemons without that key.
	EnableCDI *bool
	// Imports are the files and globs the daemon says it read.
	Imports []string
	// Rest is all else.
	Rest map[string]any
}

// EffectOf takes a dump apart; the dump is not changed. The CRI runtime
// plugin's table is found under the name that the daemon's version prints.
func EffectOf(dump map[string]any) Effect {
	rest := clone(dump)
	effect := Effect{Runtimes: map[string]map[string]any{}, Rest: rest}
	for _, file := range list(rest, "imports") {
		effect.Imports = append(effect.Imports, fmt.Sprint(file))
	}
	delete(rest, "imports")
	cri := criTable(rest)
	if enable, ok := cri["enable_cdi"].(bool); ok {
		effect.EnableCDI = &enable
		delete(cri, "enable_cdi")
	}
	containerd := sub(cri, "containerd")
	effect.DefaultRuntime, _ = containerd["default_runtime_name"].(string)
	delete(containerd, "default_runtime_name")
	for name, runtime := range sub(containerd, "runtimes") {
		effect.Runtimes[name], _ = prune(runtime).(map[string]any)
		for _, key := range []string{"sandbox_mode", "sandboxer"} {
			if effect.Runtimes[name][key] == "podsandbox" {
				delete(effect.Runtimes[name], key)
			}
		}
	}

	delete(containerd, "runtimes")
	return effect
}

// Refusal tells why the CRI plugin would not serve with what a dump shows, or
// nil. The daemon itself starts all the same and its dump exits with 0, so
// nothing but this check says that the node would be down.
func Refusal(dump map[string]any) error {
	cri := criTable(dump)
	disabled := []string{criService, "cri"}
	if _, two := sub(dump, "plugins")[criRuntime]; two {
		disabled = append(disabled, criImages)
	}
	for _, plugin := range list(dump, "disabled_plugins") {
		if slices.Contains(disabled, fmt.Sprint(plugin)) {
			return fmt.Errorf("cannot serve CRI: plugin %q is disabled", plugin)
		}
	}

	containerd := sub(cri, "containerd")
	if containerd == nil {
		return errors.New("cannot serve CRI: the plugin is not there")
	}
	// 1.x: a table default_runtime is the default, whatever the name says.
	if kind, _ := sub(containerd, "default_runtime")["runtime_type"].(string); kind != "" {
		return nil
	}
	name, _ := containerd["default_runtime_name"].(string)
	if _, ok := sub(containerd, "runtimes")[name]; !ok {
		return fmt.Errorf("cannot serve CRI: default runtime %q is not configured", name)
	}
	return nil
}

// Verify dumps the tree and tells why the daemon or its CRI plugin would
// refuse it, or nil.
func (p Part) Verify(t testing.TB, root string) error {
	t.Helper()
	dump, stderr, err := p.Dump(t, root)
	if err != nil {
		return fmt.Errorf("%w: %s", err, Last(stderr, 1))
	}
	return Refusal(dump)
}

// criTable finds the table of the CRI plugin that has the runtimes.
func criTable(dump map[string]any) map[string]any {
	plugins := sub(dump, "plugins")
	if cri := sub(plugins, criRuntime); cri != nil {
		return cri
	}
	if cri := sub(plugins, criService); cri["containerd"] != nil {
		return cri
	}
	return nil
}

// sub is the table at a key, or nil.
func sub(in map[string]any, key string) map[string]any {
	table, _ := in[key].(map[string]any)
	return table
}

// list is the array at a key, or nil.
func list(in map[string]any, key string) []any {
	array, _ := in[key].([]any)
	return array
}

// clone copies tables all the way down.
func clone(in map[string]any) map[string]any {
	out := maps.Clone(in)
	for key, value := range out {
		if table, ok := value.(map[string]any); ok {
			out[key] = clone(table)
		}
	}

	return out
}

// prune drops empty strings, zeros, falses, empty arrays and empty tables.
func prune(value any) any {
	table, ok := value.(map[string]any)
	if !ok {
		return value
	}
	out := map[string]any{}
	for key, value := range table {
		value = prune(value)
		v := reflect.ValueOf(value)
		if !v.IsValid() || v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0 {
			continue
		}
		out[key] = value
	}

	return out
}
