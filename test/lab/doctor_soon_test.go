// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabDoctorTakes runs doctor on a host with eight GPUs, again with each of the others that do not
// answer, and with a driver whose library waits for ever in its first call, and logs how long it takes.
// Figures are not compared: a busy machine is no
// fault of doctor's. What it says is: a driver that may still start its GPUs is not said to hang.
func TestLabDoctorTakes(t *testing.T) {
	t.Parallel()
	n := bootGPUs(t).withToolkit(t, map[string]string{cdiUnit: cdi1201, "nvidia-cdi-refresh.path": cdiPathUnit}).with(t, "H100-80:8")
	n.joined()
	n.takes("eight GPUs", "")
	n.takes("eight GPUs, without CUDA", "--no-cuda")

	// The server's address is one that connects, and at which no program takes the connection.
	const listen = "socket(S, PF_INET, SOCK_STREAM, 6); bind(S, sockaddr_in(6443, INADDR_LOOPBACK)) or die; listen(S, 99); sleep"
	n.Must("systemd-run", "--quiet", "--unit=mute", "perl", "-MSocket", "-e", listen)
	const kubeconfig = "/etc/kubernetes/kubelet.conf"
	n.Must("cp", kubeconfig, "/root/")
	n.Put(kubeconfig, "current-context: c\ncontexts:\n- {name: c, context: {cluster: c, user: u}}\nusers:\n- name: u\n  user: {token: of-the-test}\n"+
		"clusters:\n- {name: c, cluster: {server: \"https://127.0.0.1:6443\"}}\n", 0o600)
	n.takes("an API server that is mute", "")
	n.Must("systemctl", "stop", "mute")
	n.Must("mv", "/root/kubelet.conf", kubeconfig)

	for _, program := range []string{"journalctl", "timedatectl", "containerd"} {
		n.Must("sh", "-c", fmt.Sprintf(`p=$(command -v %[1]s); mv $p /root/; printf '#!/bin/sh\nexec sleep 600\n' >$p; chmod 755 $p`, program))
		n.takes(program+" that does not end", "")
		n.Must("sh", "-c", fmt.Sprintf(`mv /root/%[1]s $(command -v %[1]s)`, program))
	}

	n.Must("systemctl", "kill", "--signal=STOP", "--kill-whom=main", "containerd")
	n.takes("containerd that is stopped", "")
	n.Must("systemctl", "kill", "--signal=CONT", "--kill-whom=main", "containerd")

	const library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"
	n.Put(library, hungLibrary(t), 0o755)
	n.takes("a library that hangs", "")
	said := n.Exec("gpuadm", "doctor")
	check.That(t, strings.Contains(said.Stdout, "Not checked: GPUs: the driver has not answered for "), "%s", said)
	check.That(t, !strings.Contains(said.Stdout, "DRV-019"), "it is said to hang: %s", said)
}

// takes logs how long doctor takes on a host, in a few runs after a first one.
func (n gpuNode) takes(what, flags string) {
	n.t.Helper()
	const runs = 20
	script := fmt.Sprintf(`gpuadm doctor %[1]s >/dev/null; for i in $(seq %[2]d); do a=$(date +%%s%%N); gpuadm doctor %[1]s >/dev/null; b=$(date +%%s%%N); echo $(( (b-a)/1000000 )); done`, flags, runs)
	var all []int
	for _, word := range strings.Fields(n.Must("sh", "-c", script)) {
		all = append(all, must.Get(strconv.Atoi(word))(n.t))
	}
	slices.Sort(all)
	must.That(n.t, len(all) == runs, "%d runs", len(all))
	n.t.Logf("%-26s doctor takes %d ms (%d to %d ms in %d runs)", what, all[runs/2], all[0], all[runs-1], runs)
}

// hungLibrary is a driver's library with the names of the fake one's, whose nvmlInit never returns.
func hungLibrary(t *testing.T) string {
	t.Helper()
	names := must.Get(exec.Command("nm", "-D", "--defined-only", fakenvml.Build(t).Library).Output())(t)
	var source strings.Builder
	source.WriteString("#include <unistd.h>\n")
	for _, match := range regexp.MustCompile(`(?m) T (nvml\w+)$`).FindAllSubmatch(names, -1) {
		body := "return 0;"
		if strings.HasPrefix(string(match[1]), "nvmlInit") {
			body = "for (;;) pause();"
		}
		fmt.Fprintf(&source, "int %s() { %s }\n", match[1], body)
	}

	dir := t.TempDir()
	file := filepath.Join(dir, "hung.c")
	must.OK(t, os.WriteFile(file, []byte(source.String()), 0o600))
	out, err := exec.Command("gcc", "-w", "-shared", "-fPIC", "-o", filepath.Join(dir, "hung.so"), file).CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	return string(must.Get(os.ReadFile(filepath.Join(dir, "hung.so")))(t))
}
