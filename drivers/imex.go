// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/lines"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NVIDIA's IMEX daemon lets GPUs of one rack map each other's memory. Only one may run on a node:
// under the DRA driver's ComputeDomains a pod runs it, and an IMEX that runs on the host keeps the
// pod's from starting (NV_ERR_IN_USE).
// Sources: kubernetes-sigs/dra-driver-nvidia-gpu:site/content/docs/prerequisites.md;
// NVIDIA/cloud-native-docs:gpu-operator/dra-intro-install.rst;
// https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/.
const (
	IMEXUnit   = "nvidia-imex.service"
	IMEXConfig = "/etc/nvidia-imex/config.cfg"

	// IMEXNodes has one address a line, the same on all nodes: imex-guide/config.html.
	IMEXNodes = "/etc/nvidia-imex/nodes_config.cfg"

	// FormKeys is the journal's name for the form of IMEXConfig and gridd.conf. TakeOutKeys takes
	// gpuadm's edits out of such a file.
	FormKeys = "keys"

	// imexSocket is hostSocketPath of the DRA driver's chart, where its kubelet plugin asks the
	// host's IMEX whether it is ready: deployments/helm/dra-driver-nvidia-gpu/values.yaml of that
	// repository.
	imexSocket = "/etc/nvidia-imex/imex_ctrl.sock"
	// imexDropIn lets the unit make that socket where it has ProtectSystem=full: systemd.exec(5),
	// ReadWritePaths=.
	imexDropIn     = "/etc/systemd/system/" + IMEXUnit + ".d"
	imexDropInText = `# Written by gpuadm; each apply reverts changes to this file.
[Service]
ReadWritePaths=-/etc/nvidia-imex
`

	// imexChannel has the module make /dev/nvidia-caps-imex-channels/channel0. Sources:
	// kernel-open/nvidia/nv-caps-imex.c in https://github.com/NVIDIA/open-gpu-kernel-modules;
	// Azure/AgentBaker:parts/linux/cloud-init/artifacts/ubuntu/gb/modprobe-nvidia-parameters.conf.
	imexChannel = "NVreg_CreateImexChannel0"
)

// Keys of IMEXConfig: imex-guide/config.html and imex-guide/cmdservice.html; the file is written
// out in aws/aws-parallelcluster-cookbook's imex setup and in
// templates/compute-domain-daemon-config.tmpl.cfg of the DRA driver.
const (
	imexEnabled   = "IMEX_CMD_ENABLED"
	imexPath      = "IMEX_CMD_UNIX_DOMAIN_PATH"
	imexNodesFile = "IMEX_NODE_CONFIG_FILE"
)

// imexWants returns the wants for the host's IMEX on machines of a rack. The host does not show
// whether it or a pod is to run IMEX: nothing on it differs between the DRA driver's two modes. So
// auto assumes that driver's default, and the spec names the other mode.
func imexWants(s Services, f facts.Facts) ([]converge.Want, error) {
	if s.IMEX == "host" && s.Fabric != FabricRack && f.Live {
		return nil, &trouble.Error{
			What: "cannot run IMEX on the host: no GPU of this machine is joined to those of other machines, as GB200's and GB300's are",
			Try:  []string{`write imex = "auto" in [driver]`},
		}
	}

	if s.Fabric != FabricRack {
		return nil, nil
	}

	switch s.IMEX {
	case "off":
		return nil, nil
	case "host":
		return hostIMEXWants(s, f), nil
	}

	masked := things.Masked(IMEXUnit, `the DRA driver's ComputeDomains start IMEX themselves, which fails while the host's runs; imex = "host" in [driver] has the host's run instead`)
	// Programs that share memory between nodes lose it when a running unit is stopped.
	masked.Breaks = []string{"stop-clients"}
	return []converge.Want{masked}, nil
}

// hostIMEXWants returns the wants for an IMEX that the host runs.
func hostIMEXWants(s Services, f facts.Facts) []converge.Want {
	const why = "GPUs of one rack map each other's memory through it"
	if otherKernel(f) {
		return []converge.Want{things.Enabled(IMEXUnit, why)}
	}

	imex := daemon{
		unit:    IMEXUnit,
		program: "nvidia-imex",
		name:    "IMEX",
		pkg:     s.IMEXPackage,
	}
	config := things.NewFile(IMEXConfig, TakeOutKeys).Formed(FormKeys)
	named := len(s.IMEXNodes) > 0
	wants := []converge.Want{
		imexNodesKnown(named),
		imex.hasVersion(s.Version),
		things.Edited(config, editIMEX(named),
			"the DRA driver's kubelet plugin asks IMEX through its command socket whether it is ready"),
	}

	if named {
		nodes := things.Exact(IMEXNodes, imexNodesText(s.IMEXNodes), 0o644,
			"names the nodes of the IMEX domain, alike on each of them")
		wants = append(wants, things.Folders("/etc/nvidia-imex", "holds IMEX's configuration")...)
		wants = append(wants, nodes)
	}

	wants = append(wants, things.Folders(imexDropIn, "holds what is added to the unit")...)

	// ComputeDomains require a masked unit, and this spec asks for the host's IMEX.
	running := things.Unmasked(things.Running(IMEXUnit, why))
	return append(wants,
		things.Exact(imexDropIn+"/gpuadm.conf", []byte(imexDropInText), 0o644,
			"IMEX makes its command socket below /etc"),
		things.UnitFilesRead("systemd starts units as it has read them", IMEXUnit),
		running,
		imexAnswers(s.IMEXNodes),
		imexRestarted(),
	)
}

func imexNodesText(nodes []string) []byte {
	return []byte(strings.Join(nodes, "\n") + "\n")
}

// imexNodesKnown refuses to run the host's IMEX without a list of its nodes.
func imexNodesKnown(named bool) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if named {
			return "", nil
		}

		config, err := v.ReadFile(IMEXConfig)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the package installs it
			return "", err
		}

		file := IMEXNodes
		if other := configValues(config)[imexNodesFile]; other != "" {
			file = other
		}

		nodes, err := v.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if strings.TrimSpace(string(nodes)) == "" {
			return fmt.Sprintf("cannot run IMEX on the host: nothing names the nodes of its domain: %s is missing or empty", file), nil
		}
		return "", nil
	}

	return things.Check("nodes of the IMEX domain", look, "IMEX connects the nodes that its file names",
		`write imex_nodes = ["10.0.0.11", "10.0.0.12"] in [driver], with the addresses of all nodes of the rack or partition, the same on each of them`,
		"or write them to "+IMEXNodes+", one a line")
}

// imexNotes notes whether the host or a pod runs IMEX on a machine of a rack.
func (c Choice) imexNotes(v host.View, s spec.Driver) []string {
	if c.Fabric != FabricRack || s.IMEX == "off" {
		return nil
	}

	config, _ := v.ReadFile(IMEXConfig) // missing until the package is installed
	socket := configValues(config)[imexPath]
	if s.IMEX == "host" {
		return []string{
			"the host runs IMEX: the DRA driver's chart needs featureGates.HostManagedIMEXDaemon=true, resources.computeDomains.imex.mode=hostManaged and resources.computeDomains.imex.hostSocketPath=" + cmp.Or(socket, imexSocket),
		}
	}

	note := IMEXUnit + ` is kept disabled and masked, since the DRA driver's ComputeDomains start IMEX themselves; imex = "host" in [driver] has it run on the host`
	if socket != "" {
		note += "; " + IMEXConfig + ` names a command socket, as the DRA driver's host-managed mode needs it: under that mode write imex = "host"`
	}
	return []string{note}
}

// editIMEX enables the command service, sets its socket where none is set, and names gpuadm's file
// of nodes where gpuadm writes one.
func editIMEX(named bool) func([]byte) ([]byte, error) {
	return func(found []byte) ([]byte, error) {
		if found == nil {
			return nil, nil // the package installs it
		}

		edited := setKey(found, imexEnabled, "1")
		if configValues(edited)[imexPath] == "" {
			edited = setKey(edited, imexPath, imexSocket)
		}
		if named {
			edited = setKey(edited, imexNodesFile, IMEXNodes)
		}
		return edited, nil
	}
}

// configValues are the keys of a configuration with KEY=VALUE lines, and # before a comment.
func configValues(config []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(config)) {
		if key, value, ok := configLine(line); ok {
			values[key] = value
		}
	}

	return values
}

// configLine splits a line KEY=VALUE; ok is false for any other line.
func configLine(line string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(strings.TrimSpace(line), "=")
	if !ok || strings.HasPrefix(key, "#") {
		return "", "", false
	}
	return strings.TrimSpace(key), strings.TrimSpace(value), true
}

// setKey sets a key on each line that has it, or on a line of its own at the end.
func setKey(config []byte, key, value string) []byte {
	text := string(config)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}

	var edited strings.Builder
	found := false
	for line := range strings.Lines(text) {
		lineKey, lineValue, ok := configLine(line)
		if ok && lineKey == key {
			found = true
			if lineValue != value {
				line = key + "=" + value + "\n"
			}
		}

		edited.WriteString(line)
	}

	if !found {
		edited.WriteString(key + "=" + value + "\n")
	}
	return []byte(edited.String())
}

// setKeys sets keys; "" removes a key.
func setKeys(config []byte, keys map[string]string) []byte {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if keys[key] == "" {
			config = dropKey(config, key)
		} else {
			config = setKey(config, key, keys[key])
		}
	}
	return config
}

// dropKey removes each line that has a key.
func dropKey(config []byte, key string) []byte {
	var edited strings.Builder
	for line := range strings.Lines(string(config)) {
		if lineKey, _, ok := configLine(line); !ok || lineKey != key {
			edited.WriteString(line)
		}
	}

	return []byte(edited.String())
}

// TakeOutKeys takes gpuadm's edit of a configuration (before → after) out of found, key by key. A
// key that was changed outside gpuadm since stays, and left names it.
func TakeOutKeys(before, after, found []byte) (rest []byte, left []string, err error) {
	valuesBefore := configValues(before)
	valuesAfter := configValues(after)
	valuesFound := configValues(found)

	rest = found
	all := maps.Clone(valuesBefore)
	maps.Copy(all, valuesAfter)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		was, hadKey := valuesBefore[key]
		set, isSet := valuesAfter[key]
		now, hasKey := valuesFound[key]
		unedited := hadKey == isSet && was == set
		restored := hadKey == hasKey && was == now
		removed := isSet && !hasKey
		switch {
		case unedited || restored || removed:
		case hasKey != isSet || now != set:
			left = append(left, fmt.Sprintf("%s is %q, gpuadm had set %q", key, now, set))
		case hadKey:
			rest = setKey(rest, key, was)
		default:
			rest = dropKey(rest, key)
		}
	}

	means := func(exact []byte) bool {
		return maps.Equal(configValues(exact), configValues(rest))
	}
	return lines.Exact(before, after, found, rest, means), left, nil
}
