// SPDX-License-Identifier: Apache-2.0

package laws

import (
	_ "embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	runtimeengine "github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// shippedSpec is the node.toml that the DaemonSet's ConfigMap carries.
func shippedSpec(t *testing.T) string {
	t.Helper()
	file := must.Get(os.Open("../../images/daemonset/onprem.yaml"))(t)
	defer file.Close()
	var config struct {
		Data map[string]string `yaml:"data"`
	}
	must.OK(t, yaml.NewDecoder(file).Decode(&config))
	text, found := strings.CutPrefix(config.Data["node.toml"], "format = 1\n")
	must.That(t, found && strings.Contains(text, "[runtime]"), "cannot read the ConfigMap's node.toml: %q", text)
	return text
}

// runtimeOutcome says in one line what the runtime stage wants of a machine, and why it cannot be
// had.
func runtimeOutcome(t *testing.T, n *simhost.Node, text string) string {
	t.Helper()
	e := engine(t, text)
	e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool {
		return st.Name != "runtime"
	})
	p := plan(t, n, e)
	var words []string
	for _, c := range p.Changes {
		switch {
		case c.Cannot != "":
			return "refused: " + c.Cannot
		case c.Kind != "folder":
			words = append(words, fmt.Sprintf("%s %s", c.Kind, c.Name))
		}
	}

	if len(words) == 0 {
		return "nothing to do"
	}
	return strings.Join(words, ", ")
}

const (
	editsDefault = "file /etc/containerd/config.toml, restart containerd.service"
	crioDropIn   = "file /etc/crio/crio.conf.d/99-gpuadm.conf, restart crio.service"
)

// ownersText has below the name of every recorded machine what a plain [runtime] does there, and
// whose each part is. A healthy machine is never refused: one that is has no engine. Of no-gpu the
// verbs say before that it has none.
//
//go:embed testdata/owners.txt
var ownersText string

// ownersTable has one line of each machine: 1 what [runtime] does, 2 whose the parts are.
func ownersTable(line int) map[string]string {
	all := map[string]string{}
	lines := strings.Split(strings.TrimSuffix(ownersText, "\n"), "\n")
	for i := 0; i < len(lines); i += 3 {
		all[lines[i]] = strings.TrimPrefix(lines[i+line], "\t")
	}
	return all
}

const (
	k3sDir  = "/var/lib/rancher/k3s/agent/etc/containerd/"
	rke2Dir = "/var/lib/rancher/rke2/agent/etc/containerd/"
)

// aksNoDriver is as Azure/AgentBaker, pkg/agent/baker.go, containerdV1NoGPUConfigTemplate and
// aks-node-controller/parser/templates/containerd_no_GPU.toml.gtpl have it where the pool has no
// driver of AKS's.
//
//go:embed testdata/aks-no-driver.toml
var aksNoDriver string

// toolkitDropIn is as NVIDIA/nvidia-container-toolkit,
// cmd/nvidia-ctk-installer/container/runtime/containerd/config_test.go has it for version 3, and
// with the folder that https://github.com/NVIDIA/gpu-operator/issues/2387 shows.
//
//go:embed testdata/toolkit-drop-in.toml
var toolkitDropIn string

// TestOwnersCases: what the owner's file and the programs that are there decide.
func TestOwnersCases(t *testing.T) {
	only := func(name, text string) map[string]string { return map[string]string{name: text} }
	with := func(a, b map[string]string) map[string]string {
		both := maps.Clone(a)
		maps.Copy(both, b)
		return both
	}

	entry := func(dir, program string) map[string]string {
		return only(dir+"config.toml", "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n"+
			"runtime_type = \"io.containerd.runc.v2\"\noptions = {BinaryName = \""+program+"\"}\n")
	}

	program, operators := only("/usr/bin/nvidia-container-runtime", ""), only("/usr/local/nvidia/toolkit/nvidia-container-runtime", "")
	dropIn := only("/srv/containerd/d/99-nvidia.toml", toolkitDropIn)
	noDriver := only("/etc/containerd/config.toml", aksNoDriver)
	edited := only("/etc/containerd/config.toml", editedByGpuadm(t, aksNoDriver))
	for _, c := range []struct {
		name, machine string
		files         map[string]string
		spec, want    string
	}{
		{"AKS, its entry's program is missing", "aks-ubuntu2204", only("-/usr/bin/nvidia-container-runtime", ""), "", editsDefault},
		{
			"AKS, before its scripts have ended", "aks-ubuntu2204",
			only("-/opt/azure/containers/provision.complete", ""),
			"handler = \"nvidia\"\n",
			"refused: cannot use the handler nvidia: /etc/containerd/config.toml has no such handler, only nvidia-container-runtime, untrusted, and aks writes that file",
		},
		{"AKS, --gpu-driver none", "aks-ubuntu2204", with(program, noDriver), "", editsDefault},
		{
			"AKS, --gpu-driver none, edited and not restarted",
			"aks-ubuntu2204", with(program, edited), "",
			"restart containerd.service",
		},
		{"AKS, its own is the default", "aks-ubuntu2204", nil, "set_as_default = true\n", "nothing to do"},
		{"AKS, by its name", "aks-ubuntu2204", nil, "handler = \"nvidia-container-runtime\"\n", "nothing to do"},
		{"AKS, another name", "aks-ubuntu2204", nil, "handler = \"nvidia\"\n", editsDefault},
		{"AKS, the spec takes the file over", "aks-ubuntu2204", nil, "owner = \"gpuadm\"\n", editsDefault},
		{
			"GKE, the spec takes over a file that is rewritten at each boot",
			"gke-ubuntu", nil, "owner = \"gpuadm\"\n",
			"refused: cannot own /etc/containerd/config.toml: GKE's configure-helper writes it again at each boot",
		},
		{
			"GKE, the spec names one", "gke-ubuntu", program, "handler = \"nvidia\"\n",
			"refused: cannot use the handler nvidia: /etc/containerd/config.toml has no such handler, only runc, and gke writes that file",
		},
		{"the GPU Operator's drop-in", "a100-mixed-t4", with(operators, dropIn), "", "restart containerd.service"},
		{
			"the GPU Operator's drop-in beside the packages",
			"a100-mixed-t4", with(operators, with(program, dropIn)), "",
			"restart containerd.service",
		},
		{"the GPU Operator's drop-in before its program", "a100-mixed-t4", dropIn, "", "restart containerd.service"},
		{
			"the GPU Operator went, and the packages are there",
			"a100-mixed-t4", with(program, dropIn), "",
			"file /srv/containerd/d/99-nvidia.toml, restart containerd.service",
		},
		{
			"the GPU Operator's program alone", "a100-mixed-t4", operators, "",
			"file /srv/containerd/d/99-gpuadm.toml, restart containerd.service",
		},
		{
			"Docker, as the default", "docker-only", program, "set_as_default = true\n",
			"file /etc/docker/daemon.json, restart docker.service",
		},
		{
			"Docker, as the default, and its program is missing",
			"docker-only", nil, "set_as_default = true\n",
			"refused: cannot make nvidia the default: /usr/bin/nvidia-container-runtime is not there, and without it no container starts",
		},
		{
			"CRI-O, as the default, and its program is missing",
			"rocky9-crio", nil, "set_as_default = true\n",
			"refused: cannot make nvidia the default: /usr/bin/nvidia-container-runtime is not there, and without it no container starts",
		},
		{"K3s writes it when it starts", "k3s", program, "", "restart k3s.service"},
		{"K3s, the GPU Operator's program", "k3s", operators, "", "restart k3s.service"},
		{"K3s has written it", "k3s", with(program, entry(k3sDir, "/usr/bin/nvidia-container-runtime")), "", "nothing to do"},
		{
			"K3s has written it, and the program went", "k3s",
			entry(k3sDir, "/usr/bin/nvidia-container-runtime"),
			"",
			"nothing to do",
		},
		{
			"K3s, as the default", "k3s", program, "set_as_default = true\n",
			"file " + k3sDir + "config-v3.toml.d/99-gpuadm.toml, restart k3s.service",
		},
		{
			"K3s, another name", "k3s", program, "handler = \"gpu\"\n",
			"file " + k3sDir + "config-v3.toml.d/99-gpuadm.toml, restart k3s.service",
		},
		{"K3s is gpuadm's", "k3s", program, "owner = \"gpuadm\"\n", "restart k3s.service"},
		{"RKE2 writes it when it starts", "rke2", program, "", "restart rke2-agent.service"},
		{
			"RKE2 imports no folder", "rke2", program, "handler = \"gpu\"\n",
			"refused: cannot add the handler gpu: " + rke2Dir + "config.toml imports no folder, and rke2 writes the handler nvidia alone",
		},
		{
			"RKE2 imports no folder, as the default", "rke2", program, "set_as_default = true\n",
			"refused: cannot make nvidia the default runtime: rke2 generates " + rke2Dir + "config.toml",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := runtimeOutcome(t, changed(t, c.machine, c.files), "[runtime]\n"+c.spec)
			check.That(t, got == c.want, "%s\nwant\n%s", got, c.want)
		})
	}
}

// editedByGpuadm is a file of containerd 1.7 after gpuadm's edit.
func editedByGpuadm(t *testing.T, text string) string {
	t.Helper()
	const name = "/etc/containerd/config.toml"
	handler := runtimeengine.Handler{
		Name:   "nvidia",
		Binary: runtimeengine.Binary,
		CDI:    true,
	}
	out, err := containerd.Edit(containerd.Tree{Root: containerd.File{
		Path: name,
		Data: []byte(text),
	}}, containerd.Daemon{Version: "1.7.27"}, handler, name, []byte(text))
	must.OK(t, err)
	return string(out)
}

// changed is a recorded machine after the files were written: a name without a text is a program,
// and one that begins with - is removed. What is written is younger than the daemons that run.
func changed(t *testing.T, name string, files map[string]string) *simhost.Node {
	t.Helper()
	all := archives(t)
	n := all[slices.IndexFunc(all, func(m machine) bool { return m.name == name })].boot(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if gone, is := strings.CutPrefix(name, "-"); is {
			must.OK(t, n.Remove(gone))
			continue
		}
		mode := fs.FileMode(0o644)
		if files[name] == "" {
			mode = 0o755
		}
		for i, c := range name {
			if c == '/' && i > 0 {
				_ = n.Mkdir(name[:i], host.Attr{Mode: 0o755}) // where it is not there
			}
		}

		must.OK(t, n.WriteFile(name, []byte(files[name]), host.Attr{Mode: mode}))
	}

	return n
}

// TestOwnersTable: every recorded machine, with a plain [runtime] and with the spec that the
// shipped DaemonSet carries.
func TestOwnersTable(t *testing.T) {
	table, shipped := ownersTable(1), shippedSpec(t)
	for _, m := range archives(t) {
		t.Run(m.name, func(t *testing.T) {
			want, known := table[m.name]
			if !known {
				t.Fatalf("a new machine: say in the table what [runtime] does there; it does: %s", runtimeOutcome(t, m.boot(t), "[runtime]\n"))
			}
			for _, text := range []string{"[runtime]\n", shipped} {
				got := runtimeOutcome(t, m.boot(t), text)
				check.That(t, got == want, "%q:\n%s\nwant\n%s", text, got, want)
			}
		})
	}
}

// ownersOf says who owns each part of a machine, and who else tries to: "driver=a!b toolkit=- …".
func ownersOf(t *testing.T, n *simhost.Node, text string) string {
	t.Helper()
	s := specs.Of(t, text)
	f := must.Get(facts.Gather(t.Context(), n, stages.OwnersNeeds(s)))(t)
	parts := stages.Owners(t.Context(), n, s, f)
	var words []string
	for _, p := range parts {
		hasOne := (p.Owner == nil) != (p.None == "") && (p.Owner != nil || len(p.Others) == 0)
		check.That(t, hasOne && p.Unknown == "", "%s has not exactly one of owner and reason: %+v", p.Name, p)
		who := "-"
		if p.Owner != nil {
			who = p.Owner.Who
			check.That(t, p.Owner.By != "", "%s: no evidence", p.Name)
		}
		for _, o := range p.Others {
			who += "!" + o.Who
			check.That(t, len(o.Ends) > 0 && o.By != "", "%s: nothing ends the claim of %s", p.Name, o.Who)
		}

		words = append(words, p.Name+"="+who)
	}

	return strings.Join(words, "; ")
}

const plugins = "/var/lib/kubelet/device-plugins/"

// TestOwnersOfParts: each part of each recorded machine has one owner or says why it has none.
func TestOwnersOfParts(t *testing.T) {
	table := ownersTable(2)
	for _, m := range archives(t) {
		t.Run(m.name, func(t *testing.T) {
			n := m.boot(t)
			names, _ := n.ReadDir(plugins) // recorded, they answer
			for _, name := range names {
				n.Daemon(plugins+name, func(string, []byte) ([]byte, error) {
					return nil, nil
				})
			}

			got := ownersOf(t, n, shippedSpec(t))
			check.That(t, got == table[m.name], "\n%q: %q,\nwant\n%q", m.name, got, table[m.name])
		})
	}
}

// TestOwnersQuarrels: machines on which others leave their signs. The GPU Operator's are those of
// its driver container (nvidia-driver in NVIDIA/gpu-driver-container), of its toolkit
// (NVIDIA/gpu-operator issues 2387) and of nvidia-mig-manager (NVIDIA/mig-parted, deployments);
// that of a GPUCluster is the DRA driver's registration (kubernetes-sigs/dra-driver-nvidia-gpu,
// cmd/gpu-kubelet-plugin/main.go).
func TestOwnersQuarrels(t *testing.T) {
	dropIn := "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n" +
		"options = {BinaryName = \"" + facts.RuntimeOfOperator + "\"}\n"
	policy := map[string]string{
		"/run/nvidia/nvidia-driver.pid":                                   "1\n",
		"/var/log/containers/nvidia-mig-manager-x7_gpu-operator_m-0f.log": "x\n",
		facts.RuntimeOfOperator:                                           "",
		"/srv/containerd/d/99-nvidia.toml":                                dropIn,
	}
	gpuCluster := map[string]string{"/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock": "x\n"}
	const all = "[driver]\nversion = \"580\"\n[toolkit]\nversion = \"1.18.0\"\n[runtime]\n[mig]\n[[mig.gpu]]\nlayout = {\"1g.5gb\" = 1}\n"
	for _, c := range []struct {
		name, machine string
		files         map[string]string
		spec, want    string
	}{
		{
			"a ClusterPolicy alone", "a100-mixed-t4", policy, "[runtime]\n",
			"driver=NVIDIA's GPU Operator; toolkit=NVIDIA's GPU Operator; CDI=-; handler=NVIDIA's GPU Operator; MIG=nvidia-mig-manager" + noMore,
		},
		{
			"a ClusterPolicy, and node.toml asks for the same",
			"a100-mixed-t4", policy, all,
			"driver=NVIDIA's GPU Operator; toolkit=gpuadm!NVIDIA's GPU Operator; CDI=-; handler=gpuadm!NVIDIA's GPU Operator; MIG=nvidia-mig-manager!gpuadm" + noMore,
		},
		{
			"a ClusterPolicy, and node.toml takes the driver",
			"a100-mixed-t4", policy,
			"[driver]\nversion = \"580\"\nowner = \"gpuadm\"\n",
			"driver=NVIDIA's GPU Operator!gpuadm; toolkit=NVIDIA's GPU Operator; CDI=-; handler=NVIDIA's GPU Operator; MIG=nvidia-mig-manager" + noMore,
		},
		{
			"a GPUCluster", "a100-mixed-t4", gpuCluster,
			"[driver]\nversion = \"580\"\n[runtime]\ninject = \"cdi\"\n",
			"driver=gpuadm; toolkit=-; CDI=-; handler=-; MIG=-; IMEX=-; device plugin or DRA=NVIDIA's DRA driver; kubelet=-",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ownersOf(t, changed(t, c.machine, c.files), c.spec)
			check.That(t, got == c.want, "%q\nwant\n%q", got, c.want)
		})
	}
}

// noMore is the end of most: no partitions are asked for, no rack, and nothing has registered with
// kubelet.
const noMore = "; IMEX=-; device plugin or DRA=-; kubelet=-"
