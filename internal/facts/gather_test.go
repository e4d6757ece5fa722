// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// gather is Gather where nothing may go wrong.
func gather(t *testing.T, v files) Facts {
	t.Helper()
	f := must.Get(Gather(t.Context(), v, Needs{}))(t)
	return f
}

// engine returns the only engine of a folder of files.
func engine(t *testing.T, v files) Engine {
	t.Helper()
	f := gather(t, v)
	must.That(t, len(f.Engines) == 1, "%d engines, want one: %+v", len(f.Engines), f.Engines)
	return f.Engines[0]
}

func TestNothing(t *testing.T) {
	f := gather(t, files{"/etc/hostname": "x"})
	check.None(t, cmp.Diff(Facts{
		Day:      "1970-01-01",
		Kernel:   Kernel{Installed: []string{}},
		Hostname: "x",
	}, f), "got")
	check.That(t, f.String() == "", "%q", f)
}

// The engine with a binary is the one in use, whatever files others left behind.
func TestConfigOnlyComesLast(t *testing.T) {
	f := gather(t, files{"/etc/containerd/config.toml": "", "/usr/bin/crio": "x"})
	check.That(t, len(f.Engines) == 2 && f.Engines[0].Name == "crio" && f.Engines[1].Name == "containerd", "%+v", f.Engines)
	check.That(t, f.Engines[1].Files[0].Data != nil, "an empty file is taken for a missing one")
}

func TestDenied(t *testing.T) {
	f, err := Gather(t.Context(), files{
		"/etc/os-release": "ID=debian", "/usr/bin/containerd": "x", "/etc/containerd/config.toml": fs.ErrPermission,
	}, Needs{})
	check.That(t, err != nil && strings.HasPrefix(err.Error(), "cannot read /etc/containerd/config.toml: "), "%v", err)
	check.That(t, f.OS.ID == "debian" && len(f.Engines) == 1, "the rest of the facts is missing: %+v", f)
}

// unseen is a machine on which one file cannot be looked at.
type unseen struct {
	files
	name string
	err  error
}

func (u unseen) Stat(name string) (host.Info, error) {
	if name == u.name {
		return host.Info{}, &fs.PathError{Op: "stat", Path: name, Err: u.err}
	}
	return u.files.Stat(name)
}

func (u unseen) Lstat(name string) (host.Info, error) { return u.Stat(name) }

// TestUnseenFolder: a folder that gpuadm cannot look at does not count as empty, and neither does a
// folder in it.
func TestUnseenFolder(t *testing.T) {
	const (
		folder = "/etc/crio/crio.conf.d"
		inner  = folder + "/sub"
		file   = inner + "/x.conf"
	)
	v := files{file: "x"}
	for name, fails := range map[string]bool{folder: true, inner: true, "/etc/other": false} {
		for walk, found := range map[string]func(g *gathering) []string{
			"walk": func(g *gathering) []string { return g.walk(folder, 0) },
			"glob": func(g *gathering) []string { return g.glob(folder + "/*/*") },
		} {
			g := &gathering{v: unseen{v, name, syscall.EIO}}
			names := found(g)

			says := g.err != nil && strings.HasPrefix(g.err.Error(), "cannot check "+name+": ")
			check.That(t, says == fails, "%s, %s: %v", walk, name, g.err)
			check.That(t, fails || slices.Equal(names, []string{file}), "%s, %s: found %q", walk, name, names)
		}
	}
}

// TestUnseenFile: if gpuadm cannot look at a file of a folder, or at a list of mirrors, the file does
// not count as missing. A link that leads to itself is no file.
func TestUnseenFile(t *testing.T) {
	const (
		folder = "/etc/apt/sources.list.d/"
		source = folder + "x.sources"
		repo   = "/etc/yum.repos.d/x.repo"
		list   = "/etc/mirrors"
	)
	v := files{
		source: "x",
		repo:   "mirrorlist=file://" + list + "\n",
		list:   "https://m.example\n",
	}
	for name, fails := range map[string]bool{source: true, list: true, "/etc/other": false} {
		_, err := Gather(t.Context(), unseen{v, name, syscall.EIO}, Needs{Files: []string{folder, repo}})
		says := err != nil && strings.HasPrefix(err.Error(), "cannot check "+name+": ")
		check.That(t, says == fails, "%s: %v", name, err)
	}

	_, err := Gather(t.Context(), unseen{v, source, syscall.ELOOP}, Needs{Files: []string{folder}})
	check.That(t, err == nil, "a link that leads to itself: %v", err)
}

func paths(files []File) (out []string) {
	for _, f := range files {
		if f.Data == nil {
			out = append(out, f.Path+" (missing)")
		} else {
			out = append(out, f.Path)
		}
	}
	return out
}

// The order in which containerd 1.6 to 2.4 read: breadth first, relative paths from the importing
// file, no path twice.
func TestImports(t *testing.T) {
	const etc = "/etc/containerd/"
	for _, c := range []struct {
		name  string
		files files
		want  []string
	}{
		{"no file", files{"/usr/bin/containerd": "x"}, []string{etc + "config.toml (missing)"}},
		{"folder by name", files{
			etc + "config.toml":   `imports = ["/etc/containerd/conf.d/*.toml"]`,
			etc + "conf.d/b.toml": "", etc + "conf.d/a.toml": "", etc + "conf.d/c.txt": "", etc + "conf.d/.h.toml": "",
		}, []string{etc + "config.toml", etc + "conf.d/.h.toml", etc + "conf.d/a.toml", etc + "conf.d/b.toml"}},
		{"breadth first", files{
			etc + "config.toml": `imports = ["a.toml", "b.toml"]`,
			etc + "a.toml":      `imports = ["sub/c.toml"]`,
			etc + "b.toml":      "", etc + "sub/c.toml": `imports = ["d.toml"]`, etc + "sub/d.toml": "",
		}, []string{etc + "config.toml", etc + "a.toml", etc + "b.toml", etc + "sub/c.toml", etc + "sub/d.toml"}},
		{"circles and repetitions", files{
			etc + "config.toml": `imports = ["./x/../a.toml", "a.toml", "/etc/containerd/*.toml"]`,
			etc + "a.toml":      `imports = ["config.toml"]`,
		}, []string{etc + "config.toml", etc + "a.toml"}},
		{"a named file that is missing", files{etc + "config.toml": `imports = ["gone.toml"]`}, []string{etc + "config.toml", etc + "gone.toml (missing)"}},
		{"star in a folder's name", files{
			etc + "config.toml": `imports = ["/etc/c*/*/x.toml"]`, etc + "b/x.toml": "", etc + "a/x.toml": "", etc + "a/y.toml": "",
		}, []string{etc + "config.toml", etc + "a/x.toml", etc + "b/x.toml"}},
		{"no star, no pattern", files{etc + "config.toml": `imports = ["[a].toml"]`, etc + "a.toml": ""}, []string{etc + "config.toml", etc + "[a].toml (missing)"}},
		{"bad pattern", files{etc + "config.toml": `imports = ["[*.toml"]`}, []string{etc + "config.toml"}},
		{"not TOML", files{etc + "config.toml": "imports = [\"a.toml\"]\n[broken"}, []string{etc + "config.toml"}},
		{"after a byte order mark", files{etc + "config.toml": "\ufeffimports = [\"a.toml\"]", etc + "a.toml": ""}, []string{etc + "config.toml", etc + "a.toml"}},
		{"not a list", files{etc + "config.toml": `imports = "a.toml"`}, []string{etc + "config.toml"}},
		{"template", files{etc + "config.toml": `{{ template "base" . }}`}, []string{etc + "config.toml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check.None(t, cmp.Diff(c.want, paths(engine(t, c.files).Files)), "got")
		})
	}

	got := Absolute("/etc/x/config.toml", []string{"/a/*.toml", "conf.d/*.toml", "../b.toml"}, "")
	check.None(t, cmp.Diff([]string{"/a/*.toml", "/etc/x/conf.d/*.toml", "/etc/b.toml"}, got), "got")
}

// TestRelativeStars: some versions take relative imports with a star from their working directory,
// which systemd makes /, and those without from the file's folder.
func TestRelativeStars(t *testing.T) {
	const etc = "/etc/containerd/"
	for version, star := range map[string]string{
		"1.6.20": "/conf.d/a.toml", "1.6.28": "/conf.d/a.toml", "1.6.29": etc + "conf.d/b.toml", "1.7.0": "/conf.d/a.toml", "1.7.9": "/conf.d/a.toml",
		"1.7.15": "/conf.d/a.toml", "1.7.16": etc + "conf.d/b.toml", "1.7.24": etc + "conf.d/b.toml", "2.1.5": etc + "conf.d/b.toml",
	} {
		f := files{
			"/usr/bin/containerd": "x", "/var/lib/dpkg/info/containerd.list": "/usr/bin/containerd\n",
			"/var/lib/dpkg/status": "Package: containerd\nStatus: install ok installed\nVersion: " + version + "\n\n",
			etc + "config.toml":    `imports = ["conf.d/*.toml", "one.toml"]`, "/conf.d/a.toml": "", etc + "conf.d/b.toml": "", etc + "one.toml": "",
		}
		check.None(t, cmp.Diff([]string{etc + "config.toml", star, etc + "one.toml"}, paths(engine(t, f).Files)), "%s:", version)
	}
}

func TestTooManyImports(t *testing.T) {
	v := files{"/etc/containerd/config.toml": `imports = ["/many/*"]`}
	for i := range 1000 {
		v["/many/"+strings.Repeat("x", i+1)] = ""
	}
	f, err := Gather(t.Context(), v, Needs{})
	if err == nil || len(f.Engines[0].Files) != maxFiles {
		t.Errorf("%v, %d files", err, len(f.Engines[0].Files))
	}
}

func TestContainerdPlace(t *testing.T) {
	unit := "[Service]\nExecStart=/usr/bin/containerd\n"
	for _, c := range []struct {
		name                   string
		files                  files
		binary, config, socket string
	}{
		{
			"by the unit",
			files{"/usr/lib/systemd/system/containerd.service": unit, "/usr/bin/containerd": "x"},
			"/usr/bin/containerd", "/etc/containerd/config.toml", "/run/containerd/containerd.sock",
		},
		{
			"drop-in",
			files{
				"/usr/lib/systemd/system/containerd.service":              unit,
				"/etc/systemd/system/containerd.service.d/10-config.conf": "[Service]\nExecStart=\nExecStart=/opt/c/containerd --config /opt/c.toml -a /run/c.sock\n",
				"/usr/bin/containerd":                                     "x", "/opt/c/containerd": "x",
			},
			"/opt/c/containerd", "/opt/c.toml", "/run/c.sock",
		},
		{
			"environment",
			files{
				"/usr/lib/systemd/system/containerd.service": "[Service]\nEnvironmentFile=-/etc/default/containerd\nEnvironmentFile=-/gone\nExecStart=/usr/bin/containerd $OPTS\n",
				"/etc/default/containerd":                    "OPTS='--config=/srv/c.toml'\n",
			},
			"", "/srv/c.toml", "/run/containerd/containerd.sock",
		},
		{
			"socket by an import",
			files{
				"/etc/containerd/config.toml": "imports = [\"x.toml\"]\n[grpc]\naddress = \"/run/a.sock\"\n",
				"/etc/containerd/x.toml":      "[grpc]\naddress = \"/run/b.sock\"\n",
			},
			"", "/etc/containerd/config.toml", "/run/b.sock",
		},
		{
			"socket in version 4",
			files{"/etc/containerd/config.toml": "version = 4\n[plugins.'io.containerd.server.v1.grpc']\naddress = \"/run/d.sock\"\n"},
			"", "/etc/containerd/config.toml", "/run/d.sock",
		},
		{
			"wrapped",
			files{
				"/usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/bin/sh -c 'exec containerd --config /x'\n",
				"/usr/local/bin/containerd":                  "x",
			},
			"/usr/local/bin/containerd", "/etc/containerd/config.toml", "/run/containerd/containerd.sock",
		},
		{
			"started by nice",
			files{
				"/usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/usr/bin/nice -n -5 /usr/local/bin/containerd --config /x.toml\n",
				"/usr/local/bin/containerd":                  "x",
			},
			"/usr/local/bin/containerd", "/x.toml", "/run/containerd/containerd.sock",
		},
		{
			"its program is not there, and another one is",
			files{"/usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/opt/c/containerd\n", "/usr/bin/containerd": "x"},
			"", "/etc/containerd/config.toml", "/run/containerd/containerd.sock",
		},
		{
			"a relative name",
			files{"/usr/lib/systemd/system/containerd.service": "[Service]\nWorkingDirectory=/srv\nExecStart=/usr/bin/containerd --config c.toml\n", "/usr/bin/containerd": "x"},
			"/usr/bin/containerd", "/etc/containerd/config.toml", "/run/containerd/containerd.sock",
		},
		{
			"by a script that has a folder of that name",
			files{
				"/usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/opt/start.sh --state /run/containerd --config /x.toml\n",
				"/usr/bin/containerd":                        "x", "/run/containerd/containerd.sock": "",
			},
			"/usr/bin/containerd", "/etc/containerd/config.toml", "/run/containerd/containerd.sock",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, c.files)
			hidden := c.name == "wrapped" || c.name == "a relative name" || strings.HasPrefix(c.name, "by a script")
			check.That(t, hidden == (e.Wrapper != ""), "started by %q", e.Wrapper)
			want := [...]string{c.binary, c.config, c.socket}
			check.Equal(t, [...]string{e.Binary, e.Config, e.Socket}, want, "got")
		})
	}
}

// A relative name hides which file the engine reads, whichever other name comes after it.
func TestRelativeNames(t *testing.T) {
	for options, want := range map[string]string{
		"--config /a.conf --config-dir /a.d": "",
		"--config a.conf --config-dir /a.d":  "the relative name a.conf",
		"--config-dir a.d --config /a.conf":  "the relative name a.d",
	} {
		f := gather(t, files{
			"/usr/bin/crio":                        "x",
			"/usr/lib/systemd/system/crio.service": "[Service]\nExecStart=/usr/bin/crio " + options + "\n",
		})
		check.Equal(t, f.Engines[0].Wrapper, want, "%s:", options)
	}
}

func TestOwner(t *testing.T) {
	for _, c := range []struct {
		name, owner, why string
		files            files
	}{
		{"no owner", "", "", files{}},
		{"flatcar", "", "", files{"/etc/os-release": "ID=flatcar"}},
		{
			"nodeadm", "nodeadm", "/usr/bin/nodeadm and nodeadm-run.service",
			files{"/usr/bin/nodeadm": "x", "/etc/systemd/system/nodeadm-run.service": "[Service]\n"},
		},
		{
			"nodeadm, but another file is read", "", "",
			files{
				"/usr/bin/nodeadm": "x", "/etc/systemd/system/nodeadm-run.service": "[Service]\n",
				"/etc/systemd/system/containerd.service": "[Service]\nExecStart=/usr/bin/containerd -c /srv/c.toml\n",
			},
		},
		{"nodeadm that nothing starts", "", "", files{"/usr/bin/nodeadm": "x"}},
		{"aks", "aks", "/opt/azure/containers/provision.sh", files{"/opt/azure/containers/provision.sh": "x"}},
		{"other files in its place", "", "", files{"/opt/azure/containers/x": "x"}},
		{
			"gke", "gke", "/home/kubernetes and kube-node-installation.service",
			files{"/home/kubernetes/bin/x": "x", "/etc/systemd/system/kube-node-installation.service": "", "/etc/os-release": "ID=cos"},
		},
		{"cos", "cos", "ID=cos in os-release", files{"/etc/os-release": "ID=cos"}},
		{"bottlerocket", "bottlerocket", "ID=bottlerocket in os-release", files{"/etc/os-release": "ID=bottlerocket"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.files["/usr/bin/containerd"] = "x"
			e := engine(t, c.files)
			want := [...]string{c.owner, c.why}
			check.Equal(t, [...]string{e.Owner, e.Why}, want, "got")
		})
	}
}

func TestCrio(t *testing.T) {
	e := engine(t, files{
		"/usr/bin/crio": "x", "/etc/crio/crio.conf.d/20-b.conf": "[crio.api]\nlisten = \"/run/x.sock\"\n",
		"/etc/crio/crio.conf.d/10-a.conf": "", "/etc/crio/crio.conf.d/15/x": "",
	})
	want := []string{"/etc/crio/crio.conf (missing)", "/etc/crio/crio.conf.d/10-a.conf", "/etc/crio/crio.conf.d/15/x", "/etc/crio/crio.conf.d/20-b.conf"}
	check.None(t, cmp.Diff(want, paths(e.Files)), "got")
	check.That(t, e.Socket == "/run/x.sock" && e.Config == "/etc/crio/crio.conf", "%+v", e)
}

func TestDocker(t *testing.T) {
	e := engine(t, files{
		"/usr/bin/dockerd": "x", "/etc/docker/daemon.json": `{"hosts": ["tcp://0.0.0.0:2375", "unix:///run/d.sock"]}`,
	})
	check.That(t, e.Name == "docker" && e.Socket == "/run/d.sock" && e.Config == "/etc/docker/daemon.json", "%+v", e)
	e = engine(t, files{
		"/usr/bin/dockerd": "x", "/etc/docker/daemon.json": "{broken",
		"/usr/lib/systemd/system/docker.service": "[Service]\nExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock\n",
	})
	check.That(t, e.Socket == "/run/docker.sock" && e.Unit == "docker.service", "%+v", e)
}

func TestDpkgVersion(t *testing.T) {
	v := files{
		"/usr/bin/containerd":                        "x",
		"/var/lib/dpkg/info/containerd.list":         "/.\n/usr/bin/containerd-shim\n",
		"/var/lib/dpkg/info/containerd.io.list":      "/.\n/usr/bin/containerd\n",
		"/var/lib/dpkg/status":                       "Package: containerd.io\nStatus: install ok installed\nVersion: 1.7.25-1\n\nPackage: containerd\nStatus: install ok installed\nVersion: 9\n",
		"/usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/usr/bin/containerd\n",
	}
	e := engine(t, v)
	check.That(t, e.Version == "1.7.25", "%q, want that of the package that owns the file", e.Version)
	v["/var/lib/dpkg/status"] = "Package: containerd.io\nStatus: deinstall ok config-files\nVersion: 1.7.25-1\n"
	e = engine(t, v)
	check.That(t, e.Version == "", "%q of a package that was removed", e.Version)
}

func TestArch(t *testing.T) {
	const amd64, arm64 = "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"
	for _, c := range []struct {
		name  string
		files files
		want  string
	}{
		{"unknown", files{"/etc/x": ""}, ""},
		{"loader", files{amd64: ""}, "amd64"},
		{"other loader", files{arm64: ""}, "arm64"},
		{"two loaders, dpkg tells", files{amd64: "", arm64: "", "/var/lib/dpkg/status": "Package: dpkg\nArchitecture: amd64\n"}, "amd64"},
		{"no loader", files{"/etc/dnf/vars/basearch": "aarch64\n"}, "arm64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check.Equal(t, gather(t, c.files).Arch, c.want, "got")
		})
	}
}

func TestKernels(t *testing.T) {
	k := gather(t, files{
		"/lib/modules/6.1.0-9-amd64/modules.dep": "", "/lib/modules/6.1.0-28-amd64/kernel/x.ko": "",
		"/lib/modules/6.1.0-18-amd64/updates/dkms/nvidia.ko": "",
	}).Kernel
	check.None(t, cmp.Diff(Kernel{Installed: []string{"6.1.0-28-amd64", "6.1.0-9-amd64"}}, k), "got")
}

func TestSummary(t *testing.T) {
	f := Facts{
		Live: true, OS: OS{
			ID:      "ubuntu",
			Version: "24.04",
		}, Kernel: Kernel{Running: "6.8.0-1021-aws"},
		GPUs: []PCI{
			{Class: "030200", Device: "20b2", Model: "A100 80GB"},
			{Class: "068000", Device: "1af1", Model: "NVSwitch (A100)"},
			{Class: "030200", Device: "1eb8", Model: "T4"},
			{Class: "030000", Device: "ffff"},
			{Class: "030200", Device: "20b2", Model: "A100 80GB"},
		},
		Engines: []Engine{{
			Name:    "containerd",
			Version: "1.7.24",
		}, {Name: "docker"}, {Name: "containerd", Version: "2.1.5", Owner: "k3s"}},
	}
	const want = "ubuntu 24.04 · kernel 6.8.0-1021-aws · 2 × A100 80GB + 1 × T4 + 1 × NVIDIA GPU ffff · containerd 1.7.24 · docker · containerd 2.1.5 (k3s)"
	got := f.String()
	check.That(t, got == want, "got  %s\nwant %s", got, want)
	f.GPUs, f.Engines = []PCI{}, nil
	check.Equal(t, f.String(), "ubuntu 24.04 · kernel 6.8.0-1021-aws · no NVIDIA GPU", "got")
	f.Live, f.Kernel = false, Kernel{Installed: []string{"6.1.0-28-amd64", "6.1.0-9-amd64"}}
	check.Equal(t, f.String(), "ubuntu 24.04 · kernel 6.1.0-28-amd64", "got")
}

func TestModels(t *testing.T) {
	for _, c := range [][3]string{
		{"2330", "10de:16c1", "H100 80GB"},
		{"25b6", "10de:14a9", "A16"},
		{"25b6", "10de:157e", "A2"},
		{"25b6", "10de:0000", "A2/A16"},
		{"2342", "10de:16eb", "GH200 120GB"},
		{"22a3", "", "NVSwitch (H100)"},
		{"1eb8", "10de:12a2", "T4"},
		{"", "", ""},
		{"0000", "", ""},
	} {
		if got := model(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s: got %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

// TestNamed: a GPU that the table lacks is no GPU of the table, however close their names are.
func TestNamed(t *testing.T) {
	for name, device := range map[string]string{
		"A10": "2236", "2236": "2236", "0x223610DE": "2236", "10de:0x2236": "2236", "A100X": "",
	} {
		gpu, isKnown := Named(name)
		check.That(t, isKnown == (device != "") && gpu.Device == device, "%s: %+v, %t", name, gpu, isKnown)
	}
}
