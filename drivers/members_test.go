// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func choose(t *testing.T, m hardware.Machine, d spec.Driver) Choice {
	t.Helper()
	ch := must.Get(Choose(Load(), m, d))(t)
	return ch
}

func names(ch Choice, role string) (list []string) {
	for _, m := range ch.Members {
		if m.Role == role {
			list = append(list, m.Name)
		}
	}
	return list
}

// TestHeaders wants headers of exactly the target kernels, whatever they are called.
func TestHeaders(t *testing.T) {
	for _, x := range []struct{ id, version, kernel, headers, extra string }{
		{"ubuntu", "24.04", "6.8.0-41-generic", "linux-headers-6.8.0-41-generic", ""},
		{"ubuntu", "24.04", "6.8.12-acme.custom+1_x", "linux-headers-6.8.12-acme.custom+1_x", ""},
		{"debian", "12", "my-own", "linux-headers-my-own", ""},
		{"rhel", "9.6", "5.14.0-570.el9.x86_64", "kernel-devel-5.14.0-570.el9.x86_64", ""},
		{"debian", "13", "6.14.11-2-pve", "proxmox-headers-6.14.11-2-pve", ""},
		{"debian", "12", "6.2.16-20-pve", "pve-headers-6.2.16-20-pve", ""},
		{"debian", "12", "5.15.158-2-pve", "pve-headers-5.15.158-2-pve", ""},
		{"rocky", "9.6", "5.14.0-570.el9.aarch64+64k", "kernel-64k-devel-5.14.0-570.el9.aarch64", ""},
		{"rhel", "9.6", "5.14.0-570.el9.x86_64+rt", "kernel-rt-devel-5.14.0-570.el9.x86_64", ""},
		{"ol", "9.6", "5.15.0-302.167.6.el9uek.x86_64", "kernel-uek-devel-5.15.0-302.167.6.el9uek.x86_64", ""},
		{"rocky", "9.6", "6.15.2-1.el9.elrepo.x86_64", "kernel-ml-devel-6.15.2-1.el9.elrepo.x86_64", ""},
		{"rocky", "9.6", "6.1.141-1.el9.elrepo.x86_64", "kernel-lt-devel-6.1.141-1.el9.elrepo.x86_64", ""},
		{"azurelinux", "3.0", "6.12.57.1-3.azl3", "kernel-hwe-devel-6.12.57.1-3.azl3", ""},
		{"azurelinux", "3.0", "6.6.112.1-2.azl3", "kernel-devel-6.6.112.1-2.azl3", ""},
		{"rocky", "9.6", "5.15.0-302.167.6.el9uek.x86_64", "kernel-devel-5.15.0-302.167.6.el9uek.x86_64", ""},
		{
			"amzn", "2023", "6.1.140-154.222.amzn2023.x86_64",
			"kernel-devel-6.1.140-154.222.amzn2023.x86_64",
			"kernel-modules-extra-6.1.140-154.222.amzn2023.x86_64",
		},
		{
			"amzn", "2023", "6.12.40-64.114.amzn2023.x86_64",
			"kernel6.12-devel-6.12.40-64.114.amzn2023.x86_64",
			"kernel6.12-modules-extra-6.12.40-64.114.amzn2023.x86_64",
		},
		{
			"amzn", "2023", "6.18.1-1.amzn2023.x86_64", "kernel6.18-devel-6.18.1-1.amzn2023.x86_64",
			"kernel6.18-modules-extra-6.18.1-1.amzn2023.x86_64",
		},
	} {
		m := machine(x.id, x.version, "amd64", "2331")
		m.Kernels = []string{x.kernel, "second-kernel"}
		ch := choose(t, m, driver("595.71.05"))
		got := names(ch, "headers")
		must.That(t, len(got) == 2, "%s %s: %v", x.id, x.kernel, got)
		check.That(t, got[0] == x.headers && strings.HasSuffix(got[1], "second-kernel"), "%s %s: %v", x.id, x.kernel, got)

		extra := names(ch, "kernel-modules")
		if x.extra == "" {
			check.List(t, extra, nil, "%s %s:", x.id, x.kernel)
		} else {
			check.That(t, len(extra) == 2 && extra[0] == x.extra, "%s %s: %v", x.id, x.kernel, extra)
		}
		for _, p := range ch.Members {
			isOfKernel := !p.Lockstep && slices.Contains(m.Kernels, p.PerKernel)
			check.That(t, p.Role != "headers" || isOfKernel, "%+v", p)
		}
	}
}

// TestHeadersForRunfile: NVIDIA's installer needs the headers of the distribution's own kernel, too.
func TestHeadersForRunfile(t *testing.T) {
	m := machine("amzn", "2023", "amd64", "2331")
	m.Kernels = []string{"6.12.40-64.114.amzn2023.x86_64"}
	ch := choose(t, m, with(driver("580.95.05"), "source", "runfile"))

	check.List(t, names(ch, "headers"), []string{"kernel6.12-devel-" + m.Kernels[0]}, "the headers:")
	check.List(t, names(ch, "kernel-modules"), []string{"kernel6.12-modules-extra-" + m.Kernels[0]}, "the modules:")
}

// TestToolsForRunfile: DKMS builds the modules of NVIDIA's installer with the same tools as those of
// packages.
func TestToolsForRunfile(t *testing.T) {
	m := machine("ubuntu", "26.04", "amd64", "2331")
	for _, source := range []string{"nvidia", "runfile"} {
		ch := choose(t, m, with(driver("595.71.05"), "source", source))
		check.List(t, names(ch, "compiler"), []string{"gcc", "make", "zstd"}, "with source %s:", source)
	}
}

func TestCompilers(t *testing.T) {
	m := machine("ubuntu", "22.04", "amd64", "2331")
	m.Kernels = []string{"6.8.0-60-generic", "5.15.0-100-generic"}
	m.Compilers = map[string]string{"6.8.0-60-generic": "gcc-12"}
	ch := choose(t, m, driver("580.95.05"))
	check.That(t, slices.Contains(ch.Members, Member{
		Name:      "gcc-12",
		Role:      "compiler",
		PerKernel: "6.8.0-60-generic",
	}), "%v", names(ch, "compiler"))
}

// TestFabric wants the companions of NVSwitches where there are NVSwitches, or where they are asked
// for, and nowhere else.
func TestFabric(t *testing.T) {
	for _, x := range []struct {
		name, arch, fabric, version string
		gpus, roles                 []string
		warning                     string
	}{
		{"A100 HGX", "amd64", "auto", "580", []string{"20b2", "0680:1af1"}, []string{"fabricmanager"}, ""},
		{"H100 without a switch, in a VM", "amd64", "auto", "580", []string{"2330"}, nil, ""},
		{"asked for", "amd64", "on", "580", []string{"2331"}, []string{"fabricmanager"}, ""},
		{"forbidden", "amd64", "off", "580", []string{"2330", "0680:22a3"}, nil, "without the fabric manager"},
		{"B200", "amd64", "auto", "595", []string{"2901"}, []string{"fabric-diagnostics", "fabricmanager", "nvlsm"}, ""},
		{"B200, forbidden", "amd64", "off", "595", []string{"2901"}, nil, "without the fabric manager"},
		{"GB200", "arm64", "auto", "595", []string{"2941"}, []string{"imex"}, ""},
		{"T4", "amd64", "auto", "580", []string{"1eb8"}, nil, ""},
	} {
		d := with(driver(x.version), "fabricmanager", x.fabric)
		ch := choose(t, machine("ubuntu", "24.04", x.arch, x.gpus...), d)
		var got []string
		for _, p := range ch.Members {
			if slices.Contains([]string{"fabricmanager", "nscq", "nvsdm", "imex", "nvlsm", "fabric-diagnostics"}, p.Role) {
				got = append(got, p.Role)
				own := p.Role == "nvlsm" || p.Role == "fabric-diagnostics"
				check.That(t, p.Lockstep != own, "%s: %+v", x.name, p)
			}
		}

		slices.Sort(got)
		check.That(t, slices.Equal(got, x.roles), "%s: %v", x.name, got)
		w := strings.Join(ch.Warnings, "\n")
		check.That(t, x.warning == "" == (w == "") && strings.Contains(w, x.warning), "%s: %s", x.name, w)
	}
}

func TestWarnings(t *testing.T) {
	bad := machine("ubuntu", "22.04", "amd64", "20b5")
	bad.Kernels = []string{"6.6.15-x64v3", "6.8.0-41-generic"}
	bare := machine("ubuntu", "24.04", "amd64", "2331")
	bare.Kernels = nil
	like := machine("navix", "9.6", "amd64", "2331")
	like.Like = []string{"rhel", "centos", "fedora"}
	blind := machine("ubuntu", "24.04", "amd64")
	blind.GPUs = nil
	aws := machine("ubuntu", "24.04", "amd64", "1eb8")
	aws.Instance = "g4dn.xlarge"
	suse := machine("sles", "15.6", "amd64", "2331")
	for _, x := range []struct {
		m    hardware.Machine
		d    spec.Driver
		want []string
	}{
		{machine("ubuntu", "24.04", "amd64", "2331"), driver("580.178.04"), nil},
		{
			machine("ubuntu", "24.04", "amd64", "2331"), driver(""),
			[]string{"no version is asked for: branch 580 is taken, and its newest version: long-term support until 2028-06, and what the images of AKS, Azure HPC, Google and AICR pin"},
		},
		{
			machine("ubuntu", "22.04", "amd64", "20b5"), driver("535.309.01"),
			[]string{"driver branch 535 ended in 2026-06: no security fix will come for it"},
		},
		{
			machine("ubuntu", "24.04", "amd64", "2331"), driver("700"),
			[]string{"driver branch 700 is not known to this release"},
		},
		{
			bad, driver("535.154.05"),
			[]string{
				"driver branch 535 ended in 2026-06: no security fix will come for it",
				"driver 535.154.05 on kernel 6.6.15-x64v3: the kernel made __rcu_read_lock GPL-only, which the proprietary modules use through pfn_valid: they do not build",
			},
		},
		{bare, driver("580"), []string{"no kernel is known: cannot determine which one the modules are for"}},
		{
			like, driver("580"),
			[]string{"navix 9.6 is like rhel, says its os-release: the packages of rhel9 are taken"},
		},
		{
			blind, driver("580"),
			[]string{"cannot see the GPUs from here: kernel modules are chosen for current GPUs"},
		},
		{
			aws, with(driver("580"), "modules", "open"),
			[]string{"AWS runs these instances on the proprietary modules without GPU firmware; open kernel modules were chosen nevertheless"},
		},
		{
			machine("ubuntu", "24.04", "amd64", "4000"), driver("595"),
			[]string{"GPU 0000:01:00.0 (device 4000) is newer than this release knows: open kernel modules are taken, and it may need a newer driver"},
		},
		{
			machine("ubuntu", "24.04", "amd64", "1900"), driver("580"),
			[]string{"GPU 0000:01:00.0 (device 1900) is not known to this release, and older than Turing by its id: proprietary kernel modules are taken"},
		},
		{
			machine("ubuntu", "24.04", "amd64", "2331"), with(driver("580.178.04"), "source", "distro"),
			[]string{"the signed modules' packages have the kernel's version, not the driver's: whether they are 580.178.04 is known only after they are installed"},
		},
		{
			suse, with(driver("580.178.04"), "source", "runfile"),
			[]string{"what builds kernel modules on sles 15.6 is not known: DKMS, a compiler and each kernel's headers must be there"},
		},
	} {
		check.None(t, cmp.Diff(x.want, choose(t, x.m, x.d).Warnings), "%s %s:", x.m.ID, x.d.Version)
	}
}

// TestPrecompiled wants one signed package for each kernel, and nothing that builds modules.
func TestPrecompiled(t *testing.T) {
	m := machine("ubuntu", "24.04", "amd64", "20b5")
	m.Kernels = []string{"6.8.0-41-generic", "6.8.0-1015-aws"}
	d := with(with(driver("580"), "source", "distro"), "modules", "proprietary")
	ch := choose(t, m, d)
	want := []string{
		"linux-modules-nvidia-580-server-6.8.0-41-generic",
		"linux-modules-nvidia-580-server-6.8.0-1015-aws",
	}
	check.That(t, ch.Precompiled, "%v", ch)
	check.List(t, names(ch, "module"), want, "the modules:")

	ch = choose(t, m, with(d, "build", "dkms"))
	check.That(t, !ch.Precompiled && len(names(ch, "headers")) == 2, "%v", ch)
	check.List(t, names(ch, "module"), []string{"nvidia-dkms-580-server"}, "built here:")
}

// TestSignedByDistribution wants Red Hat's and AlmaLinux's own signed modules by their names, what
// enables their repositories, and no compiler.
func TestSignedByDistribution(t *testing.T) {
	for _, x := range []struct {
		id, version, arch, kernel, name string
		try                             []string
	}{
		{
			id: "rhel", version: "10.1", arch: "amd64",
			kernel: "6.12.0-124.20.1.el10_1.x86_64",
			name:   "kmod-nvidia-open-580.105.08-6.12.0-124.20.1",
			try: []string{
				"--enable=rhel-10-for-x86_64-extensions-rpms",
				"--enable=rhel-10-for-x86_64-supplementary-rpms",
			},
		},
		{
			id: "rhel", version: "10.1", arch: "arm64",
			kernel: "6.12.0-124.20.1.el10_1.aarch64+64k",
			name:   "kmod-64k-nvidia-open-580.105.08-6.12.0-124.20.1",
			try: []string{
				"--enable=rhel-10-for-aarch64-extensions-rpms",
				"--enable=rhel-10-for-aarch64-supplementary-rpms",
			},
		},
		{
			id: "almalinux", version: "10.1", arch: "amd64",
			kernel: "6.12.0-124.20.1.el10_1.x86_64",
			name:   "nvidia-open-kmod",
			try:    []string{"dnf install almalinux-release-nvidia-driver"},
		},
	} {
		m := machine(x.id, x.version, x.arch, "2331")
		m.Kernels = []string{x.kernel}
		ch := choose(t, m, with(driver("580.105.08"), "source", "distro"))
		check.List(t, names(ch, "module"), []string{x.name}, "the modules:")
		compiles := names(ch, "compiler") != nil || names(ch, "headers") != nil
		check.That(t, ch.Precompiled && !compiles, "%+v", ch)

		f := facts.Facts{
			OS:   facts.OS{ID: x.id, Version: x.version},
			Arch: x.arch,
		}
		var try []string
		for _, l := range ch.Lacks(f) {
			try = append(try, l.Try)
		}
		check.That(t, len(try) == len(x.try), "%v, want %v", try, x.try)
		for i := range min(len(try), len(x.try)) {
			check.That(t, strings.HasSuffix(try[i], x.try[i]), "%s, want %s", try[i], x.try[i])
		}

		_, err := Choose(Load(), m, with(with(driver("580.105.08"), "source", "distro"), "build", "dkms"))
		check.That(t, strings.Contains(whole(err), "it has signed ones only"), "%v", whole(err))
	}
}

func TestRepositories(t *testing.T) {
	url := "https://developer.download.nvidia.com/compute/cuda/repos/"
	for _, x := range []struct {
		id, version, arch string
		want              Repository
	}{
		{"ubuntu", "24.04", "arm64", Repository{
			URL:         url + "ubuntu2404/sbsa/",
			Distro:      "ubuntu2404",
			Arch:        "sbsa",
			KeyURL:      url + "ubuntu2404/sbsa/3bf863cc.pub",
			Fingerprint: "EB693B3035CD5710E231E123A4B469963BF863CC",
		}},
		{"almalinux", "8.10", "amd64", Repository{
			URL:         url + "rhel8/x86_64/",
			Distro:      "rhel8",
			Arch:        "x86_64",
			KeyURL:      url + "rhel8/x86_64/D42D0685.pub",
			Fingerprint: "610C7B14E068A878070DA4E99CD0A493D42D0685",
			Needs:       []string{"epel", "powertools"},
		}},
		{"amzn", "2023", "arm64", Repository{
			URL:         url + "amzn2023/sbsa/",
			Distro:      "amzn2023",
			Arch:        "sbsa",
			KeyURL:      url + "amzn2023/sbsa/D42D0685.pub",
			Fingerprint: "610C7B14E068A878070DA4E99CD0A493D42D0685",
		}},
		{"rocky", "10.0", "amd64", Repository{
			URL:         url + "rhel10/x86_64/",
			Distro:      "rhel10",
			Arch:        "x86_64",
			KeyURL:      url + "rhel10/x86_64/CDF6BA43.pub",
			Fingerprint: "sha256:afbea87d3b979b3788ef34223aeeb323ade481128e2c133723ae99b8a51368bb",
			Needs:       []string{"epel", "crb"},
		}},
		// NVIDIA has nothing for it, so auto takes the archive.
		{"debian", "12", "arm64", Repository{
			Distro:    "debian12",
			Arch:      "arm64",
			Component: "contrib non-free non-free-firmware",
		}},
	} {
		ch := choose(t, machine(x.id, x.version, x.arch, "20b5"), driver(""))
		check.None(t, cmp.Diff(x.want, ch.Repo), "%s %s:", x.id, x.version)
	}

	d := mirrored("595")
	ch := choose(t, machine("rhel", "10.0", "amd64", "2331"), d)
	repo := ch.Repo
	isMirror := repo.URL == d.Repo.URL && repo.KeyURL == d.Repo.Key && repo.Fingerprint == d.Repo.Fingerprint
	check.That(t, isMirror && repo.Distro == "rhel10" && ch.Stream == "", "the mirror is not taken: %+v", repo)

	arm := machine("ubuntu", "24.04", "arm64", "2342")
	ch = choose(t, arm, with(driver("580.95.05"), "source", "runfile"))
	const runfile = "https://us.download.nvidia.com/tesla/580.95.05/NVIDIA-Linux-aarch64-580.95.05.run"
	check.Equal(t, ch.Repo.URL, runfile, "NVIDIA's runfile:")
	check.Equal(t, ch.Source, SourceRunfile, "source")
	ch = choose(t, arm, with(mirrored("580.95.05"), "source", "runfile"))
	check.Equal(t, ch.Repo.URL, "https://mirror.example/cuda/NVIDIA-Linux-aarch64-580.95.05.run", "the mirror's runfile:")
}

// TestPackagesBesideRunfile: packages and without in [driver] hold for the packages beside NVIDIA's
// installer, too: for those that build its modules, and for any that the spec adds.
func TestPackagesBesideRunfile(t *testing.T) {
	m := machine("ubuntu", "24.04", "amd64", "2331")
	d := with(driver("580.95.05"), "source", "runfile")
	d.Packages = []string{"infiniband-diags"}
	d.Without = []string{"gcc"}

	ch := choose(t, m, d)
	has := func(name string) bool {
		return slices.ContainsFunc(ch.Members, func(m Member) bool { return m.Name == name })
	}
	check.That(t, has("infiniband-diags"), "a package that the spec names is missing: %v", ch.Members)
	check.That(t, has("dkms") && !has("gcc"), "a package that the spec leaves out is asked for: %v", ch.Members)

	d.Without = []string{"nvidia-utils-580"}
	_, err := Choose(Load(), m, d)
	check.That(t, err != nil, "a package that is not asked for is left out without a word")
}

// TestExceptions wants the parameters that a machine's kind asks for, unless the spec sets them;
// TestPlatforms has more machines.
func TestExceptions(t *testing.T) {
	const cdmm, gsp = "NVreg_CoherentGPUMemoryMode", "NVreg_EnableGpuFirmware"
	for _, x := range []struct {
		gpu, instance, version string
		of                     map[string]string // the spec's parameters
		want                   map[string]string
		flavour                string
	}{
		{"2237", "g5.xlarge", "580.95.05", nil, map[string]string{gsp: "0", cdmm: "driver"}, FlavourProprietary},
		{"2237", "g5.xlarge", "580.95.05", map[string]string{gsp: "1", cdmm: "numa"}, nil, FlavourProprietary},
		{"2237", "", "580.95.05", nil, map[string]string{cdmm: "driver"}, FlavourOpen},
		{"2237", "g6.xlarge", "580.65.06", nil, map[string]string{cdmm: "driver"}, FlavourOpen},
		{"2237", "g5x.large", "580.65.05", nil, nil, FlavourOpen}, // before the parameter
		{"2e12", "", "580.119.02", nil, nil, FlavourOpen},         // GB10: one memory for both, and no mode
	} {
		m := machine("ubuntu", "24.04", "amd64", x.gpu)
		m.Instance = x.instance
		d := driver(x.version)
		d.Parameters = x.of
		ch := choose(t, m, d)
		isWanted := ch.Flavour == x.flavour && maps.Equal(ch.Parameters, x.want)
		check.That(t, isWanted, "%+v: %s %v", x, ch.Flavour, ch.Parameters)
	}

	p6e := machine("ubuntu", "24.04", "arm64", "2941")
	p6e.Instance = "p6e-gb200.36xlarge"
	p6e.RDMA = true
	d := driver("595")
	d.TrustVersion = true
	ch := choose(t, p6e, d)
	check.That(t, ch.Branch == "595" && len(ch.Parameters) == 1, "595 that is meant: %+v", ch)
	_, err := Choose(Load(), p6e, driver("595.91.07"))
	check.Says(t, whole(err), `write version = "580"`, "trust_version = true")
}

// TestGuests wants for a virtual GPU the guest's own driver, of the host's release of vGPU or of
// the one before.
func TestGuests(t *testing.T) {
	for _, x := range []struct {
		host, version, url, want string // in the refusal, or in the warnings
	}{
		{
			"580.105.08", "580.105.08", "",
			"cannot install a data-centre driver: GPU 0000:01:00.0 (L4, ada) is for a vGPU guest driver: its hypervisor cut it out of a whole one with driver 580.105.08, of vGPU 19",
		},
		{"580.105.08", "580.105.08", "/x.run", ""},
		{"580.105.08", "570.211.01", "/x.run", ""},
		{
			"580.105.08", "595.58.03", "/x.run",
			"cannot install driver 595.58.03: it is of vGPU 20, and the host's is of vGPU 19 (580.105.08), which serves no newer guests",
		},
		{"595.71.05", "570.211.01", "/x.run", "guests that are more than one release behind may not work"},
		{"", "570.211.01", "/x.run", ""},
	} {
		m := machine("ubuntu", "24.04", "amd64", "27b8")
		m.VGPU = &facts.VGPU{Version: x.host}
		d := driver(x.version)
		d.Source = "runfile"
		d.Runfile.URL = x.url

		ch, err := Choose(Load(), m, d)
		message := strings.Join(ch.Warnings, "; ")
		if err != nil {
			message = err.Error()
		}
		check.Has(t, message, x.want, "%+v: %+v", x, ch)
		if x.want == "" {
			check.That(t, err == nil && ch.Guest && !strings.Contains(message, "vGPU"), "%+v: %+v, %v", x, ch, err)
		}
	}

	for cloud, where := range map[string]string{
		"aws":   "s3://ec2-linux-nvidia-drivers",
		"azure": "resources.json",
		"gce":   "gs://",
		"":      "licensing portal",
	} {
		m := machine("ubuntu", "24.04", "amd64", "27b8")
		m.Cloud = cloud
		m.GPUs[0].Board = "1733"
		_, err := Choose(Load(), m, driver("580"))
		check.Has(t, whole(err), where, "%s:", cloud)
	}
}

// The pin that keeps Ubuntu's driver out leaves its CUDA toolkit in: nvidia-cuda-toolkit of Ubuntu
// 24.04 depends on libcudart12 (packages.ubuntu.com/noble/nvidia-cuda-toolkit).
func TestExcludedLeavesTheCUDAToolkit(t *testing.T) {
	ch := must.Get(Choose(Load(), machine("ubuntu", "24.04", "amd64", "2331"), driver("580.95.05")))(t)
	f := ch.Family()
	out := func(name string) bool {
		return slices.ContainsFunc(f.Excluded, func(glob string) bool {
			ok, err := path.Match(glob, name)
			return ok || err != nil
		})
	}

	const driver = `
		cuda-drivers firmware-nvidia-gsp xserver-xorg-video-nvidia-580
		libnvidia-api1 libnvidia-cfg1-580-server libnvidia-common-580 libnvidia-compute-580 libnvidia-decode-580
		libnvidia-encode-580 libnvidia-extra-580 libnvidia-fbc1-580 libnvidia-gl-580 libnvidia-gpucomp-580
		libnvidia-nscq-580 nvidia-compute-utils-580 nvidia-dkms-580-open nvidia-driver-580-open
		nvidia-fabricmanager-580 nvidia-firmware-580-580.95.05 nvidia-headless-580 nvidia-imex-580
		nvidia-kernel-common-580 nvidia-open nvidia-open-580 nvidia-persistenced nvidia-utils-580
		linux-modules-nvidia-580-6.8.0-88-generic linux-objects-nvidia-580 linux-signatures-nvidia-6.8.0-88-generic`
	for name := range strings.FieldsSeq(driver) {
		check.That(t, out(name), "%s of %q is not excluded", name, f.Exclude)
	}

	const others = `
		libcudart12 libcudart11.0 nvidia-cuda-toolkit nvidia-cuda-dev
		nvidia-container-toolkit libnvidia-container1
		libnvidia-egl-wayland1 libnvidia-ml-dev nvidia-opencl-dev nvidia-prime nvidia-settings
		nvidia-fs-dkms linux-modules-nvidia-fs-6.8.0-1030-nvidia linux-image-nvidia-6.8`
	for name := range strings.FieldsSeq(others) {
		check.That(t, !out(name), "%s of %q cannot be installed any more", name, f.Exclude)
	}
}

// Modules of driver 580.95.05: those of a signed package, and those that DKMS has built.
var (
	shipped = hardware.Module{Version: "580.95.05"}
	built   = hardware.Module{Version: "580.95.05", DKMS: true}
)

// onDisk is the same module for each of some kernels.
func onDisk(module hardware.Module, kernels ...string) map[string]hardware.Module {
	all := map[string]hardware.Module{}
	for _, kernel := range kernels {
		all[kernel] = module
	}
	return all
}

// gpuadm chooses signed modules where each target kernel has them, and DKMS's elsewhere, and gives
// the reason. A converged machine keeps the modules that it has.
func TestPrecompiledOrDKMS(t *testing.T) {
	const k, other = "6.8.0-41-generic", "6.8.0-45-generic"
	signed := func(kernel string) string {
		return "linux-modules-nvidia-580-server-open-" + kernel
	}
	for _, x := range []struct {
		name   string
		build  string
		have   []string
		disk   map[string]hardware.Module
		signed bool
		says   string // a warning, or the refusal
	}{
		{"not known", "auto", nil, nil, true, ""},
		{"both kernels", "auto", []string{signed(k), signed(other)}, nil, true, ""},
		{
			"one kernel only", "auto",
			[]string{signed(k)},
			nil, false,
			"no precompiled kernel modules for kernel " + other + ": Ubuntu's archive for ubuntu2404 has no " + signed(other) + "; DKMS builds them here",
		},
		{
			"another branch's", "auto",
			[]string{strings.Replace(signed(k), "580", "570", 1), signed(other)},
			nil, false,
			"kernel " + k,
		},
		{
			"proprietary ones", "auto",
			[]string{strings.Replace(signed(k), "-open", "", 1), signed(other)},
			nil, false,
			"kernel " + k,
		},
		{"none", "auto", []string{}, nil, false, "has no " + signed(k)},
		{
			"demanded", "precompiled",
			[]string{signed(k)},
			nil, false,
			"cannot take precompiled kernel modules for kernel " + other + ": Ubuntu's archive for ubuntu2404 has no " + signed(other),
		},
		{"demanded and there", "precompiled", []string{signed(k), signed(other)}, nil, true, ""},
		{"not wanted", "dkms", []string{signed(k), signed(other)}, nil, false, ""},
		{
			"built already", "auto",
			[]string{signed(k), signed(other)},
			onDisk(built, k, other), false,
			"kernel " + k + ": DKMS has built its modules of branch 580; DKMS builds them here",
		},
		{
			"built already, and there are none", "auto",
			[]string{},
			onDisk(built, k, other), false,
			"has no " + signed(k),
		},
		{
			"built already, and demanded", "precompiled",
			nil,
			onDisk(built, k, other), false,
			"cannot take precompiled kernel modules for kernel " + k + ": DKMS has built its modules of branch 580",
		},
		{"signed already", "auto", []string{}, onDisk(shipped, k, other), true, ""},
		{
			"of another branch", "auto",
			[]string{signed(k), signed(other)},
			onDisk(hardware.Module{Version: "570.1", DKMS: true}, k, other), true,
			"",
		},
	} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Kernels = []string{k, other}
		m.Signed = x.have
		m.OnDisk = x.disk
		ch, err := Choose(Load(), m, with(with(driver("580"), "source", "distro"), "build", x.build))
		message := strings.Join(ch.Warnings, "\n")
		if err != nil {
			message = err.Error()
		}
		isRefused := strings.HasPrefix(x.says, "cannot")
		check.Equal(t, ch.Precompiled, x.signed, "%s: precompiled", x.name)
		check.Equal(t, err != nil, isRefused, "%s: refused, by %v:", x.name, err)
		check.Has(t, message, x.says, "%s:", x.name)
		if err != nil {
			continue
		}
		modules := names(ch, "module")
		check.That(t, x.signed == slices.Contains(modules, signed(k)), "%s: %v", x.name, modules)
		check.That(t, x.signed || len(names(ch, "headers")) == 2, "%s: DKMS has no headers: %v", x.name, ch.Members)
	}

	m := machine("ubuntu", "24.04", "amd64", "2331")
	m.Kernels = []string{other}
	m.Running = other
	m.Fallback = k
	m.OnDisk = map[string]hardware.Module{
		k:     {Version: "580.95.05", Flavour: "open"},
		other: {Version: "580.95.05", Flavour: "open"},
	}
	ch := choose(t, m, with(driver("580"), "source", "distro"))
	want := []string{signed(other), signed(k)}
	check.List(t, names(ch, "module"), want, "the kernel that ran before keeps its modules:")
}

// RHEL's streams without a suffix have signed proprietary modules, one package for each kernel
// (test/listings: rhel9 580.178.04).
func TestPrecompiledStream(t *testing.T) {
	m := machine("rhel", "9.8", "amd64", "2331")
	m.Kernels = []string{"5.14.0-687.54.1.el9_8.x86_64"}
	ch := choose(t, m, with(driver("580.178.04"), "build", "precompiled"))
	got := names(ch, "module")
	check.List(t, got, []string{"kmod-nvidia-580.178.04-5.14.0-687.54.1"}, "the modules:")
	isPrecompiled := ch.Stream == "580" && ch.Flavour == FlavourProprietary && len(names(ch, "dkms")) == 0
	check.That(t, isPrecompiled, "%+v", ch)
	ch = choose(t, m, driver("580.178.04"))
	check.That(t, ch.Stream == "580-open" && !ch.Precompiled, "unasked: %+v", ch)
}

// Where DKMS has built the modules, gpuadm has not looked whether the source has signed ones, so it
// does not say that there are none; and it names no apt-get on a machine with dnf.
func TestPrecompiledAfterDKMS(t *testing.T) {
	for _, x := range []struct{ id, version, kernel, owner string }{
		{"ubuntu", "24.04", "6.8.0-41-generic", "dpkg -S /usr/src/nvidia*-580.178.04/dkms.conf"},
		{"rhel", "9.8", "5.14.0-687.54.1.el9_8.x86_64", "rpm -qf /usr/src/nvidia*-580.178.04/dkms.conf"},
	} {
		m := machine(x.id, x.version, "amd64", "2331")
		m.Kernels = []string{x.kernel}
		m.OnDisk = onDisk(hardware.Module{Version: "580.178.04", DKMS: true}, x.kernel)
		sp := with(driver("580.178.04"), "build", "precompiled")
		if x.id == "ubuntu" {
			sp = with(sp, "source", "distro")
		}
		_, err := Choose(Load(), m, sp)
		var refused *trouble.Error
		must.That(t, errors.As(err, &refused), "%s: %v", x.id, err)
		said := refused.Error() + "\n" + strings.Join(refused.Try, "\n")
		check.Has(t, said, "DKMS has built its modules", "%s:", x.id)
		check.Has(t, said, x.owner, "%s:", x.id)
		check.That(t, !strings.Contains(said, "apt-get") && !strings.Contains(said, "has no"), "%s: %s", x.id, said)
	}
}

// A machine with signed modules stays on them when a kernel without signed modules arrives: DKMS would
// build for every kernel, and depmod prefers what DKMS builds. A new machine does not begin with DKMS if
// its kernel would refuse what DKMS builds.
func TestSignedStay(t *testing.T) {
	const k, newer = "6.8.0-41-generic", "6.8.0-45-generic"
	signed := func(kernel string) string {
		return "linux-modules-nvidia-580-server-open-" + kernel
	}
	for _, x := range []struct {
		name    string
		running string
		disk    map[string]hardware.Module
		have    []string
		refuses bool
		stays   bool
	}{
		{"converged", k, onDisk(shipped, k), []string{}, false, true},
		{"converged, Secure Boot", k, onDisk(shipped, k), []string{}, true, true},
		{"another branch's that the archive follows", k, onDisk(hardware.Module{Version: "570.1"}, k), []string{signed(k)}, false, true},
		{"another branch's that it does not follow", k, onDisk(hardware.Module{Version: "570.1"}, k), []string{}, false, false},
		{"the newer one was built here", k, map[string]hardware.Module{k: shipped, newer: built}, []string{}, false, true},
		{"built here", k, onDisk(built, k), []string{signed(k)}, false, false},
		{"fresh", k, nil, []string{signed(k)}, false, false},
		{"fresh, Secure Boot", k, nil, []string{signed(k)}, true, true},
		{"the newer one runs", newer, onDisk(shipped, k), []string{}, false, false},
		{"an image", "", onDisk(shipped, k), []string{}, false, false},
	} {
		m := machine("ubuntu", "24.04", "amd64", "2331")
		m.Kernels = []string{newer, k}
		m.Running = x.running
		m.OnDisk = x.disk
		m.Signed = x.have
		m.RefusesBuilds = x.refuses
		ch, err := Choose(Load(), m, with(with(driver("580"), "source", "distro"), "build", "auto"))
		if err != nil || ch.Precompiled != x.stays {
			t.Errorf("%s: precompiled %t, %v", x.name, ch.Precompiled, err)
			continue
		}
		if !x.stays {
			check.That(t, len(ch.Skipped) == 0, "%s: without %v", x.name, ch.Skipped)
			continue
		}
		says := newer + ": Ubuntu's archive for ubuntu2404 has no " + signed(newer) + "; gpuadm installs none for it"
		check.List(t, ch.Skipped, []string{newer}, "%s: without", x.name)
		check.Has(t, strings.Join(ch.Warnings, "\n"), says, "%s:", x.name)
		for _, member := range ch.Members {
			isDKMS := strings.HasPrefix(member.Name, "nvidia-dkms") || member.Role == "dkms"
			builds := isDKMS || member.Role == "headers"
			check.That(t, member.PerKernel != newer && !builds, "%s: %v", x.name, member)
		}

		f := facts.Facts{
			Live:   true,
			Kernel: facts.Kernel{Running: k, Installed: []string{newer, k}},
		}
		side, _ := ch.KernelSide(spec.Driver{}, f)
		check.That(t, side.Build == "precompiled" && slices.Equal(side.Kernels, []string{k}), "%s: the modules are for %+v", x.name, side)
	}
}

// Whether a build of this machine's own would load is read from what the kernel says and which keys
// are enrolled.
func TestRefusesBuilds(t *testing.T) {
	own := &modinfo.Key{Name: "DKMS module signing key", ID: "1"}
	for _, c := range []struct {
		name  string
		live  bool
		trust facts.Trust
		want  bool
	}{
		{"no Secure Boot", true, facts.Trust{SecureBoot: "off"}, false},
		{"Secure Boot", true, facts.Trust{SecureBoot: "on"}, true},
		{"a key that is not enrolled", true, facts.Trust{SecureBoot: "on", Build: own}, true},
		{"enrolled", true, facts.Trust{SecureBoot: "on", Build: own, Enrolled: []modinfo.Key{*own}}, false},
		{"an image", false, facts.Trust{SecureBoot: "on"}, false},
	} {
		f := facts.Facts{Live: c.live, Modules: &facts.Modules{Trust: c.trust}}
		check.Equal(t, hardware.MachineOf(f, "").RefusesBuilds, c.want, "%s:", c.name)
	}
}
