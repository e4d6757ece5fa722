// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// nvidiaConfig is what NVIDIA's device plugin reads of its configuration.
type nvidiaConfig struct {
	Flags struct {
		MigStrategy string `yaml:"migStrategy"`
		MpsRoot     string `yaml:"mpsRoot"`
	}
	Sharing struct {
		TimeSlicing *nvidiaShared `yaml:"timeSlicing"`
		MPS         *nvidiaShared `yaml:"mps"`
	}
}

type nvidiaShared struct {
	Resources []struct {
		Name     string
		Replicas int
	}
}

// partitioned is a GPU as the device plugin sees it.
type partitioned struct {
	model string
	isMIG bool
	kinds []string // of its partitions, as NVML names them
}

// offer is what NVIDIA's plugin offers of GPUs with a configuration, by rules that are written here a
// second time, from its own source: NVIDIA/k8s-device-plugin v0.19.0, internal/rm/device_map.go
// (buildDeviceMapFromConfigResources, assertAllMigDevicesAreValid, updateDeviceMapWithReplicas),
// internal/plugin/mps.go (getMPSOptions), cmd/nvidia-device-plugin/main.go (validateFlags) and
// api/config/v1/replicas.go. TestLabKubePlugin runs the plugin itself.
func (c nvidiaConfig) offer(gpus []partitioned) (map[string]int, error) {
	usesMPS := c.Sharing.MPS != nil
	switch {
	case usesMPS && c.Flags.MigStrategy == "mixed":
		return nil, errors.New("using --mig-strategy=mixed is not supported with MPS")
	case usesMPS && c.Flags.MpsRoot == "":
		return nil, errors.New("using MPS requires --mps-root to be specified")
	}

	found, err := c.devices(gpus)
	if err != nil {
		return nil, err
	}
	if usesMPS && found.partitions > 0 {
		return nil, errors.New("sharing using MPS is not supported for MIG devices")
	}

	shared := c.Sharing.TimeSlicing
	if usesMPS {
		shared = c.Sharing.MPS
	}
	return shared.replicated(found.counts)
}

// nvidiaDevices are the devices that the plugin finds.
type nvidiaDevices struct {
	counts     map[string]int // by resource
	wholes     int
	partitions int
}

func (c nvidiaConfig) devices(gpus []partitioned) (nvidiaDevices, error) {
	found := nvidiaDevices{counts: map[string]int{}}
	strategy := c.Flags.MigStrategy
	first := "" // a partition's model and kind
	for _, g := range gpus {
		if !g.isMIG || strategy == "none" {
			found.counts["nvidia.com/gpu"]++
			found.wholes++
			continue
		}

		if strategy == "single" && len(g.kinds) == 0 {
			return found, errors.New("device has no MIG devices configured")
		}
		for _, kind := range g.kinds {
			found.partitions++
			if strategy == "mixed" {
				found.counts["nvidia.com/mig-"+strings.ReplaceAll(kind, "+", ".")]++
				continue
			}

			found.counts["nvidia.com/gpu"]++
			attributes := g.model + " " + kind
			first = cmp.Or(first, attributes)
			if attributes != first {
				return found, errors.New("more than one MIG device type present on node")
			}
		}
	}

	if strategy == "single" && found.wholes > 0 && found.partitions > 0 {
		return found, errors.New("all devices on the node must be configured with the same migEnabled value")
	}
	return found, nil
}

// replicated multiplies the counts of shared resources.
func (s *nvidiaShared) replicated(counts map[string]int) (map[string]int, error) {
	if s == nil {
		return counts, nil
	}
	times := map[string]int{}
	for _, r := range s.Resources {
		if r.Replicas < 2 {
			return nil, errors.New("number of replicas must be >= 2")
		}
		times[r.Name] = r.Replicas
	}

	for name := range counts {
		counts[name] *= max(1, times[name])
	}
	return counts, nil
}

// printed is the configuration that manifest prints for a spec.
func printed(t *testing.T, s spec.Spec) nvidiaConfig {
	t.Helper()
	n := must.Get(simhost.New([]byte(layoutsFile)))(t)
	pool := must.Get((&common{env: envOn(n, io.Discard)}).poolOf(n.View(), s))(t)
	object := must.Get(node.PluginManifest([]node.Pool{pool}, "x"))(t)
	var c nvidiaConfig
	for _, text := range object["data"].(map[string]any) {
		must.OK(t, yaml.Unmarshal([]byte(text.(string)), &c))
	}
	return c
}

const layoutsFile = `-- etc/gpuadm/mig.yaml --
version: v1
mig-configs:
  seven:
    - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
  both:
    - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}
    - {devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 7}}
`

// oracleLayouts are the shapes of [mig].
func oracleLayouts() []string {
	const table = "[[mig.gpu]]\n"
	return []string{
		"",
		table + "enabled = false\n",
		table + "layout = {}\n",
		table + "layout = { \"1g\" = 7 }\n",
		table + "layout = { \"1g.10gb\" = 7 }\n",
		table + "layout = { \"3g\" = 1, \"1g\" = 2 }\n",
		table + "layout = { \"1c.3g\" = 2 }\n",
		table + "layout = { \"1g+me\" = 1 }\n",
		table + "devices = [0]\nlayout = { \"1g\" = 7 }\n",
		table + "devices = [0]\nlayout = { \"1g\" = 7 }\n" + table + "devices = [1]\nenabled = false\n",
		table + "devices = [0]\nlayout = { \"1g\" = 7 }\n" + table + "devices = [1]\nlayout = {}\n",
		table + "devices = [0]\nlayout = { \"3g\" = 2 }\n" + table + "devices = [1]\nlayout = { \"1g\" = 7 }\n",
		"[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nlayout = \"seven\"\n",
		"[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nlayout = \"both\"\n",
	}
}

// oracleSharings are the shapes of [sharing].
func oracleSharings() []string {
	sharings := []string{""}
	for _, strategy := range []string{"", "auto", "none", "single", "mixed"} {
		for _, more := range []string{"", "time_slicing = 2\n", "mps = 2\n", "time_slicing = 3\nmps = 0\n"} {
			text := "[sharing]\n" + more
			if strategy != "" {
				text += "strategy = \"" + strategy + "\"\n"
			}
			sharings = append(sharings, text)
		}
	}

	return sharings
}

// oracleMachines are machines as another tool has left them.
func oracleMachines(t *testing.T) map[string][]host.GPU {
	t.Helper()
	models := func(names ...string) []host.GPU {
		m := elsewhere{gpus: names}
		_, gpus, err := m.facts("2026-11-29", 1)
		must.OK(t, err)
		return gpus
	}

	cut := func(gpus []host.GPU, layouts ...string) []host.GPU {
		for i, text := range layouts {
			gpus[i].Mode = true
			gpus[i].Pending = true
			gpus[i].Instances = instances(t, gpus[i], text)
		}
		return gpus
	}

	return map[string][]host.GPU{
		"two alike":                  models("H100-80GB", "H100-80GB"),
		"with a T4":                  models("A100-40GB", "T4"),
		"two models":                 models("A100-80GB", "H100-80GB"),
		"no MIG":                     models("T4", "T4"),
		"cut alike":                  cut(models("H100-80GB", "H100-80GB"), "1g.10gb", "1g.10gb"),
		"cut in kinds":               cut(models("H100-80GB", "H100-80GB"), "1g.10gb", "3g.40gb"),
		"one cut":                    cut(models("H100-80GB", "H100-80GB"), "1g.10gb"),
		"MIG mode without partition": cut(models("H100-80GB", "H100-80GB"), "", ""),
	}
}

// instances are partitions of one kind at all places of a GPU.
func instances(t *testing.T, g host.GPU, profile string) (list []host.Instance) {
	t.Helper()
	for _, p := range g.Profiles {
		if p.Name != profile {
			continue
		}
		for i, at := range p.Places {
			list = append(list, host.Instance{
				ID: i + 1, Profile: p.ID, At: at,
				Compute: []host.ComputeInstance{{Profile: -1, At: host.Span{Size: p.Slices}}},
			})
		}
	}

	must.That(t, profile == "" || len(list) > 0, "%s has no %s", g.Name, profile)
	return list
}

// TestPluginOffersWhatValidateSays: for each shape of [mig] with each of [sharing] on each machine,
// what validate and plan say that pods can ask for is what NVIDIA's plugin offers with the
// configuration that gpuadm prints; and what they refuse the plugin would not offer.
func TestPluginOffersWhatValidateSays(t *testing.T) {
	machines := oracleMachines(t)
	layouts := must.Get(simhost.New([]byte(layoutsFile)))(t)
	file := must.Get(layouts.ReadFile("/etc/gpuadm/mig.yaml"))(t)
	ends := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		for _, layout := range oracleLayouts() {
			for _, sharing := range oracleSharings() {
				text := layout + sharing
				on := fmt.Sprintf("%s:\n%s", name, text)
				s, err := spec.Parse(spec.File{
					Name: "n.toml",
					Data: []byte("format = 1\n" + text),
				})
				if err != nil {
					ends[refusedInSpec(t, on, err)]++
					continue
				}
				ends[oracleEnd(t, on, s, file, machines[name])]++
			}
		}
	}

	t.Log(ends)
	for _, end := range []string{"offered", "offered with the strategy that plan names", "refused by both"} {
		check.That(t, ends[end] > 0, "no case is %s: %v", end, ends)
	}
}

// oracleEnd compares gpuadm's word with the plugin's offer.
func oracleEnd(t *testing.T, on string, s spec.Spec, file []byte, gpus []host.GPU) string {
	t.Helper()
	entries, err := mig.Asked(s.MIG, file, false)
	must.OK(t, err)
	all, err := mig.Assign(entries, gpus)
	if err != nil {
		return "no such partitions"
	}
	target, ok := afterwards(t, all, gpus)
	if !ok {
		return "no such partitions"
	}

	offer, err := mig.Offered(s, all, gpus)
	config := printed(t, s)
	offers, pluginErr := config.offer(target)
	if err != nil {
		check.That(t, pluginErr != nil, "%s: gpuadm refuses (%v) what the plugin offers: %v", on, err, offers)
		return "refused by both"
	}
	end := "offered"
	if strategy := offer.Strategy; strategy != config.Flags.MigStrategy {
		check.Has(t, mig.OfferText(offer), `write strategy = "`+strategy+`" in [sharing]`, "%s: plan says", on)
		s.Sharing.Strategy = strategy
		offers, pluginErr = printed(t, s).offer(target)
		end = "offered with the strategy that plan names"
	}

	check.That(t, pluginErr == nil && maps.Equal(offers, offer.Counts),
		"%s: gpuadm says %v, the plugin offers %v, %v", on, offer.Counts, offers, pluginErr)
	return end
}

// afterwards are the GPUs once all have their partitions; ok is false if they cannot have them.
func afterwards(t *testing.T, all []mig.Assigned, gpus []host.GPU) (target []partitioned, ok bool) {
	t.Helper()
	for _, g := range gpus {
		state := mig.StateOf(g)
		i := slices.IndexFunc(all, func(a mig.Assigned) bool {
			return a.GPU.Address == g.Address
		})
		if i >= 0 {
			m := must.Get(mig.Of(g))(t)
			fit, err := m.Fit(state, all[i].Entry.Layout)
			if err != nil {
				return nil, false
			}
			state = fit.Target
		}

		p := partitioned{model: g.Name, isMIG: state.Mode == mig.On}
		for _, part := range state.Parts {
			whole, _, _ := strings.Cut(part.Profile, "g")
			for _, c := range part.Compute {
				kind := part.Profile
				if strconv.Itoa(c) != whole {
					kind = fmt.Sprintf("%dc.%s", c, part.Profile)
				}
				p.kinds = append(p.kinds, kind)
			}
		}

		target = append(target, p)
	}

	return target, true
}

// refusedInSpec wants what a spec alone is refused for to be one of the plugin's own refusals.
func refusedInSpec(t *testing.T, on string, err error) string {
	t.Helper()
	reasons := []string{
		"the device plugin does not share GPUs with MIG by MPS",
		`strategy = "single" takes one kind of partition on all GPUs`,
	}
	known := slices.ContainsFunc(reasons, func(r string) bool {
		return strings.Contains(err.Error(), r)
	})
	check.That(t, known, "%s: refused: %v", on, err)
	return "refused in the spec"
}

// TestSharedKindsAreNamed: for each profile of each model, in each spelling, the configuration that
// manifest prints shares the resource that the plugin offers.
func TestSharedKindsAreNamed(t *testing.T) {
	for _, m := range mig.Models() {
		gpu := m.GPU()
		gpu.Name = m.Name
		for _, p := range m.Profiles {
			spellings := []string{p.Name}
			if i, j := strings.Index(p.Name, "."), strings.Index(p.Name, "gb"); i >= 0 && j > i {
				spellings = append(spellings, p.Name[:i]+p.Name[j+2:]) // 1g+me
			}
			for _, spelling := range spellings {
				text := fmt.Sprintf("format = 1\n[[mig.gpu]]\nlayout = { %q = 1 }\n[sharing]\nstrategy = \"mixed\"\ntime_slicing = 2\n", spelling)
				s := must.Get(spec.Parse(spec.File{Name: "n.toml", Data: []byte(text)}))(t)
				entries := must.Get(mig.Asked(s.MIG, nil, false))(t)
				all := must.Get(mig.Assign(entries, []host.GPU{gpu}))(t)
				target, ok := afterwards(t, all, []host.GPU{gpu})
				must.That(t, ok, "%s: no %s", m.Name, spelling)
				offer := must.Get(mig.Offered(s, all, []host.GPU{gpu}))(t)
				offers, err := printed(t, s).offer(target)
				check.That(t, err == nil && maps.Equal(offers, offer.Counts), "%s, %s: gpuadm says %v, the plugin offers %v, %v",
					m.Name, spelling, offer.Counts, offers, err)
			}
		}
	}
}
