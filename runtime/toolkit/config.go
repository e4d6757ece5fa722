// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"fmt"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Config is the file that nvidia-container-runtime reads whenever it starts a container, so nothing
// is restarted for it. A missing key has its default. The toolkit's packages make the file after
// they are unpacked, and leave what is set in it.
// Sources: api/config/v1/config.go and toml.go, and nvidia-container-toolkit-base.postinst, of
// https://github.com/NVIDIA/nvidia-container-toolkit (v1.20.1);
// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html.
const Config = "/etc/nvidia-container-runtime/config.toml"

// Keys of that file. With the first one true, which is the default, any pod takes all GPUs by
// NVIDIA_VISIBLE_DEVICES=all in its image. Bottlerocket sets both as gpuadm does. Sources: README
// of https://github.com/NVIDIA/k8s-device-plugin on deviceListStrategy;
// https://bottlerocket.dev/en/os/1.57.x/api/settings/nvidia-container-runtime.
const (
	acceptEnvvar = "accept-nvidia-visible-devices-envvar-when-unprivileged"
	acceptMounts = "accept-nvidia-visible-devices-as-volume-mounts"
)

// configWants wants the keys that [toolkit] sets in the toolkit's file. Other keys, such as mode
// and no-cgroups, belong to its owner.
func configWants(s spec.Spec) []converge.Want {
	keys := keysOf(s.Toolkit)
	if !s.Has("toolkit") || len(keys) == 0 {
		return nil
	}

	var why []string
	if !s.Toolkit.AcceptEnvvarUnprivileged {
		why = append(why, "pods get GPUs from the device plugin alone")
	}
	if len(s.Toolkit.Runtimes) > 0 {
		why = append(why, "the runtime runs "+strings.Join(s.Toolkit.Runtimes, " or "))
	}

	edit := func(found []byte) ([]byte, error) { return editConfig(found, keys) }
	file := things.NewFile(Config, engine.TakeOut).Formed(engine.FormTOML)
	wants := things.Folders(path.Dir(Config), "holds the toolkit's configuration")
	return append(wants, things.Edited(file, edit, strings.Join(why, ", and ")))
}

// keysOf are the keys that a spec sets.
func keysOf(t spec.Toolkit) []toml.Op {
	var keys []toml.Op
	if !t.AcceptEnvvarUnprivileged {
		keys = append(keys,
			toml.Set([]string{acceptEnvvar}, false),
			toml.Set([]string{acceptMounts}, true))
	}

	if len(t.Runtimes) > 0 {
		var list []any
		for _, name := range t.Runtimes {
			list = append(list, name)
		}
		keys = append(keys, toml.Set([]string{"nvidia-container-runtime", "runtimes"}, list))
	}

	return keys
}

// editConfig sets those keys that have another value.
func editConfig(found []byte, keys []toml.Op) ([]byte, error) {
	tree, err := toml.Values(found)
	if err != nil {
		line, _ := toml.ErrorPlace(err)
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot edit %s:%d: it is not valid TOML: %s", Config, line, strings.TrimPrefix(err.Error(), "toml: ")),
			Try: []string{
				"correct that line: nvidia-container-runtime cannot read the file either",
				"or move the file away: nvidia-ctk config --in-place makes another",
			},
		}
	}

	var ops []toml.Op
	var names []string
	for _, key := range keys {
		if !toml.Equal(toml.ValueAt(tree, key.Path), key.Value) {
			ops = append(ops, key)
			names = append(names, toml.ShowPath(key.Path))
		}
	}

	if len(ops) == 0 {
		return found, nil
	}

	edited, err := toml.Edit(found, ops)
	if err != nil {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: %v", Config, err),
			Try:  []string{"write the keys into it by hand: " + strings.Join(names, ", ")},
			Err:  err,
		}
	}

	return edited, nil
}

// configNotes says what the device plugin has to do differently.
func configNotes(s spec.Spec) []string {
	if !s.Has("toolkit") || s.Toolkit.AcceptEnvvarUnprivileged {
		return nil
	}
	return []string{"accept_envvar_unprivileged = false: a device plugin with deviceListStrategy envvar, which is its default, gives pods without privileges no GPUs; set it to volume-mounts or cdi-cri"}
}
