// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/lab"
)

// moduleTools stands in for the kernel's part of the driver's modules, which no kernel loads in a
// container.
//
//go:embed testdata/modules.sh
var moduleTools string

// moduleCuts are the repairs that load the driver's module, or ask for a loaded one.
var moduleCuts = []repairCut{
	{"DRV-005", "rm -f /etc/lab-nouveau; rmmod nvidia"},
	{"DRV-014", "modprobe nvidia; echo 570.86.15 >/sys/module/nvidia/version; fakenvml driver --init LIB_RM_VERSION_MISMATCH"},
	{"DRV-006", "touch /etc/lab-nouveau; rm -f /etc/modprobe.d/gpuadm.conf; lab-modules"},
	{"GPU-010", "modprobe nvidia; systemctl stop " + persistenced},
	{"FAB-002", "modprobe nvidia; systemctl stop " + fabricManager},
}

const fabricManager = "nvidia-fabricmanager.service"

// fabricManagerUnit registers the GPUs as long as it runs, as the fabric manager does.
const fabricManagerUnit = `[Unit]
After=lab-modules.service
[Service]
ExecStartPre=/usr/local/bin/fakenvml fabric --state completed
ExecStart=/bin/sleep infinity
ExecStopPost=/usr/local/bin/fakenvml fabric --state not-started
[Install]
WantedBy=multi-user.target
`

// TestLabCrashModule: repairs of the driver's module are cut at their touches; for a change two of
// them, in turn.
func TestLabCrashModule(t *testing.T) {
	t.Parallel()
	host := lab.Options{
		Dist: "trixie",
		GPUs: 2,
		Kind: "HGX H100",
		Disk: true,
	}
	n := bootGPUsOf(t, host, lab.OuterFile).withModules(t)
	for _, repair := range chosenRepairs(t, moduleCuts) {
		n.cutRepair(t, repair, node.module)
		n.Must("sh", "-c", "rm -f /etc/lab-nouveau /etc/modprobe.d/gpuadm.conf; lab-modules; systemctl start "+persistenced+" "+fabricManager)
	}
}

// withModules gives a host modules on disk for its kernel, the driver's libraries and daemon, and the
// programs that load modules.
func (n gpuNode) withModules(t *testing.T) gpuNode {
	t.Helper()
	const lib = "/usr/lib/x86_64-linux-gnu/"
	n.Must("mv", lib+fakenvml.Soname, lib+"libnvidia-ml.so.580.95.05")
	n.Must("ln", "-s", "libnvidia-ml.so.580.95.05", lib+fakenvml.Soname)
	n.Must("ldconfig")
	n.Must("env", "FAKENVML_STATE="+lab.OuterFile, "fakenvml", "new", "--gpus", "H100-80:2")
	n.Must("ln", "-sf", lab.OuterFile, "/run/fakenvml.state")

	kernel := strings.TrimSpace(n.Must("uname", "-r"))
	n.Put("/lib/modules/"+kernel+"/updates/dkms/nvidia.ko", string(kmodule.Open(kernel)), 0o644)
	n.Put("/lib/modules/"+kernel+"/modules.dep", "updates/dkms/nvidia.ko:\n", 0o644)
	n.Put("/etc/modules-load.d/nvidia.conf", "nvidia\n", 0o644)
	for _, name := range []string{"modprobe", "rmmod", "lab-modules"} {
		n.Put("/usr/local/sbin/"+name, moduleTools, 0o755)
	}
	n.Put("/etc/systemd/system/lab-modules.service", "[Unit]\nDefaultDependencies=no\nAfter=fake-gpus.service gpuadm-lab.service\nBefore=sysinit.target\n"+
		"[Service]\nType=oneshot\nExecStart=/usr/local/sbin/lab-modules\n[Install]\nWantedBy=sysinit.target\n", 0o644)
	n.Put("/etc/systemd/system/"+persistenced, "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	n.Put("/etc/systemd/system/"+fabricManager, fabricManagerUnit, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", "--quiet", "lab-modules.service")
	n.Must("systemctl", "enable", "--now", "--quiet", persistenced, fabricManager)
	return n
}

// module says which module is loaded, whether its driver answers, and what holds the GPUs.
func (n node) module() map[string]string {
	return map[string]string{
		"module":     n.Exec("sh", "-c", "cd /sys/module && cat nvidia/version; ls -d nouveau").Stdout,
		"driver":     n.Exec("nvidia-smi", "-L").Stdout,
		"GPUs":       n.Exec("sh", "-c", "grep -hs ^DRIVER= /sys/bus/pci/devices/*/uevent").Stdout,
		persistenced: n.Property(persistenced, "ActiveState"),

		fabricManager: n.Property(fabricManager, "ActiveState"),
	}
}
