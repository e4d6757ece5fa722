// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"cmp"
	_ "embed"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// A runner is who runs the container engine on a node: its unit, argument files and start script,
// with a real containerd.
type runner struct {
	name    string
	files   map[string]string // by path; those that start with #! can be run
	units   []string          // started in this order
	socket  string
	changed string // the one file that gpuadm makes or edits
	restart string // the unit that gpuadm restarts; "" where the runner starts its daemon again
	command string // the daemon's configuration, as the daemon says it
	says    string // in [runtime]
	handler string // "" = nvidia
	alone   bool   // no other containerd is installed, and only its file is left
	older   bool   // its containerd is Debian's 1.7
	fix     string // the command that gpuadm prints where the daemon was not started again
}

// After setupConfig, watchDropinConfigs and restart in pkg/component/worker/containerd/component.go
// of k0sproject/k0s at 01390e46, which imports the files of its folder, and its supervisor: SIGHUP
// three seconds after the last change, and a new start. It ends its children when it is ended.
//
//go:embed testdata/k0s.sh
var k0sProgram string

// After handleImports in configurer.go and the restart in component.go, in pkg/component/worker/containerd
// of k0sproject/k0s at 02d9a102, for containerd 1.x: k0s merges the files of its folder that name the
// CRI plugin into a file of its own, and has containerd import the others. k0s pull request 2637
// says why.
//
//go:embed testdata/k0s-merges.sh
var k0sMerges string

// After getContainerdConfig and findNvidiaContainerRuntimes in pkg/agent/containerd, and the death
// signal of its child in pkg/daemons/executor, of k3s-io/k3s at 06ea261 and f646604. RKE2 has the
// same code.
//
//go:embed testdata/k3s.sh
var k3sProgram string

// As bundle/lib/systemd/system of rancher/rke2 has it at 1a821cd3.
//
//go:embed testdata/rke2-server.service
var rke2Unit string

const (
	usualSocket = "/run/containerd/containerd.sock"

	engineArgs = "--root=/var/lib/containerd/RUNNER --state=/run/RUNNER/containerd --address=/run/RUNNER/containerd.sock --config=FILE"
)

//go:embed testdata/microk8s.toml
var microk8sTemplate string

// runners: k0s, as above; MicroK8s, after microk8s-resources/wrappers/run-containerd-with-args and
// default-args of canonical/microk8s at 02c467bd; Canonical Kubernetes, after k8s/args and
// src/k8s/pkg/k8sd/setup/containerd.go of canonical/k8s-snap at 017ffcec, with its
// containerd-base-dir moved, as beside Docker's containerd (canonical/k8s-snap issue 1991), and as it
// is without that.
func runners() []runner {
	args := func(name, file string) string {
		return strings.NewReplacer("RUNNER", name, "FILE", file).Replace(engineArgs)
	}
	snap := func(name, daemon, program string) string {
		return "[Unit]\nDescription=Service for snap application " + name + "." + daemon + "\n[Service]\nExecStart=" + program + "\nRestart=always\nKillMode=process\nDelegate=yes\n"
	}
	const (
		microk8s   = "/var/snap/microk8s/current/args/"
		k3sConfig  = "/var/lib/rancher/k3s/agent/etc/containerd/"
		rke2Config = "/var/lib/rancher/rke2/agent/etc/containerd/"
		k0sUnit    = "[Unit]\nDescription=k0s - Zero Friction Kubernetes\n" +
			"[Service]\nExecStart=/usr/local/bin/k0s worker --token-file=/etc/k0s/token\n" +
			"Delegate=yes\nKillMode=process\nRestart=always\n[Install]\nWantedBy=multi-user.target\n"
		k0sDump = "/var/lib/k0s/bin/containerd --config /etc/k0s/containerd.toml config dump"
	)
	rancher := func(name, folder, etc string) string {
		of := strings.NewReplacer("RUNNER", name, "FOLDER", folder, "ARGS", "-c "+etc+"config.toml")
		return of.Replace(k3sProgram)
	}

	k0s := strings.Replace(k0sProgram, "ARGS", args("k0s", "/etc/k0s/containerd.toml"), 1)
	return []runner{
		{
			name: "k0s", socket: "/run/k0s/containerd.sock", changed: "/etc/k0s/containerd.d/99-gpuadm.toml", units: []string{"k0sworker"},
			files: map[string]string{
				"/usr/local/bin/k0s":                    k0s,
				"/etc/systemd/system/k0sworker.service": k0sUnit,
			},
			command: k0sDump, fix: "systemctl restart 'k0s*'",
		},
		{
			name:    "k0s-merges",
			older:   true,
			socket:  "/run/k0s/containerd.sock",
			changed: "/etc/k0s/containerd.d/99-gpuadm.toml",
			units:   []string{"k0sworker"},
			files: map[string]string{
				"/usr/local/bin/k0s": strings.Replace(k0sMerges, "ARGS",
					args("k0s", "/etc/k0s/containerd.toml"), 1),
				"/etc/systemd/system/k0sworker.service": k0sUnit,
				"/etc/k0s/containerd.d/10-site.toml":    "version = 2\noom_score = 1\n",
			},
			command: k0sDump,
		},
		{ // the file without k0s's first line is the operator's, as in NVIDIA/k8s-device-plugin issue 176
			name:    "k0s-own-file",
			socket:  "/run/k0s/containerd.sock",
			changed: "/etc/k0s/containerd.toml",
			units:   []string{"k0sworker"},
			restart: "k0sworker",
			files: map[string]string{
				"/usr/local/bin/k0s":                    k0s,
				"/etc/systemd/system/k0sworker.service": k0sUnit,
				"/etc/k0s/containerd.toml":              "# of this site\nversion = 3\nimports = [\"/run/k0s/containerd-cri.toml\"]\n",
			},
			command: k0sDump,
		},
		{ // and one that imports the folder that k0s watches: a file in it has k0s start containerd again
			name:    "k0s-own-folder",
			socket:  "/run/k0s/containerd.sock",
			changed: "/etc/k0s/containerd.d/99-gpuadm.toml",
			units:   []string{"k0sworker"},
			files: map[string]string{
				"/usr/local/bin/k0s":                    k0s,
				"/etc/systemd/system/k0sworker.service": k0sUnit,
				"/etc/k0s/containerd.toml": "version = 3\n" +
					"imports = [\"/run/k0s/containerd-cri.toml\", \"/etc/k0s/containerd.d/*.toml\"]\n",
				"/etc/k0s/containerd.d/10-site.toml": "version = 3\noom_score = 1\n",
			},
			command: k0sDump,
		},
		{ // K3s has its own handler for the toolkit's program; another name takes a drop-in. The unit is that of its install.sh.
			name: "k3s", socket: "/run/k3s/containerd/containerd.sock", changed: k3sConfig + "config-v3.toml.d/99-gpuadm.toml", units: []string{"k3s"}, restart: "k3s",
			says: "handler = \"gpu\"\n", handler: "gpu",
			files: map[string]string{
				"/usr/local/bin/k3s":              rancher("k3s", "data/current/bin", k3sConfig),
				"/etc/systemd/system/k3s.service": "[Unit]\nDescription=Lightweight Kubernetes\n[Service]\nEnvironmentFile=-/etc/default/%N\nEnvironmentFile=-/etc/sysconfig/%N\nEnvironmentFile=-/etc/systemd/system/k3s.service.env\nKillMode=process\nDelegate=yes\nRestart=always\nRestartSec=5s\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\n[Install]\nWantedBy=multi-user.target\n",
			},
			command: "/var/lib/rancher/k3s/data/current/bin/containerd --config " + k3sConfig + "config.toml config dump",
		},
		{ // its containerd comes from PATH, and its argv names the file alone
			name:    "rke2",
			socket:  "/run/k3s/containerd/containerd.sock",
			changed: rke2Config + "config-v3.toml.d/99-gpuadm.toml",
			units:   []string{"rke2-server"},
			restart: "rke2-server",
			says:    "handler = \"gpu\"\n", handler: "gpu",
			files: map[string]string{
				"/usr/local/bin/rke2":                               rancher("rke2", "bin", rke2Config),
				"/usr/local/lib/systemd/system/rke2-server.service": rke2Unit,
			},
			command: "/var/lib/rancher/rke2/bin/containerd --config " + rke2Config + "config.toml config dump",
		},
		{
			name: "microk8s", socket: "/run/microk8s/containerd.sock", changed: microk8s + "containerd-template.toml", units: []string{"snap.microk8s.daemon-containerd"}, restart: "snap.microk8s.daemon-containerd",
			files: map[string]string{
				microk8s + "containerd-template.toml":                         microk8sTemplate,
				microk8s + "containerd":                                       strings.ReplaceAll(args("microk8s", "${SNAP_DATA}/args/containerd.toml"), " ", "\n") + "\n",
				microk8s + "kubelet":                                          "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--container-runtime-endpoint=/run/microk8s/containerd.sock\n",
				"/usr/local/bin/run-containerd-with-args":                     "#!/bin/bash\nSNAP_DATA=/var/snap/microk8s/current\nsed 's@${SNAP_DATA}@'\"$SNAP_DATA\"'@g;s@${RUNTIME}@runc@g' $SNAP_DATA/args/containerd-template.toml >$SNAP_DATA/args/containerd.toml\ndeclare -a args=\"($(cat $SNAP_DATA/args/containerd))\"\nexec /snap/microk8s/current/bin/containerd \"${args[@]}\"\n",
				"/etc/systemd/system/snap.microk8s.daemon-containerd.service": snap("microk8s", "daemon-containerd", "/usr/local/bin/run-containerd-with-args"),
				"/etc/systemd/system/snap.microk8s.daemon-kubelite.service":   snap("microk8s", "daemon-kubelite", "/bin/sleep infinity"),
			},
			command: "/snap/microk8s/current/bin/containerd --config " + microk8s + "containerd.toml config dump",
		},
		{
			name: "k8s", socket: "/run/k8s/containerd.sock", changed: "/srv/k8s/etc/containerd/conf.d/99-gpuadm.toml", units: []string{"snap.k8s.containerd"}, restart: "snap.k8s.containerd",
			files: map[string]string{
				"/srv/k8s/etc/containerd/config.toml":             "version = 3\nimports = [\"/srv/k8s/etc/containerd/conf.d/*.toml\"]\n",
				"/srv/k8s/etc/containerd/conf.d/k8sd-auths.toml":  "version = 3\n",
				"/var/snap/k8s/common/args/containerd":            strings.ReplaceAll(args("k8s", "/srv/k8s/etc/containerd/config.toml"), " ", "\n") + "\n",
				"/var/snap/k8s/common/args/kubelet":               "--root-dir=/var/lib/kubelet\n--container-runtime-endpoint=/run/k8s/containerd.sock\n",
				"/etc/systemd/system/snap.k8s.containerd.service": snap("k8s", "containerd", "/snap/k8s/current/bin/containerd "+args("k8s", "/srv/k8s/etc/containerd/config.toml")),
				"/etc/systemd/system/snap.k8s.kubelet.service":    snap("k8s", "kubelet", "/bin/sleep infinity"),
			},
			command: "/snap/k8s/current/bin/containerd --config /srv/k8s/etc/containerd/config.toml config dump",
		},
		{ // the same at the usual places
			name: "k8s-alone", alone: true, socket: usualSocket, changed: "/etc/containerd/conf.d/99-gpuadm.toml", units: []string{"snap.k8s.containerd"}, restart: "snap.k8s.containerd",
			files: map[string]string{
				config:                                 "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
				"/etc/containerd/conf.d/auths.toml":    "version = 3\n",
				"/var/snap/k8s/common/args/containerd": "--config=" + config + "\n--address=" + usualSocket + "\n",
				"/var/snap/k8s/common/args/kubelet":    "--root-dir=/var/lib/kubelet\n--container-runtime-endpoint=" + usualSocket + "\n",
				"/etc/systemd/system/snap.k8s.containerd.service": snap("k8s", "containerd",
					"/snap/k8s/current/bin/containerd --config="+config+" --address="+usualSocket),
				"/etc/systemd/system/snap.k8s.kubelet.service": snap("k8s", "kubelet", "/bin/sleep infinity"),
			},
			command: "/snap/k8s/current/bin/containerd --config " + config + " config dump",
		},
		{ // a unit and a program of no name that gpuadm knows, at the usual places
			name: "other-unit", alone: true, socket: usualSocket, changed: config, units: []string{"gpu-cri", "kubelet"}, restart: "gpu-cri",
			files: map[string]string{
				config:                                "version = 3\n",
				"/usr/bin/kubelet":                    kubeletProgram,
				"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix://" + usualSocket + "\n",
				"/etc/systemd/system/gpu-cri.service": snap("gpu", "cri", "/opt/stated/gpu-engine --log-level info"),
			},
			command: "/opt/stated/gpu-engine --config " + config + " config dump",
		},
		{ // a program and a unit of no name that gpuadm knows, and no kubelet: the spec says it all
			name: "stated", socket: "/run/stated/containerd.sock", changed: "/srv/stated/engine.toml", units: []string{"gpu-engine"}, restart: "gpu-engine",
			says: "config = \"/srv/stated/engine.toml\"\nengine_binary = \"/opt/stated/gpu-engine\"\n",
			files: map[string]string{
				"/srv/stated/engine.toml":                "version = 3\n",
				"/etc/systemd/system/gpu-engine.service": snap("stated", "engine", "/opt/stated/gpu-engine "+args("stated", "/srv/stated/engine.toml")),
			},
			command: "/opt/stated/gpu-engine --config /srv/stated/engine.toml config dump",
		},
	}
}

// TestLabRunners: beside an idle containerd of the machine's, or alone at the usual places, the engine that kubelet uses gets the
// handler in the file that its owner reads, by one start of that daemon; a second apply does
// nothing, and doctor finds no fault of the engine; undo restores every byte; the idle one is untouched
// all along.
func TestLabRunners(t *testing.T) {
	t.Parallel()
	for _, r := range runners() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			host := lab.Options{Dist: "trixie", Containerd: "2.4", GPUs: 1}
			if r.older {
				host.Containerd = ""
			}
			n := boot(t, host)
			const rke2Bin = "/var/lib/rancher/rke2/data/v1.33.8-rke2r1/bin"
			for _, at := range []string{
				"/var/lib/k0s/bin", "/snap/microk8s/current/bin", "/snap/k8s/current/bin",
				"/var/lib/rancher/k3s/data/current/bin", rke2Bin, "/opt/stated",
			} {
				n.Must("mkdir", "-p", at)
				n.Must("cp", "/usr/bin/containerd", at)
			}

			n.Must("mv", "/opt/stated/containerd", "/opt/stated/gpu-engine")
			n.Must("ln", "-s", rke2Bin, "/var/lib/rancher/rke2/bin")
			for name, text := range r.files {
				mode := os.FileMode(0o644)
				if strings.HasPrefix(text, "#!") {
					mode = 0o755
				}
				n.Put(name, text, mode)
			}

			if r.alone {
				n.Must("systemctl", "disable", "--now", daemon)
				n.Must("rm", "/usr/bin/containerd", "/usr/lib/systemd/system/"+daemon)
			}
			n.Put(specFile, "format = 1\n[runtime]\n"+r.says, 0o644)
			n.Must("systemctl", "daemon-reload")
			n.Must(append([]string{"systemctl", "start"}, r.units...)...)
			answers := func() bool {
				return n.Exec("ctr", "--address", r.socket, "version").Exit == 0
			}
			if !eventually(answers) {
				t.Fatalf("%s's containerd does not answer: %s", r.name, n.Journal(r.units[0]+".service"))
			}
			idle, files := n.MainPID(daemon), n.files()
			inDump := func() bool {
				return strings.Contains(n.Must(strings.Fields(r.command)...), "runtimes."+cmp.Or(r.handler, "nvidia")+"]")
			}
			if r.fix != "" {
				pid := n.MainPID(r.units[0] + ".service")
				n.Must("sh", "-c", r.fix)
				check.That(t, n.MainPID(r.units[0]+".service") != pid && eventually(answers), "%s restarts nothing, or what does not answer", r.fix)
			}

			plan := n.gpuadm(0, "plan").Stdout
			says(t, lab.Result{Stdout: plan}, r.changed)
			n.gpuadm(0, "apply")
			if !answers() || !inDump() {
				t.Errorf("after apply: answers %v, handler in the daemon's configuration %v", answers(), inDump())
			}
			again := n.gpuadm(0, "apply")
			check.That(t, again.Stdout == "Nothing to do.\n", "apply again: %s", again)
			n.gpuadm(0, "status")
			doctor := n.Exec("gpuadm", "doctor")
			check.That(t, !strings.Contains(doctor.Stdout, "RUN-"), "doctor after a right apply: %s", doctor)
			n.gpuadm(0, "undo", "--to", "all")
			if !eventually(answers) || inDump() {
				t.Errorf("after undo: answers %v, handler in the daemon's configuration %v", answers(), inDump())
			}
			check.None(t, files.Diff(n.files()), "undo left:")
			check.That(t, n.MainPID(daemon) == idle, "the idle containerd was restarted")
		})
	}
}
