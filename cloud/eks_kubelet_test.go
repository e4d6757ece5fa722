// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// kubeadmUnit is a unit as the packages kubelet and kubeadm bring it. Source:
// cmd/krel/templates/latest of https://github.com/kubernetes/release.
//
//go:embed testdata/kubeadm-unit.txtar
var kubeadmUnit string

// refused applies, and wants a refusal that touched nothing and tells these words.
func (c *eksCloud) refused(t *testing.T, words ...string) {
	t.Helper()
	before := c.n.Touches()
	_, err := c.engine().Apply(t.Context(), c.n)
	must.That(t, err != nil, "not refused with %q", words)
	text := err.Error() + "\n" + joins.Because(err)
	check.Says(t, text, words...)
	n := c.n.Touches() - before
	check.That(t, n <= 0, "refused after %d touches: %s", n, text)
}

// TestEKSKubeletConfigIsMergedLast: the user's file is merged last; taints are never lost by it.
func TestEKSKubeletConfigIsMergedLast(t *testing.T) {
	c := startEKS(t, eksMachine+"-- etc/gpuadm/kubelet.yaml --\nfailSwapOn: false\nserializeImagePulls: null\nauthentication: {x509: {clientCAFile: /else}}\nclusterDNS: [10.0.0.1]\n"+
		"registerWithTaints:\n- {key: a, effect: NoSchedule, value: theirs}\n- {key: b, effect: NoExecute}\n",
		eksJoin+"kubelet_config = \"/etc/gpuadm/kubelet.yaml\"\n[node]\nstartup_taint = \"none\"\ngpu_labels = false\nlabels = { pool = \"h200\" }\ntaints = [\"a=ours:NoSchedule\", \"c=ours:NoSchedule\"]\n")
	c.apply(t)
	config := c.read(t, kubelet.ConfigFile)
	check.Says(t, config, "failSwapOn: false", "clientCAFile: /else", "- 10.0.0.1", "anonymous:\n        enabled: false", "value: theirs", "key: b", "key: c")
	for _, not := range []string{"serializeImagePulls", "172.20.0.10"} {
		check.That(t, !strings.Contains(config, not), "has %q:\n%s", not, config)
	}
	unit := c.read(t, kubelet.UnitFile)
	for _, want := range []string{
		"--node-labels=", "pool=h200", "Wants=network-online.target containerd.service\n", "After=network-online.target containerd.service\n",
		"StartLimitIntervalSec=0", "Restart=always", "--kubeconfig=/etc/kubernetes/kubelet.conf",
	} {
		check.That(t, strings.Contains(unit, want), "the unit lacks %q:\n%s", want, unit)
	}

	for _, not := range []string{"Requires=", "--bootstrap-kubeconfig"} {
		check.That(t, !strings.Contains(unit, not), "the unit has %q:\n%s", not, unit)
	}
}

// TestEKSChangedConfigRestartsKubelet: a change of the configuration restarts kubelet, once, and
// its undo does.
func TestEKSChangedConfigRestartsKubelet(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	c.apply(t)
	applied := c.n.Tree(converge.Home, "/run", "/proc")
	c.spec = specs.Of(t, eksJoin+"cluster_dns = [\"10.96.0.11\"]\n")
	res := c.apply(t)
	got := joins.Names(res.Made)
	check.That(t, strings.Count(got, "restart kubelet.service") == 1 && strings.Contains(c.n.Units(), "kubelet.service enabled active fresh"), "made %s\n%s", got, c.n.Units())
	_, err := c.engine().Undo(t.Context(), c.n, "", nil)
	must.That(t, err == nil, "%v: %v", err, joins.Because(err))
	check.Equal(t, c.n.Tree(converge.Home, "/run", "/proc"), applied, "after undo of the change:")
	c.apply(t)
	_, err = c.engine().Undo(t.Context(), c.n, "all", nil)
	must.That(t, err == nil, "%v: %v", err, joins.Because(err))
	u := c.n.Units()
	check.That(t, !strings.Contains(u, "kubelet.service enabled"), "after undo of all kubelet runs: %s", u)
}

// TestEKSFlagsThatContradict: a flag of the administrator's that contradicts the join would win
// over our files, or be lost: either way without a word.
func TestEKSFlagsThatContradict(t *testing.T) {
	const spec = eksJoin + "[node]\ngpu_labels = false\nstartup_taint = \"none\"\ntaints = [\"c=d:NoSchedule\"]\n"
	for flag, word := range map[string]string{
		"--hostname-override=gpu-7":                    `node_name = "gpu-7"`,
		"--register-with-taints=a=b:NoSchedule":        "taints in [node]",
		"--bootstrap-kubeconfig=/etc/kubernetes/other": "--bootstrap-kubeconfig",
		"--kubeconfig=/etc/kubernetes/other":           "--kubeconfig",
		"--config=/etc/kubernetes/other.yaml":          "kubelet_config",
	} {
		c := startEKS(t, eksMachine+kubeadmUnit+"-- etc/default/kubelet --\nKUBELET_EXTRA_ARGS=\"--v=4 "+flag+"\"\n", spec)
		c.refused(t, strings.SplitN(flag, "=", 2)[0], "/etc/default/kubelet", word)
	}

	c := startEKS(t, eksMachine+kubeadmUnit+"-- etc/default/kubelet --\nKUBELET_EXTRA_ARGS=\"--v=4 --hostname-override=ip-10-0-1-2.ec2.internal --node-labels=a=b\"\n", spec)
	c.apply(t)
	check.Has(t, c.read(t, kubelet.DropIn), " $KUBELET_EXTRA_ARGS\n", "the administrator's flags are lost:")
}

// TestEKSOfTheMachine: what the machine itself lacks is said before anything is touched.
func TestEKSOfTheMachine(t *testing.T) {
	for name, c := range map[string]struct {
		old, new, more string
		says           []string
	}{
		"swap":             {"Priority\n", "Priority\n/dev/sda2 partition 1 0 -2\n", "", []string{"swap is on (/dev/sda2)", "swapoff -a"}},
		"no kubelet":       {"-- usr/bin/kubelet mode=0755 size=1000 --\n", "", "", []string{"no kubelet is installed", "install the package kubelet"}},
		"a missing config": {"", "", `kubelet_config = "/etc/gpuadm/kubelet.yaml"`, []string{"cannot read /etc/gpuadm/kubelet.yaml", "KubeletConfiguration"}},
		"the config itself": {
			"", "-- var/lib/kubelet/config.yaml --\nkind: KubeletConfiguration\nmaxPods: 9\n", `kubelet_config = "/var/lib/kubelet/config.yaml"`,
			[]string{kubelet.ConfigFile, "another file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			archive := eksMachine + c.new
			if c.old != "" {
				must.That(t, strings.Contains(eksMachine, c.old), "the machine has no such text")
				archive = strings.Replace(eksMachine, c.old, c.new, 1)
			}
			startEKS(t, archive, eksJoin+c.more+"\n").refused(t, c.says...)
		})
	}
}

// TestEKSWaitsForGPUs: an apply that waits for GPUs does not start kubelet.
func TestEKSWaitsForGPUs(t *testing.T) {
	machine := strings.Replace(eksMachine, "[[unit]]", "[[gpu]]\nmodel = \"H100-80\"\n[[unit]]\nname = \"nvidia-fabricmanager.service\"\nenabled = \"enabled\"\nactive = \"active\"\n[[unit]]", 1)
	machine += "-- sys/bus/pci/devices/0000:17:00.0/uevent --\nDRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\nPCI_SLOT_NAME=0000:17:00.0\n"
	c := startEKS(t, machine, eksJoin)
	c.n.CUDAAnswers(func([]string) host.CUDA {
		return host.CUDA{Code: host.CUDASystemNotReady}
	})
	e := c.engine()
	e.Stages = append([]converge.Stage{node.GPUs()}, e.Stages...)
	_, err := e.Apply(t.Context(), c.n)
	check.That(t, trouble.Passes(err) && strings.Contains(err.Error(), "has not made the NVLink fabric ready"), "it waits for the fabric: %v\n%s", err, joins.Because(err))
	check.That(t, !strings.Contains(c.n.Units(), "kubelet.service enabled active"), "kubelet runs before the fabric is ready: %s", c.n.Units())
	c.n.CUDAAnswers(nil)
	_, err = e.Apply(t.Context(), c.n)
	check.That(t, trouble.Passes(err) || err == nil, "with the fabric: %v\n%s", err, joins.Because(err))
	check.That(t, strings.Contains(c.n.Units(), "kubelet.service enabled active"), "kubelet does not run with the fabric: %s", c.n.Units())
}

const podsSocket = "/run/containerd/containerd.sock"

// protoBytes is one field of a message.
func protoBytes[T ~string | ~[]byte](n protowire.Number, value T) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), []byte(value))
}

// testSandbox is a PodSandbox with a label or annotation.
func testSandbox(name string, field protowire.Number, key, value string) []byte {
	created := protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 7)
	item := append(protoBytes(1, "id-of-"+name), protoBytes(2, string(protoBytes(1, name))+string(protoBytes(3, "default")))...)
	return protoBytes(1, string(item)+string(created)+string(protoBytes(field, string(protoBytes(1, key))+string(protoBytes(2, value)))))
}

// TestEKSUndoRefusesPods: pods that a drain would end are named, and nothing is touched; those that
// it leaves do not count.
func TestEKSUndoRefusesPods(t *testing.T) {
	daemons := string(testSandbox("plugin", 5, "pod-template-generation", "1")) + string(testSandbox("static", 6, "kubernetes.io/config.source", "file"))
	seven := daemons
	for i := range 7 {
		seven += string(testSandbox(fmt.Sprintf("work-%d", i), 6, "kubernetes.io/config.source", "api"))
	}
	cases := map[string]struct {
		answer string
		err    error
		folder bool
		says   []string // nil: undo goes through
	}{
		"none":            {},
		"daemons":         {answer: daemons, folder: true},
		"one":             {answer: string(testSandbox("work", 5, "app", "x")), says: []string{": it runs 1 pod: default/work\n"}},
		"seven":           {answer: seven, says: []string{": it runs 7 pods: default/work-0, default/work-1, default/work-2, default/work-3, default/work-4 and 2 more\n"}},
		"engine is down":  {err: syscall.ECONNREFUSED, folder: true, says: []string{"the pod with UID 8e5a", "does not answer at " + podsSocket + ": connection refused"}},
		"nothing was run": {err: syscall.ECONNREFUSED},
		"broken answer":   {answer: "\x0a\xff", folder: true, says: []string{"cannot read the answer"}},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			at := startEKS(t, eksMachine, eksJoin)
			at.apply(t)
			at.n.Daemon(podsSocket, func(method string, _ []byte) ([]byte, error) {
				if method != "/runtime.v1.RuntimeService/ListPodSandbox" {
					return nil, syscall.ECONNREFUSED
				}
				return []byte(c.answer), c.err
			})
			if c.folder {
				must.OK(t, joins.Mkdirs(at.n, "/var/lib/kubelet/pods"+"/8e5a"))
			}
			before := at.n.Touches()
			e := at.engine()
			e.Allow = []string{"all"} // it is no matter of consent
			_, err := e.Undo(context.Background(), at.n, "all", nil)
			if c.says == nil {
				must.That(t, err == nil, "%v: %v", err, joins.Because(err))
				return
			}
			must.That(t, err != nil, "not refused")
			all := err.Error() + "\n" + joins.Because(err)
			for _, want := range append(c.says, "cannot take this machine out of its cluster: ", "kubectl drain ip-10-0-1-2.ec2.internal --ignore-daemonsets --delete-emptydir-data", "crictl -r unix://"+podsSocket) {
				check.That(t, strings.Contains(all, want), "%q is not said:\n%s", want, all)
			}
			check.That(t, at.n.Touches() == before && strings.Contains(at.n.Units(), "kubelet.service enabled active"), "refused, and yet touched: %s", at.n.Units())
		})
	}
}
