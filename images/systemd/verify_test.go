// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// cloudInit is the order of a distribution's cloud-init, by unit: the lines of [Unit] that make an
// order. What the units run is of no matter here.
type cloudInit map[string]string

const (
	wantedByInit = "[Install]\nWantedBy=cloud-init.target\n"
	early        = "DefaultDependencies=no\nBefore=sysinit.target shutdown.target\nConflicts=shutdown.target\n"
	localStage   = "Wants=network-pre.target\nBefore=network-pre.target\n"
	online       = "After=network-online.target cloud-config.target\nWants=network-online.target cloud-config.target\n"
)

// distributions are cloud-init's units as each distribution has them, rendered from the templates
// in systemd/ of https://github.com/canonical/cloud-init at the version that its package has.
// Debian 12's are those of the package cloud-init_22.4.2-1+deb12u4_all.deb, too.
func distributions() map[string]cloudInit {
	debian := cloudInit{ // Debian 12's 22.4.2; Debian 13's 25.1.4 is as Ubuntu's
		"cloud-init-local.service": early + localStage,
		"cloud-init.service":       early + "Wants=cloud-init-local.service\nAfter=cloud-init-local.service systemd-networkd-wait-online.service networking.service\nBefore=network-online.target systemd-user-sessions.service\n",
		"cloud-config.target":      "Wants=cloud-init-local.service cloud-init.service\nAfter=cloud-init-local.service cloud-init.service\n",
		"cloud-config.service":     online + "After=snapd.seeded.service\n",
		"cloud-final.service":      "After=network-online.target cloud-config.service rc-local.service multi-user.target\nBefore=apt-daily.service\nWants=network-online.target cloud-config.service\n",
	}
	ubuntu := maps.Clone(debian) // 25.3: one process, and the stage of the network has another name
	delete(ubuntu, "cloud-init.service")
	ubuntu["cloud-init-main.service"] = early[:len("DefaultDependencies=no\n")] + "After=systemd-remount-fs.service\nBefore=cloud-init-local.service shutdown.target\nConflicts=shutdown.target\n"
	ubuntu["cloud-init-network.service"] = early + "Wants=cloud-init-local.service\nAfter=cloud-init-local.service\nBefore=network-online.target systemd-user-sessions.service\n"
	ubuntu["cloud-config.target"] = "Wants=cloud-init-local.service cloud-init-network.service\nAfter=cloud-init-local.service cloud-init-network.service\n"
	amazon := cloudInit{ // 22.2.2, whose last stage does not wait for multi-user.target
		"cloud-init-local.service": localStage + "Before=shutdown.target\nConflicts=shutdown.target\n",
		"cloud-init.service":       "Wants=cloud-init-local.service\nAfter=cloud-init-local.service systemd-networkd-wait-online.service\nBefore=network-online.target systemd-user-sessions.service\n",
		"cloud-config.target":      debian["cloud-config.target"],
		"cloud-config.service":     online,
		"cloud-final.service":      "After=network-online.target cloud-config.service rc-local.service\nWants=network-online.target cloud-config.service\n",
	}
	rhel := maps.Clone(ubuntu) // 24.4: the last stage waits for multi-user.target on all distributions from then on (pull 5830)
	rhel["cloud-init-main.service"] = strings.Replace(ubuntu["cloud-init-main.service"], "After=", "Requires=dbus.socket\nAfter=dbus.socket ", 1)
	rhel["cloud-init-local.service"] = "DefaultDependencies=no\n" + localStage + "Before=shutdown.target\nConflicts=shutdown.target\n"
	rhel["cloud-init-network.service"] = "Wants=cloud-init-local.service\nAfter=cloud-init-local.service NetworkManager.service NetworkManager-wait-online.service\nBefore=network-online.target systemd-user-sessions.service\n"
	return map[string]cloudInit{"Debian": debian, "Ubuntu": ubuntu, "Amazon Linux 2023": amazon, "RHEL": rhel}
}

// ofSystemd are the units of systemd itself that make the order of a boot: bootup(7) and
// systemd.special(7). Their text is that of https://github.com/systemd/systemd, units/*.target, in
// what makes an order. The machine of the test has more units, which are of no matter here.
var ofSystemd = map[string]string{
	"multi-user.target":     "Requires=basic.target\nConflicts=rescue.target\nAfter=basic.target rescue.target\n",
	"basic.target":          "Requires=sysinit.target\nWants=sockets.target timers.target paths.target slices.target\nAfter=sysinit.target sockets.target paths.target slices.target\n",
	"sysinit.target":        "Wants=local-fs.target swap.target\nAfter=local-fs.target swap.target\nConflicts=emergency.target\nBefore=emergency.target\n",
	"local-fs.target":       "DefaultDependencies=no\nConflicts=shutdown.target\nAfter=local-fs-pre.target\n",
	"local-fs-pre.target":   "",
	"swap.target":           "DefaultDependencies=no\nConflicts=shutdown.target\n",
	"sockets.target":        "",
	"timers.target":         "DefaultDependencies=no\nConflicts=shutdown.target\n",
	"paths.target":          "",
	"slices.target":         "",
	"network-pre.target":    "",
	"network.target":        "After=network-pre.target\n",
	"network-online.target": "After=network.target\n",
	"rescue.target":         "Requires=sysinit.target\nAfter=sysinit.target\n",
	"emergency.target":      "",
	"shutdown.target":       "DefaultDependencies=no\n",
}

// kubeletUnit is kubelet's own unit as kubeadm's packages have it, in what makes an order.
// Source: https://github.com/kubernetes/release, cmd/krel/templates/latest/kubelet/kubelet.service.
const kubeletUnit = "[Unit]\nWants=network-online.target\nAfter=network-online.target\n[Service]\nExecStart=/bin/true\nRestart=always\n[Install]\nWantedBy=multi-user.target\n"

// TestVerify has systemd resolve the start of multi-user.target with each distribution's cloud-init
// beside gpuadm's units: a unit before kubelet that waits for the last stage of cloud-init would
// make a cycle, and systemd would drop one of both.
func TestVerify(t *testing.T) {
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		must.That(t, os.Getenv("CI") != "true", "%v", err)
		t.Skip("systemd-analyze is not installed")
	}
	for name, units := range distributions() {
		t.Run(name, func(t *testing.T) {
			out := verify(t, program, units, nil)
			check.That(t, !strings.Contains(out, "gpuadm") && !strings.Contains(out, "cycle"), "%s", out)
			late := bytes.Replace(systemd.Service, []byte("cloud-config.service"), []byte("cloud-final.service"), 1)
			out, cycle := verify(t, program, units, late), name != "Amazon Linux 2023"
			check.That(t, strings.Contains(out, "cycle") == cycle, "a gpuadm.service after cloud-final.service: want a cycle %v:\n%s", cycle, out)
		})
	}

	t.Run("EKS", func(t *testing.T) {
		units := distributions()["Amazon Linux 2023"]
		for name, text := range lab.NodeadmUnits() {
			if strings.HasPrefix(name, "nodeadm") {
				units[name] = text
			}
		}

		for _, host := range []string{"al2023-eks-nvidia", "al2023-eks-trees"} {
			archive := must.Get(txtar.ParseFile("../../test/hosts/" + host + ".txtar"))(t)
			for _, f := range archive.Files {
				if name := path.Base(f.Name); strings.Contains(f.Name, "/systemd/system/") && (strings.Contains(name, "nvidia") || strings.HasSuffix(name, ".mount")) {
					units[name] = string(f.Data)
				}
			}
		}

		units["nodeadm-run.service.d/50-gpuadm.conf"] = "[Unit]\nAfter=gpuadm.service\n[Service]\nExecStartPre=/usr/local/sbin/gpuadm gate --wait\n"
		out := verify(t, program, units, nil)
		check.That(t, !strings.Contains(out, "gpuadm") && !strings.Contains(out, "cycle"), "%s", out)
	})
}

// TestSandboxes: each unit is exposed as little as its work allows, by systemd's own count
// (tenths). Without a sandbox it is 96.
func TestSandboxes(t *testing.T) {
	for name, unit := range map[string]struct {
		text []byte
		most string
	}{
		"gpuadm-drift.service": {systemd.Drift, "55"},
		"gpuadm-spec.service":  {systemd.Spec, "20"},
		"gpuadm.service":       {systemd.Service, "86"}, // it installs packages
		"gpuadm-ready.service": {systemd.Ready, "86"},
	} {
		at := filepath.Join(t.TempDir(), name)
		must.OK(t, os.WriteFile(at, unit.text, 0o644))
		if exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=100", at).Run() != nil {
			t.Skip("systemd-analyze security --offline is not there: systemd 250 has it")
		}
		if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold="+unit.most, at).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// verify is what systemd-analyze says of multi-user.target on a machine of these units, without
// what it says of programs that are not on this machine. service is in the place of gpuadm.service.
func verify(t *testing.T, program string, units cloudInit, service []byte) string {
	t.Helper()
	folder := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		at := filepath.Join(folder, name)
		must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must.OK(t, os.WriteFile(at, []byte(text), 0o644))
		options, err := unit.DeserializeOptions(strings.NewReader(text))
		must.That(t, err == nil, "%s: %v", name, err)
		for _, o := range options {
			if o.Section != "Install" || o.Name != "WantedBy" {
				continue
			}
			wants := filepath.Join(folder, o.Value+".wants")
			must.OK(t, os.MkdirAll(wants, 0o755))
			must.OK(t, os.Symlink(at, filepath.Join(wants, name)))
		}
	}

	if service == nil {
		service = systemd.Service
	}
	for name, order := range ofSystemd {
		put(name, "[Unit]\n"+order)
	}
	for name, text := range units {
		if strings.HasSuffix(name, ".service") && !strings.Contains(text, "[Service]") {
			text = "[Unit]\n" + text + "[Service]\nType=oneshot\nExecStart=/bin/true\nRemainAfterExit=yes\n" + wantedByInit
		} else if strings.HasSuffix(name, ".target") {
			text = "[Unit]\n" + text
		}

		put(name, text)
	}

	put("cloud-init.target", "[Unit]\nAfter=multi-user.target\n[Install]\nWantedBy=multi-user.target\n") // the generator's link
	put("gpuadm.service", string(service))
	put("gpuadm-ready.service", string(systemd.Ready))
	put("gpuadm-spec.service", string(systemd.Spec))
	put("gpuadm-spec.path", string(systemd.SpecPath))
	put("gpuadm-drift.service", string(systemd.Drift))
	put("gpuadm-drift.timer", string(systemd.DriftTimer))
	put("kubelet.service", kubeletUnit)
	put("kubelet.service.d/50-gpuadm.conf", string(systemd.Gate))
	cmd := exec.Command(program, "verify", "--man=no", "multi-user.target", "gpuadm-spec.service", "gpuadm-drift.timer", "gpuadm-drift.service")
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+folder) // none of this machine's
	cmd.Dir = folder                                            // it finds units in the current folder first
	output, _ := cmd.CombinedOutput()                           // what it finds decides, not the exit code: this machine lacks most programs
	var said strings.Builder
	for line := range strings.Lines(string(output)) {
		if !strings.Contains(line, "is not executable") {
			said.WriteString(line)
		}
	}

	return said.String()
}
