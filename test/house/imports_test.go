// SPDX-License-Identifier: Apache-2.0

package house

import (
	"cmp"
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const module = "github.com/gpuadm/gpuadm/"

// mayImport is the architecture: which of gpuadm's packages each may import. Data goes one way,
// spec + facts → wants → changes → touches → events → words.
var mayImport = map[string][]string{
	"cmd/gpuadm":             {"cloud/node", "drivers", "drivers/hardware", "mig", "stages", "internal/agent", "internal/converge", "internal/devices", "internal/doctor", "internal/facts", "internal/faults", "internal/host", "internal/host/commands", "internal/host/local", "internal/host/nvml", "internal/host/view", "internal/instance", "internal/mask", "internal/nearest", "internal/pattern", "internal/remote", "internal/spec", "internal/things", "internal/trouble"},
	"internal/agent":         {"cloud/node", "mig", "stages", "internal/converge", "internal/devices", "internal/faults", "internal/host", "internal/host/systemd", "internal/instance", "internal/spec", "internal/trouble"},
	"images/build/oldlibc":   {},
	"images/daemonset":       {},
	"images/systemd":         {},
	"stages":                 {"cloud", "cloud/eks", "cloud/kubelet", "cloud/node", "drivers", "drivers/modules", "images/systemd", "mig", "runtime", "runtime/containerd", "runtime/docker", "runtime/engine", "runtime/toolkit", "internal/converge", "internal/facts", "internal/faults", "internal/host", "internal/packages", "internal/packages/apt", "internal/packages/dnf", "internal/spec", "internal/things", "internal/things/cdi", "internal/things/kmod", "internal/trouble"},
	"drivers":                {"drivers/hardware", "drivers/modules", "internal/converge", "internal/facts", "internal/host", "internal/packages", "internal/packages/apt", "internal/packages/dnf", "internal/pattern", "internal/spec", "internal/things", "internal/things/kmod", "internal/trouble"},
	"drivers/hardware":       {"internal/facts", "internal/pattern"},
	"drivers/modules":        {"drivers/hardware", "internal/converge", "internal/facts", "internal/faults", "internal/host", "internal/pattern", "internal/things", "internal/things/kmod", "internal/trouble"},
	"mig":                    {"internal/converge", "internal/devices", "internal/facts", "internal/host", "internal/nearest", "internal/pattern", "internal/spec", "internal/things", "internal/things/cdi", "internal/trouble"},
	"runtime":                {"runtime/containerd", "runtime/crio", "runtime/docker", "runtime/engine", "internal/converge", "internal/facts", "internal/host", "internal/spec", "internal/things", "internal/trouble"},
	"runtime/containerd":     {"runtime/engine", "internal/converge", "internal/facts", "internal/host", "internal/mask", "internal/pattern", "internal/spec", "internal/things", "internal/toml", "internal/trouble"},
	"runtime/crio":           {"runtime/engine", "internal/converge", "internal/facts", "internal/host", "internal/spec", "internal/things", "internal/toml", "internal/trouble"},
	"runtime/docker":         {"runtime/engine", "internal/converge", "internal/facts", "internal/host", "internal/jsonedit", "internal/spec", "internal/things", "internal/trouble"},
	"runtime/engine":         {"internal/converge", "internal/facts", "internal/host", "internal/spec", "internal/things", "internal/trouble", "internal/toml"},
	"runtime/toolkit":        {"runtime/engine", "internal/converge", "internal/facts", "internal/host", "internal/packages", "internal/spec", "internal/things", "internal/things/cdi", "internal/toml", "internal/trouble"},
	"cloud":                  {"cloud/aks", "cloud/eks", "cloud/gke", "cloud/kubelet", "cloud/method", "cloud/node", "internal/converge", "internal/facts", "internal/host", "internal/spec", "internal/things", "internal/trouble"},
	"cloud/aks":              {"cloud/kubelet", "cloud/node", "internal/converge", "internal/facts", "internal/host", "internal/spec", "internal/things", "internal/trouble"},
	"cloud/eks":              {"cloud/kubelet", "cloud/method", "cloud/node", "internal/converge", "internal/facts", "internal/host", "internal/instance", "internal/kube", "internal/spec", "internal/things", "internal/trouble"},
	"cloud/gke":              {"internal/converge", "internal/facts", "internal/host", "internal/spec", "internal/things", "internal/trouble"},
	"cloud/node":             {"cloud/kubelet", "cloud/method", "internal/converge", "internal/devices", "internal/facts", "internal/faults", "internal/host", "internal/host/nvml", "internal/instance", "internal/kube", "internal/mask", "internal/spec", "internal/things", "internal/trouble"},
	"cloud/method":           {"cloud/kubelet", "internal/converge", "internal/facts", "internal/host", "internal/instance", "internal/spec", "internal/trouble"},
	"cloud/kubelet":          {"internal/converge", "internal/facts", "internal/faults", "internal/host", "internal/pattern", "internal/spec", "internal/things", "internal/trouble"},
	"internal/kube":          {"internal/host", "internal/host/commands", "internal/host/view", "internal/instance", "internal/mask", "internal/trouble"},
	"internal/instance":      {"internal/host", "internal/trouble"},
	"internal/packages":      {"internal/converge", "internal/facts", "internal/host", "internal/host/view", "internal/pattern", "internal/things", "internal/things/kmod", "internal/trouble"},
	"internal/packages/apt":  {"internal/converge", "internal/host", "internal/host/view", "internal/packages", "internal/pattern", "internal/things", "internal/things/kmod", "internal/trouble"},
	"internal/packages/dnf":  {"internal/converge", "internal/host", "internal/packages", "internal/pattern", "internal/things", "internal/trouble"},
	"internal/things":        {"internal/converge", "internal/host", "internal/trouble"},
	"internal/things/cdi":    {"internal/converge", "internal/devices", "internal/host", "internal/things", "internal/trouble"},
	"internal/things/kmod":   {"internal/converge", "internal/devices", "internal/faults", "internal/host", "internal/pci", "internal/things", "internal/trouble"},
	"internal/devices":       {"internal/converge", "internal/facts", "internal/host", "internal/pattern", "internal/trouble"},
	"internal/faults":        {"internal/host", "internal/pattern", "internal/trouble"},
	"internal/diff":          {"internal/mask"},
	"internal/doctor":        {"cloud/kubelet", "drivers", "mig", "runtime", "runtime/engine", "runtime/toolkit", "internal/converge", "internal/devices", "internal/facts", "internal/faults", "internal/host", "internal/kube", "internal/packages", "internal/packages/apt", "internal/packages/dnf", "internal/pattern", "internal/pci", "internal/spec", "internal/things", "internal/things/cdi", "internal/things/kmod", "internal/trouble"},
	"internal/jsonedit":      {},
	"internal/mask":          {},
	"internal/converge":      {"internal/diff", "internal/facts", "internal/faults", "internal/host", "internal/host/systemd", "internal/host/view", "internal/spec", "internal/trouble"},
	"internal/facts":         {"internal/host", "internal/host/view", "internal/instance", "internal/kube", "internal/pattern", "internal/pci", "internal/toml", "internal/trouble"},
	"internal/pattern":       {},
	"internal/pci":           {},
	"internal/nearest":       {},
	"internal/spec":          {"internal/nearest", "internal/trouble"},
	"internal/toml":          {},
	"internal/trouble":       {},
	"internal/host":          {},
	"internal/host/files":    {"internal/host"},
	"internal/host/systemd":  {"internal/host", "internal/host/files"},
	"internal/host/nvml":     {"internal/host", "internal/host/commands", "internal/host/files"},
	"internal/host/web":      {"internal/host", "internal/host/files"},
	"internal/host/commands": {"internal/host", "internal/mask"},
	"internal/host/view":     {"internal/host", "internal/host/files", "internal/host/systemd", "internal/mask"},
	"internal/host/local":    {"internal/host", "internal/host/commands", "internal/host/files", "internal/host/nvml", "internal/host/systemd", "internal/host/web"},
	"internal/remote":        {},
}

// onlyIn says where alone a package of others may be imported. "test" is anything below test/.
var onlyIn = map[string][]string{
	"os/exec":                              {"internal/host/commands", "internal/host/local", "internal/host/nvml", "internal/remote", "test"},
	"github.com/NVIDIA/go-nvml":            {"internal/host/nvml"},
	"github.com/coreos/go-systemd":         {"internal/host/systemd", "cmd/gpuadm", "internal/facts"},
	"github.com/godbus/dbus":               {"internal/host/systemd"},
	"github.com/knqyf263/go-deb-version":   {"internal/packages/apt"},
	"github.com/knqyf263/go-rpm-version":   {"internal/packages/dnf", "internal/facts"},
	"github.com/pelletier/go-toml":         {"cloud/node", "cloud/kubelet", "drivers", "internal/faults", "internal/host/view", "internal/spec", "internal/facts", "internal/toml", "test"},
	"github.com/spf13/cobra":               {"cmd/gpuadm"},
	"tags.cncf.io":                         {"internal/things/cdi"},
	"github.com/sirupsen/logrus":           {"cmd/gpuadm"},
	"log":                                  {},
	"log/slog":                             {},
	"net/http":                             {"internal/host", "internal/host/local", "internal/host/web", "internal/instance", "internal/kube"},
	"k8s.io/client-go":                     {},
	"k8s.io/api":                           {},
	"github.com/aws/aws-sdk-go-v2":         {"internal/instance"},
	"cloud.google.com/go":                  {"internal/instance"},
	"github.com/google/jsonschema-go":      {},
	"plugin":                               {},
	"text/template":                        {},
	"html/template":                        {},
	"github.com/rogpeppe/go-internal/diff": {"internal/diff"},
}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	GoFiles    []string
}

func ourPackages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,GoFiles", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	must.That(t, err == nil, "cannot list packages: %v", err)
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// TestRooms: a folder holds at most 24 files of the product, so that a newcomer reads its list at a glance; cmd has one for each verb.
func TestRooms(t *testing.T) {
	most := map[string]int{"cmd/gpuadm": 36}
	for _, p := range ourPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		n := cmp.Or(most[name], 24)
		check.That(t, len(p.GoFiles) <= n || strings.HasPrefix(name, "test/"), "%s has %d files, more than %d: give some of them a folder", name, len(p.GoFiles), n)
	}
}

func TestImports(t *testing.T) {
	for _, p := range ourPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name == "test" || strings.HasPrefix(name, "test/") {
			continue
		}
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("%s has no line in mayImport: say what it may import", name)
			continue
		}
		for _, imp := range p.Imports {
			of := strings.TrimPrefix(imp, module)
			check.That(t, of == imp || slices.Contains(allowed, of), "%s imports %s: the arrows go the other way", name, of)
			check.That(t, imp != "runtime" || name != "runtime", "%s imports the standard package of its own name", name)
			for imported, where := range onlyIn {
				check.That(t, (imp != imported && !strings.HasPrefix(imp, imported+"/")) || slices.Contains(where, name), "%s imports %s: only %v may", name, imp, where)
			}
		}
	}
}

// TestPackageDocs wants every package to open with a sentence that a newcomer understands.
func TestPackageDocs(t *testing.T) {
	for _, p := range ourPackages(t) {
		check.That(t, len(p.GoFiles) == 0 || len(p.Doc) >= 30, "%s has no package comment", p.ImportPath)
	}
}
