// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

const (
	bundleFolder = "gpuadm-bundle/"
	bundleMost   = 20 << 20        // bytes of all parts together, before they are compressed
	partMost     = 1 << 20         // bytes of a log; gpuadm keeps the end of a longer log
	partPatience = 1 * time.Minute // for one part: a daemon or an API server may not answer
)

func newBundle(c *common) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:                   "bundle [-o FILE]",
		Short:                 "collect what a support engineer needs in one .tar.gz",
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return c.bundle(cmd.Context(), file) },
	}
	// Here -o names the file: a bundle has no other form.
	cmd.Flags().StringVarP(&file, "output", "o", "", "write to `FILE` (- is stdout); without it gpuadm-bundle-TIME.tar.gz in this folder")
	_ = cmd.Flags().SetAnnotation("output", noVariable, nil)
	return cmd
}

func (c *common) bundle(ctx context.Context, file string) error {
	h, err := c.open(c.rootDir)
	if err != nil {
		return err
	}
	b := &bundle{c: c, h: h, seen: view.Record(view.Within(h))}
	packed, err := b.pack(ctx)
	if err != nil {
		return err
	}
	if file == "-" {
		_, err := c.stdout.Write(packed)
		return err
	}
	if file == "" {
		file = "gpuadm-bundle-" + h.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	if file, err = filepath.Abs(file); err != nil {
		return err
	}
	out, err := c.open("/")
	if err != nil {
		return err
	}
	entry := host.Entry{Data: packed, Attr: host.Attr{Mode: 0o600, UID: os.Geteuid(), GID: os.Getegid()}}
	err = out.Replace(file, &entry, func(found *host.Entry) bool { return found == nil })
	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{What: fmt.Sprintf("cannot write %s: the file exists", file), Try: []string{"name another file with -o, or remove it"}}
	} else if err != nil {
		return err
	}
	printf(c.stdout, "%s: %s, %d kB. Secrets are masked where gpuadm knows their form: read it before you send it.\n", file, trouble.Count(len(b.packed), "part"), len(packed)>>10)
	for _, m := range b.missing {
		printf(c.stdout, "  not in it  %s: %s\n", m.name, m.why)
	}
	return nil
}

// A bundle collects its parts. It lists a part that fails with its error, and collects the others.
type bundle struct {
	c       *common
	h       host.Host
	seen    *view.Recorder // what plan, status, doctor and the facts read, for the recording
	packed  []bundlePart
	missing []missingPart
	bytes   int
}

type bundlePart struct {
	name, about string
	data        []byte
}

type missingPart struct{ name, why string }

// add reads a part within partPatience.
func (b *bundle) add(ctx context.Context, name, about string, read func(context.Context) ([]byte, error)) {
	ctx, end := context.WithTimeoutCause(ctx, partPatience, fmt.Errorf("no answer within %v", partPatience))
	defer end()
	data, err := read(ctx)
	switch {
	case err == nil && len(data) == 0:
		err = errors.New("it is empty")
	case err == nil && b.bytes+len(data) > bundleMost:
		err = fmt.Errorf("it has %d MiB, and the bundle would have more than %d", len(data)>>20, bundleMost>>20)
	}
	if errors.As(err, new(host.Later)) && !b.h.Live() { // a folder may be the disk of a machine that has booted often
		err = errors.New("the machine does not run: only its files can be read")
	}
	if err != nil {
		b.missing = append(b.missing, missingPart{name, printable(mask.Message(strings.ReplaceAll(err.Error(), "\n", "; ")))})
		return
	}
	b.bytes += len(data)
	b.packed = append(b.packed, bundlePart{name, about, data})
}

// text adds a program's output as a part, masked; of a long output it keeps the end.
func (b *bundle) text(ctx context.Context, name, about string, read func(context.Context) ([]byte, error)) {
	b.add(ctx, name, about, func(ctx context.Context) ([]byte, error) {
		data, err := read(ctx)
		if len(data) > partMost {
			data = data[len(data)-partMost:]
			data = append([]byte("(the beginning is left out)\n"), data[bytes.IndexByte(data, '\n')+1:]...)
		}
		return []byte(mask.Message(string(mask.Text(data)))), err
	})
}

// pack makes all parts and the archive, index.txt first.
func (b *bundle) pack(ctx context.Context) ([]byte, error) {
	b.answers(ctx)
	b.add(ctx, "facts.txtar", "the machine as gpuadm read it, for a test; see docs/bundle.md", b.recording)
	b.logs(ctx)
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	archive := tar.NewWriter(gz)
	for _, p := range append([]bundlePart{{name: "index.txt", data: []byte(b.index())}}, b.packed...) {
		head := tar.Header{Name: bundleFolder + p.name, Mode: 0o600, Size: int64(len(p.data)), ModTime: b.h.Now(), Format: tar.FormatPAX}
		if err := archive.WriteHeader(&head); err != nil {
			return nil, err
		}
		if _, err := archive.Write(p.data); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(archive.Close(), gz.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (b *bundle) index() string {
	var t strings.Builder
	fmt.Fprintf(&t, "A bundle of gpuadm %s, made at %s.\n", version(), b.h.Now().UTC().Format(time.RFC3339))
	fmt.Fprintf(&t, "Begin with doctor.json and plan.json; versions.txt says what runs. Secrets are masked as %s.\n\n", mask.Mark)
	for _, p := range b.packed {
		fmt.Fprintf(&t, "%-34s %6d kB  %s\n", p.name, (len(p.data)+1023)>>10, p.about)
	}
	if len(b.missing) > 0 {
		t.WriteString("\nNot in it:\n")
	}
	for _, m := range b.missing {
		fmt.Fprintf(&t, "%-34s %s\n", m.name, m.why)
	}
	return t.String()
}

// bundledLines is how many lines of the journal a bundle has of each unit.
const bundledLines = "2000"

// services are those of which the bundle has the state and the journal: gpuadm's own, those that
// the facts, plan, status and doctor have asked for on this machine, and the last of cloud-init's,
// which runs user data.
func (b *bundle) services() []string {
	all := append(b.seen.Services(), "cloud-final.service")
	for _, file := range stages.Units() {
		if path.Ext(file) == ".service" {
			all = append(all, path.Base(file))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// recording gathers all facts, and returns the files and answers from which they, and the parts
// before, were read.
func (b *bundle) recording(ctx context.Context) ([]byte, error) {
	if _, err := facts.Gather(ctx, b.seen, facts.Everything); err != nil {
		return nil, err
	}
	return b.seen.Txtar(), nil
}

// answers adds gpuadm's own reports.
func (b *bundle) answers(ctx context.Context) {
	answer := func(name, about string, of func(context.Context) (any, error)) {
		b.add(ctx, name, about, func(ctx context.Context) ([]byte, error) {
			var text bytes.Buffer
			v, err := of(ctx)
			if errors.Is(err, errNoSpec) {
				err = errors.New("there is no plan without a spec: this machine has no node.toml, and -f names none")
			}
			if err == nil {
				err = printJSON(&text, v) // without secrets
			}
			return text.Bytes(), err
		})
	}
	answer("doctor.json", "what gpuadm doctor finds", func(ctx context.Context) (any, error) {
		if !b.h.Live() {
			return nil, errors.New("the machine does not run")
		}
		return b.c.examine(ctx, b.h, b.seen)
	})
	answer("plan.json", "what gpuadm apply would change", func(ctx context.Context) (any, error) {
		e, _, err := b.c.engine(ctx, nil, nil)
		if err != nil {
			return nil, err
		}
		return e.Plan(ctx, b.seen)
	})
	answer("status.json", "the runs with their changes, what gpuadm has made, and what was changed since", func(ctx context.Context) (any, error) {
		e, _, err := b.c.engineOfFiles(ctx, nil)
		if err != nil {
			e, _ = b.c.newEngine(b.h) // plan.json says what is wrong with the spec, and the runs count most then
		}
		return e.Status(ctx, b.seen)
	})
}

// logs adds the machine's logs, units, packages and versions.
func (b *bundle) logs(ctx context.Context) {
	ask := func(argv ...string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) { return b.h.Ask(ctx, argv...) }
	}
	var there []string
	b.text(ctx, "units.txt", "units: loaded, enabled, running since when", func(ctx context.Context) ([]byte, error) {
		var rows []string
		var problem error
		for _, name := range b.services() {
			u, err := b.h.Unit(ctx, name)
			if err != nil && problem == nil {
				problem = err
				if errors.As(err, new(host.Later)) {
					problem = errors.New("systemd does not run here")
				}
			}
			if err != nil || u.Load == "not-found" {
				continue
			}
			there = append(there, name)
			since := ""
			if !u.Started.IsZero() {
				since = "since " + u.Started.UTC().Format(time.RFC3339)
			}
			rows = append(rows, fmt.Sprintf("%-30s %-10s %-10s %-10s %s %s", name, u.Load, u.Enabled, u.Active, since, strings.Join(u.Files, " ")))
		}
		if len(rows) > 0 {
			problem = nil
		}
		return []byte(strings.Join(rows, "\n") + "\n"), problem
	})
	// journalctl(1): --boot alone is the current boot, --dmesg the kernel's lines.
	b.text(ctx, "journal/gpuadm.txt", "gpuadm's own lines of this boot, runs by hand too", ask("journalctl", "--boot", "--no-pager", "--output=short-iso", "--lines="+bundledLines, "SYSLOG_IDENTIFIER=gpuadm"))
	for _, unit := range there {
		b.text(ctx, "journal/"+unit+".txt", "the unit's lines of this boot", ask("journalctl", "--boot", "--no-pager", "--output=short-iso", "--lines="+bundledLines, "--unit="+unit))
	}
	b.text(ctx, "kernel.txt", "the kernel's lines of this boot about GPUs, modules and PCI", func(ctx context.Context) ([]byte, error) {
		said, err := b.h.Ask(ctx, "journalctl", "--boot", "--dmesg", "--no-pager", "--output=short-iso")
		if err != nil {
			if said, err = b.h.Ask(ctx, "dmesg", "--ctime"); err != nil {
				return nil, err
			}
		}
		return linesWith(said, "nvrm", "nvidia", "nouveau", "nova", "xid", "aer:", "pcieport", "lockdown", "module verification", "vfio", "oom-kill"), nil
	})
	b.text(ctx, "packages.txt", "packages of the driver, the toolkit, engines, kubelet and kernels", func(ctx context.Context) ([]byte, error) {
		said, err := b.h.Ask(ctx, "dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package} ${Architecture} ${Version}\n")
		if err != nil {
			if said, err = b.h.Ask(ctx, "rpm", "-qa"); err != nil {
				return nil, err
			}
		}
		return linesWith(said, "nvidia", "cuda", "containerd", "docker", "cri-", "kube", "runc", "crun", "dkms", "linux-image", "linux-headers", "kernel", "datacenter-gpu"), nil
	})
	b.text(ctx, "versions.txt", "gpuadm, kernel, engine, kubelet, toolkit, driver", b.versions)
}

// versions asks all programs for their versions. A missing program is no fault.
func (b *bundle) versions(ctx context.Context) ([]byte, error) {
	said := []string{"gpuadm " + version()}
	for _, name := range []string{"/proc/version", "/proc/driver/nvidia/version"} {
		if data, err := b.h.ReadFile(name); err == nil {
			said = append(said, strings.TrimSpace(string(data)))
		}
	}
	for _, argv := range [][]string{
		{"containerd", "--version"},
		{"crio", "--version"},
		{"docker", "--version"},
		{"runc", "--version"},
		{"kubelet", "--version"},
		{"nvidia-container-runtime", "--version"},
		{"nvidia-ctk", "--version"},
		{"nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"},
		{"systemctl", "--version"},
	} {
		if out, err := b.h.Ask(ctx, argv...); err == nil {
			said = append(said, strings.Join(argv, " ")+": "+strings.TrimSpace(string(out)))
		}
	}
	return []byte(strings.Join(said, "\n") + "\n"), nil
}

// linesWith keeps the lines that have one of the words.
func linesWith(text []byte, words ...string) []byte {
	var kept []byte
	for line := range bytes.Lines(text) {
		low := strings.ToLower(string(line))
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(low, w) }) {
			kept = append(kept, line...)
		}
	}
	return kept
}
