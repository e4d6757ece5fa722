// SPDX-License-Identifier: Apache-2.0

package drivers

import (
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
	FormKeys   = "keys"                              // the journal's name for the form of IMEXConfig and gridd.conf; TakeOutKeys takes edits out of it
	IMEXNodes  = "/etc/nvidia-imex/nodes_config.cfg" // one address a line, the same on all nodes: imex-guide/config.html

	// imexSocket is hostSocketPath of the DRA driver's chart, where its kubelet plugin asks the
	// host's IMEX whether it is ready: deployments/helm/dra-driver-nvidia-gpu/values.yaml of that
	// repository.
	imexSocket = "/etc/nvidia-imex/imex_ctrl.sock"
	// imexDropIn lets the unit make that socket where it has ProtectSystem=full: systemd.exec(5),
	// ReadWritePaths=.
	imexDropIn     = "/etc/systemd/system/" + IMEXUnit + ".d"
	imexDropInText = "# Written by gpuadm; each apply reverts changes to this file.\n[Service]\nReadWritePaths=-/etc/nvidia-imex\n"

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
// auto assumes that driver's default, and the spec states the other mode.
func imexWants(s Services, f facts.Facts) ([]converge.Want, error) {
	switch {
	case s.IMEX == "host" && s.Fabric != FabricRack && f.Live:
		return nil, &trouble.Error{
			What: "cannot run IMEX on the host: no GPU of this machine is joined to those of other machines, as GB200's and GB300's are",
			Try:  []string{`write imex = "auto" in [driver]`},
		}
	case s.Fabric != FabricRack, s.IMEX == "off":
		return nil, nil
	case s.IMEX != "host":
		w := things.Masked(IMEXUnit, `the DRA driver's ComputeDomains start IMEX themselves, which fails while the host's runs; imex = "host" in [driver] has the host's run instead`)
		w.Breaks = []string{"stop-clients"} // programs that share memory between nodes lose it with a unit that runs
		return []converge.Want{w}, nil
	}
	const why = "GPUs of one rack map each other's memory through it"
	if otherKernel(f) {
		return []converge.Want{things.Enabled(IMEXUnit, why)}, nil
	}
	wants := []converge.Want{
		imexNodesKnown(len(s.IMEXNodes) > 0),
		daemonFits(IMEXUnit, "nvidia-imex", "IMEX", s.IMEXPackage, s.Version),
		things.Edited(things.NewFile(IMEXConfig, TakeOutKeys).Formed(FormKeys), editIMEX(len(s.IMEXNodes) > 0), "the DRA driver's kubelet plugin asks IMEX through its command socket whether it is ready"),
	}
	if len(s.IMEXNodes) > 0 {
		wants = append(wants, things.Folders("/etc/nvidia-imex", "holds IMEX's configuration")...)
		wants = append(wants, things.Exact(IMEXNodes, []byte(imexNodesText(s.IMEXNodes)), 0o644, "names the nodes of the IMEX domain, alike on each of them"))
	}
	wants = append(wants, things.Folders(imexDropIn, "holds what is added to the unit")...)
	return append(wants,
		things.Exact(imexDropIn+"/gpuadm.conf", []byte(imexDropInText), 0o644, "IMEX makes its command socket below /etc"),
		things.UnitFilesRead("systemd starts units as it has read them", IMEXUnit),
		things.Unmasked(things.Running(IMEXUnit, why)), // ComputeDomains require a masked unit, and the spec asks for the host's IMEX
		imexAnswers(s.IMEXNodes),
		imexFresh(),
	), nil
}

func imexNodesText(nodes []string) string { return strings.Join(nodes, "\n") + "\n" }

// imexNodesKnown refuses to run the host's IMEX without a list of its nodes.
func imexNodesKnown(named bool) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if named {
			return "", nil
		}
		file := IMEXNodes
		if config, err := v.ReadFile(IMEXConfig); err == nil {
			if is := imexValues(config)[imexNodesFile]; is != "" {
				file = is
			}
		}
		nodes, err := v.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(nodes)) == "" {
			return fmt.Sprintf("cannot run IMEX on the host: nothing names the nodes of its domain: %s is missing or empty", file), nil
		}
		return "", err
	}
	return things.Check("nodes of the IMEX domain", look, "IMEX connects the nodes that its file names",
		`write imex_nodes = ["10.0.0.11", "10.0.0.12"] in [driver], with the addresses of all nodes of the rack or partition, the same on each of them`,
		"or write them to "+IMEXNodes+", one a line")
}

// imexNotes notes whether the host or a pod runs IMEX on a machine of a rack.
func (d Driver) imexNotes(v host.View, s spec.Spec, f facts.Facts) []string {
	c, asked, err := d.Choose(s, f)
	if !asked || err != nil || c.Source == SourceNone || c.Fabric != FabricRack || s.Driver.IMEX == "off" {
		return nil
	}
	config, _ := v.ReadFile(IMEXConfig) // missing until the package is installed
	socket := imexValues(config)[imexPath]
	if s.Driver.IMEX == "host" {
		if socket == "" {
			socket = imexSocket
		}
		return []string{"the host runs IMEX: the DRA driver's chart needs featureGates.HostManagedIMEXDaemon=true, resources.computeDomains.imex.mode=hostManaged and resources.computeDomains.imex.hostSocketPath=" + socket}
	}
	note := IMEXUnit + ` is kept disabled and masked, since the DRA driver's ComputeDomains start IMEX themselves; imex = "host" in [driver] has it run on the host`
	if socket != "" {
		note += "; " + IMEXConfig + " names a command socket, as the DRA driver's host-managed mode needs it: under that mode write imex = \"host\""
	}
	return []string{note}
}

// imexValues are the keys of IMEX's configuration: KEY=VALUE lines, with # before a comment.
func imexValues(config []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(config)) {
		if key, value, is := imexLine(line); is {
			values[key] = value
		}
	}
	return values
}

func imexLine(line string) (key, value string, is bool) {
	key, value, is = strings.Cut(strings.TrimSpace(line), "=")
	return strings.TrimSpace(key), strings.TrimSpace(value), is && !strings.HasPrefix(key, "#")
}

// editIMEX enables the command service, sets its socket where none is set, and names gpuadm's file
// of nodes where gpuadm writes one.
func editIMEX(nodes bool) func([]byte) ([]byte, error) {
	return func(found []byte) ([]byte, error) {
		if found == nil {
			return nil, nil // the package installs it
		}
		out := setKey(found, imexEnabled, "1")
		if imexValues(out)[imexPath] == "" {
			out = setKey(out, imexPath, imexSocket)
		}
		if nodes {
			out = setKey(out, imexNodesFile, IMEXNodes)
		}
		return out, nil
	}
}

// setKey sets a key on each line that has it, or on a line of its own at the end.
func setKey(config []byte, key, value string) []byte {
	var out strings.Builder
	found, text := false, string(config)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	for line := range strings.Lines(text) {
		if k, is, ok := imexLine(line); ok && k == key {
			found = true
			if is != value {
				line = key + "=" + value + "\n"
			}
		}
		out.WriteString(line)
	}
	if !found {
		out.WriteString(key + "=" + value + "\n")
	}
	return []byte(out.String())
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

func dropKey(config []byte, key string) []byte {
	var lines strings.Builder
	for line := range strings.Lines(string(config)) {
		if k, _, ok := imexLine(line); !ok || k != key {
			lines.WriteString(line)
		}
	}
	return []byte(lines.String())
}

// TakeOutKeys takes our edit of a configuration (before → after) out of found, key by key. A key
// that was changed outside gpuadm since stays, and left names it.
func TakeOutKeys(before, after, found []byte) (rest []byte, left []string, err error) {
	was, became, is := imexValues(before), imexValues(after), imexValues(found)
	rest = found
	ours := maps.Clone(was)
	maps.Copy(ours, became)
	for _, key := range slices.Sorted(maps.Keys(ours)) {
		value, wasThere := was[key]
		now, isThere := is[key]
		made, weSet := became[key]
		switch {
		case wasThere == weSet && value == made, wasThere == isThere && now == value, weSet && !isThere:
		case isThere != weSet || now != made:
			left = append(left, fmt.Sprintf("%s is %q, gpuadm had set %q", key, now, made))
		case wasThere:
			rest = setKey(rest, key, value)
		default:
			rest = dropKey(rest, key)
		}
	}
	return rest, left, nil
}
