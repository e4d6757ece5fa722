// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/stages"
)

type mirrorFlags struct {
	system        string
	kernels, gpus []string
	dir           string
	keep          bool

	modules   []string
	moduleKey bakeFlags
}

func newMirror(c *common) *cobra.Command {
	var m mirrorFlags
	cmd := &cobra.Command{
		Use:   "mirror --for ID {--kernel|--modules} RELEASE -o DIR",
		Short: "write a folder from which nodes without a network install",
		Args:  noArgs, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.mirror(cmd.Context(), m) },
	}
	f := cmd.Flags()
	f.StringVar(&m.system, "for", "", "the operating system `ID` of the nodes: ubuntu-24.04, rhel-9")
	f.StringSliceVar(&m.kernels, "kernel", nil, "the `RELEASE` of a kernel that nodes run; repeatable")
	f.StringSliceVar(&m.gpus, "gpu", nil, "`MODEL` of GPU that nodes have, such as H100-80GB; repeatable")
	f.BoolVar(&m.keep, "keep", false, "also keep the packages that the folder has: nodes can go back to their versions")
	// Here -o names the folder: there is no other form of it.
	f.StringVarP(&m.dir, "output", "o", "", "write to `DIR`")
	_ = f.SetAnnotation("output", noVariable, nil)
	f.StringSliceVar(&m.modules, "modules", nil, "also build the driver's modules for the kernel `RELEASE`, which nodes run; repeatable")
	f.StringVar(&m.moduleKey.moduleKey, "module-key", "", "sign these modules with the private key in `FILE`, in PEM; nodes under Secure Boot have it enrolled")
	f.StringVar(&m.moduleKey.moduleCert, "module-cert", "", "the certificate in `FILE` belongs to that key")
	cmd.RegisterFlagCompletionFunc("gpu", gpuModels)
	return cmd
}

// mirror writes a mirror, and prints how nodes use it.
func (c *common) mirror(ctx context.Context, m mirrorFlags) error {
	m.kernels = append(slices.DeleteFunc(m.kernels, func(kernel string) bool { return slices.Contains(m.modules, kernel) }), m.modules...)
	switch {
	case m.system == "" || len(m.kernels) == 0 || m.dir == "":
		return usage{fmt.Errorf("cannot write a mirror without --for, --kernel and -o: they say for which nodes it is, and where it goes")}
	case c.rootDir != "/":
		return usage{&trouble.Error{What: "cannot write a mirror with --root: mirror runs the packager of the machine or container that it is started in", Try: []string{"systemd-nspawn -D " + c.rootDir + " --bind=OUT:/out gpuadm mirror … -o /out/mirror"}}}
	case !c.root:
		return &trouble.Error{What: "cannot write a mirror: only root can run the packager for it", Try: []string{c.again()}}
	}
	gpus, err := named(m.gpus)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(m.dir)
	if err != nil {
		return err
	}
	h, s, err := c.machine()
	if err != nil {
		return err
	}
	is, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil {
		return err
	}
	if err := isFor(is.OS, m.system); err != nil {
		return err
	}
	unlock, err := h.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	binary, err := c.self()
	if err != nil {
		return err
	}
	sign, err := c.signing(m.moduleKey)
	if err != nil {
		return err
	}
	shared := stages.Shared{Kernels: m.modules}
	switch {
	case (sign != nil) != (len(m.modules) > 0):
		return usage{&trouble.Error{What: "cannot build modules: --modules, --module-key and --module-cert go together, since DKMS would sign with a key that no node knows", Try: []string{
			`openssl req -new -x509 -newkey rsa:3072 -nodes -days 36500 -subj "/CN=modules of our nodes" -keyout modules.key -out modules.pem, and keep modules.key`,
		}}}
	case sign != nil:
		shared.Signer, _ = facts.Certificate(sign.Certificate)
		for name, at := range map[string]*string{m.moduleKey.moduleKey: &shared.Key, m.moduleKey.moduleCert: &shared.Certificate} {
			if *at, err = filepath.Abs(name); err != nil {
				return err
			}
		}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // else compilers would go on
	defer stop()
	made := stages.Mirror{Shared: shared, For: m.system, Models: m.gpus, Dir: dir, Key: dir + ".key", Binary: binary, Keep: m.keep, Say: func(files int, size int64) {
		if !c.quiet {
			printf(c.stderr, "Fetching %s, %d MB …\n", trouble.Count(files, "file"), size/1e6)
		}
	}, Note: func(text string) { printf(c.stderr, "Note: %s.\n", text) }}
	lock, changed, err := made.Make(ctx, h, s, facts.Facts{
		OS: is.OS, Arch: is.Arch, Day: is.Day, GPUs: gpus, Kernel: facts.Kernel{Installed: m.kernels},
	})
	if ctx.Err() != nil {
		return &trouble.Error{What: "cannot write the mirror: it was interrupted", Because: []string{"the old folder, if there was one, is as it was"}, Try: []string{c.again() + ", which continues"}}
	} else if err != nil {
		return err
	}
	size := int64(0)
	for _, f := range lock.Files {
		size += f.Size
	}
	if !changed {
		c.answer("Nothing to do.")
	}
	c.answer(fmt.Sprintf("%s: %s, %d MB, for %s, kernels %s.", dir, trouble.Count(len(lock.Files), "file"), size/1e6, lock.For, strings.Join(lock.Kernels, ", ")))
	c.answer("Signed by " + lock.Key + "; the secret key is in " + dir + ".key.")
	c.answer("On a node: copy the folder to " + dir + ", compare that fingerprint, and copy its mirror.toml to /etc/gpuadm/node.d.")
	return nil
}

// isFor refuses another system than this machine's, since the system's own packager must resolve
// the packages.
func isFor(is facts.OS, asked string) error {
	id, version, _ := strings.Cut(asked, "-")
	if is.ID == id && (is.Version == version || strings.HasPrefix(is.Version, version+".")) {
		return nil
	}
	try := "run it on a machine or in a container of " + asked + ": there dnf install createrepo_c, then ./gpuadm mirror …"
	if (facts.OS{ID: id}).Packager().Name == "apt" {
		try = fmt.Sprintf("run it in a container of %[1]s: docker run -it -v .:/work -w /work %s bash, there apt-get update and apt-get install ca-certificates, then ./gpuadm mirror …", asked, strings.Replace(asked, "-", ":", 1))
	}
	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot mirror for %s on %s %s: the system's own packager resolves its packages", asked, is.ID, is.Version), Try: []string{try},
	}}
}

// elsewhere is a machine that the command line describes.
type elsewhere struct {
	os, arch string
	gpus     []string
}

func (m *elsewhere) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.os, "os", "", "for the operating system `ID`: ubuntu-24.04, rocky-9")
	cmd.Flags().StringVar(&m.arch, "arch", "", "for a machine of this `ARCH`: amd64 or arm64; by default that of the GPUs, else amd64")
	cmd.Flags().StringSliceVar(&m.gpus, "gpu", nil, "for this `MODEL` of GPU: H100-80GB, T4, or a PCI device id; repeatable, one for each GPU")
	cmd.RegisterFlagCompletionFunc("os", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return drivers.Load().Systems(), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.RegisterFlagCompletionFunc("gpu", gpuModels)
	cmd.RegisterFlagCompletionFunc("arch", cobra.FixedCompletions([]string{"amd64", "arm64"}, cobra.ShellCompDirectiveNoFileComp))
}

// gpuModels completes the models of GPUs that have MIG.
func gpuModels(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, m := range mig.Models() {
		names = append(names, m.Name+"\t"+m.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// facts returns the facts of such a machine; a model that is given once counts as n GPUs.
func (m *elsewhere) facts(day string, n int) (facts.Facts, []host.GPU, error) {
	arm := slices.ContainsFunc(m.gpus, func(name string) bool { p, _, err := modelOf(name); return err == nil && facts.OnArm(p.Model) })
	if m.arch == "" {
		m.arch = map[bool]string{true: "arm64", false: "amd64"}[arm]
	}
	f := facts.Facts{Arch: m.arch, Day: day}
	if m.arch != "amd64" && m.arch != "arm64" {
		return f, nil, usage{fmt.Errorf("cannot use --arch %q: it takes amd64 or arm64", m.arch)}
	} else if arm && m.arch != "arm64" {
		return f, nil, usage{&trouble.Error{What: fmt.Sprintf("cannot use --arch %s with --gpu %s: this GPU is on one board with an Arm processor", m.arch, strings.Join(m.gpus, ", ")), Try: []string{"--arch arm64"}}}
	}
	if m.os != "" {
		c := drivers.Load()
		if known, like := c.Knows(m.os); !known {
			if meant := nearest.Of(strings.Replace(m.os, "al2", "amzn-2", 1), like); meant != "" && len(like) == len(c.Systems()) { // AL2023 is AWS' own short name
				like = []string{meant}
			}
			return f, nil, usage{&trouble.Error{What: fmt.Sprintf("cannot find a driver for %q: --os takes what /etc/os-release says, as ID-VERSION_ID, of a system that this gpuadm knows drivers for", m.os), Try: []string{"write one of " + strings.Join(like, ", ")}}}
		}
		f.OS.ID, f.OS.Version, _ = strings.Cut(m.os, "-")
		f.OS.Name = m.os
	}
	names := m.gpus
	if len(names) == 1 {
		names = slices.Repeat(names, max(1, n))
	}
	var gpus []host.GPU
	for i, name := range names {
		p, g, err := modelOf(name)
		if err != nil {
			return f, nil, usage{err}
		}
		p.Address = fmt.Sprintf("0000:%02x:00.0", i+1)
		g.Index, g.Address = i, p.Address
		f.GPUs, gpus = append(f.GPUs, p), append(gpus, g)
	}
	return f, gpus, nil
}

// modelOf returns a model as the PCI bus shows it, and as NVML shows it before any change.
func modelOf(name string) (facts.PCI, host.GPU, error) {
	m, err := mig.Find(name)
	if err == nil {
		g := m.GPU()
		g.Name = m.Name
		return facts.PCI{Vendor: "10de", Device: strings.ToLower(g.Device[2:6]), Class: "030200", Model: m.Name}, g, nil
	}
	p, known := facts.Named(name)
	if known {
		return p, host.GPU{Name: p.Model, Device: "0x" + strings.ToUpper(p.Device) + "10DE"}, nil
	}
	plain := strings.ToLower(strings.ReplaceAll(name, " ", "-"))
	like := slices.DeleteFunc(facts.Models(), func(model string) bool { return !strings.HasPrefix(strings.ToLower(model), plain+"-") })
	if f := new(trouble.Error); errors.As(err, &f) && f.Err == nil { // Find knows those with MIG
		f.What, f.Try = fmt.Sprintf("cannot find GPU %q: this release knows none of this name or PCI device id", name), []string{"leave --gpu and --os out on the machine itself, whose PCI bus names the GPU"}
		if near := nearest.Of(name, facts.Models()); len(like) > 0 {
			f.Try = []string{"write one of " + strings.Join(like, ", ")}
		} else if near != "" {
			f.Try = []string{"did you mean " + strconv.Quote(near) + "?"}
		}
	}
	return p, host.GPU{}, err
}
