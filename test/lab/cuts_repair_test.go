// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// A repairCut is a repair, with what breaks the machine for it, again and again. A boot may repair it,
// too: it starts units, and loads modules.
type repairCut struct{ code, breaks string }

var repairCuts = []repairCut{
	{"RUN-001", "! grep -q nvidia-container-runtime " + config},
	{"RUN-002", "grep -q hand " + config + " || echo '# by hand' >>" + config + "; touch " + config},
	{"RUN-005", "systemctl stop containerd"},
	{"CDI-001", "rm -f " + cdiSpec},
	{"KUB-001", "systemctl stop kubelet"},
	{"KUB-007", "touch /var/lib/kubelet/config.yaml"},
	{"PKG-002", "dpkg --unpack /root/half.deb"},
	{"PKG-001", "dpkg --unpack /root/nvidia-half.deb"},
	{"PKG-004", "dpkg --unpack /root/half.deb; cp /root/interrupted /var/lib/dpkg/updates/0000"},
	{"CDI-005", refreshFails},
}

// refreshFails has systemd give up the toolkit's refresh of the CDI spec: no program answers for the
// driver while it tries.
const refreshFails = "mv /usr/bin/nvidia-smi /root/; cp /bin/false /usr/bin/nvidia-smi; " +
	"systemctl start --no-block " + cdiUnit + "; for i in $(seq 100); do " +
	"systemctl show " + cdiUnit + " | grep -qx Result=start-limit-hit && break; sleep 0.1; done; " +
	"mv /root/nvidia-smi /usr/bin/"

// halfPackage is the control file of a package with this name, and the line of dpkg's journal of a
// killed dpkg.
const (
	halfPackage = "Package: %s\nVersion: 1\nArchitecture: all\n" +
		"Maintainer: lab <lab@example.invalid>\nDescription: none\n"
	interrupted = "Package: half\nStatus: install ok half-configured\nVersion: 1\nArchitecture: all\n"
)

// TestLabCrashRepair: repairs are cut at their touches; for a change two of them, in turn.
func TestLabCrashRepair(t *testing.T) {
	t.Parallel()
	host := lab.Options{Dist: "trixie", GPUs: 8, Disk: true}
	units := map[string]string{cdiUnit: cdi1201, "nvidia-cdi-refresh.path": cdiPathUnit}
	n := bootGPUsOf(t, host, lab.OuterFile).withToolkit(t, units)
	n.Must("env", "FAKENVML_STATE="+lab.OuterFile, "fakenvml", "new", "--gpus", "A100-40:2")
	n.Must("ln", "-sf", lab.OuterFile, "/run/fakenvml.state")
	n.joined()
	for _, name := range []string{"half", "nvidia-half"} {
		n.Put("/tmp/"+name+"/DEBIAN/control", fmt.Sprintf(halfPackage, name), 0o644)
		n.Must("dpkg-deb", "--build", "/tmp/"+name, "/root/"+name+".deb")
	}

	n.Put("/root/interrupted", interrupted, 0o644)
	n.Put("/etc/systemd/system/"+cdiUnit+".d/soon.conf", "[Service]\nRestartSec=100ms\n", 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "start", cdiUnit)

	for _, repair := range chosenRepairs(t, repairCuts) {
		if repair.code != "RUN-001" && n.Exec("grep", "-q", "nvidia-container-runtime", config).Exit != 0 {
			n.Must("gpuadm", "repair", "RUN-001")
			n.Must("rm", "-rf", state)
		}
		n.cutRepair(t, repair, func(n node) map[string]string {
			says := n.services()
			if repair.code == "CDI-001" {
				says["CDI spec"] = fmt.Sprint(n.Exec("test", "-e", cdiSpec).Exit == 0)
			}
			return says
		})
		n.Exec("sh", "-c", "systemctl start containerd kubelet; dpkg --configure -a")
	}
}

// chosenRepairs are two of them, in turn; all if the whole lab runs.
func chosenRepairs(t *testing.T, all []repairCut) (chosen []repairCut) {
	t.Helper()
	for _, number := range sample(t, len(all), 2) {
		chosen = append(chosen, all[number-1])
	}
	return chosen
}

// cutRepair cuts a repair at its touches.
func (n gpuNode) cutRepair(t *testing.T, repair repairCut, ask func(node) map[string]string) {
	t.Helper()
	t.Run(repair.code, func(t *testing.T) {
		c := &cutting{
			node:    node{n.In(t), t},
			folders: []string{"/etc", "/usr", "/var/lib"},
			without: []string{"/var/lib/dpkg", "/etc/ld.so.cache", "/usr/lib/gpuadm-lab"},
			command: []string{"gpuadm", "repair", repair.code, "--yes"},
			broken:  true,
			sampled: true,
			lasting: []string{
				"containerd is current", "kubelet is current",
				"packages", "CDI spec", "interrupted", "refresh",
				"module", "driver", "GPUs",
			},
			prepare: func(n node) { n.Exec("sh", "-c", repair.breaks) },
			ask:     ask,
		}
		c.ready()
		c.killed(c.sample(1))
		c.powerless(lab.Synced, c.sample(1))
		c.powerless(lab.Named, c.sample(1))
		c.count()
	})
}

// joined is a node of a cluster whose kubelet only has the name and the flags.
func (n node) joined() {
	n.t.Helper()
	n.Put("/usr/bin/kubelet", kubeletProgram, 0o755)
	n.Put("/etc/kubernetes/kubelet.conf", "current-context: c\ncontexts:\n- {name: c, context: {user: u}}\nusers:\n- name: u\n  user: {token: of-the-test}\n", 0o600)
	// /proc/swaps is the machine's: hosts of the lab share its kernel.
	const config = "kind: KubeletConfiguration\nfailSwapOn: false\n" +
		"containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n"
	n.Put("/var/lib/kubelet/config.yaml", config, 0o644)
	n.Put("/etc/cni/net.d/10-lab.conflist", "{\"cniVersion\": \"1.0.0\", \"name\": \"lab\", \"plugins\": [{\"type\": \"loopback\"}]}\n", 0o644)
	n.Put("/etc/systemd/system/kubelet.service", joinedKubelet, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", "--quiet", "kubelet.service")
}

// services says what runs, whether it has started after its files changed, and what dpkg has.
func (n node) services() map[string]string {
	says := map[string]string{
		"packages": n.Exec("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\n",
			"half", "nvidia-half", "containerd").Stdout,
		"interrupted": n.Exec("ls", "/var/lib/dpkg/updates").Stdout,
		"refresh":     strings.TrimSpace(n.Property(cdiUnit, "Result")),
	}
	for unit, file := range map[string]string{"containerd": config, "kubelet": "/var/lib/kubelet/config.yaml"} {
		says[unit+" runs"] = fmt.Sprint(n.Property(unit+".service", "ActiveState") == "active")
		const current = `started=$(date +%s%N -d "$(systemctl show --value --property ExecMainStartTimestamp --timestamp=us "$1")"); [ "$started" -gt "$(date +%s%N -d "$(stat -c %z "$2")")" ] && echo yes || echo no`
		says[unit+" is current"] = strings.TrimSpace(n.Must("sh", "-c", current, "sh", unit, file))
	}

	return says
}
