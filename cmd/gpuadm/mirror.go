// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

type mirrorFlags struct {
	system    string
	kernels   []string
	gpus      []string
	dir       string
	keep      bool
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
	builds := func(kernel string) bool { return slices.Contains(m.modules, kernel) }
	m.kernels = append(slices.DeleteFunc(m.kernels, builds), m.modules...)
	if err := c.mayMirror(m); err != nil {
		return err
	}
	gpus, err := named(m.gpus)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(m.dir)
	if err != nil {
		return err
	}
	h, s, err := c.machine(nil)
	if err != nil {
		return err
	}
	f, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil {
		return err
	}
	if err := isFor(f.OS, m.system); err != nil {
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
	shared, err := c.sharedModules(m)
	if err != nil {
		return err
	}

	// Else compilers would continue after a signal.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	mirror := stages.Mirror{
		For:    m.system,
		Models: m.gpus,
		Dir:    dir,
		Key:    dir + ".key",
		Binary: binary,
		Shared: shared,
		Keep:   m.keep,
		Say:    c.fetching,
		Note:   func(text string) { printf(c.stderr, "Note: %s.\n", text) },
	}
	c.silence.does("writes the mirror")
	made, err := mirror.Make(ctx, h, s, facts.Facts{
		OS:     f.OS,
		Arch:   f.Arch,
		Day:    f.Day,
		GPUs:   gpus,
		Kernel: facts.Kernel{Installed: m.kernels},
	})
	if ctx.Err() != nil {
		return &trouble.Error{
			What:    "cannot write the mirror: it was interrupted",
			Because: []string{"the old folder, if there was one, is as it was"},
			Try:     []string{c.again() + ", which continues"},
		}
	}

	if err != nil {
		return err
	}

	c.mirrored(dir, made)
	return notBuilt(dir, made)
}

// mirrored prints what the mirror has, and how nodes use it.
func (c *common) mirrored(dir string, made stages.Mirrored) {
	lock := made.Lock
	if !made.Changed {
		c.answer("Nothing to do.")
	}
	size := int64(0)
	for _, f := range lock.Files {
		size += f.Size
	}
	files := trouble.Count(len(lock.Files), "file")
	kernels := strings.Join(lock.Kernels, ", ")
	c.answer(fmt.Sprintf("%s: %s, %d MB, for %s, kernels %s.", dir, files, size/1e6, lock.For, kernels))
	c.answer("Signed by " + lock.Key + "; the secret key is in " + dir + ".key.")
	c.answer("On a node: copy the folder to " + dir + ", compare that fingerprint, and copy its mirror.toml to /etc/gpuadm/node.d.")
}

// notBuilt is the error of a mirror that lacks modules, since they did not build; nil if
// none failed.
func notBuilt(dir string, made stages.Mirrored) error {
	if len(made.Failed) == 0 {
		return nil
	}
	has := dir + " has all else, and this failure, which the plans of nodes name"
	if made.Stays {
		has = dir + " stays as it was, with this failure: it has the modules of another driver for that kernel"
	}

	first := &trouble.Error{What: made.Failed[0].Error()}
	errors.As(made.Failed[0], &first)
	whole := *first
	whole.Because = append(slices.Clone(first.Because), has)
	for _, other := range made.Failed[1:] {
		whole.Because = append(whole.Because, other.Error())
	}
	return &whole
}

// mayMirror refuses a command line or a user that cannot write a mirror.
func (c *common) mayMirror(m mirrorFlags) error {
	switch {
	case m.system == "" || len(m.kernels) == 0 || m.dir == "":
		return usage{&trouble.Error{
			What: "cannot write a mirror without --for, --kernel and -o: they say for which nodes it is, and where it goes",
			Try:  []string{"gpuadm mirror --for ubuntu-24.04 --kernel 6.8.0-88-generic --gpu H100-80GB -o /srv/mirror"},
		}}
	case c.rootDir != "/":
		return usage{&trouble.Error{
			What: "cannot write a mirror with --root: mirror runs the packager of the machine or container that it is started in",
			Try:  []string{"systemd-nspawn -D " + c.rootDir + " --bind=OUT:/out gpuadm mirror … -o /out/mirror"},
		}}
	case !c.root:
		return &trouble.Error{
			What: "cannot write a mirror: only root can run the packager for it",
			Try:  []string{c.again()},
		}
	}
	return nil
}

// sharedModules says which modules to build, and with which key to sign them.
func (c *common) sharedModules(m mirrorFlags) (shared stages.Shared, err error) {
	key, err := c.signing(m.moduleKey)
	if err != nil {
		return shared, err
	}
	signs := key != nil
	builds := len(m.modules) > 0
	if signs != builds {
		return shared, usage{&trouble.Error{
			What: "cannot build modules: --modules, --module-key and --module-cert go together, since DKMS would sign with a key that no node knows",
			Try:  []string{`openssl req -new -x509 -newkey rsa:3072 -nodes -days 36500 -subj "/CN=modules of our nodes" -keyout modules.key -out modules.pem, and keep modules.key`},
		}}
	}

	if !builds {
		return shared, nil
	}

	shared.Kernels = m.modules
	shared.Signer, _ = modinfo.Certificate(key.Certificate)
	shared.Key, err = filepath.Abs(m.moduleKey.moduleKey)
	if err != nil {
		return shared, err
	}
	shared.Certificate, err = filepath.Abs(m.moduleKey.moduleCert)
	return shared, err
}

// fetching prints how many files are about to be fetched.
func (c *common) fetching(files int, size int64) {
	if !c.quiet {
		printf(c.stderr, "Fetching %s, %d MB …\n", trouble.Count(files, "file"), size/1e6)
	}
}

// isFor refuses another system than this machine's, since the system's own packager must resolve
// the packages.
func isFor(is facts.OS, asked string) error {
	id, version, _ := strings.Cut(asked, "-")
	sameVersion := is.Version == version || strings.HasPrefix(is.Version, version+".")
	if is.ID == id && sameVersion {
		return nil
	}

	try := "run it on a machine or in a container of " + asked + ": there dnf install createrepo_c, then ./gpuadm mirror …"
	if (facts.OS{ID: id}).Packager().Name == "apt" {
		image := strings.Replace(asked, "-", ":", 1)
		try = fmt.Sprintf("run it in a container of %s: docker run -it -v .:/work -w /work %s bash, there apt-get update and apt-get install ca-certificates, then ./gpuadm mirror …", asked, image)
	}
	return usage{&trouble.Error{
		What: fmt.Sprintf("cannot mirror for %s on %s %s: the system's own packager resolves its packages", asked, is.ID, is.Version),
		Try:  []string{try},
	}}
}
