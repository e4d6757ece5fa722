// SPDX-License-Identifier: Apache-2.0

package mask

import (
	"slices"
	"strings"
)

// setting is a kind of a unit's settings.
type setting int

const (
	other       setting = iota
	commandLine         // ExecStart= and its like: systemd.service(5)
	environment         // Environment=: systemd.exec(5)
	sealed              // SetCredential=: systemd.exec(5)
)

func settingOf(key string) setting {
	switch {
	case key == "Environment":
		return environment
	case key == "SetCredential", key == "SetCredentialEncrypted":
		return sealed
	case strings.HasPrefix(key, "Exec") && slices.Contains([]string{"Start", "StartPre", "StartPost", "Condition", "Reload", "Stop", "StopPost"}, key[4:]):
		return commandLine
	}
	return other
}

// unit masks a line of a unit's file that holds a command or variables, and a line of a file of
// variables: of these all values are blank, but those that are known to be harmless.
func (m *masker) unit(s string) (string, bool) {
	kind, lead, value := m.going, "", s
	if kind == other {
		key, rest, ok := strings.Cut(s, "=")
		key = strings.TrimSpace(key)
		bare := strings.TrimLeft(key, "#; ")
		switch kind = settingOf(bare); {
		case !ok:
			return s, false
		case kind != other:
			lead, value, m.flag = s[:len(s)-len(rest)], rest, ""
		case m.variables && isName(strings.TrimPrefix(bare, "export ")):
			return s[:len(s)-len(rest)] + m.variable(strings.TrimPrefix(bare, "export "), rest, true), true
		default:
			return s, false
		}
	}
	body, goesOn := strings.CutSuffix(value, `\`)
	m.going = other
	if goesOn {
		m.going = kind
	}
	switch kind {
	case sealed:
		name, value, ok := strings.Cut(body, ":")
		switch {
		case lead == "":
			body = "  " + Mark
		case ok && strings.TrimSpace(value) != "":
			body = name + ":" + Mark
		}
	case environment:
		body = m.assignments(body)
	case commandLine:
		body = m.command(body, lead != "")
	}
	if goesOn {
		body += `\`
	}
	return lead + body, true
}

func isName(s string) bool { return s != "" && strings.Trim(s, letters+digits+"_") == "" }

// quotedWord is a word of a command line, as systemd splits it.
type quotedWord struct{ before, quote, text string }

// systemdWords splits a line at blanks; in quotes they are a part of a word.
func systemdWords(s string) (words []quotedWord, after string) {
	for {
		rest := strings.TrimLeft(s, " \t")
		w := quotedWord{before: s[:len(s)-len(rest)]}
		if rest == "" {
			return words, w.before
		}
		end := 0
		if rest[0] == '"' || rest[0] == '\'' {
			if end = closing(rest, 0); end > 0 && (end == len(rest) || rest[end] == ' ' || rest[end] == '\t') {
				w.quote, w.text = rest[:1], rest[1:end-1]
				words, s = append(words, w), rest[end:]
				continue
			}
		}
		// Quotes may begin within a word: --flag="a b". One that does not close goes to the end of
		// the line.
		for end = 0; end < len(rest) && rest[end] != ' ' && rest[end] != '\t'; {
			if rest[end] == '"' || rest[end] == '\'' {
				close := closing(rest, end)
				if close < 0 {
					close = len(rest)
				}
				end = close
				continue
			}
			end++
		}
		w.text, s = rest[:end], rest[end:]
		words = append(words, w)
	}
}

// assignments masks the values of NAME=value words.
func (m *masker) assignments(s string) string {
	words, after := systemdWords(s)
	var out strings.Builder
	for _, w := range words {
		name, value, ok := strings.Cut(w.text, "=")
		out.WriteString(w.before + w.quote)
		switch {
		case ok && isName(strings.Trim(name, `"'`)):
			out.WriteString(name + "=" + m.variable(strings.Trim(name, `"'`), value, w.quote != ""))
		default: // what no variable begins is the rest of a value
			out.WriteString(Mark)
		}
		out.WriteString(w.quote)
	}
	return out.String() + after
}

// variable masks the value of a variable, unless it is known to be harmless.
func (m *masker) variable(name, value string, whole bool) string {
	quote, plain, tail := "", value, ""
	if whole {
		plain = strings.TrimRight(value, " \t")
		value, tail = plain, value[len(plain):]
	}
	if len(plain) > 1 && (plain[0] == '"' || plain[0] == '\'') && plain[len(plain)-1] == plain[0] {
		quote, plain = plain[:1], plain[1:len(plain)-1]
	}
	goesOn := ""
	if rest, is := strings.CutSuffix(plain, `\`); is && whole && quote == "" {
		plain, goesOn = rest, `\`
	}
	upper := strings.ToUpper(name)
	switch {
	case secret(name) && !harmless(name, plain):
		plain = Mark
	case slices.ContainsFunc([]string{"_ARGS", "_OPTS", "_OPTIONS", "_FLAGS"}, func(end string) bool { return strings.HasSuffix(upper, end) }):
		m.flag = ""
		plain = m.command(plain, false)
	case strings.HasSuffix(upper, "_PROXY") && !strings.Contains(strings.ReplaceAll(plain, Mark+"@", ""), "@"), plainVariable(upper), harmlessValue(plain), plain == Mark:
	default:
		plain = Mark
	}
	return quote + plain + goesOn + quote + tail
}

// plainVariable says whether a variable is known to hold no secret: those of systemd.exec(5), of
// the Go runtime, and those by which kubelet, containerd and NVIDIA's container toolkit are set up.
func plainVariable(name string) bool {
	switch name {
	case "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "HOSTNAME", "NODENAME", "NODE_NAME", "NODE_IP", "LD_LIBRARY_PATH",
		"GOMAXPROCS", "GOGC", "GODEBUG", "GOTRACEBACK", "GOMEMLIMIT", "LISTEN_FDS", "NOTIFY_SOCKET", "JOURNAL_STREAM", "DEBIAN_FRONTEND",
		"CONTAINER_RUNTIME_ENDPOINT", "CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE", "CONTAINERD_LOG_LEVEL", "CONTAINER_LOG_LEVEL", "LOG_LEVEL", "KUBELET_NODE_LABELS", "KUBERNETES_VERSION",
		"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "CUDA_VISIBLE_DEVICES", "KUBE_VERSION", "KUBELET_CONTAINER_RUNTIME":
		return true
	}
	return strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "XDG_")
}

// harmlessValue says whether a value tells by its form that it is none: a switch, a small number, a
// time, a path, a variable.
func harmlessValue(value string) bool {
	if harmless("", value) {
		return true
	}
	unit := strings.TrimLeft(value, "0123456789")
	n := len(value) - len(unit)
	switch unit {
	case "", "ms", "s", "m", "h", "Mi", "Gi", "Ki", "M", "G", "K", "%":
		return n > 0 && n <= 5
	}
	return false
}

// plainFlag says whether a flag is known to hold no secret, and is of use to a reader of the
// recording: flags of kubelet, containerd, dockerd, CRI-O and NVIDIA's daemons, by their own help
// texts.
func plainFlag(flag string) bool {
	switch strings.TrimLeft(flag, "-") {
	case "address", "bind-address", "cgroup-driver", "cgroup-root", "cloud-provider", "cluster-dns", "cluster-domain", "cni-bin-dir", "cni-conf-dir", "config", "config-dir", "config-file",
		"container-runtime", "container-runtime-endpoint", "containerd", "config-source", "config-cache", "c", "default-runtime", "eviction-hard", "exec-opt", "exec-opts", "feature-gates", "fail-swap-on",
		"host", "hostname-override", "H", "image-credential-provider-bin-dir", "image-credential-provider-config", "image-service-endpoint", "kube-reserved", "kubeconfig", "bootstrap-kubeconfig",
		"log-driver", "log-level", "logging-format", "l", "max-pods", "network-plugin", "node-ip", "node-label", "node-labels", "node-taint", "pod-infra-container-image", "pod-manifest-path", "protect-kernel-defaults",
		"register-node", "register-with-taints", "reserved-cpus", "resolv-conf", "root", "root-dir", "runtime", "runtime-cgroups", "runtime-request-timeout",
		"server", "state", "storage-driver", "system-reserved", "system-cgroups", "kubelet-cgroups", "tls-cipher-suites", "tls-min-version", "tls-cert-file", "tls-private-key-file", "topology-manager-policy",
		"user", "v", "verbose", "volume-plugin-dir", "authorization-mode", "client-ca-file", "rotate-certificates", "anonymous-auth", "read-only-port", "cpu-manager-policy",
		"data-root", "userland-proxy-path", "add-runtime", "init", "name", "persistence-mode", "signal", "s", "skip", "P":
		return true
	}
	return false
}

// bareFlag says whether a flag is known to take no value, so that the next word is not one: those
// of systemctl(1), and gpuadm's.
func bareFlag(flag string) bool {
	return slices.Contains([]string{"--no-block", "--now", "--no-reload", "--no-ask-password", "--quiet", "--force", "--boot", "--unattended"}, flag)
}

// command masks the values of flags in a command line, unless the flag is known to be harmless. The
// first word is the program.
func (m *masker) command(s string, program bool) string {
	words, after := systemdWords(s)
	var out strings.Builder
	for _, w := range words {
		text, was := w.text, m.flag
		m.flag = ""
		switch name, value, has := strings.Cut(text, "="); {
		case program:
			text = m.pairs(text, 1)
		case strings.HasPrefix(text, "-") && has:
			text = name + "=" + flagValue(m, name, value)
		case strings.HasPrefix(text, "-") && len(text) > 1:
			clings := false
			if text, clings = attached(text); !clings && !bareFlag(text) {
				m.flag = text
			}
		case was != "":
			if text = flagValue(m, was, text); w.quote != "" {
				text = strings.Trim(text, `"'`)
			}
		case has && isName(name):
			text = name + "=" + m.variable(name, value, w.quote != "")
		case w.quote != "":
			text = m.inner(text, 1)
		default:
			text = m.pairs(text, 1)
		}
		program = false
		out.WriteString(w.before + w.quote + text + w.quote)
	}
	return out.String() + after
}

// flagValue is what is left of a flag's value.
func flagValue(m *masker, flag, value string) string {
	bare := strings.Trim(value, `"'`)
	switch {
	case harmless(flag, bare):
		return value
	case secret(flag) && !plainFlag(flag):
	case plainFlag(flag), harmlessValue(bare):
		if flag != "-c" || file(bare) { // sh -c takes a whole script
			return m.pairs(value, 1)
		}
	}
	return quoteLike(value)
}

// attached masks a value that clings to a flag of one letter, and says whether one does: -pSECRET.
func attached(flag string) (string, bool) {
	if len(flag) < 3 || flag[1] == '-' || flag == "-pid" || flag == "-port" {
		return flag, false
	}
	plain := flag[1] != 'p'
	for i := 1; i < len(flag); i++ {
		plain = plain && (flag[i] >= 'a' && flag[i] <= 'z' || flag[i] == '-')
	}
	switch {
	case plain:
		return flag, false
	case harmlessValue(flag[2:]):
		return flag, true
	}
	return flag[:2] + Mark, true
}
