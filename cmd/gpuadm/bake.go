// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

type bakeFlags struct {
	kernel     string
	gpus       []string
	seal       bool
	hostKeys   bool
	plan       bool
	moduleKey  string
	moduleCert string

	secureBoot     bool
	saysSecureBoot bool // the command line has --secure-boot

	typed []string // the flags, for printed commands
}

func newBake(c *common) *cobra.Command {
	var b bakeFlags
	cmd := &cobra.Command{
		Use:   "bake",
		Short: "make a node image: all that needs no GPU and no running kernel",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b.saysSecureBoot = cmd.Flags().Changed("secure-boot")
			b.typed = typedFlags(cmd)
			return c.bake(cmd.Context(), b)
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.kernel, "kernel", "", "the `RELEASE` of the kernel that the image boots, where it has several")
	f.StringSliceVar(&b.gpus, "gpu", nil, "`MODEL` of GPU that the image is for, such as H100-80GB; repeatable")
	f.BoolVar(&b.seal, "seal", false, "clean the image for use by many machines")
	f.BoolVar(&b.hostKeys, "ssh-host-keys", false, "with --seal: also remove the SSH host keys")
	f.StringVar(&b.moduleKey, "module-key", "", "sign what DKMS builds with this private key (PEM `FILE`); it is not written into the image")
	f.StringVar(&b.moduleCert, "module-cert", "", "the certificate of --module-key (`FILE` in PEM or DER)")
	f.BoolVar(&b.secureBoot, "secure-boot", false, "refuse modules that no machine with Secure Boot would load; the default where\n--module-key is named, or this machine becomes the image and has Secure Boot on")
	f.BoolVar(&b.plan, "dry-run", false, "print what would change")
	cmd.RegisterFlagCompletionFunc("gpu", gpuModels)
	return cmd
}

// typedFlags are the flags of bake's command line, but for --dry-run.
func typedFlags(cmd *cobra.Command) (words []string) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed || f.Name == "dry-run" {
			return
		}

		value := f.Value.String()
		switch {
		case f.Value.Type() != "bool":
			words = append(words, "--"+f.Name, strings.Trim(value, "[]")) // of a list
		case value == "true":
			words = append(words, "--"+f.Name)
		default:
			words = append(words, "--"+f.Name+"=false")
		}
	})
	return words
}

// bake makes an image, or prints the plan.
func (c *common) bake(ctx context.Context, b bakeFlags) error {
	gpus, key, err := c.checkBake(b)
	if err != nil {
		return err
	}
	trust, err := c.forSecureBoot(b, key)
	if err != nil {
		return err
	}

	release := c.openImage(key)
	defer release()

	e, h, err := c.engine(ctx, nil, nil)
	if err != nil {
		return err
	}
	e.Own = false // what is deferred until first boot has not ended well
	e.Assume, err = assumeOfImage(ctx, h, e.Spec, b, gpus, trust)
	if err != nil {
		return err
	}
	if err := c.addInstall(e, h); err != nil {
		return err
	}

	c.bakes = true
	c.chosen = b.typed
	c.planVerb = "bake --dry-run"
	if b.seal {
		if err := c.keyOutside(h, b, key); err != nil {
			return err
		}
	}

	if b.plan {
		return c.planWith(ctx, e, h, false)
	}

	if err := trustInstalled(h, e); err != nil {
		return err
	}
	err = c.bakeNow(ctx, e, h)
	if err != nil || !b.seal {
		return err
	}
	return c.seal(ctx, e, h, b.hostKeys)
}

// checkBake reads what bake's flags name, and refuses flags that it cannot obey, before it looks at
// the image.
func (c *common) checkBake(b bakeFlags) (gpus []facts.PCI, key *local.ModuleKey, err error) {
	if b.hostKeys && !b.seal {
		return nil, nil, usage{errors.New("cannot use --ssh-host-keys without --seal")}
	}
	gpus, err = named(b.gpus)
	if err != nil {
		return nil, nil, err
	}
	key, err = c.signing(b)
	if err != nil {
		return nil, nil, err
	}
	if !c.root {
		return nil, nil, &trouble.Error{
			What: "cannot bake: only root can run programs in an image",
			Try:  []string{c.again()},
		}
	}

	return gpus, key, nil
}

// openImage has the engine work on the image in place of this machine. release ends what holds the
// image, if the engine has opened it.
func (c *common) openImage(key *local.ModuleKey) (release func()) {
	opened := func() {}
	c.open = func(root string, follow commands.Follow) (host.Host, error) {
		h, done, err := c.image(root, key, follow)
		if err == nil {
			opened = done
		}
		return h, err
	}

	return func() { opened() }
}

// assumeOfImage returns what bake assumes of the machines that boot the image: the GPUs and the
// trust in keys that the flags name, and one kernel. It refuses a machine that has
// joined a cluster.
func assumeOfImage(
	ctx context.Context,
	h host.Host,
	s spec.Spec,
	b bakeFlags,
	gpus []facts.PCI,
	trust *facts.Trust,
) (func(*facts.Facts), error) {
	f, err := facts.Gather(ctx, h, facts.Needs{})
	if err != nil {
		return nil, err
	}
	if err := refuseJoined(h, f); err != nil {
		return nil, err
	}
	kernel, err := imageKernel(f.Kernel.Installed, b.kernel, s.Has("driver"))
	if err != nil {
		return nil, err
	}

	return func(f *facts.Facts) {
		f.GPUs = gpus
		f.Image = trust
		if kernel != "" {
			f.Kernel.Installed = []string{kernel}
		}
	}, nil
}

// refuseJoined refuses a machine that has joined a cluster.
func refuseJoined(h host.View, f facts.Facts) error {
	credentials := stages.OtherKubelet(h)
	if f.Kubelet.Joined {
		credentials = f.Kubelet.Kubeconfig
	}
	if credentials == "" {
		return nil
	}

	return &trouble.Error{
		What: "cannot bake: this machine has joined a cluster",
		Because: []string{
			"each copy would have its credentials: " + credentials,
			"pods may run here, and bake asks nothing before it changes the driver",
		},
		Try: []string{
			"to converge a node: " + trouble.Command("apply"),
			"bake a machine that never joined, or the root folder of an image (--root)",
		},
	}
}

// named returns the GPUs of --gpu. nil means unknown GPUs, for the choice of a driver.
func named(models []string) (all []facts.PCI, err error) {
	for _, name := range models {
		p, _, err := modelOf(name)
		if err != nil {
			return nil, usage{err}
		}
		p.Address = fmt.Sprintf("0000:%02x:00.0", len(all)+1)
		all = append(all, p)
	}
	return all, nil
}

// imageKernel returns the kernel that the image boots. If there are several, the operator must name
// it: gpuadm does not read the boot loader's choice, and a wrong guess would only show at the first
// boot.
func imageKernel(has []string, asked string, needed bool) (string, error) {
	list := cmp.Or(strings.Join(has, ", "), "none")
	switch {
	case asked != "" && !slices.Contains(has, asked):
		return "", usage{fmt.Errorf("cannot find kernel %s in the image; it has %s", asked, list)}
	case asked == "" && len(has) > 1 && needed:
		return "", usage{fmt.Errorf("cannot choose a kernel: the image has %s; say with --kernel which one it boots", list)}
	case asked == "" && len(has) == 1:
		return has[0], nil
	}

	return asked, nil
}

// bakeNow converges the image, and prints what is deferred until first boot.
func (c *common) bakeNow(ctx context.Context, e *converge.Engine, h host.Host) error {
	voice := c.voice()
	stop, done := onSignal(c.stopping)
	defer done()
	e.Tell = voice.tell
	e.Stop = stop

	began := h.Now()
	if err := converge.ForgetSpec(h); err != nil { // that of the machine that the image was copied from
		return err
	}
	result, err := e.Apply(ctx, h)
	voice.close()
	c.ran(result)
	if err != nil || c.output == "json" {
		return err
	}

	text := "Nothing to do."
	if result.Run != "" {
		seconds := h.Now().Sub(began).Seconds()
		text = fmt.Sprintf("%s made in %.1f s.", trouble.Count(len(result.Made), "change"), seconds)
	}
	c.answer(text)
	for _, line := range firstBoot(result.Deferred) {
		c.answer(line)
	}
	return nil
}

// firstBoot lists the deferred changes by what they need.
func firstBoot(changes []converge.Line) (lines []string) {
	needs := func(l converge.Line) string { return stages.Needs(l.Change) }
	order, by := grouped(changes, needs)
	for _, need := range order {
		lines = append(lines, fmt.Sprintf("Deferred until first boot, needs %s: %s.", need, several(by[need])))
	}
	return lines
}

// seal prepares the image for many machines.
func (c *common) seal(ctx context.Context, e *converge.Engine, h host.Host, hostKeys bool) error {
	s, err := e.Status(ctx, h)
	if err != nil {
		return err
	}
	if err := stages.Sealable(s); err != nil {
		return err
	}
	removed, err := stages.Seal(ctx, h, e.Spec, s, version(), hostKeys)
	if err != nil || c.output == "json" {
		return err
	}

	count := trouble.Count(len(removed), "file")
	c.answer(fmt.Sprintf("Sealed: %s removed, what was baked is in %s.", count, stages.ManifestFile))
	if c.verbose {
		for _, name := range removed {
			c.answer("  - " + name)
		}
	}

	return nil
}
