// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// kubeletProgram runs and does nothing, and says its version as kubelet does, whatever its other flags.
// Source: PrintAndExitIfRequested in
// https://github.com/kubernetes/component-base/blob/master/version/verflag/verflag.go, which kubelet's
// NewKubeletCommand calls once it has parsed its flags.
const kubeletProgram = `#!/bin/sh
case " $* " in
*" --version "*) echo "Kubernetes v1.33.5"; exit ;;
esac
exec sleep infinity
`

// joinedKubelet is a unit whose program has kubelet's name and flags, and does nothing: doctor goes
// by unit, flags and files.
const joinedKubelet = "[Unit]\nAfter=containerd.service\n[Service]\nExecStart=/usr/bin/kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml\n[Install]\nWantedBy=multi-user.target\n"

// roots are the codes that doctor names as root causes.
func (n node) roots() (codes []string) {
	n.t.Helper()
	r := n.Exec("gpuadm", "doctor", "-o", "json")
	var report struct{ Causes []struct{ Code string } }
	err := json.Unmarshal([]byte(r.Stdout), &report)
	must.That(n.t, err == nil, "%v: %s", err, r)
	for _, c := range report.Causes {
		codes = append(codes, c.Code)
	}
	return codes
}

// TestLabDoctor: one fault after the other on a real host. Doctor names each of them and nothing
// else, and is content after its repair, or after the fix that it names.
func TestLabDoctor(t *testing.T) {
	t.Parallel()
	n := bootCDI(t, map[string]string{cdiUnit: cdi1201, "nvidia-cdi-refresh.path": cdiPathUnit})
	n.joined()
	n.Must("systemctl", "start", cdiUnit)

	// The host's bus has other GPUs than the fake driver, and its toolkit has no handler yet.
	const lost = "RUN-001"
	first := n.roots()
	must.That(t, slices.Contains(first, lost), "a host without a handler: %v", first)
	n.Must("gpuadm", "repair", lost)
	base := n.roots()
	must.That(t, !slices.Contains(base, lost) && len(base) == len(first)-1, "after repair %s: %v, before %v", lost, base, first)
	n.working()

	const until = "; for i in $(seq 100); do %s && break; sleep 0.1; done"
	for _, fault := range []struct{ code, breaks, heals string }{
		{"RUN-002", "echo '# by hand' >>" + config, ""},
		{"CDI-001", "rm " + cdiSpec, ""},
		{ // as while the driver's libraries are not there yet: Azure/AgentBaker pull 9150
			"CDI-005", "mv /usr/bin/nvidia-smi /root/; printf '#!/bin/sh\nexit 9\n' >/usr/bin/nvidia-smi; " +
				"chmod 755 /usr/bin/nvidia-smi; systemctl start --no-block " + cdiUnit +
				fmt.Sprintf(
					strings.Replace(until, "100", "700", 1),
					"systemctl show "+cdiUnit+" | grep -qx ActiveState=failed",
				) + "; mv /root/nvidia-smi /usr/bin/", "",
		},
		{"KUB-001", "systemctl stop kubelet", ""},
		{ // it runs while doctor looks, and ends after it
			"KUB-014", "mkdir /etc/systemd/system/kubelet.service.d; printf '[Service]\nRestart=always\nRestartSec=1\n' >/etc/systemd/system/kubelet.service.d/50-again.conf; " +
				"mv /usr/bin/kubelet /root/; printf '#!/bin/sh\nsleep 3\nexit 1\n' >/usr/bin/kubelet; chmod 755 /usr/bin/kubelet; systemctl daemon-reload; systemctl restart kubelet" +
				fmt.Sprintf(until, "systemctl show kubelet | grep -qx NRestarts=[1-9] && systemctl show kubelet | grep -qx SubState=running"),
			"mv /root/kubelet /usr/bin/; rm -r /etc/systemd/system/kubelet.service.d; systemctl daemon-reload; systemctl restart kubelet",
		},
		{
			"KUB-013", "cp -a /etc/cni/net.d /root/; rm -r /etc/cni/net.d" + fmt.Sprintf(until, "gpuadm doctor | grep -q KUB-013"),
			"mkdir -p /etc/cni; mv /root/net.d /etc/cni/; systemctl restart containerd",
		},
		{"SYS-001", "mount -t tmpfs -o size=1m tmpfs /var/lib/containerd; dd if=/dev/zero of=/var/lib/containerd/full bs=64k 2>/dev/null || true", "umount /var/lib/containerd"},
		{ // an engine that hangs is one a minute after its start
			"RUN-013", "systemctl kill --signal=STOP --kill-whom=main containerd" + fmt.Sprintf(strings.Replace(until, "100", "700", 1), "gpuadm doctor | grep -q RUN-013"),
			"systemctl kill --signal=CONT --kill-whom=main containerd",
		},
		{ // the engine is active, and its CRI plugin did not load: it refuses both keys together
			"RUN-003", "cp -a " + config + " /root/; printf '[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"/etc/containerd/certs.d\"\n[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.x]\nendpoint = [\"https://x\"]\n' >>" + config +
				"; systemctl restart containerd" + fmt.Sprintf(strings.Replace(until, "100", "700", 1), "gpuadm doctor | grep -q RUN-013"),
			"mv /root/config.toml " + config + "; systemctl restart containerd",
		},
		{"KUB-007", "echo '# by hand' >>/var/lib/kubelet/config.yaml", ""},
		{"RUN-005", "systemctl stop containerd", ""},
		{
			"RUN-010", "mkdir /etc/systemd/system/containerd.service.d; printf '[Service]\nRestart=always\nRestartSec=600\nExecStartPre=/bin/false\n' " +
				">/etc/systemd/system/containerd.service.d/50-again.conf; systemctl daemon-reload; systemctl restart containerd" +
				fmt.Sprintf(until, "systemctl show -p SubState containerd | grep -q auto-restart"),
			"rm -r /etc/systemd/system/containerd.service.d; systemctl daemon-reload; systemctl restart containerd",
		},
		{"RUN-003", "cp -a " + config + " /root/; echo '[' >>" + config, "mv /root/config.toml " + config + "; systemctl restart containerd"},
		{"RUN-004", "mv /usr/bin/nvidia-container-runtime /root/", "mv /root/nvidia-container-runtime /usr/bin/"},
		{"CDI-003", "cp " + cdiSpec + " /var/run/cdi/copy.yaml", "rm /var/run/cdi/copy.yaml"},
		{"CDI-002", "mkdir -p /etc/cdi; sed s/580.95.05/570.1.2/ " + cdiSpec + " >/etc/cdi/nvidia.yaml", "rm /etc/cdi/nvidia.yaml"},
		{"KUB-003", "cp /usr/bin/sleep /root/nvidia-device-plugin; for i in 1 2; do systemd-run --quiet --property=Type=exec --unit=plugin$i /root/nvidia-device-plugin 1000; done", "systemctl stop plugin1 plugin2"},
	} {
		n.Must("sh", "-c", fault.breaks)
		want := append([]string{fault.code}, base...)
		slices.Sort(want)
		is := n.roots()
		check.That(t, slices.Equal(slices.Sorted(slices.Values(is)), want), "%s: root causes %v, want %v", fault.code, is, want)
		if fault.heals == "" {
			n.Must("gpuadm", "repair", fault.code)
		} else {
			n.Must("sh", "-c", fault.heals)
		}

		is = n.roots()
		must.That(t, slices.Equal(is, base), "%s: after the fix %v, want %v", fault.code, is, base)
	}

	n.working()
	n.Must("gpuadm", "undo", "--to", "all") // which stops what a repair has started
	n.Must("systemctl", "start", "containerd", "kubelet")
	is := n.roots()
	check.That(t, slices.Contains(is, lost), "after undo of all repairs: %v", is)
}
