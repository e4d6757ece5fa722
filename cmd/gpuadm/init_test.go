// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// onHost runs gpuadm on a recorded machine.
func onHost(t *testing.T, n *simhost.Node, args ...string) (code int, out string) {
	t.Helper()
	return onHostWith(t, n, "", args...)
}

// onHostWith is onHost with a text on stdin.
func onHostWith(t *testing.T, n *simhost.Node, stdin string, args ...string) (code int, out string) {
	t.Helper()
	var all strings.Builder
	e := envOn(n, &all)
	e.stdin = strings.NewReader(stdin)
	return run(context.Background(), e, args), all.String()
}

// envOn is for root on a machine, without variables; all that is printed goes to w.
func envOn(h host.Host, w io.Writer) env {
	open := func(string, commands.Follow) (host.Host, error) { return h, nil }
	return env{
		stdin:  strings.NewReader(""),
		stdout: w,
		stderr: w,
		getenv: func(string) string { return "" },
		root:   true,
		open:   open,
		read:   os.ReadFile,
		stat:   os.Stat,
	}
}

// recorded are the machines of test/hosts, by name.
func recorded(t *testing.T) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("../../test/hosts/*.txtar")
	must.That(t, err == nil && len(names) >= 15, "%d recorded machines, %v", len(names), err)
	all := map[string][]byte{}
	for _, name := range names {
		data := must.Get(os.ReadFile(name))(t)
		all[strings.TrimSuffix(filepath.Base(name), ".txtar")] = data
	}

	return all
}

var option = regexp.MustCompile(`(?m)^#([a-z\[])`)

// TestInitPlans: on every recorded machine the spec that init writes validates, and gives a plan
// that can be made; with each of its comments taken in it is still a spec.
func TestInitPlans(t *testing.T) {
	for name, archive := range recorded(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := must.Get(simhost.New(archive))(t)
			err := n.Remove("/etc/gpuadm/node.toml")
			must.That(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
			code, text := onHost(t, n, "init", "--print")
			must.That(t, code == 0, "exit code %d\n%s", code, text)
			check.That(t, name != "no-gpu" || strings.Contains(text, "There is no NVIDIA GPU here yet"), "without a GPU:\n%s", text)
			all := option.ReplaceAllString(text, "$1")
			if n := strings.Count(all, "[driver]"); n != 1 || all == text {
				t.Errorf("%d sections [driver]\n%s", n, text)
			}
			_, err = spec.Parse(spec.File{Name: "node.toml", Data: []byte(all)})
			check.That(t, err == nil, "with its comments: %v\n%s", err, all)
			code, out := onHost(t, n, "init")
			must.That(t, code == 0, "exit code %d\n%s", code, out)
			code, out = onHost(t, n, "validate")
			check.That(t, code == 0, "exit code %d\n%s\n%s", code, out, text)
			want := 0
			if name == "eks-bottlerocket" || name == "talos" { // TestSealed
				want = exitCannot
			}
			code, out = onHost(t, n, "plan")
			check.That(t, code == want, "exit code %d\n%s\n%s", code, out, text)
		})
	}
}

// TestInitSystems: a minor release is that of its major one, and an unknown one is answered with
// those that are known.
func TestInitSystems(t *testing.T) {
	empty := must.Get(simhost.New(recorded(t)["no-gpu"]))(t)
	for system, want := range map[string]string{"rhel-9.6": "", "ubuntu-24.04.3": "", "ubuntu-20.04": "write one of ubuntu-22.04, ubuntu-24.04, ubuntu-26.04", "debian-11": "debian-12, debian-13", "hurd-1": "rocky-9"} {
		code, text := onHost(t, empty, "init", "--gpu", "H100-80GB", "--os", system)
		flat := strings.Join(strings.Fields(text), " ")
		check.That(t, (code == 0) == (want == "") && strings.Contains(flat, want), "%s: exit code %d\n%s", system, code, text)
	}
}

// TestInitPin: beside the branch init says the version that a machine has.
func TestInitPin(t *testing.T) {
	archive := bytes.Replace(recorded(t)["ubuntu24-h100"], []byte("-- etc/os-release"), []byte("-- usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05 --\nx\n-- usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 link=libnvidia-ml.so.580.95.05 --\n-- etc/os-release"), 1)
	code, text := onHost(t, must.Get(simhost.New(archive))(t), "init", "--print")
	check.That(t, code == 0, "exit code %d", code)
	check.Says(t, text, "version = \"580\"\n# Where a fleet must be alike, exactly what this machine has: version = \"580.95.05\".\n")
}

// TestUnlisted: validate says what it cannot know offline.
func TestUnlisted(t *testing.T) {
	empty := must.Get(simhost.New(recorded(t)["no-gpu"]))(t)
	for version, want := range map[string]bool{"580.99.99": true, "581": true, "580": false} {
		name := filepath.Join(t.TempDir(), "node.toml")
		must.OK(t, os.WriteFile(name, []byte("format = 1\n[driver]\nversion = \""+version+"\"\n"), 0o644))
		code, text := onHost(t, empty, "validate", "-f", name, "--gpu", "H100-80GB", "--os", "ubuntu-24.04")
		flat := strings.Join(strings.Fields(text), " ")
		check.That(t, code == 0 && strings.Contains(flat, "whether a source has driver "+version) == want, "%s: exit code %d\n%s", version, code, text)
	}
}

// TestInitElsewhere: for every operating system that the catalog knows, and for GPUs of all sorts,
// init makes a spec that validate finds right for that machine.
func TestInitElsewhere(t *testing.T) {
	c := drivers.Load()
	empty := must.Get(simhost.New(recorded(t)["no-gpu"]))(t)
	for _, system := range c.Systems() {
		for i, gpu := range []string{"H100-80GB", "T4", "B200", "A100 PCIe 80GB"} {
			cloud := clouds[i]
			code, text := onHost(t, empty, "init", "--gpu", gpu, "--os", system, "--cloud", cloud)
			if code != 0 {
				t.Errorf("%s, %s: exit code %d\n%s", system, gpu, code, text)
				continue
			}
			name := filepath.Join(t.TempDir(), "node.toml")
			must.OK(t, os.WriteFile(name, []byte(text), 0o644))
			code, out := onHost(t, empty, "validate", "-f", name, "--gpu", gpu, "--os", system)
			check.That(t, code == 0, "%s, %s: exit code %d\n%s\n%s", system, gpu, code, out, text)
		}
	}
}

// TestInitSchema: where gpuadm's package has installed its schema, editors read that one, also
// without a network.
func TestInitSchema(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{"", "#:schema " + schemaHome + "node.json\n"},
		{"-- usr/share/gpuadm/schema/node.json --\n{}\n", "#:schema file:///usr/share/gpuadm/schema/node.json\n"},
	} {
		n := must.Get(simhost.New(slices.Concat(demoNode, []byte(c.schema))))(t)
		must.OK(t, n.Remove("/etc/gpuadm/node.toml"))
		ubuntu.Install(n)
		var out bytes.Buffer
		code := run(t.Context(), envOn(n, &out), []string{"init", "--print"})
		must.That(t, code == 0, "%d: %s", code, &out)
		check.That(t, strings.HasPrefix(out.String(), c.want), "it begins %.80q, want %q", out.String(), c.want)
	}
}

// TestGPUByID: a PCI device id means that GPU, and not the first one with the same table of MIG
// profiles: the RTX PRO 4500 Server, 2c3a, needs a newer driver than the RTX PRO 4500, 2c31.
func TestGPUByID(t *testing.T) {
	for _, id := range []string{"2c31", "2c3a", "0x2C3A10DE", "2330", "2331", "1eb8"} {
		pci, gpu, err := modelOf(id)
		must.That(t, err == nil, "%s: %v", id, err)
		want := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(id, "0x"), "10DE"))
		check.Equal(t, pci.Device, want, "%s: PCI device: ", id)
		check.Equal(t, gpu.Device, "0x"+strings.ToUpper(want)+"10DE", "%s: device to NVML: ", id)
	}

	empty := must.Get(simhost.New(recorded(t)["no-gpu"]))(t)
	name := filepath.Join(t.TempDir(), "node.toml")
	must.OK(t, os.WriteFile(name, []byte("format = 1\n[driver]\nversion = \"580.178.04\"\n"), 0o600))
	for id, want := range map[string]int{"2c31": 0, "2c3a": 2} {
		code, text := onHost(t, empty, "validate", "-f", name, "--gpu", id, "--os", "ubuntu-24.04")
		check.Equal(t, code, want, "validate --gpu %s: %s: exit code ", id, text)
	}
}

// TestInitPartitions: the example of partitions that init writes is for the GPU that it was asked for,
// and not for another one with the same table of MIG profiles.
func TestInitPartitions(t *testing.T) {
	empty := must.Get(simhost.New(recorded(t)["no-gpu"]))(t)
	name := filepath.Join(t.TempDir(), "node.toml")
	for _, id := range []string{"20b2", "20b5", "2330", "2331"} {
		code, text := onHost(t, empty, "init", "--gpu", id, "--os", "ubuntu-24.04")
		must.That(t, code == 0, "init --gpu %s: exit code %d\n%s", id, code, text)

		_, example, found := strings.Cut(text, "\n#[[mig.gpu]]\n")
		must.That(t, found, "init --gpu %s:\n%s", id, text)
		example, _, _ = strings.Cut(example, "\n\n")
		spec := "format = 1\n[[mig.gpu]]\n" + option.ReplaceAllString(example, "$1") + "\n"
		must.OK(t, os.WriteFile(name, []byte(spec), 0o600))
		code, text = onHost(t, empty, "validate", "-f", name, "--gpu", id, "--os", "ubuntu-24.04")
		check.Equal(t, code, 0, "validate --gpu %s:\n%s\n%s\nexit code", id, spec, text)
	}
}

// TestGPUWithoutProfiles: a spec without [mig] is valid for each GPU that a driver's lists know, whether
// or not a table of its MIG profiles is public; with [mig] the missing table is named.
func TestGPUWithoutProfiles(t *testing.T) {
	empty := must.Get(simhost.New(recorded(t)["no-gpu"]))(t)
	name := filepath.Join(t.TempDir(), "node.toml")
	const spec = "format = 1\n[driver]\nversion = \"595.71.05\"\n"
	validate := func(text, gpu string) (int, string) {
		t.Helper()
		must.OK(t, os.WriteFile(name, []byte(text), 0o600))
		return onHost(t, empty, "validate", "-f", name, "--gpu", gpu, "--os", "ubuntu-24.04")
	}

	for _, gpu := range []string{
		"2bb9", "0x2BB910DE", "10de:2bb9", "2909", "31c3", "RTX-PRO-5000",
		"2c33", "2c34", "2d30", "233b", "232c", "2348", "2e12", "2321", "2342", "2c3a", "1e30",
	} {
		code, text := validate(spec, gpu)
		check.Equal(t, code, 0, "validate --gpu %s: %s: exit code ", gpu, text)
	}

	code, text := validate(strings.Replace(spec, "595.71.05", "615.71.09", 1), "3041")
	check.Equal(t, code, 0, "validate --gpu 3041: %s: exit code ", text)

	code, text = validate(spec+"[[mig.gpu]]\nlayout = { \"1g.24gb\" = 1 }\n", "2bb9")
	check.Equal(t, code, 2, "validate with [mig]: %s: exit code ", text)
	check.Has(t, text, "no table of its profiles is public", "validate with [mig]:")
}

// TestInitExample: the command line that is printed for an incomplete one says all that was typed.
// A spec for another processor, or without its cloud, would be printed without a word.
func TestInitExample(t *testing.T) {
	empty := must.Get(simhost.New(nil))(t)
	for typed, want := range map[string]string{
		"init --gpu H100-80 --cloud eks":      "gpuadm init --gpu H100-80GB --os ubuntu-24.04 --cloud eks",
		"init --gpu H100-80GB --cloud moon":   "gpuadm init --gpu H100-80GB --os ubuntu-24.04\n",
		"init --gpu T4 --arch arm64":          "--os ubuntu-24.04 --arch arm64\n",
		"init --os rocky-9 --arch arm":        "gpuadm init --gpu H100-80GB --os rocky-9\n",
		"init --arch arm64":                   "gpuadm init --gpu H100-80GB --os ubuntu-24.04 --arch arm64\n",
		"init --arch arm64 --cloud oke":       "gpuadm init --gpu H100-80GB --os ubuntu-24.04 --arch arm64 --cloud oke\n",
		"init --gpu GB200-186GB --cloud none": "gpuadm init --gpu GB200-186GB --os ubuntu-24.04\n",
	} {
		code, text := onHost(t, empty, strings.Fields(typed)...)
		check.That(t, code == 2, "%s: exit code %d", typed, code)
		check.Has(t, text, want, "%s", typed)
	}
}
