// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
)

// configure writes all files.
func configure(node cached) error {
	if err := engine(node); err != nil {
		return err
	}
	return kubelet(node)
}

// engine writes containerd's configuration: the handler is NVIDIA's where its runtime is installed
// by now. The format is that of containerd 1, which the lab's hosts with kubelet have.
func engine(node cached) error {
	name := "runc"
	binary := "/usr/sbin/runc"
	if exists("/usr/bin/nvidia-container-runtime") {
		name = "nvidia"
		binary = "/usr/bin/nvidia-container-runtime"
	}
	handler := table{
		"runtime_type":      "io.containerd.runc.v2",
		"base_runtime_spec": "/etc/containerd/base-runtime-spec.json",
		"options":           table{"BinaryName": binary, "SystemdCgroup": true},
	}
	config := table{
		"version": 2,
		"root":    "/var/lib/containerd",
		"state":   "/run/containerd",
		"grpc":    table{"address": "/run/containerd/containerd.sock"},
		"plugins": table{"io.containerd.grpc.v1.cri": table{
			"sandbox_image": "localhost/kubernetes/pause:latest",
			"enable_cdi":    true,
			"registry":      table{"config_path": "/etc/containerd/certs.d:/etc/docker/certs.d"},
			"cni":           table{"bin_dir": "/opt/cni/bin", "conf_dir": "/etc/cni/net.d"},
			"containerd": table{
				"default_runtime_name":    name,
				"discard_unpacked_layers": true,
				"runtimes":                table{name: handler},
			},
		}},
	}

	containerd, _ := node.Spec["containerd"].(table)
	if text, _ := containerd["config"].(string); text != "" {
		var more table
		if err := toml.Unmarshal([]byte(text), &more); err != nil {
			return err
		}
		config = merge(config, more)
	}

	text, err := toml.Marshal(config)
	if err != nil {
		return err
	}
	if err := write("/etc/containerd/base-runtime-spec.json", runtimeSpec); err != nil {
		return err
	}
	return write("/etc/containerd/config.toml", string(text))
}

// runtimeSpec is the least from which runc makes a container's own.
const runtimeSpec = `{"ociVersion":"1.1.0","process":{"cwd":"/","user":{"uid":0,"gid":0},"rlimits":[{"type":"RLIMIT_NOFILE","soft":65536,"hard":1048576}]},
"mounts":[{"destination":"/proc","type":"proc","source":"proc"},{"destination":"/dev","type":"tmpfs","source":"tmpfs"},{"destination":"/sys","type":"sysfs","source":"sysfs","options":["ro"]}],
"linux":{"namespaces":[{"type":"pid"},{"type":"ipc"},{"type":"uts"},{"type":"mount"},{"type":"network"}]},"root":{"path":"rootfs"}}`

// kubelet writes kubelet's files.
func kubelet(node cached) error {
	cluster, _ := node.Spec["cluster"].(table)
	value := func(key string) string {
		text, _ := cluster[key].(string)
		return text
	}

	ca, err := base64.StdEncoding.DecodeString(value("certificateAuthority"))
	if err != nil {
		return err
	}
	services, err := netip.ParsePrefix(value("cidr"))
	if err != nil {
		return err
	}
	tenth := services.Masked().Addr() // EKS's cluster DNS
	for range 10 {
		tenth = tenth.Next()
	}
	ip, err := metadata("/latest/meta-data/local-ipv4")
	if err != nil {
		return err
	}

	const kind, version = "KubeletConfiguration", "kubelet.config.k8s.io/v1beta1"
	instance := node.Status.Instance
	config := table{
		"kind":                     kind,
		"apiVersion":               version,
		"cgroupDriver":             "systemd",
		"cgroupRoot":               "/",
		"clusterDNS":               []any{tenth.String()},
		"clusterDomain":            "cluster.local",
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
		"providerID":               "aws:///" + instance.Zone + "/" + instance.ID,
		"serverTLSBootstrap":       true,
		"protectKernelDefaults":    true,
		"serializeImagePulls":      false,
		"authorization":            table{"mode": "Webhook"},
		"authentication": table{
			"anonymous": table{"enabled": false},
			"webhook":   table{"enabled": true},
			"x509":      table{"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
		},
	}
	flags := []string{
		"--cloud-provider=external", "--hostname-override=" + instance.Name, "--node-ip=" + ip,
		"--config=/etc/kubernetes/kubelet/config.json", "--kubeconfig=/var/lib/kubelet/kubeconfig",
		"--runtime-cgroups=/runtime.slice/containerd.service",
	}
	kubeletSpec, _ := node.Spec["kubelet"].(table)
	files := map[string]any{"/etc/kubernetes/kubelet/config.json": config}
	if more, _ := kubeletSpec["config"].(table); len(more) > 0 {
		dropIn := merge(table{"kind": kind, "apiVersion": version}, more)
		files["/etc/kubernetes/kubelet/config.json.d/40-nodeadm.conf"] = dropIn
		flags = append(flags, "--config-dir=/etc/kubernetes/kubelet/config.json.d")
	}

	for name, object := range files {
		text, err := json.MarshalIndent(object, "", "    ")
		if err != nil {
			return err
		}
		if err := write(name, string(text)); err != nil {
			return err
		}
	}

	list, _ := kubeletSpec["flags"].([]any)
	for _, flag := range list {
		flags = append(flags, fmt.Sprint(flag))
	}

	kubeconfig, err := kubeconfigOf(value("apiServerEndpoint"), value("name"), instance.Region)
	return errors.Join(err,
		write("/var/lib/kubelet/kubeconfig", string(kubeconfig)),
		write("/etc/kubernetes/pki/ca.crt", string(ca)),
		write("/etc/eks/kubelet/environment", "NODEADM_KUBELET_ARGS="+strings.Join(flags, " ")))
}

// kubeconfigOf is kubelet's kubeconfig: the AWS command line gets its tokens.
func kubeconfigOf(server, cluster, region string) ([]byte, error) {
	login := table{
		"apiVersion": "client.authentication.k8s.io/v1beta1",
		"command":    "aws",
		"args":       []any{"eks", "get-token", "--cluster-name", cluster, "--region", region},
	}
	endpoint := table{"certificate-authority": "/etc/kubernetes/pki/ca.crt", "server": server}

	return yaml.Marshal(table{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "kubelet",
		"clusters":        []any{table{"name": "kubernetes", "cluster": endpoint}},
		"contexts":        []any{table{"name": "kubelet", "context": table{"cluster": "kubernetes", "user": "kubelet"}}},
		"users":           []any{table{"name": "kubelet", "user": table{"exec": login}}},
	})
}

// metadata asks EC2's metadata service.
func metadata(path string) (string, error) {
	client := &http.Client{Transport: &http.Transport{Proxy: nil}}
	ask := func(method, path, header, value string) (string, error) {
		r, err := http.NewRequest(method, "http://169.254.169.254"+path, nil)
		if err != nil {
			return "", err
		}
		r.Header.Set("X-aws-ec2-metadata-"+header, value)
		answer, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return "", fmt.Errorf("cannot ask for %s: status %d", path, answer.StatusCode)
		}

		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	// The service may come up late, as at boot: nodeadm asks sixty times, a second apart at most
	// (its internal/aws/imds).
	token, err := "", error(nil)
	for try := 0; ; try++ {
		token, err = ask(http.MethodPut, "/latest/api/token", "token-ttl-seconds", "300")
		if err == nil {
			break
		}
		if try == 60 {
			return "", err
		}
		time.Sleep(time.Second)
	}

	return ask(http.MethodGet, path, "token", token)
}
