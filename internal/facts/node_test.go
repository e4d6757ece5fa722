// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// clientPEM is a client certificate with its key, as kubelet keeps it in one file, and when it
// ends.
func clientPEM(t *testing.T, name string) (string, time.Time) {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	end := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{
			CommonName:   name,
			Organization: []string{"system:nodes"},
		}, NotAfter: end,
	}, &x509.Certificate{SerialNumber: big.NewInt(2)}, &key.PublicKey, key)
	must.OK(t, err)
	der := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	return string(pem.EncodeToMemory(&pem.Block{
		Type:  "PRIVATE KEY",
		Bytes: der,
	})) + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})), end
}

// booted is files of a machine that runs, and the states of its units.
type booted struct {
	files
	units map[string]string
	mu    *sync.Mutex // several goroutines ask
	asked map[string]int
}

func (booted) Live() bool { return true }
func (booted) Runs() bool { return true }

func (r booted) Unit(ctx context.Context, name string) (host.Unit, error) {
	u, _ := r.files.Unit(ctx, name)
	u.Active = r.units[name]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[name]++
	return u, nil
}

func TestNode(t *testing.T) {
	live := &booted{
		files: files{
			"/proc/sys/kernel/hostname":          "gpu-1\n",
			"/proc/sys/kernel/random/boot_id":    "11111111-2222-4333-8444-555555555555\n",
			"/proc/meminfo":                      "MemTotal:       16384000 kB\nMemFree: 1 kB\n",
			"/sys/devices/system/cpu/online":     "0-3,8,10-11\n",
			"/sys/fs/cgroup/cgroup.controllers":  "cpu memory\n",
			"/etc/hostname":                      "old\n",
			"/etc/machine-id":                    "0123456789abcdef0123456789abcdef\n",
			"/etc/systemd/system/gpuadm.service": "[Service]\nExecStart=/usr/local/sbin/gpuadm apply\n",
			unitFile:                             service1("/usr/bin/kubelet"),
		},
		units: map[string]string{"gpuadm.service": "activating", "kubelet.service": "inactive"},
		mu:    new(sync.Mutex),
		asked: map[string]int{},
	}
	f := must.Get(Gather(t.Context(), live, Needs{}))(t)
	check.Equal(t, nodeOf(f), aNode{
		Hostname:  "gpu-1",
		MachineID: "0123456789abcdef0123456789abcdef",
		BootID:    "11111111-2222-4333-8444-555555555555",
		CPUs:      7,
		Memory:    16384000 << 10,
		Cgroup:    2,
		Booting:   true,
	}, "a machine that boots")
	check.Equal(t, f.Kubelet.Active, "inactive", "kubelet is")
	check.Equal(t, f.Kubelet.NodeName, "gpu-1", "kubelet's node is")
	check.Equal(t, live.asked["gpuadm.service"], 1, "questions to systemd about gpuadm's unit")

	bare := &booted{
		files: files{
			"/sys/fs/cgroup/memory/x": "",
			"/etc/hostname":           "# a comment\n\nold\n",
			"/etc/machine-id":         "uninitialized\n",
		},
		units: map[string]string{"gpuadm.service": "activating"},
		mu:    new(sync.Mutex),
		asked: map[string]int{},
	}
	f = must.Get(Gather(t.Context(), bare, Needs{}))(t)
	check.Equal(t, nodeOf(f), aNode{Hostname: "old", Cgroup: 1}, "a machine that says little")
	check.Equal(t, bare.asked["gpuadm.service"], 0, "questions to systemd about a unit without a file")

	root := nodeOf(gather(t, live.files))
	check.Equal(t, root, aNode{
		Hostname:  "old",
		MachineID: root.MachineID,
	}, "a folder tells what only the running machine has")
	check.That(t, root.MachineID != "", "the folder's machine id is lost")
}

// aNode is what facts say of the machine as a whole.
type aNode struct {
	Hostname, MachineID, BootID string
	CPUs                        int
	Memory                      uint64
	Cgroup                      int
	Booting                     bool
}

func nodeOf(f Facts) aNode {
	return aNode{
		Hostname:  f.Hostname,
		MachineID: f.MachineID,
		BootID:    f.BootID,
		CPUs:      f.CPUs,
		Memory:    f.Memory,
		Cgroup:    f.Cgroup,
		Booting:   f.Booting,
	}
}

func TestCounts(t *testing.T) {
	for list, want := range map[string]int{"": 0, "0": 1, "0-127": 128, "0,2,4-5": 4, "3-1": 0, "a": 0, "0-": 0, "-1": 0, "0-99999999": 0, "0,,1": 0} {
		got := countList(list)
		check.That(t, got == want, "%q are %d CPUs, want %d", list, got, want)
	}

	for text, want := range map[string]uint64{"": 0, "MemTotal: x kB": 0, "MemTotal: 1 kB": 1024, "MemTotal: 99999999999999999999 kB": 0, "Mem: 1 kB": 0} {
		got := memory(text)
		check.That(t, got == want, "%q is %d bytes, want %d", text, got, want)
	}
}

func TestFlagLists(t *testing.T) {
	got := labels([]string{" a = b ,c,,=d", "a=e=f"})
	check.That(t, len(got) == 2 && got["a"] == "e=f" && got["c"] == "", "%v", got)
	if got := taints("a=b:NoSchedule,,c:NoExecute,d,=x:NoSchedule"); len(got) != 3 || got[0] != (Taint{"a", "b", "NoSchedule"}) || got[2] != (Taint{Key: "d"}) {
		t.Errorf("%v", got)
	}
}

// TestMIGOwner: another owner of the partitions is seen also while its pod does not run, by the
// link to its log that kubelet keeps; the DRA driver only where its gate DynamicMIG is on, as its
// chart hands it over.
func TestMIGOwner(t *testing.T) {
	unit := func(enabled, line string) string {
		return "-- sim.toml --\n[[unit]]\nname = \"cut.service\"\nenabled = \"" + enabled + "\"\n-- etc/systemd/system/cut.service --\n[Service]\n" + line + "\n[Install]\nWantedBy=multi-user.target\n"
	}
	const plugin = "-- sim.toml --\n-- proc/77/comm --\ngpu-kubelet-plu\n-- proc/77/environ --\n"
	for name, c := range map[string]struct{ tree, owner, dynamic string }{
		"nothing":        {"-- sim.toml --\n-- proc/7/comm --\nkubelet\n", "", ""},
		"its process":    {"-- sim.toml --\n-- proc/77/comm --\nnvidia-mig-mana\n", "nvidia-mig-manager (process 77)", ""},
		"another user's": {"-- sim.toml --\n-- proc/77/comm --\nnvidia-mig-mana\n-- proc/77/status --\nName:\tx\nUid:\t1000\t0\t0\t0\n", "", ""},
		"its ended pod":  {"-- sim.toml --\n-- var/log/containers/nvidia-mig-manager-x7_gpu-operator_nvidia-mig-manager-0f.log --\n", "nvidia-mig-manager (/var/log/containers/nvidia-mig-manager-x7_gpu-operator_nvidia-mig-manager-0f.log)", ""},
		"a unit":         {unit("enabled", "ExecStart=-/usr/bin/nvidia-smi -i 0 -mig 1"), "cut.service (it is enabled and calls nvidia-smi)", ""},
		"not enabled":    {unit("disabled", "ExecStart=/usr/bin/nvidia-smi -mig 1"), "", ""},
		"masked":         {"-- sim.toml --\n-- usr/lib/systemd/system/cut.service --\n[Service]\nExecStart=/usr/bin/nvidia-smi -mig 1\n-- etc/systemd/system/multi-user.target.wants/cut.service link=/usr/lib/systemd/system/cut.service --\n-- etc/systemd/system/cut.service link=/dev/null --\n", "", ""},
		"a list":         {unit("enabled", "ExecStart=/usr/bin/nvidia-smi mig -lgi"), "", ""},
		"its script":     {unit("enabled", "ExecStart=/bin/bash /opt/cut.sh 1") + "-- opt/cut.sh --\n#!/bin/bash\n# nvidia-mig-parted\nnvidia-smi mig -i 0 -cgi 19,19 -C\n", "cut.service (it is enabled and calls nvidia-smi, in /opt/cut.sh)", ""},
		"a comment":      {unit("enabled", "ExecStart=/opt/cut.sh") + "-- opt/cut.sh --\n#!/bin/sh\n# nvidia-mig-parted apply\n", "", ""},
		"its options":    {unit("enabled", "ExecStart=/usr/bin/nvidia-smi mig -i 0,1 --create-gpu-instance=9,9 -C"), "cut.service (it is enabled and calls nvidia-smi)", ""},
		"a variable":     {unit("enabled", "ExecStart=/opt/cut.sh") + "-- opt/cut.sh --\n#!/bin/sh\nSMI=/usr/bin/nvidia-smi\n\"$SMI\" mig -i \"$1\" \\\n  -cgi 9,9 -C\n", "cut.service (it is enabled and calls nvidia-smi, in /opt/cut.sh)", ""},
		"Python":         {unit("enabled", "ExecStart=/usr/bin/python3 /opt/cut.py") + "-- opt/cut.py --\n#!/usr/bin/python3\nsubprocess.run([\"nvidia-smi\", \"mig\", \"-cgi\", \"9,9\"])\n", "cut.service (it is enabled and calls nvidia-smi, in /opt/cut.py)", ""},
		"a shell's word": {unit("enabled", "ExecStart=/bin/bash -c 'source /opt/env; /opt/cut.sh'") + "-- opt/cut.sh --\n#!/bin/sh\nnvidia-mig-parted -d apply -f /etc/mig.yaml -c all\n", "cut.service (it is enabled and calls nvidia-mig-parted, in /opt/cut.sh)", ""},
		"two scripts":    {unit("enabled", "ExecStart=/opt/a.sh") + "-- opt/a.sh --\n#!/bin/sh\n\"$(dirname \"$0\")/lib/b.sh\"\nexec /opt/c.sh\n-- opt/lib/b.sh --\n#!/bin/sh\ntrue\n-- opt/c.sh --\n#!/bin/sh\nnvidia-smi -mig 1\n", "cut.service (it is enabled and calls nvidia-smi, in /opt/c.sh)", ""},
		"beside it":      {unit("enabled", "ExecStart=/opt/a.sh") + "-- opt/a.sh --\n#!/bin/sh\n. \"${HERE}/b.sh\"\n-- opt/b.sh --\n#!/bin/sh\nnvidia-smi -mig 1\n", "cut.service (it is enabled and calls nvidia-smi, in /opt/b.sh)", ""},
		"a folder's":     {unit("enabled", "ExecStart=/opt/a.sh") + "-- opt/a.sh --\n#!/bin/sh\ntar xf a srv/b.sh\ntest -e /c.sh\n-- srv/b.sh --\n#!/bin/sh\nnvidia-smi -mig 1\n-- opt/c.sh --\n#!/bin/sh\nnvidia-smi -mig 1\n", "", ""},
		"a loop":         {unit("enabled", "ExecStart=/opt/a.sh") + "-- opt/a.sh --\n#!/bin/sh\n/opt/b.sh\n-- opt/b.sh --\n#!/bin/sh\n/opt/a.sh\n", "", ""},
		"an export":      {unit("enabled", "ExecStart=/usr/bin/nvidia-mig-parted export"), "", ""},
		"a question":     {unit("enabled", "ExecStart=/usr/bin/nvidia-smi --query-gpu=mig.mode.current --format=csv"), "", ""},
		"a timer":        {strings.ReplaceAll(unit("enabled", ""), "cut.service", "cut.timer") + "-- etc/systemd/system/cut.service --\n[Service]\nExecStart=/usr/bin/nvidia-smi -mig 1\n", "cut.service (cut.timer is enabled and starts it, and it calls nvidia-smi)", ""},
		"a timer's":      {strings.ReplaceAll(unit("enabled", "Unit=slices.service"), "cut.service", "cut.timer") + "-- etc/systemd/system/slices.service --\n[Service]\nExecStart=/usr/bin/nvidia-smi -mig 1\n", "slices.service (cut.timer is enabled and starts it, and it calls nvidia-smi)", ""},
		"a package's":    {strings.ReplaceAll(unit("enabled", ""), "cut.service", "cut.timer") + "-- usr/lib/systemd/system/cut.service --\n[Service]\nExecStart=/usr/bin/nvidia-smi -mig 1\n", "cut.service (cut.timer is enabled and starts it, and it calls nvidia-smi)", ""},
		"one it wants":   {unit("enabled", "ExecStart=/bin/true\n[Unit]\nWants=network.target slices.service") + "-- etc/systemd/system/slices.service --\n[Service]\nExecStart=/usr/bin/nvidia-smi -mig 1\n", "slices.service (cut.service is enabled and starts it, and it calls nvidia-smi)", ""},
		"wants, spaced":  {unit("enabled", "ExecStart=/bin/true\n[Unit]\nWants = slices.service") + "-- etc/systemd/system/slices.service --\n[Service]\nExecStart=/usr/bin/nvidia-smi -mig 1\n", "slices.service (cut.service is enabled and starts it, and it calls nvidia-smi)", ""},
		"a drop-in":      {unit("enabled", "ExecStart=/bin/true") + "-- etc/systemd/system/cut.service.d/mig.conf --\n[Service]\nExecStartPre=-/usr/bin/nvidia-smi -mig 1\n", "/etc/systemd/system/cut.service.d/mig.conf (it calls nvidia-smi at each boot)", ""},
		"cron":           {"-- sim.toml --\n-- etc/cron.d/mig --\nPATH=/usr/bin\n@reboot root sleep 30; nvidia-smi -mig 1 && nvidia-smi mig -cgi 19 -C\n", "/etc/cron.d/mig (it calls nvidia-smi at each boot)", ""},
		"root's cron":    {"-- sim.toml --\n-- var/spool/cron/crontabs/root --\n# m h\n@reboot /opt/cut.sh\n-- opt/cut.sh --\n#!/bin/sh\nnvidia-smi mig -dci; nvidia-smi mig -dgi\n", "/var/spool/cron/crontabs/root (it calls nvidia-smi, in /opt/cut.sh at each boot)", ""},
		"rc.local":       {"-- sim.toml --\n-- etc/rc.local mode=0755 --\n#!/bin/sh -e\nnvidia-smi -i 0 -mig 1\nexit 0\n", "/etc/rc.local (it calls nvidia-smi at each boot)", ""},
		"bootcmd":        {"-- sim.toml --\n-- etc/cloud/cloud.cfg.d/99-mig.cfg --\nbootcmd:\n  - [nvidia-smi, -mig, \"1\"]\n", "/etc/cloud/cloud.cfg.d/99-mig.cfg (it calls nvidia-smi at each boot)", ""},
		"runcmd":         {"-- sim.toml --\n-- var/lib/cloud/instance/scripts/runcmd --\n#!/bin/sh\nnvidia-smi mig -cgi 9,9 -C\n", "/var/lib/cloud/instance/scripts/runcmd (it calls nvidia-smi at each boot)", ""},
		"runcmd, over":   {"-- sim.toml --\n-- var/lib/cloud/instance/sem/config_scripts_user --\n-- var/lib/cloud/instance/scripts/runcmd --\n#!/bin/sh\nnvidia-smi mig -cgi 9,9 -C\n", "", ""},
		"a pod":          {"-- sim.toml --\n-- proc/77/comm --\nsh\n-- proc/77/cmdline --\nsh\x00-c\x00nvidia-smi -mig 1; nvidia-smi mig -cgi 9,9 -C; sleep inf\x00\n-- proc/77/cgroup --\n0::/kubepods.slice/kubepods-burstable.slice/x/cri-containerd-0.scope\n", "a pod (its process 77 calls nvidia-smi)", ""},
		"a person":       {"-- sim.toml --\n-- proc/77/comm --\nsh\n-- proc/77/cmdline --\nsh\x00-c\x00nvidia-smi -mig 1\x00\n-- proc/77/cgroup --\n0::/user.slice/user-0.slice/session-1.scope\n", "", ""},
		"a static pod":   {"-- sim.toml --\n-- etc/kubernetes/manifests/mig.yaml --\nspec:\n  containers:\n  - command: [\"sh\", \"-c\", \"nvidia-smi mig -cgi 9,9 -C; sleep inf\"]\n", "/etc/kubernetes/manifests/mig.yaml (it calls nvidia-smi at each boot)", ""},
		"its JSON":       {"-- sim.toml --\n-- etc/kubernetes/manifests/mig.json --\n{\"spec\": {\"containers\": [{\"command\": [\"nvidia-smi\", \"-mig\", \"1\"]}]}}\n", "/etc/kubernetes/manifests/mig.json (it calls nvidia-smi at each boot)", ""},
		"hidden":         {"-- sim.toml --\n-- etc/kubernetes/manifests/.mig.yaml --\ncommand: [\"nvidia-smi\", \"-mig\", \"1\"]\n", "", ""},
		"GKE's label":    {"-- sim.toml --\n-- etc/nvidia/gpu_config.json --\n{\"GPUPartitionSize\": \"1g.5gb\"}\n", "GKE (/etc/nvidia/gpu_config.json has a GPUPartitionSize)", ""},
		"GKE, shared":    {"-- sim.toml --\n-- etc/nvidia/gpu_config.json --\n{\"GPUPartitionSize\": \"\", \"GPUSharingConfig\": {\"GPUSharingStrategy\": \"time-sharing\"}}\n", "", ""},
		"DRA":            {plugin + "A=b\x00FEATURE_GATES=TimeSlicingSettings=true,DynamicMIG=true,\x00C=d\x00\n", "", "process 77"},
		"DRA without":    {plugin + "FEATURE_GATES=TimeSlicingSettings=true,\x00\n", "", ""},
		"DRA off":        {plugin + "FEATURE_GATES=DynamicMIG=false,\x00\n", "", ""},
		"DRA, no gates":  {plugin + "X=DynamicMIG=true\x00\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := must.Get(simhost.New([]byte(c.tree)))(t)
			f, err := Gather(t.Context(), n, Needs{Driver: true})
			owner := ""
			if f.MIGOwner != nil {
				owner = f.MIGOwner.String()
			}
			check.That(t, err == nil && owner == c.owner && f.DynamicMIG == c.dynamic, "%q %q, %v; want %q %q", owner, f.DynamicMIG, err, c.owner, c.dynamic)
		})
	}
}

// TestTimerEnds: the command that ends the partitions by a timer's service disables the timer, since
// the service is not enabled.
func TestTimerEnds(t *testing.T) {
	const timer = "-- sim.toml --\n[[unit]]\nname = \"cut.timer\"\nenabled = \"enabled\"\n" +
		"-- etc/systemd/system/cut.timer --\n[Timer]\nOnBootSec=60\n[Install]\nWantedBy=timers.target\n"
	const service = "-- etc/systemd/system/cut.service --\n[Service]\nExecStart=/usr/bin/nvidia-smi -mig 1\n"
	n := must.Get(simhost.New([]byte(timer + service)))(t)
	f := must.Get(Gather(t.Context(), n, Needs{Driver: true}))(t)
	must.That(t, f.MIGOwner != nil, "nothing partitions the GPUs")
	check.Equal(t, f.MIGOwner.Ends, "systemctl disable --now cut.timer", "what ends it:")
}

// TestOthersProcesses: a kubelet without a unit, and an engine that reads the file that the spec
// names, is root's and no pod's: root would use the kubeconfig and run the program.
func TestOthersProcesses(t *testing.T) {
	for of, want := range map[string]string{
		"Uid:\t0\t0\t0\t0\n-- proc/N/cgroup --\n0::/system.slice/node.service\n":                       "/srv/kc",
		"Uid:\t1000\t1000\t1000\t1000\n":                                                               "",
		"Uid:\t1000\t0\t0\t0\n":                                                                        "", // a set-user-ID program's
		"Uid:\t0\t0\t0\t0\n-- proc/N/cgroup --\n0::/kubepods/burstable/pod0/0\n":                       "",
		"Uid:\t0\t0\t0\t0\n-- proc/N/cgroup --\n0::/kubepods.slice/kubepods-pod0.slice/crio-0.scope\n": "",
	} {
		tree := "-- sim.toml --\n-- srv/c.toml --\nversion = 2\n"
		for pid, argv := range map[string]string{"77": "kubelet\x00--kubeconfig=/srv/kc\x00", "78": "containerd\x00--config=/srv/c.toml\x00"} {
			name, _, _ := strings.Cut(argv, "\x00")
			tree += strings.NewReplacer("N/", pid+"/").Replace("-- proc/N/comm --\n" + name + "\n-- proc/N/cmdline --\n" + argv + "\n-- proc/N/exe link=/srv/" + name + " --\n-- proc/N/status --\nName:\tx\n" + of)
		}

		n := must.Get(simhost.New([]byte(tree)))(t)
		f, err := Gather(t.Context(), n, Needs{Engine: NamedEngine{Config: "/srv/c.toml"}})
		check.That(t, err == nil && f.Kubelet.Kubeconfig == want && len(f.Engines) == min(1, len(want)), "%q: kubeconfig %q, engines %+v, %v", of, f.Kubelet.Kubeconfig, f.Engines, err)
	}
}

// TestTwoKubelets: of two kubelets the first to start is the machine's.
func TestTwoKubelets(t *testing.T) {
	tree := "-- sim.toml --\n"
	for pid, kubeconfig := range map[string]string{"987": "/srv/machine", "10500": "/srv/container"} {
		tree += "-- proc/" + pid + "/comm --\nkubelet\n-- proc/" + pid + "/exe link=/srv/kubelet --\n" +
			"-- proc/" + pid + "/cmdline --\nkubelet\x00--kubeconfig=" + kubeconfig + "\x00\n" +
			"-- proc/" + pid + "/status --\nName:\tkubelet\nUid:\t0\t0\t0\t0\n"
	}

	f := must.Get(Gather(t.Context(), must.Get(simhost.New([]byte(tree)))(t), Needs{}))(t)
	check.Equal(t, f.Kubelet.Kubeconfig, "/srv/machine", "the kubeconfig is")
}

// TestUnitOfProcess: the systemd in a container, such as a node of kind, has units of its own. They
// are not this machine's, whatever their names.
func TestUnitOfProcess(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/system.slice/kubelet.service\n":                                 "kubelet.service",
		"2:pids:/system.slice/k3s.service\n0::/system.slice/k3s.service\n":   "k3s.service",
		"0::/system.slice/k0s.service/kubepods/x.service\n":                  "k0s.service",
		"0::/user.slice/user-0.slice/session-1.scope\n":                      "",
		"0::/system.slice/docker-0a1b.scope/kubelet.slice/kubelet.service\n": "",
	} {
		g := &gathering{v: files{"/proc/7/cgroup": cgroup}}
		_, unit := g.commandOf("7")
		check.Equal(t, unit, want, "%q:", cgroup)
	}
}

func TestGFDSeen(t *testing.T) {
	for name, c := range map[string]struct{ tree, want string }{
		"nothing":      {"-- sim.toml --\n-- proc/7/comm --\nkubelet\n", ""},
		"its file":     {"-- sim.toml --\n-- etc/kubernetes/node-feature-discovery/features.d/gfd --\nnvidia.com/gpu.count=8\n", "/etc/kubernetes/node-feature-discovery/features.d/gfd"},
		"its pod":      {"-- sim.toml --\n-- var/log/containers/gpu-feature-discovery-x7_gpu-operator_gpu-feature-discovery-0f.log --\n", "/var/log/containers/gpu-feature-discovery-x7_gpu-operator_gpu-feature-discovery-0f.log"},
		"other's pods": {"-- sim.toml --\n-- var/log/containers/nvidia-device-plugin-x7_kube-system_plugin-0f.log --\n", ""},
		"its process":  {"-- sim.toml --\n-- proc/77/comm --\ngpu-feature-dis\n", "process 77"},
	} {
		t.Run(name, func(t *testing.T) {
			n := must.Get(simhost.New([]byte(c.tree)))(t)
			f, err := Gather(t.Context(), n, Needs{Driver: true})
			check.That(t, err == nil && f.GFD == c.want, "%q, %v, want %q", f.GFD, err, c.want)
			f, _ = Gather(t.Context(), n, Needs{})
			check.That(t, f.GFD == "" && f.Machine == "", "found out what was not asked for")
		})
	}
}

// configSpace is PCI configuration space with capabilities, each laid where its first number says.
func configSpace(first byte, capabilities map[int]string) []byte {
	config := make([]byte, 256)
	config[6], config[0x34] = 0x10, first
	for at, c := range capabilities {
		copy(config[at:], c)
	}
	return config
}

func TestVGPU(t *testing.T) {
	const driver = "\x00\x16550.90\x00\x00\x00\x00r550_00\x00\x00\x00"
	own := "\x09\x00\x1bVF" + driver
	for name, c := range map[string]struct {
		config []byte
		want   *VGPU
	}{
		"a whole GPU":         {configSpace(0x60, map[int]string{0x60: "\x01\x68\x03", 0x68: "\x05\x00"}), nil},
		"another's":           {configSpace(0x60, map[int]string{0x60: "\x09\x00\x14\x01\x00"}), nil},
		"a virtual one":       {configSpace(0xd0, map[int]string{0xd0: own}), &VGPU{"550.90", "r550_00"}},
		"behind others":       {configSpace(0x60, map[int]string{0x60: "\x01\xd0\x03", 0xd0: own}), &VGPU{"550.90", "r550_00"}},
		"another record":      {configSpace(0x60, map[int]string{0x60: "\x09\x00\x1fVF\x01\x04ab" + driver}), &VGPU{"550.90", "r550_00"}},
		"no record of it":     {configSpace(0x60, map[int]string{0x60: "\x09\x00\x09VF\x01\x04ab"}), &VGPU{}},
		"a record of nothing": {configSpace(0x60, map[int]string{0x60: "\x09\x00\x1fVF\x01\x00ab" + driver}), &VGPU{}},
		"a chain that loops":  {configSpace(0x60, map[int]string{0x60: "\x01\x60\x03"}), nil},
		"at the end":          {configSpace(0xfd, map[int]string{0xfd: "\x09\x00\x1b"}), nil},
		"not root":            {configSpace(0xd0, map[int]string{0xd0: own})[:64], nil},
		"no capabilities":     {make([]byte, 256), nil},
	} {
		check.None(t, cmp.Diff(c.want, vgpu(c.config)), "%s (-want +got):", name)
	}
}

func FuzzVGPU(f *testing.F) {
	f.Add(configSpace(0xd0, map[int]string{0xd0: "\x09\x00\x1bVF\x00\x16550.90"}))
	f.Add(configSpace(0xff, map[int]string{0xff: "\x09"}))
	f.Fuzz(func(t *testing.T, config []byte) {
		if v := vgpu(config); v != nil && (len(v.Version) > 10 || len(v.Branch) > 10 || !strings.Contains(string(config), "VF")) {
			t.Errorf("%+v", v)
		}
	})
}
