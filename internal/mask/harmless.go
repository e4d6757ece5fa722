// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"slices"
	"strings"
)

// isHarmless reports whether the value of a secret-looking key is not a secret: a path to the
// secret, a variable, a yes or no.
func isHarmless(name, value string) bool {
	switch strings.ToLower(value) {
	case "", "true", "false", "yes", "no", "on", "off", "always", "never",
		"null", "none", "nil", "[]", "{}", "~",
		"auto", "both", "metadata", "packages": // values of signature in node.toml
		return true
	}

	if isPath(value) || isVariable(value) || isCodePoint(value) {
		return true
	}

	words := splitName(name)
	if len(words) == 1 && words[0] == "key" { // of a label, in a toleration or a selector
		return isLabelKey(value)
	}
	return false
}

// isCodePoint reports whether a value names a character, as errors of TOML do: U+005B.
func isCodePoint(value string) bool {
	hex, ok := strings.CutPrefix(value, "U+")
	return ok && len(hex) >= 4 && len(hex) <= 6 && strings.Trim(hex, digits+"ABCDEF") == ""
}

// isLabelKey reports whether a value is the key of a label or a taint, made of words.
func isLabelKey(value string) bool {
	if value == "" || len(value) > 63 {
		return false
	}

	allowed := small + "._/-"
	domain, _, prefixed := strings.Cut(value, "/")
	if prefixed && strings.Contains(domain, ".") {
		allowed += letters + digits
	}
	return strings.Trim(value, allowed) == ""
}

// isPath reports whether a value is a path to a file, below a folder that holds files. A secret may
// begin with a slash as well.
func isPath(value string) bool {
	value = strings.TrimPrefix(value, "file://")
	value = strings.TrimPrefix(value, "unix://")
	if len(value) > 255 || !strings.HasPrefix(value, "/") {
		return false
	}
	if strings.Trim(value, letters+digits+"/._-@%+:~$,{}*") != "" {
		return false
	}

	switch value {
	case "/", "/root", "/dev", "/run":
		return true
	}

	for _, dir := range []string{
		"/bin/", "/boot/", "/dev/", "/etc/", "/home/", "/lib/", "/lib64/", "/mnt/", "/opt/", "/proc/",
		"/root/", "/run/", "/sbin/", "/srv/", "/sys/", "/tmp/", "/usr/", "/var/",
	} {
		if strings.HasPrefix(value, dir) {
			return true
		}
	}

	return false
}

// isVariable reports whether a value is $NAME, ${NAME} or a systemd specifier, and nothing else.
func isVariable(value string) bool {
	name, dollar := strings.CutPrefix(value, "$")
	if !dollar {
		return len(value) == 2 && value[0] == '%' && letter(value[1])
	}

	name = strings.TrimPrefix(name, "{")
	name = strings.TrimSuffix(name, "}")
	if !isIdentifier(name) || digit(name[0]) || len(name) > 64 {
		return false
	}
	return name == strings.ToUpper(name) || name == strings.ToLower(name)
}

// isHarmlessValue reports whether a value shows by its form that it is not a secret: a switch, a
// small number, a time, a path, a variable.
func isHarmlessValue(value string) bool {
	if isHarmless("", value) {
		return true
	}

	unit := strings.TrimLeft(value, digits)
	count := len(value) - len(unit)
	switch unit {
	case "", "ms", "s", "m", "h", "Ki", "Mi", "Gi", "K", "M", "G", "%":
		return count > 0 && count <= 5
	}

	return false
}

// looksGenerated reports whether a word in a sentence may be a secret: it has letters and digits,
// and is not a path.
func looksGenerated(word string) bool {
	hasBoth := strings.ContainsAny(word, letters) && strings.ContainsAny(word, digits)
	return len(word) >= 6 && hasBoth && !isPath(word)
}

// isHarmlessVariable reports whether a variable is known to hold no secret: those of
// systemd.exec(5), of the Go runtime, and those that set up kubelet, containerd and NVIDIA's
// container toolkit.
func isHarmlessVariable(name string) bool {
	switch name {
	case "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR",
		"HOSTNAME", "NODENAME", "NODE_NAME", "NODE_IP", "LD_LIBRARY_PATH", "DEBIAN_FRONTEND",
		"LISTEN_FDS", "NOTIFY_SOCKET", "JOURNAL_STREAM",
		"GOMAXPROCS", "GOGC", "GODEBUG", "GOTRACEBACK", "GOMEMLIMIT",
		"CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE", "CONTAINERD_LOG_LEVEL",
		"CONTAINER_RUNTIME_ENDPOINT", "CONTAINER_LOG_LEVEL", "LOG_LEVEL",
		"KUBELET_NODE_LABELS", "KUBELET_CONTAINER_RUNTIME", "KUBERNETES_VERSION", "KUBE_VERSION",
		"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA",
		"CUDA_VISIBLE_DEVICES":
		return true
	}
	return strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "XDG_")
}

// isHarmlessFlag reports whether a flag is known to hold no secret and helps a reader of the
// recording: flags of kubelet, containerd, dockerd, CRI-O and NVIDIA's daemons, from their own help
// texts.
func isHarmlessFlag(flag string) bool {
	switch strings.TrimLeft(flag, "-") {
	case "config", "config-dir", "config-file", "config-source", "config-cache", "c",
		"kubeconfig", "bootstrap-kubeconfig", "resolv-conf",
		"address", "bind-address", "host", "H", "server", "hostname-override", "name", "user", "node-ip",
		"cluster-dns", "cluster-domain", "cloud-provider", "read-only-port", "userland-proxy-path",
		"cni-bin-dir", "cni-conf-dir", "network-plugin",
		"container-runtime", "container-runtime-endpoint", "image-service-endpoint", "containerd",
		"runtime", "default-runtime", "add-runtime", "runtime-request-timeout", "pod-infra-container-image",
		"image-credential-provider-bin-dir", "image-credential-provider-config",
		"cgroup-driver", "cgroup-root", "runtime-cgroups", "system-cgroups", "kubelet-cgroups",
		"exec-opt", "exec-opts", "init", "feature-gates", "fail-swap-on", "protect-kernel-defaults",
		"kube-reserved", "system-reserved", "reserved-cpus", "eviction-hard", "max-pods",
		"cpu-manager-policy", "topology-manager-policy", "pod-manifest-path",
		"node-label", "node-labels", "node-taint", "register-node", "register-with-taints",
		"log-driver", "log-level", "logging-format", "l", "v", "verbose",
		"root", "root-dir", "data-root", "state", "storage-driver", "volume-plugin-dir",
		"tls-cipher-suites", "tls-min-version", "tls-cert-file", "tls-private-key-file",
		"authorization-mode", "client-ca-file", "rotate-certificates", "anonymous-auth",
		"persistence-mode", "signal", "s", "skip", "P":
		return true
	}
	return false
}

// takesNoValue reports whether a flag is known to take no value, so that the next word is not one:
// flags of systemctl(1), and gpuadm's.
func takesNoValue(flag string) bool {
	return slices.Contains([]string{
		"--no-block", "--now", "--no-reload", "--no-ask-password", "--quiet", "--force",
		"--boot", "--unattended",
	}, flag)
}
