// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	usualConfig  = "/etc/containerd/config.toml"
	usualSocket  = "/run/containerd/containerd.sock"
	usualKubelet = "/usr/bin/kubelet --container-runtime-endpoint=unix://" + usualSocket
)

// live is a machine that runs: its links, the main processes of its units, and how long after those
// the usual socket was made.
type live struct {
	files
	links   map[string]string
	mains   map[string]int
	younger time.Duration
}

func (live) Live() bool { return true }

func (v live) Readlink(name string) (string, error) {
	if to, ok := v.links[name]; ok {
		return to, nil
	}
	return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrNotExist}
}

func (v live) Unit(ctx context.Context, name string) (host.Unit, error) {
	u, _ := v.files.Unit(ctx, name)
	u.Active = "inactive"
	if pid := v.mains[name]; pid != 0 {
		u.Active = "active"
		u.PID = pid
		u.Started = time.Unix(1000, 0)
	}

	return u, nil
}

func (v live) Stat(name string) (host.Info, error) {
	info, err := v.files.Stat(name)
	if name == usualSocket {
		info.Ctime = time.Unix(1001, 0).Add(v.younger)
	}
	return info, err
}

// process adds a process that listens at the usual socket, as /proc shows it: proc(5), and
// unix_seq_show in net/unix/af_unix.c of Linux.
func (v live) process(pid, unit, exe, argv string) {
	v.files["/proc/net/unix"] = "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 4711 " + usualSocket + "\n"
	v.files["/proc/"+pid+"/cmdline"] = argv
	v.files["/proc/"+pid+"/cgroup"] = "0::/system.slice/" + unit + "\n"
	v.files["/proc/"+pid+"/status"] = "Name:\tx\nUid:\t0\t0\t0\t0\n"
	v.files["/proc/"+pid+"/fd/7"] = ""
	v.links["/proc/"+pid+"/fd/7"] = "socket:[4711]"
	v.links["/proc/"+pid+"/exe"] = exe
}

// TestOneIdentity: the engine at kubelet's socket is the process that listens there, whatever its
// unit's name; a config file alone is none beside it.
func TestOneIdentity(t *testing.T) {
	const own = "/opt/x/containerd\x00--log-level\x00info\x00"
	kubelet := files{
		"/usr/lib/systemd/system/kubelet.service": service1(usualKubelet), "/usr/bin/kubelet": "x",
		usualConfig: "version = 2\n", usualSocket: "", "/opt/x/containerd": "x",
	}
	snap := files{
		"/etc/systemd/system/snap.k8s.containerd.service": service1("/usr/bin/snap run k8s.containerd"),
		"/etc/systemd/system/snap.k8s.kubelet.service":    service1("/usr/bin/snap run k8s.kubelet"),
		"/var/snap/k8s/common/args/containerd":            "--address=" + usualSocket + "\n--config=" + usualConfig + "\n",
		"/var/snap/k8s/common/args/kubelet":               "--container-runtime-endpoint=" + usualSocket + "\n",
		"/snap/k8s/current/bin/containerd":                "x",
		usualConfig:                                       "version = 2\n",
	}
	other := files{"/etc/systemd/system/gpu-cri.service": service1("/opt/x/containerd")}
	idle := files{"/usr/lib/systemd/system/containerd.service": service1("/usr/bin/containerd"), "/usr/bin/containerd": "x"}

	for _, c := range []struct {
		name         string
		files        []files
		listens      string // the unit of the process, if one listens
		mains        map[string]int
		younger      time.Duration
		unit, binary string // of the one engine at kubelet's socket that comes first
		engines      int
	}{
		{"Canonical Kubernetes alone", []files{snap}, "", nil, 0, "snap.k8s.containerd.service", "/snap/k8s/current/bin/containerd", 1},
		{"another unit, stopped", []files{kubelet, other}, "", nil, 0, "gpu-cri.service", "/opt/x/containerd", 1},
		{"another unit", []files{kubelet, other}, "gpu-cri.service", map[string]int{"gpu-cri.service": 7}, 0, "gpu-cri.service", "/opt/x/containerd", 1},
		{"another unit, containerd's stopped", []files{kubelet, other, idle}, "gpu-cri.service", map[string]int{"gpu-cri.service": 7}, 0, "gpu-cri.service", "/opt/x/containerd", 2},
		{"another unit took the socket", []files{kubelet, other, idle}, "gpu-cri.service", map[string]int{"gpu-cri.service": 7, "containerd.service": 8}, time.Hour, "gpu-cri.service", "/opt/x/containerd", 2},
		{"containerd's own, restarted by its socket's owner", []files{kubelet, idle}, "containerd.service", map[string]int{"containerd.service": 7}, time.Hour, "containerd.service", "/usr/bin/containerd", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := live{
				files:   files{},
				links:   map[string]string{},
				mains:   c.mains,
				younger: c.younger,
			}
			for _, more := range c.files {
				for name, data := range more {
					v.files[name] = data
				}
			}

			if c.listens != "" {
				v.process("7", c.listens, "/opt/x/containerd", own)
			}
			f := must.Get(Gather(t.Context(), v, Needs{}))(t)
			must.That(t, len(f.Engines) == c.engines, "%d engines: %+v", len(f.Engines), f.Engines)
			e := f.Engines[0]
			check.That(t, f.Kubelet.Uses(e) && e.Config == usualConfig, "kubelet does not use %+v", e)
			check.Equal(t, [...]string{e.Unit, e.Binary, e.Owner}, [...]string{c.unit, c.binary, ""}, "unit, program and owner")
		})
	}
}

// TestListenerUnseen: where systemd does not say which process is a unit's own, the engine that
// listens does not count as another program's.
func TestListenerUnseen(t *testing.T) {
	const unit = "gpu-cri.service"
	v := live{
		files: files{
			"/usr/lib/systemd/system/kubelet.service": service1(usualKubelet), "/usr/bin/kubelet": "x",
			usualConfig: "version = 2\n", usualSocket: "", "/opt/x/containerd": "x",
		},
		links: map[string]string{},
		mains: map[string]int{unit: 7},
	}
	v.process("7", unit, "/opt/x/containerd", "/opt/x/containerd\x00")

	f, err := Gather(t.Context(), blind{View: v, unit: unit}, Needs{})
	check.That(t, errors.Is(err, syscall.EIO), "%v, engines %+v", err, f.Engines)
}

// TestWrapperThatExecs: where a script has become the engine's process, that process says which file
// the engine reads. A script that stays may write the file itself, and one that has not run says
// nothing.
func TestWrapperThatExecs(t *testing.T) {
	const (
		script = "/usr/local/bin/wrap"
		argv   = "/usr/bin/containerd\x00--config\x00/srv/engine.toml\x00"
	)
	for name, c := range map[string]struct {
		main            int // the unit's main process
		argv            string
		wrapper, config string
	}{
		"execs":                     {7, argv, "", "/srv/engine.toml"},
		"stays":                     {6, argv, script, usualConfig},
		"has not run":               {0, "", script, usualConfig},
		"execs, with a name of its": {7, "containerd\x00--config\x00engine.toml\x00", script, usualConfig},
	} {
		on := files{
			"/usr/lib/systemd/system/kubelet.service":    service1(usualKubelet),
			"/usr/lib/systemd/system/containerd.service": service1(script),
			"/usr/bin/kubelet":                           "x", "/usr/bin/containerd": "x", script: "#!/bin/sh\n",
			usualConfig: "version = 2\n", "/srv/engine.toml": "version = 2\n", usualSocket: "",
		}
		v := live{
			files: on,
			links: map[string]string{},
			mains: map[string]int{"containerd.service": c.main},
		}
		if c.argv != "" {
			v.process("7", "containerd.service", "/usr/bin/containerd", c.argv)
		}

		f := must.Get(Gather(t.Context(), v, Needs{}))(t)
		e := f.Engines[0]
		check.Equal(t, [...]string{e.Wrapper, e.Config}, [...]string{c.wrapper, c.config}, "%s: wrapper and file", name)
		if c.wrapper == "" {
			isRead := slices.Contains(e.Started, script)
			check.That(t, isRead, "%s: the script is no file of %q", name, e.Started)
		}
	}
}

// TestDropInIsNoRancher: a folder below K3s's that holds nothing but gpuadm's drop-in is not K3s: its
// containerd's rendered file can be another containerd's, which imports that folder.
func TestDropInIsNoRancher(t *testing.T) {
	const agent = "/var/lib/rancher/k3s/agent"
	v := files{
		"/usr/lib/systemd/system/containerd.service": service1("/usr/bin/containerd"), "/usr/bin/containerd": "x",
		usualConfig: "version = 3\nimports = [\"" + agent + "/etc/containerd/config-v3.toml.d/*.toml\"]\n",
	}
	before := gather(t, v)
	v[agent+"/etc/containerd/config-v3.toml.d/99-gpuadm.toml"] = "version = 3\n"
	after := gather(t, v)
	isSame := len(after.Engines) == 1 && after.Engines[0].Unit == before.Engines[0].Unit
	check.That(t, isSame && after.Kubelet.Endpoint == "", "after gpuadm's file: %+v, kubelet %+v", after.Engines, after.Kubelet)

	for _, made := range []string{
		agent + "/etc/containerd/config.toml", agent + "/containerd/x", "/var/lib/rancher/k3s/data/current/bin/k3s",
	} {
		v := files{made: "x", agent + "/etc/containerd/config-v3.toml.d/99-gpuadm.toml": "version = 3\n"}
		f := gather(t, v)
		check.That(t, len(f.Engines) == 1 && f.Engines[0].Owner == "k3s", "K3s with %s: %+v", made, f.Engines)
	}
}

// TestSnapDocker: Docker's snap is an engine, with the snap's own file.
func TestSnapDocker(t *testing.T) {
	f := gather(t, files{
		"/etc/systemd/system/snap.docker.dockerd.service": service1("/usr/bin/snap run docker.dockerd"),
		"/snap/docker/current/bin/dockerd":                "x",
		"/var/snap/docker/current/config/daemon.json":     "{}",
	})
	must.That(t, len(f.Engines) == 1, "%d engines", len(f.Engines))
	e := f.Engines[0]
	got := [...]string{e.Name, e.Unit, e.Config, e.Owner, e.Wrapper, string(e.Files[0].Data)}
	want := [...]string{
		"docker", "snap.docker.dockerd.service", "/var/snap/docker/current/config/daemon.json", "the snap docker", "", "{}",
	}
	check.Equal(t, got, want, "the engine")
}
