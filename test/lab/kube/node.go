// SPDX-License-Identifier: Apache-2.0

package kube

import (
	_ "embed"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// Node is a host on the cluster's network, with kubelet and kubeadm on its disk. Whether it joins
// is up to the test.
type Node struct {
	*lab.Host
	// Name is the host's, and what its kubelet registers as.
	Name string
	// IP is its address.
	IP string

	t       *T
	clouded bool // it is in a cloud
}

// devplug is where a node has the device plugin.
const devplug = "/usr/lib/gpuadm-lab/devplug"

// Boot boots a host with kubelet, a container engine, and images for pods, on the cluster's
// network. Nothing starts kubelet: there is no unit, and no configuration. Host and Node object go
// when the test ends.
func (t *T) Boot(name string, o lab.Options) *Node {
	t.Helper()
	parts := must.Get(Find())(t)
	t.mutex.Lock()
	t.hosts++
	octet := 10 + t.hosts%200
	t.mutex.Unlock()
	n := &Node{Name: name, IP: fmt.Sprintf("10.200.0.%d", octet), t: t}
	o.Name, o.Kubelet = name, true
	o.Wire = &lab.Wire{
		Namespace: t.network.path(), Bridge: bridge, Address: n.IP + "/24", Gateway: address,
		Pods: fmt.Sprintf("10.244.%d.0/24", octet),
	}
	files := map[string]string{"/usr/bin/kubelet": parts.Path("kubelet"), "/usr/bin/kubeadm": parts.Path("kubeadm"), devplug: parts.Path("devplug")}
	maps.Copy(files, o.Files)
	o.Files = files
	t.Cleanup(func() { t.Delete("/api/v1/nodes/" + name) }) // once the host is off
	n.Host = lab.Boot(t.TB, o)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what kubelet of %s said last:\n%s", name, n.Exec("journalctl", "--no-pager", "--lines=80", "--output=cat", "--unit=kubelet.service", "--unit=gpuadm.service", "--unit=gpuadm-ready.service"))
		}
	})
	n.ImportImages()
	return n
}

// LabConfig is what kubelet's configuration needs on the lab's hosts beside what it needs on any
// node: the machine may have cgroups of the first version, it may not lower out-of-memory scores,
// its disk may be rather full, and tests do not want to wait.
func LabConfig() Object {
	return Object{
		"failCgroupV1": false, "oomScoreAdj": 0, "failSwapOn": false, "resolvConf": "/dev/null",
		"nodeStatusUpdateFrequency": "1s", "fileCheckFrequency": "1s", "imageGCHighThresholdPercent": 100,
		"evictionHard": Object{"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
	}
}

// LabConfigFile is LabConfig as the text of a file, for kubelet_config of gpuadm's [join].
func LabConfigFile() string { return configFile(LabConfig()) }

// kubeletConfig is the configuration of the cluster's kubelets, as kubeadm notes it.
func kubeletConfig() Object {
	config := LabConfig()
	maps.Copy(config, Object{
		"authentication": Object{
			"anonymous": Object{"enabled": false}, "webhook": Object{"enabled": true}, "x509": Object{"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
		},
		"authorization": Object{"mode": "Webhook"}, "cgroupDriver": "systemd", "rotateCertificates": true,
		"clusterDNS": []string{dns}, "clusterDomain": "cluster.local", "staticPodPath": "/etc/kubernetes/manifests",
	})
	return config
}

// configFile is a kubelet's configuration in YAML, as kubeadm writes it.
func configFile(o Object) string {
	o = maps.Clone(o)
	o["apiVersion"], o["kind"] = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	text, err := yaml.Marshal(o)
	if err != nil {
		panic(err) // an Object of texts, numbers and their like has YAML
	}
	return string(text)
}

// Kubeadm is what a node looks like that kubeadm has joined, with kubelet's package.
type Kubeadm struct {
	// Token is the bootstrap token; "" leaves the bootstrap kubeconfig away.
	Token string
	// Config is merged over kubelet's configuration.
	Config Object
	// Flags are in kubeadm's kubeadm-flags.env, ExtraFlags in the package's /etc/default/kubelet,
	// for people.
	Flags, ExtraFlags string
}

//go:embed testdata/kubelet.service
var kubeletUnit string

// Packages puts on a host what the packages kubelet and kubeadm put there, but for the time between
// kubelet's attempts: it tries in vain until the machine has joined. Source:
// cmd/krel/templates/latest/kubelet and kubeadm of https://github.com/kubernetes/release, at
// f618b2a3.
func (n *Node) Packages() {
	n.t.Helper()
	n.Put("/usr/lib/systemd/system/kubelet.service", kubeletUnit, 0o600)
	n.Put("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`, 0o644)
	n.Put("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=\n", 0o644)
	n.Must("mkdir", "-p", "/etc/kubernetes/manifests", "/var/lib/kubelet")
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "kubelet.service")
}

// Join has kubeadm join the host, which has Packages, by a token that is good for an hour, and
// returns that.
func (n *Node) Join() (token string) {
	n.t.Helper()
	token = n.t.Token()
	n.Must("sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
	// On a machine with cgroups of the first version kubeadm's preflight refuses a kubelet of 1.35
	// and newer, whatever its configuration says.
	n.Put("/run/join.yaml", fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {apiServerEndpoint: "%s:%s", token: %s, caCertHashes: ["%s"]}
nodeRegistration:
  name: %s
  criSocket: unix:///run/containerd/containerd.sock
  ignorePreflightErrors: [SystemVerification]
`, address, port, token, n.t.Pin(), n.Name), 0o600)
	n.t.Log(n.Must("kubeadm", "join", "--config", "/run/join.yaml"))
	n.Must("rm", "/run/join.yaml")
	return token
}

// Kubeadm puts the files on a node that Packages has and kubeadm join writes, and enables kubelet.
// It does not start it.
// Source: docs/reference/setup-tools/kubeadm/kubeadm-join and kubelet-integration, on
// kubernetes.io.
func (n *Node) Kubeadm(k Kubeadm) {
	n.t.Helper()
	n.Packages()
	config := kubeletConfig()
	config["containerRuntimeEndpoint"] = "unix:///run/containerd/containerd.sock"
	maps.Copy(config, k.Config)
	files := map[string]string{
		"/etc/kubernetes/pki/ca.crt":         string(n.t.CA()),
		"/var/lib/kubelet/config.yaml":       configFile(config),
		"/var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=" + strconv.Quote(k.Flags) + "\n",
		"/etc/default/kubelet":               "KUBELET_EXTRA_ARGS=" + k.ExtraFlags + "\n",
	}
	if k.Token != "" {
		text := must.Get(n.t.BearerConfig(Server, k.Token))(n.t)
		files["/etc/kubernetes/bootstrap-kubelet.conf"] = text
	}
	for name, text := range files {
		n.Put(name, text, 0o600)
	}
}

// Object is the node's Node; nil if there is none.
func (n *Node) Object() Object {
	n.t.Helper()
	return n.t.Look("/api/v1/nodes/" + n.Name)
}

// Ready waits until the node says that it is ready, in this boot.
func (n *Node) Ready() {
	n.t.Helper()
	boot := n.BootID()
	n.t.Until(n.Name+" is ready", func() string {
		o := n.Object()
		if o == nil {
			return "there is no such Node"
		}
		if is := Text(o, "status", "nodeInfo", "bootID"); is != boot {
			return "its Node is that of the boot " + is
		}
		if c := Condition(o, "Ready"); c["status"] != "True" {
			return fmt.Sprint("its condition is ", c)
		}
		return ""
	})
}

// Condition is a condition of a Node or pod; nil if it has none.
func Condition(o Object, kind string) Object {
	for _, c := range List(o, "status", "conditions") {
		if c["type"] == kind {
			return c
		}
	}
	return nil
}

// Taints are a Node's, as kubectl takes them, in the Node's order: "key=value:Effect".
func Taints(o Object) (list []string) {
	for _, t := range List(o, "spec", "taints") {
		text := Text(t, "key")
		if value := Text(t, "value"); value != "" {
			text += "=" + value
		}
		list = append(list, text+":"+Text(t, "effect"))
	}
	return list
}

// Devices starts a device plugin with as many devices nvidia.com/gpu, now and at each boot.
func (n *Node) Devices(count int) {
	n.t.Helper()
	n.devices("-n " + strconv.Itoa(count))
}

// NamedDevices is Devices with the resource's name and the names that the plugin gives the devices.
func (n *Node) NamedDevices(resource string, ids ...string) {
	n.t.Helper()
	n.devices("-name " + resource + " -ids " + strings.Join(ids, ","))
}

func (n *Node) devices(which string) {
	n.t.Helper()
	n.Put("/etc/systemd/system/devplug.service", "[Unit]\nDescription=devices that are not there\nAfter=kubelet.service\n"+
		"[Service]\nExecStart="+devplug+" "+which+"\nRestart=always\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "devplug.service")
	n.Must("systemctl", "restart", "devplug.service")
}

// Allocatable waits until the node has as many of a kind of device to give.
func (n *Node) Allocatable(device string, want int) {
	n.t.Helper()
	n.t.Until(n.Name+" has devices", func() string {
		if has := Text(n.Object(), "status", "allocatable", device); has != strconv.Itoa(want) {
			return fmt.Sprintf("%q of %s, not %d", has, device, want)
		}
		return ""
	})
}

// PodReady waits until a pod runs and is ready.
func (t *T) PodReady(namespace, pod string) {
	t.Helper()
	t.Until("pod "+pod+" is ready", func() string {
		o := t.Look("/api/v1/namespaces/" + namespace + "/pods/" + pod)
		if Condition(o, "Ready")["status"] == "True" {
			return ""
		}
		return fmt.Sprint(At(o, "status"))
	})
}

// Describe says for a failed test what the API server has of a node: labels, taints and conditions.
func (n *Node) Describe() string {
	o := n.Object()
	return strings.Join([]string{fmt.Sprint(At(o, "metadata", "labels")), fmt.Sprint(Taints(o)), fmt.Sprint(At(o, "status", "conditions"))}, "\n")
}
