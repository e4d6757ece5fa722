// SPDX-License-Identifier: Apache-2.0

package drivers_test

import (
	"context"
	_ "embed"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

//go:embed testdata/owned-node.txtar
var ownedNode string

// TestOwners: a driver of another owner is verified and not touched; the message names the owner
// and how to take it over.
func TestOwners(t *testing.T) {
	const operator = "-- run/nvidia/nvidia-driver.pid --\n1\n"
	release := func(id string) string {
		return "-- etc/os-release --\nID=" + id + "\nVERSION_ID=\"24.04\"\n"
	}
	// kmod-nvidia-dc-open580 and nvidia-dc-driver580 of CIQ are in Google's
	// rocky-linux-9-optimized-gcp-nvidia-580: see unpackaged in internal/facts.
	asked := func(file, answer string) string {
		return "[[command]]\nargv = [\"/usr/bin/rpm\", \"-qf\", \"" + file + "\"]\nstdout = \"" + answer + "\\n\"\n"
	}
	const library = "/usr/lib64/libnvidia-ml.so.580.95.05"
	google := release("rocky") + "-- usr/bin/rpm mode=0755 --\n-- " + library[1:] + " --\n-- usr/lib64/libnvidia-ml.so.1 link=libnvidia-ml.so.580.95.05 --\n-- lib64/ld-linux-x86-64.so.2 --\n-- sim.toml --\n" +
		asked("/usr/bin/rpm", "rpm-4.16.1.3-34.el9.x86_64") + asked(library, "nvidia-dc-driver580-libs-580.95.05-1.el9_6.cld_next.x86_64")
	for _, test := range []struct {
		name, files, spec string
		want              []string // none: it is converged
	}{
		{"Google's Rocky Linux", google, `version = "580"`, nil},
		{
			"Google's Rocky Linux, another version", google, `version = "590"`,
			[]string{"580.95.05 is loaded, 590 is wanted", "CIQ's packages (nvidia-dc-driver580-libs-580.95.05", "dnf install nvidia-dc-driver580"},
		},
		{"operator", release("ubuntu") + operator, `version = "580"`, nil},
		{
			"operator, another version", release("ubuntu") + operator, `version = "590"`,
			[]string{"580.95.05 is loaded, 590 is wanted", "GPU Operator (its driver container has written", "driver.enabled=false"},
		},
		{
			"operator, and we", release("ubuntu") + operator, "version = \"580\"\nowner = \"gpuadm\"",
			[]string{"left to NVIDIA's GPU Operator", "driver.enabled=false"},
		},
		{
			"spec", release("ubuntu"), "version = \"570\"\nowner = \"other\"",
			[]string{"580.95.05 is loaded", `owner = "other"`, "remove what its owner installed"},
		},
		{
			"ostree", release("rhel") + "-- run/ostree-booted --\n", `version = "590"`,
			[]string{"the ostree image", "rpm-ostree install"},
		},
		{"cos", release("cos"), `version = "590"`, []string{"cos-gpu-installer", "cannot take it over on this system"}},
		{"flatcar", release("flatcar"), `version = "590"`, []string{"Flatcar", "cannot take it over on this system"}},
		{"bottlerocket", release("bottlerocket"), `version = "580.95.05"`, []string{"cannot prepare a node of Bottlerocket"}},
		{"talos", release("talos"), `version = "590"`, []string{"Talos", "cannot take it over on this system"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := must.Get(simhost.New([]byte(ownedNode + test.files)))(t)
			s := specs.Of(t, "[driver]\n"+test.spec+"\n")
			e := &converge.Engine{
				ThingOf: thingOf,
				Prune:   stages.Prune,
				Stages:  stages.Sequence(),
				Spec:    s,
			}
			record := "/run/gpuadm-modules.json" // what rpm said, until the next boot
			before := n.Tree(record)
			res, err := e.Apply(context.Background(), n)
			check.That(t, n.Tree(record) == before && len(res.Made) == 0 && len(n.Violations()) == 0, "it was touched: %v %v", res.Made, n.Violations())
			if len(test.want) == 0 {
				check.OK(t, err)
				return
			}
			tr := (*trouble.Error)(nil)
			must.That(t, errors.As(err, &tr), "%v", err)
			text := tr.What + "\n" + strings.Join(tr.Because, "\n") + "\n" + strings.Join(tr.Try, "\n")
			check.Says(t, text, test.want...)
		})
	}
}

// TestEKSImage: the driver of EKS's accelerated image, in both its forms, is verified and not
// touched; while the image's unit loads it, an apply waits.
func TestEKSImage(t *testing.T) {
	for name, loader := range map[string]string{"al2023-eks-nvidia": "nvidia-kmod-load.service", "al2023-eks-trees": "nvidia-setup.service"} {
		archive := must.Get(os.ReadFile("../test/hosts/" + name + ".txtar"))(t)
		active := "name = \"" + loader + "\"\nenabled = \"enabled\"\nactive = "
		module := "-- sys/module/nvidia/version --\n580.105.08\n-- proc/driver/nvidia/version --"
		loading := strings.NewReplacer(active+`"active"`, active+`"activating"`, module, "-- tmp/x --").Replace(string(archive))
		for version, on := range map[string]string{"580": string(archive), "595": string(archive), "580.105.08": loading} {
			n := must.Get(simhost.New([]byte(on)))(t)
			s := specs.Of(t, "[driver]\nversion = \""+version+"\"\n")
			e := &converge.Engine{
				ThingOf: thingOf,
				Prune:   stages.Prune,
				Stages:  stages.Sequence(),
				Spec:    s,
			}
			record := "/run/gpuadm-modules.json" // the version that containerd said, until the next boot
			before := n.Tree(record)
			res, err := e.Apply(t.Context(), n)
			check.That(t, n.Tree(record) == before && len(res.Made) == 0, "%s was touched: %v", name, res.Made)
			switch version {
			case "580":
				check.That(t, err == nil, "%s: %v", name, err)
			case "595":
				check.That(t, err != nil && !trouble.Passes(err) && strings.Contains(err.Error(), "580.105.08 is loaded, 595 is wanted, and the driver is left to the EKS image"),
					"%s: %v", name, err)
			default:
				check.That(t, trouble.Passes(err) && strings.Contains(err.Error(), loader), "%s does not wait for %s: %v", name, loader, err)
			}
		}
	}
}

// TestLeftAlone: what was installed stays where the driver gets another owner, or the GPUs fall off
// the bus.
func TestLeftAlone(t *testing.T) {
	var message []string
	for name, later := range map[string]func(*simhost.Node) error{
		"a driver container comes": func(n *simhost.Node) error {
			return drivertest.Lay(n.Files, "/run/nvidia/nvidia-driver.pid", []byte("1"))
		},
		"the GPU falls off the bus": func(n *simhost.Node) error {
			return n.WriteFile("/sys/bus/pci/devices/0000:17:00.0/uevent", []byte("PCI_CLASS=30200\nPCI_ID=1234:2330\n"), host.Attr{Mode: 0o644})
		},
	} {
		n := installerNode(t, &message)
		gpu := drivertest.Lay(n.Files, "/sys/bus/pci/devices/0000:17:00.0/uevent", []byte("PCI_CLASS=30200\nPCI_ID=10DE:2330\n"))
		must.OK(t, errors.Join(gpu, drivertest.Lay(n.Files, "/etc/os-release", []byte("ID=arch\n")), drivertest.Lay(n.Files, "/lib64/ld-linux-x86-64.so.2", nil)))
		s, err := spec.Parse(spec.File{
			Name: "node.toml",
			Data: []byte("format = 1\n[driver]\nversion = \"580.95.05\"\nsource = \"runfile\"\n[driver.runfile]\nurl = \"https://mirror.example/580.run\"\nsha256 = \"" + sumOf("580.95.05 fine\n") + "\"\n"),
		})
		must.OK(t, err)
		e := &converge.Engine{
			ThingOf: thingOf,
			Prune:   stages.Prune,
			Stages: slices.DeleteFunc(stages.Sequence(), func(st converge.Stage) bool {
				return st.Name != "packages"
			}),
			Spec: s,
		}
		_, err = e.Apply(context.Background(), n)
		must.That(t, err == nil, "%v: %v", name, err)
		have(t, n, "580.95.05 open")
		must.OK(t, later(n))
		res, err := e.Apply(context.Background(), n)
		check.That(t, err == nil && len(res.Made) == 0, "%s: %v %v", name, res.Made, err)
		have(t, n, "580.95.05 open")
	}
}

// thingOf builds a thing again, as undo does.
func thingOf(ref converge.Ref) (converge.Thing, error) {
	_, of := stages.Run(new(node.Session), nil)
	return of(ref)
}
