// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// schemaHome is the address of the schemas of node.toml and of -o json. Editors with Taplo (Even
// Better TOML) or Tombi complete a TOML file by the schema in its first line; Tombi requires an
// empty line after it.
// Sources: https://taplo.tamasfe.dev/configuration/using-schemas.html and
// https://tombi-toml.github.io/tombi/docs/comment-directive/schema-document-directive.
const schemaHome = "https://raw.githubusercontent.com/gpuadm/gpuadm/main/docs/schema/"

// installedSchema is the schema that gpuadm's package installs: that of the release that reads the
// file, also without a network.
const installedSchema = "/usr/share/gpuadm/schema/node.json"

// clouds are the values of --cloud.
var clouds = append(platform.Methods(), "none")

func newInit(c *common) *cobra.Command {
	var m elsewhere
	var cloud string
	var printOnly bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "write a commented node.toml to start from",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(m.gpus) > 0 || m.os != "" || m.arch != "" || cloud != "" {
				return c.initElsewhere(m, cmp.Or(cloud, "none"))
			}
			return c.initHere(cmd.Context(), printOnly)
		},
	}
	m.flags(cmd)
	cmd.Flags().StringVar(&cloud, "cloud", "", "for a node in this `CLOUD`: "+strings.Join(clouds, ", "))
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the spec in place of writing it")
	complete := cobra.FixedCompletions(clouds, cobra.ShellCompDirectiveNoFileComp)
	cmd.RegisterFlagCompletionFunc("cloud", complete)
	return cmd
}

// initElsewhere prints a spec for a machine that the command line describes.
func (c *common) initElsewhere(m elsewhere, cloud string) error {
	if err := m.known(); err != nil {
		return err
	}
	switch {
	case len(m.gpus) == 0 || m.os == "":
		return usage{&trouble.Error{
			What: "cannot choose a driver: --gpu needs --os, --os needs --gpu, and --arch and --cloud need both; without them init is for this machine",
			Try:  []string{m.example(cloud)},
		}}
	case !slices.Contains(clouds, cloud):
		return wrongCloud(cloud)
	}

	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return err
	}
	f, gpus, err := m.facts(h.Now().UTC().Format(time.DateOnly), 1)
	if err != nil {
		return err
	}

	d := draft{facts: f, gpus: gpus, cloud: cloud, engine: true}
	text, err := d.spec()
	if err != nil {
		return err
	}
	_, err = io.WriteString(c.stdout, text)
	return err
}

// wrongCloud names the Kubernetes of a cloud, which --cloud takes.
func wrongCloud(cloud string) error {
	kubernetes := cmp.Or(platform.MethodOn(strings.ToLower(cloud)), nearest.Of(cloud, clouds))
	t := &trouble.Error{
		What: fmt.Sprintf("cannot use --cloud %q: it takes %s", cloud, strings.Join(clouds, ", ")),
	}
	if kubernetes != "" {
		t.Try = []string{"--cloud " + kubernetes}
	}
	return usage{t}
}

// initHere writes a spec for this machine.
func (c *common) initHere(ctx context.Context, printOnly bool) error {
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return err
	}
	f, err := facts.Gather(ctx, h, facts.Everything)
	if err != nil {
		return err
	}
	d := draftOf(f)
	if _, err := h.Stat(installedSchema); err == nil {
		d.schema = "file://" + installedSchema
	}
	text, err := c.planned(ctx, &d)
	if err != nil {
		return err
	}
	if printOnly {
		_, err := io.WriteString(c.stdout, text)
		return err
	}

	if err := c.mayTouch("init"); err != nil {
		return err
	}
	name := path.Join(specHome, "node.toml")
	if err := writeNew(h, name, text); err != nil {
		return err
	}
	answer := fmt.Sprintf("Wrote %s. To see what it would change: %s", name, c.typed("plan"))
	hasBus := h.Live() && f.GPUs != nil
	if hasBus && !slices.ContainsFunc(f.GPUs, facts.PCI.Display) {
		answer = fmt.Sprintf("Wrote %s, without a driver: there is no NVIDIA GPU on the PCI bus, and until there is one gpuadm does nothing here.", name)
	}
	c.answer(answer)
	return nil
}

// draftOf returns the draft for a machine with these facts.
func draftOf(f facts.Facts) draft {
	d := draft{facts: f, engine: len(f.Engines) > 0}
	d.cloud, _, _ = strings.Cut(f.Cloud.Managed, "-") // eks-al2
	for _, p := range f.GPUs {
		if !p.Display() {
			continue
		}
		_, gpu, err := modelOf(p.Device)
		if err == nil {
			d.gpus = append(d.gpus, gpu)
		}
	}

	return d
}

// writeNew writes the spec, and never replaces a file.
func writeNew(h host.Host, name, text string) error {
	err := h.Mkdir(specHome, host.Attr{Mode: 0o755})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make %s: %w", specHome, cause(err))
	}

	entry := host.Entry{Data: []byte(text), Attr: host.Attr{Mode: 0o644}}
	isAbsent := func(found *host.Entry) bool { return found == nil }
	err = h.Replace(name, &entry, isAbsent)
	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{
			What: fmt.Sprintf("cannot write %s: it is there already, and init writes over no file", name),
			Try: []string{
				trouble.Command("init --print") + "    prints what it would write",
				trouble.Command("validate") + "    checks the file that is there",
			},
		}
	}

	if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, cause(err))
	}
	return nil
}

// planned returns the draft's text; it leaves out sections that cannot be planned on this machine,
// with the reason.
func (c *common) planned(ctx context.Context, d *draft) (string, error) {
	d.left = map[string]string{}
	for {
		text, err := d.spec()
		if err != nil {
			return "", err
		}
		trial := *c
		trial.files = []string{"-"}
		trial.stdin = strings.NewReader(text)
		e, h, err := trial.engine(ctx, nil, nil)
		if err != nil {
			return "", err
		}
		p, err := e.Plan(ctx, h)
		if err != nil {
			return "", err
		}

		before := len(d.left)
		for _, ch := range p.Cannot() {
			section := "driver"
			if ch.Stage == "toolkit" || ch.Stage == "runtime" {
				section = ch.Stage
			}
			if d.left[section] == "" {
				d.left[section] = strings.Join(strings.Fields(ch.Cannot), " ")
			}
		}

		if len(d.left) == before {
			return text, nil
		}
	}
}
