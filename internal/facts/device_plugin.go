// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Plugin is NVIDIA's device plugin on a machine: what runs it, and the MIG strategy that it has.
type Plugin struct {
	Unit     string // the enabled unit that runs it; "" = a pod does, or none
	Process  string // its process's number; "" = it does not run now
	Strategy string // none, single, mixed; "" = gpuadm cannot tell
	From     string // the setting that the strategy comes from
}

// pluginProgram is the program of the device plugin, also in Bottlerocket's
// nvidia-k8s-device-plugin.service and AKS's nvidia-device-plugin.service. Sources:
// NVIDIA/k8s-device-plugin, cmd; bottlerocket-os/bottlerocket-core-kit,
// packages/nvidia-k8s-device-plugin; Azure/AgentBaker, cse_config.sh.
const pluginProgram = "nvidia-device-plugin"

// FindPlugin asks the machine: the process, then the enabled units.
func FindPlugin(ctx context.Context, v host.View) Plugin {
	g := &gathering{v: v}
	var pids []string
	if v.Live() {
		pids = g.processes(pluginProgram[:15])
	}
	if len(pids) > 0 {
		pid := pids[0]
		argv, unit := g.commandOf(pid)
		found := Plugin{Process: pid}
		if !g.inPod(pid) {
			found.Unit = unit
		}
		environment := strings.Split(g.attr("/proc/"+pid+"/environ"), "\x00")
		found.Strategy, found.From = g.migStrategy(argv, environment, "/proc/"+pid+"/root")
		return found
	}

	s := g.enabledService(ctx, pluginProgram)
	if s == nil {
		return Plugin{}
	}
	found := Plugin{Unit: s.name}
	found.Strategy, found.From = g.migStrategy(g.argv(s), g.environ(s).pairs(), "")
	return found
}

// enabledService returns the enabled unit that starts a program; nil if there is none. The links in
// the folders .wants and .requires are what enables a unit: systemd.unit(5). An image has its own
// below /usr.
func (g *gathering) enabledService(ctx context.Context, program string) *service {
	var asked []string
	for _, folder := range []string{"/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"} {
		for _, links := range append(g.glob(folder+"/*.wants/*.service"), g.glob(folder+"/*.requires/*.service")...) {
			name := path.Base(links)
			if slices.Contains(asked, name) {
				continue
			}
			asked = append(asked, name)
			s := g.service(ctx, name)
			if s != nil && slices.ContainsFunc(s.start, startsProgram(program)) {
				return s
			}
		}
	}
	return nil
}

// startsProgram reports whether a line of ExecStart= starts a program, in any folder. A prefix such
// as - or @ may stand before the path: systemd.service(5), table "Special executable prefixes".
func startsProgram(program string) func(line string) bool {
	return func(line string) bool {
		words := Words(line)
		return len(words) > 0 && path.Base(strings.TrimLeft(words[0], "-@:+!|")) == program
	}
}

// migStrategy returns the plugin's MIG strategy and the setting that it comes from: a flag, a
// variable, the configuration file, or the default. root is the folder in which the plugin sees its
// files.
// Source: https://github.com/NVIDIA/k8s-device-plugin, api/config/v1/config.go (NewConfig) and
// cmd/nvidia-device-plugin/main.go.
func (g *gathering) migStrategy(argv, environment []string, root string) (strategy, from string) {
	setting := func(flag, variable string) (value, from string) {
		for i, word := range argv {
			name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
			switch {
			case name != flag || !strings.HasPrefix(word, "-"):
			case joined:
				return value, "--" + flag + "=" + value
			case i+1 < len(argv):
				return argv[i+1], "--" + flag + "=" + argv[i+1]
			}
		}
		for _, pair := range environment {
			name, value, _ := strings.Cut(pair, "=")
			if name == variable && value != "" {
				return value, pair
			}
		}
		return "", ""
	}

	if value, from := setting("mig-strategy", "MIG_STRATEGY"); value != "" {
		return value, from
	}
	const byDefault = "the plugin's default"
	file, _ := setting("config-file", "CONFIG_FILE")
	if file == "" {
		return "none", byDefault
	}

	data, err := g.v.ReadFile(root + file)
	var config struct {
		Flags struct {
			MigStrategy string `yaml:"migStrategy"`
		}
	}
	if err != nil || yaml.Unmarshal(data, &config) != nil {
		return "", ""
	}
	if config.Flags.MigStrategy == "" {
		return "none", byDefault
	}
	return config.Flags.MigStrategy, "migStrategy in its file " + file
}
