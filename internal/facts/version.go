// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"debug/buildinfo"
	_ "embed"
	"errors"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/pci"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Cache keeps the costly facts from one Gather to the next: versions of programs, and modules,
// which hold as long as the file's path, size and ctime do; what a cloud answered, for a run; and
// parsed texts.
// Given another View it starts from nothing. The zero value is empty and usable.
type Cache struct {
	view    host.View
	modules *ModuleCache
	asked   asked
	gpus    []PCI // found by GPUs, for the next Gather; and rdma with them
	rdma    bool
	texts   *toml.Texts
}

// program says how a program's version can be found out.
type program struct {
	packages []string // deb packages that own it
	module   string   // Go module that has the program's version, as main module or as a part
	ask      bool     // it may be run with --version; its words tell which program it is
}

// version finds a program's version: a program that may be run says it, then the Go build
// information in the binary, then dpkg, which does not know of a file that was put in the package's
// place. For a program that is not run dpkg comes first: that is cheaper.
func (l *look) version(ctx context.Context, path string, p program) string {
	packaged := upstream(l.dpkgVersion(path, p.packages...))
	info, err := l.v.Stat(path)
	if packaged != "" && !p.ask || err != nil {
		return packaged
	}
	is, _ := l.cache.modules.once(view.Machine(l.v), moduleKey{path, info.Size, info.Ctime.UTC()}, func() (ModuleFile, error) {
		m := ModuleFile{Path: path}
		if p.ask && l.v.Runs() {
			out, err := l.v.Ask(ctx, path, "--version")
			if m.Version = spoken(string(out)); err != nil || m.Version == "" {
				m.Version = cmp.Or(l.binaryVersion(path, p.module), packaged)
				return m, errNotSaid // it may say it the next time
			}
			return m, nil
		}
		m.Version = cmp.Or(l.binaryVersion(path, p.module), packaged)
		return m, context.Cause(ctx)
	})
	return is.Version
}

var errNotSaid = errors.New("the program does not say its version")

// binaryVersion reads the version that the Go linker was given, or that of the module the program
// was built from.
func (l *look) binaryVersion(path, module string) string {
	info, err := buildinfo.Read(host.Part{View: l.v, Name: path})
	if err != nil {
		return ""
	}
	return builtVersion(info, module)
}

// builtVersion finds a program's version in its build information, "" if that does not tell.
func builtVersion(info *buildinfo.BuildInfo, module string) string {
	for _, s := range info.Settings {
		if s.Key != "-ldflags" { // left out by builds with -trimpath
			continue
		}
		for _, word := range Words(s.Value) {
			name, value, _ := strings.Cut(strings.TrimPrefix(word, "-X="), "=")
			if strings.HasSuffix(name, "/version.Version") || strings.HasSuffix(name, "/version.gitVersion") {
				if v := upstream(value); v != "" {
					return v
				}
			}
		}
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != module && !strings.HasPrefix(m.Path, module+"/v") {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if v := upstream(m.Version); v != "" && !pseudoVersion().MatchString(m.Version) {
			return v
		}
	}
	return ""
}

// ReadsCDI is the newest version of the CDI specification that the engine of pods reads, by the
// library that it was built with; "" where its build information does not say. Source:
// validVersions in specs-go/version.go of https://github.com/cncf-tags/container-device-interface.
func (f Facts) ReadsCDI(v host.View) string {
	i := slices.IndexFunc(f.Engines, f.Kubelet.Uses)
	if len(f.Engines) == 0 {
		return ""
	}
	info, err := buildinfo.Read(host.Part{View: v, Name: f.Engines[max(i, 0)].Binary})
	if err != nil {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "tags.cncf.io/container-device-interface/specs-go" {
			return upstream(m.Version)
		}
	}
	return ""
}

// pseudoVersion is how Go names a commit that has no version:
// https://go.dev/ref/mod#pseudo-versions
var pseudoVersion = pattern.Of(`[-.]\d{14}-[0-9a-f]{12}`)

// spoken finds the version in what a program prints when asked:
//
//	containerd github.com/containerd/containerd/v2 v2.1.5 fcd4…
//	crio version 1.31.3
//	Docker version 27.3.1, build 41ca978
func spoken(out string) string {
	line, _, _ := strings.Cut(out, "\n")
	for _, word := range strings.Fields(line) {
		if v := upstream(word); v != "" {
			return v
		}
	}
	return ""
}

// Where the programs that NVIDIA's runtime handlers run are put: by the toolkit's packages, and by
// the GPU Operator. Sources: https://github.com/NVIDIA/gpu-operator/issues/2387 (its installer's
// log); k3s-io/k3s, pkg/agent/containerd/runtimes.go: it looks in both.
const (
	RuntimeOfPackages = "/usr/bin/nvidia-container-runtime"
	RuntimeOfOperator = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
)

// programs lists the NVIDIA runtimes that can be run here, as the engines' configurations name them
// and where packages and the GPU Operator put them.
func (l *look) programs(engines []Engine) []string {
	names := []string{RuntimeOfPackages, RuntimeOfOperator}
	for _, e := range engines {
		for _, f := range e.Files {
			if path.Ext(f.Path) == ".json" || len(f.Data) >= maxParsed {
				continue
			}
			if tree, err := l.texts.Values(f.Data); err == nil {
				names = append(names, programsIn(tree, 0)...)
			}
		}
	}
	slices.Sort(names)
	var there []string
	for _, name := range slices.Compact(names) {
		if strings.HasPrefix(path.Base(name), "nvidia") && Runs(l.v, name) {
			there = append(there, name)
		}
	}
	return there
}

// programsIn returns what handlers run: options.BinaryName in containerd's configuration,
// runtime_engine in its oldest form, runtime_path in CRI-O's. An entry lies seven tables deep.
func programsIn(v any, depth int) (names []string) {
	t, ok := v.(map[string]any)
	if !ok || depth > 8 {
		return nil
	}
	for key, v := range t {
		if text, ok := v.(string); ok && slices.ContainsFunc([]string{"BinaryName", "runtime_engine", "runtime_path"}, func(k string) bool { return strings.EqualFold(k, key) }) {
			names = append(names, text)
		}
		names = append(names, programsIn(v, depth+1)...)
	}
	return names
}

// Runs says whether a program can be started. A name without a folder is looked up in more folders,
// and then along the PATH that systemd gives its services:
// https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#%24PATH
func Runs(v host.View, name string, more ...string) bool {
	places := []string{name}
	if !path.IsAbs(name) {
		places = nil
		for _, dir := range append(more, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin") {
			places = append(places, path.Join(dir, name))
		}
	}
	return slices.ContainsFunc(places, func(p string) bool {
		i, err := v.Stat(p)
		return err == nil && i.Mode.IsRegular() && i.Mode&0o111 != 0
	})
}

// model returns the name of a known device, "" for others. Names say what tells them apart for a
// user: the product, its form where there are several, the memory.
func model(device, subsystem string) string {
	for _, key := range [...]string{device + " " + subsystem, device + " *"} {
		if _, after, ok := strings.Cut(models, "\n"+key+" "); ok {
			name, _, _ := strings.Cut(after, "\n")
			return name
		}
	}
	return ""
}

// models is the table of data-centre GPUs and of the NVSwitches a host sees: device id, subsystem
// or *, name.
//
//go:embed models.txt
var models string

// gpuModels are the GPUs of known models, as the PCI bus would show them.
func gpuModels() (list []PCI) {
	for row := range strings.Lines(models) {
		words := strings.SplitN(strings.TrimSpace(row), " ", 3)
		if words[0] != "#" && !strings.HasPrefix(words[2], "NVSwitch") {
			list = append(list, PCI{Vendor: "10de", Device: words[0], Class: "030200", Model: words[2]})
		}
	}
	return list
}

// Named returns a GPU of a known model by its device id, 1eb8, or by its name, T4 or "A100 PCIe
// 80GB".
func Named(name string) (PCI, bool) {
	plain := strings.NewReplacer("-", " ", "0x", "").Replace(strings.ToLower(name))
	plain = strings.TrimPrefix(plain, "nvidia ")
	for _, g := range gpuModels() {
		if plain == g.Device || plain == strings.ToLower(strings.ReplaceAll(g.Model, "-", " ")) {
			return g, true
		}
	}
	return PCI{}, false
}

// Models are the names of all known models, as --gpu takes them: V100-16GB.
func Models() (names []string) {
	for _, g := range gpuModels() {
		names = append(names, strings.ReplaceAll(g.Model, " ", "-"))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// OnArm says whether GPUs of a model are on one board with an Arm processor of NVIDIA's: GH200,
// GB200, GB300, GB10.
// Sources: https://docs.nvidia.com/dccpu/grace-perf-tuning-guide/ and
// https://docs.nvidia.com/dgx/dgx-spark/hardware.html.
func OnArm(model string) bool { return regexp.MustCompile(`^G[BH]\d`).MatchString(model) }

// pci lists the NVIDIA functions on the bus, in bus order. Not nil: the bus was read.
func (l *look) pci() []PCI {
	found := []PCI{}
	all, err := pci.Functions(l.v)
	if err != nil {
		l.fail("list", pci.Bus, err)
	}
	for _, p := range all {
		// 15b3 is Mellanox, as NVIDIA's network cards say; EFA's functions are Amazon's efa0 to
		// efa3, beside its plain ec20: pci.ids, and EFA_DEV in drivers/infiniband/hw/efa/efa_main.c
		// of the kernel's tree.
		l.rdma = l.rdma || strings.HasPrefix(p.Class, "02") && (p.Vendor == "15b3" || p.Vendor == "1d0f" && strings.HasPrefix(p.Device, "efa"))
		if p.Vendor == pci.Nvidia {
			p.Model = model(p.Device, p.Subsystem)
			found = append(found, p)
		}
	}
	return found
}
