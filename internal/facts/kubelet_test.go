// SPDX-License-Identifier: Apache-2.0

package facts

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	unitFile = "/usr/lib/systemd/system/kubelet.service"
	unitDir  = "/etc/systemd/system/kubelet.service.d/"

	kubeadmUnit = `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`
	extraArgs = "KUBELET_EXTRA_ARGS"
	noTaints  = "kind: KubeletConfiguration\n"
	oneTaint  = "kind: KubeletConfiguration\nregisterWithTaints:\n- key: a.b/c\n  value: d\n  effect: NoSchedule\n- effect: NoExecute\n  key: e\n"
)

// registered is the part of Kubelet that these tests are about.
type registered struct {
	Owner    string
	Labels   map[string]string
	Taints   []Taint
	LabelsAt Place
	TaintsAt Place
}

// noFlags is a unit that takes no flags from a file.
var noFlags = Place{Why: "kubelet.service takes no KUBELET_EXTRA_ARGS from /etc/default/kubelet or /etc/sysconfig/kubelet"}

var (
	hiddenVariable = Place{Why: "kubelet.service sets KUBELET_EXTRA_ARGS itself, and a file would hide that; move it to /etc/default/kubelet (Debian) or /etc/sysconfig/kubelet (RPM)"}
	statedTaints   = Place{Why: "kubelet.service states --register-with-taints, which wins over what could be added"}
)

func envPlace(file string, others ...Taint) Place {
	return Place{
		How:    "env",
		File:   file,
		Var:    extraArgs,
		Others: others,
	}
}

func confPlace(dir string, others ...Taint) Place {
	return Place{
		How:    "drop-in",
		File:   dir,
		Key:    "registerWithTaints",
		Others: others,
	}
}

func service1(start string) string { return "[Service]\nExecStart=" + start + "\n" }

func TestRegistration(t *testing.T) {
	abc := []Taint{{"a.b/c", "d", "NoSchedule"}, {"e", "", "NoExecute"}}
	extra := envPlace("/etc/default/kubelet")
	kl := []Taint{{"k", "v", "NoExecute"}, {"l", "", "NoSchedule"}}
	for _, c := range []struct {
		name  string
		files files
		want  registered
	}{
		{
			"kubeadm, an image",
			files{unitDir + "10-kubeadm.conf": kubeadmUnit},
			registered{Owner: "kubeadm", LabelsAt: extra, TaintsAt: extra},
		},
		{
			"kubeadm, the config file has taints",
			files{unitDir + "10-kubeadm.conf": kubeadmUnit, "/var/lib/kubelet/config.yaml": oneTaint},
			registered{Owner: "kubeadm", Taints: abc, LabelsAt: extra, TaintsAt: envPlace("/etc/default/kubelet", abc...)},
		},
		{
			"kubeadm, joined",
			files{unitDir + "10-kubeadm.conf": kubeadmUnit, "/var/lib/kubelet/config.yaml": noTaints, "/etc/kubernetes/kubelet.conf": tokenConfig},
			registered{Owner: "kubeadm", LabelsAt: extra, TaintsAt: extra},
		},
		{
			"kubeadm's own flag for taints",
			files{
				unitDir + "10-kubeadm.conf":          kubeadmUnit,
				"/var/lib/kubelet/config.yaml":       oneTaint,
				"/var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=\"--node-labels=x=1 --register-with-taints=k=v:NoExecute,l:NoSchedule\"\n",
				"/etc/default/kubelet":               "KUBELET_EXTRA_ARGS='--node-labels=y=2,x=3' \\\n --v=2\n",
			},
			registered{
				Owner: "kubeadm", Labels: map[string]string{"x": "3", "y": "2"}, Taints: kl, LabelsAt: extra, TaintsAt: envPlace("/etc/default/kubelet", kl...),
			},
		},
		{
			"kubeadm of an RPM; of two flags the last wins, and what the variable states are no others",
			files{
				unitDir + "10-kubeadm.conf": strings.ReplaceAll(kubeadmUnit, "/etc/default/", "/etc/sysconfig/"),
				"/etc/sysconfig/kubelet":    "KUBELET_EXTRA_ARGS=--register-with-taints=a:NoSchedule --register-with-taints b=c:NoExecute\n",
			},
			registered{Owner: "kubeadm", Taints: []Taint{{"b", "c", "NoExecute"}}, LabelsAt: envPlace("/etc/sysconfig/kubelet"), TaintsAt: envPlace("/etc/sysconfig/kubelet")},
		},
		{
			"a variable that the unit sets",
			files{
				unitDir + "10-kubeadm.conf": kubeadmUnit,
				unitDir + "20-proxy.conf":   "[Service]\nEnvironment='KUBELET_EXTRA_ARGS=--v=4 --node-labels=z=1'\n",
			},
			registered{Owner: "kubeadm", Labels: map[string]string{"z": "1"}, LabelsAt: hiddenVariable, TaintsAt: hiddenVariable},
		},
		{
			"a variable that the unit sets, and the file too",
			files{
				unitDir + "10-kubeadm.conf": kubeadmUnit,
				unitDir + "20-proxy.conf":   "[Service]\nEnvironment='KUBELET_EXTRA_ARGS=--v=4 --node-labels=z=1'\n",
				"/etc/default/kubelet":      "KUBELET_EXTRA_ARGS=\n",
			},
			registered{Owner: "kubeadm", LabelsAt: extra, TaintsAt: extra},
		},
		{
			"taints after the variable",
			files{unitFile: "[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS --register-with-taints=l:NoSchedule\n"},
			registered{Taints: kl[1:], LabelsAt: extra, TaintsAt: statedTaints},
		},
		{
			"a plain unit",
			files{unitFile: service1(`/usr/bin/kubelet \` + "\n  --config=/k.yaml " + `\` + "\n  --v=2"), "/k.yaml": oneTaint},
			registered{Taints: abc, LabelsAt: noFlags, TaintsAt: noFlags},
		},
		{
			"a variable that no file sets",
			files{unitFile: service1("/usr/bin/kubelet $KUBELET_EXTRA_ARGS")},
			registered{LabelsAt: noFlags, TaintsAt: noFlags},
		},
		{
			"a variable in braces is one argument",
			files{unitFile: "[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=/usr/bin/kubelet ${KUBELET_EXTRA_ARGS}\n"},
			registered{LabelsAt: noFlags, TaintsAt: noFlags},
		},
		{
			"a wrapper",
			files{unitFile: service1("/usr/local/bin/start-node --node-labels=a=b")},
			registered{LabelsAt: Place{Why: "kubelet.service does not start kubelet itself"}, TaintsAt: Place{Why: "kubelet.service does not start kubelet itself"}},
		},
		{
			"no unit",
			files{"/usr/bin/kubelet": "x"},
			registered{LabelsAt: Place{Why: "there is no unit kubelet.service"}, TaintsAt: Place{Why: "there is no unit kubelet.service"}},
		},
		{
			"nodeadm",
			files{
				unitFile:                              "[Service]\nEnvironmentFile=/etc/eks/kubelet/environment\nExecStart=/usr/bin/kubelet $NODEADM_KUBELET_ARGS\n",
				"/etc/eks/kubelet/environment":        "NODEADM_KUBELET_ARGS=--config=/etc/kubernetes/kubelet/config.json --config-dir=/etc/kubernetes/kubelet/config.json.d --node-labels=\"eks.amazonaws.com/nodegroup=g\" --node-labels=nvidia.com/gpu.present=true\n",
				"/etc/kubernetes/kubelet/config.json": "{\n\t\"kind\": \"KubeletConfiguration\"}",
				"/etc/kubernetes/kubelet/config.json.d/40-nodeadm.conf": `{"registerWithTaints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}`,
			},
			registered{
				Owner: "nodeadm", Labels: map[string]string{"eks.amazonaws.com/nodegroup": "g", "nvidia.com/gpu.present": "true"},
				Taints:   []Taint{{"karpenter.sh/unregistered", "", "NoExecute"}},
				LabelsAt: noFlags, TaintsAt: confPlace("/etc/kubernetes/kubelet/config.json.d", Taint{"karpenter.sh/unregistered", "", "NoExecute"}),
			},
		},
		{
			"files of a folder replace the list",
			files{
				unitFile: service1("/usr/bin/kubelet --config /k.yaml --config-dir /k.d/"), "/k.yaml": oneTaint,
				"/k.d/10.conf": "registerWithTaints:\n- key: x\n  effect: NoSchedule\n", "/k.d/20.conf": `{"registerWithTaints": null}`, "/k.d/30.conf": "maxPods: 3\n", "/k.d/40.yaml": oneTaint,
			},
			registered{LabelsAt: noFlags, TaintsAt: confPlace("/k.d")},
		},
		{
			"ours in the folder are not among the others",
			files{
				unitFile: service1("/usr/bin/kubelet --config /k.yaml --config-dir /k.d/"), "/k.yaml": oneTaint,
				"/k.d/" + OwnConf: "registerWithTaints:\n- key: l\n  effect: NoSchedule\n",
			},
			registered{Taints: kl[1:], LabelsAt: noFlags, TaintsAt: confPlace("/k.d", abc...)},
		},
		{
			"a folder, and a flag that wins over it",
			files{unitFile: service1("/usr/bin/kubelet --config-dir /k.d --register_with_taints l:NoSchedule")},
			registered{Taints: kl[1:], LabelsAt: noFlags, TaintsAt: statedTaints},
		},
		{
			"a config file that kubelet is not told of",
			files{unitFile: service1("/usr/bin/kubelet"), "/var/lib/kubelet/config.yaml": oneTaint},
			registered{LabelsAt: noFlags, TaintsAt: noFlags},
		},
		{
			"AKS",
			files{
				"/opt/azure/containers/provision.sh": "x", "/usr/bin/containerd": "x",
				unitFile:               "[Service]\nEnvironmentFile=/etc/default/kubelet\nExecStart=/opt/bin/kubelet --node-labels=\"${KUBELET_NODE_LABELS}\" $KUBELET_FLAGS\n",
				"/opt/bin/kubelet":     "x",
				"/etc/default/kubelet": "KUBELET_FLAGS=--max-pods=110 --register-with-taints=sku=gpu:NoSchedule\nKUBELET_NODE_LABELS=agentpool=gpu,kubernetes.azure.com/accelerator=nvidia\n",
			},
			registered{
				Owner: "aks", Labels: map[string]string{"agentpool": "gpu", "kubernetes.azure.com/accelerator": "nvidia"}, Taints: []Taint{{"sku", "gpu", "NoSchedule"}},
				LabelsAt: noFlags, TaintsAt: noFlags,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, found := c.files[unitDir+"10-kubeadm.conf"]; found {
				c.files[unitFile] = service1("/usr/bin/kubelet")
			}
			k := gather(t, c.files).Kubelet
			check.None(t, cmp.Diff(c.want, registered{k.ConfigOwner, k.Labels, k.Taints, k.LabelsAt, k.TaintsAt}, cmpopts.EquateEmpty()), "got")
			text, err := json.Marshal(k)
			check.That(t, err == nil && !strings.Contains(string(text), "--v=4"), "a file's bytes are in the JSON: %s %v", text, err)
		})
	}
}

func TestRancherRegistration(t *testing.T) {
	base := func(start string, more files) files {
		v := files{"/etc/systemd/system/k3s-agent.service": service1(start), "/etc/hostname": "Gpu-1\n"}
		for k, c := range more {
			v[k] = c
		}
		return v
	}

	labelsAt := Place{
		How:  "drop-in",
		File: "/etc/rancher/k3s/config.yaml.d",
		Key:  "node-label+",
	}
	taintsAt := Place{
		How:  "drop-in",
		File: "/etc/rancher/k3s/config.yaml.d",
		Key:  "node-taint+",
	}
	for _, c := range []struct {
		name  string
		files files
		node  string
		want  registered
	}{
		{
			"files add up with +", base("/usr/local/bin/k3s agent", files{
				"/etc/rancher/k3s/config.yaml":           "node-label:\n- a=1\nnode-taint: x=y:NoSchedule\nnode-name: other\n",
				"/etc/rancher/k3s/config.yaml.d/10.yaml": "node-label+:\n- b=2\n", "/etc/rancher/k3s/config.yaml.d/20.yaml": "node-taint:\n- z:NoExecute\n", "/etc/rancher/k3s/config.yaml.d/30.txt": "node-taint: []\n",
			}), "other",
			registered{"k3s", map[string]string{"a": "1", "b": "2"}, []Taint{{"z", "", "NoExecute"}}, labelsAt, taintsAt},
		},
		{
			"the command line wins", base("/usr/local/bin/k3s agent --node-label c=3", files{"/etc/rancher/k3s/config.yaml": "node-label: [a=1]\n"}), "gpu-1",
			registered{"k3s", map[string]string{"c": "3"}, nil, Place{Why: "k3s-agent.service has --node-label on its command line, which its files cannot add to"}, taintsAt},
		},
		{
			"arguments for kubelet", base("/usr/local/bin/k3s agent", files{"/etc/rancher/k3s/config.yaml": "node-taint: [x:NoSchedule]\nkubelet-arg:\n- node-labels=a=1,b=2\n- register-with-taints=q:NoExecute\n- v=2\n"}), "gpu-1",
			registered{"k3s", map[string]string{"a": "1", "b": "2"}, []Taint{{"q", "", "NoExecute"}}, labelsAt, Place{Why: "k3s has register-with-taints in its kubelet-arg, which wins over node-taint"}},
		},
		{
			"a broken file", base("/usr/local/bin/k3s agent --config /c.yaml", files{"/c.yaml": "node-label: {a: b}\n\tx"}), "gpu-1",
			registered{"k3s", nil, nil, Place{How: "drop-in", File: "/c.yaml.d", Key: "node-label+"}, Place{How: "drop-in", File: "/c.yaml.d", Key: "node-taint+"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := gather(t, c.files).Kubelet
			check.None(t, cmp.Diff(c.want, registered{k.ConfigOwner, k.Labels, k.Taints, k.LabelsAt, k.TaintsAt}), "got")
			check.That(t, k.NodeName == c.node, "the node is %q, want %q", k.NodeName, c.node)
		})
	}
}

// TestSpecifiers: systemd puts the host's name into a command line, and into the unit's variables.
func TestSpecifiers(t *testing.T) {
	for lines, want := range map[string]string{
		"ExecStart=/usr/bin/kubelet --hostname-override=%H":                           "gpu-1.example.com",
		"ExecStart=/usr/bin/kubelet --hostname-override=%l":                           "gpu-1",
		"ExecStart=/usr/bin/kubelet --hostname-override=%%H":                          "%h",
		"Environment=NAME=%l\nExecStart=/usr/bin/kubelet --hostname-override=${NAME}": "gpu-1",
	} {
		f := gather(t, files{unitFile: "[Service]\n" + lines + "\n", "/etc/hostname": "gpu-1.example.com\n"})
		check.Equal(t, f.Kubelet.NodeName, want, "%s: the node is", lines)
	}
}

// TestRancherNodeName: before K3s has joined, its settings name the node, the unit's variable last;
// then the certificate does, with the id that K3s appends.
func TestRancherNodeName(t *testing.T) {
	const (
		unit = "[Service]\nEnvironmentFile=-/etc/systemd/system/k3s-agent.service.env\nExecStart=/usr/local/bin/k3s agent\n"
		env  = "/etc/systemd/system/k3s-agent.service.env"
		conf = "/etc/rancher/k3s/config.yaml"
		kube = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"
		pem  = "/var/lib/rancher/k3s/agent/client-kubelet.crt"
	)
	cert, _ := clientPEM(t, "system:node:gpu-1-0a1b2c3d")
	byFile := kubeconfigHead + "    client-certificate: " + pem + "\n    client-key: " + pem + "\n"
	for _, c := range []struct {
		name  string
		files files
		want  string
	}{
		{"no setting", files{}, "host"},
		{"a variable", files{env: "K3S_NODE_NAME=GPU-1\n"}, "gpu-1"},
		{"a setting and a variable", files{env: "K3S_NODE_NAME=other\n", conf: "node-name: gpu-1\n"}, "gpu-1"},
		{"joined with an id", files{conf: "node-name: gpu-1\nwith-node-id: true\n", kube: byFile, pem: cert}, "gpu-1-0a1b2c3d"},
	} {
		c.files["/etc/systemd/system/k3s-agent.service"] = unit
		c.files["/etc/hostname"] = "host\n"
		check.Equal(t, gather(t, c.files).Kubelet.NodeName, c.want, "%s: the node", c.name)
	}
}

// A kubeconfig with a token, and what is needed to make others.
var tokenConfig = kubeconfigHead + "    token: t0p.s3cret\n"

//go:embed testdata/kubeconfig-head.yaml
var kubeconfigHead string

func TestJoined(t *testing.T) {
	const pem = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	cert, end := clientPEM(t, "system:node:gpu-9")
	data := base64.StdEncoding.EncodeToString([]byte(cert))
	byFile := kubeconfigHead + "    client-certificate: " + pem + "\n    client-key: " + pem + "\n"
	exec := kubeconfigHead + "    exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: %s}\n"
	for _, c := range []struct {
		name    string
		files   files
		joined  bool
		expires bool
	}{
		{"no kubeconfig", nil, false, false},
		{"a token", files{"/k": tokenConfig}, true, false},
		{"a token file", files{"/k": kubeconfigHead + "    tokenFile: t\n", "/t": "x"}, true, false},
		{"a token file that is not there", files{"/k": kubeconfigHead + "    tokenFile: t\n"}, false, false},
		{"certificate and key in a file", files{"/k": byFile, pem: cert}, true, true},
		{"a certificate that is not there", files{"/k": byFile}, false, false},
		{"a broken certificate", files{"/k": byFile, pem: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, false, false},
		{"a certificate without its key", files{"/k": kubeconfigHead + "    client-certificate: " + pem + "\n", pem: cert}, false, true},
		{"inline", files{"/k": kubeconfigHead + "    client-certificate-data: " + data + "\n    client-key-data: eA==\n"}, true, true},
		{"inline nonsense", files{"/k": kubeconfigHead + "    client-certificate-data: '%%'\n    client-key-data: eA==\n"}, false, false},
		{"a program", files{"/k": strings.Replace(exec, "%s", "aws", 1), "/usr/bin/aws": "x"}, true, false},
		{"a program by its path", files{"/k": strings.Replace(exec, "%s", "/opt/x/y", 1), "/opt/x/y": "x"}, true, false},
		{"a program that is not there", files{"/k": strings.Replace(exec, "%s", "aws", 1)}, false, false},
		{"an empty file", files{"/k": ""}, false, false},
		{"another context", files{"/k": strings.Replace(tokenConfig, "current-context: x", "current-context: other", 1)}, false, false},
		{"no YAML", files{"/k": "\x00{[&*"}, false, false},
		{"too large", files{"/k": tokenConfig + strings.Repeat("#\n", maxParsed/2)}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := files{unitFile: service1("/usr/bin/kubelet --bootstrap-kubeconfig=/b --kubeconfig=/k --hostname-override=GPU-1")}
			for name, data := range c.files {
				v[name] = data
			}
			k := gather(t, v).Kubelet
			check.That(t, k.Joined == c.joined && k.Kubeconfig == "/k" && k.NodeName == "gpu-1", "%+v", k)
			check.That(t, k.Expired.IsZero() != c.expires && (!c.expires || k.Expired.Equal(end)), "it ends at %v, want %v", k.Expired, end)
			for _, f := range k.Files {
				check.That(t, f.Path != "/k" && f.Path != pem, "%s, which holds a secret, is among the files", f.Path)
			}
		})
	}
}

// private is a machine with a folder that only root may enter, as kubelet makes /var/lib/kubelet.
type private struct {
	files
	folder string
}

func (v private) Stat(name string) (host.Info, error) {
	if strings.HasPrefix(name, v.folder+"/") {
		return host.Info{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrPermission}
	}
	return v.files.Stat(name)
}

func (v private) ReadFile(name string) ([]byte, error) {
	if strings.HasPrefix(name, v.folder+"/") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return v.files.ReadFile(name)
}

// TestJoinedInPrivate: credentials that gpuadm, without root, cannot look at count as valid, also if
// it may not enter their folder.
func TestJoinedInPrivate(t *testing.T) {
	const folder = "/var/lib/kubelet"
	for _, users := range []string{
		"    client-certificate: " + folder + "/p\n    client-key: " + folder + "/p\n",
		"    tokenFile: " + folder + "/t\n",
	} {
		v := files{
			unitFile: service1("/usr/bin/kubelet --kubeconfig=/k"),
			"/k":     kubeconfigHead + users,
		}
		f, err := Gather(t.Context(), private{v, folder}, Needs{})
		check.That(t, err == nil && f.Kubelet.Joined, "%s%v: %+v", users, err, f.Kubelet)
	}
}

// TestRotated: what was read of one certificate must not be reported for the next.
func TestRotated(t *testing.T) {
	const pem = "/p"
	first, _ := clientPEM(t, "a")
	v := files{unitFile: service1("/usr/bin/kubelet --kubeconfig=/k"), "/k": kubeconfigHead + "    client-certificate: /p\n    client-key: /p\n", pem: first}
	c := Cache{view: nil}
	view := &v
	at := func() Kubelet {
		t.Helper()
		f := must.Get(c.Gather(t.Context(), view, Needs{}))(t)
		return f.Kubelet
	}

	k := at()
	check.That(t, k.Joined && !k.Expired.IsZero(), "%+v", k)
	v[pem] = "gone bad"
	k = at()
	check.That(t, !k.Joined && k.Expired.IsZero(), "a certificate that is no more: %+v", k)
	v[pem] = first
	v["/k"] = "users: []\n"
	k = at()
	check.That(t, !k.Joined, "a kubeconfig that is no more: %+v", k)
}
