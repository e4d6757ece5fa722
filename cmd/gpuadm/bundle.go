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
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.bundle(cmd.Context(), file)
		},
	}
	// Here -o names the file: a bundle has no other form.
	cmd.Flags().StringVarP(&file, "output", "o", "", "write to `FILE` (- is stdout); without it gpuadm-bundle-TIME.tar.gz in this folder")
	_ = cmd.Flags().SetAnnotation("output", noVariable, nil)
	return cmd
}

func (c *common) bundle(ctx context.Context, file string) error {
	h, err := c.open(c.rootDir, nil)
	if err != nil {
		return err
	}
	v := view.Within(h)
	b := &bundle{c: c, host: h, h: v, seen: view.Record(v, platform.Envs()...)}
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
	file, err = filepath.Abs(file)
	if err != nil {
		return &trouble.Error{
			What: "cannot write the bundle into the current folder: it is gone",
			Try:  []string{c.command("bundle -o /root/gpuadm-bundle.tar.gz")},
		}
	}

	info, err := os.Stat(file)
	if err == nil && info.IsDir() {
		within := filepath.Join(file, "gpuadm-bundle.tar.gz")
		return usage{&trouble.Error{
			What: fmt.Sprintf("cannot write %s: it is a folder", file),
			Try:  []string{c.command("bundle -o " + host.ShellWord(within))},
		}}
	}

	if err := c.writeBundle(file, packed); err != nil {
		return err
	}

	parts := trouble.Count(len(b.packed), "part")
	printf(c.stdout, "%s: %s, %d kB. Secrets are masked where gpuadm knows their form: read it before you send it.\n", file, parts, len(packed)>>10)
	for _, m := range b.missing {
		printf(c.stdout, "  not in it  %s: %s\n", m.name, m.why)
	}
	return nil
}

// writeBundle writes a bundle, and writes over no file.
func (c *common) writeBundle(file string, packed []byte) error {
	h, err := c.open("/", nil)
	if err != nil {
		return err
	}

	attr := host.Attr{Mode: 0o600, UID: os.Geteuid(), GID: os.Getegid()}
	isAbsent := func(found *host.Entry) bool { return found == nil }
	err = h.Replace(file, &host.Entry{Data: packed, Attr: attr}, isAbsent)
	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{
			What: fmt.Sprintf("cannot write %s: the file exists", file),
			Try:  []string{"name another file with -o, or remove it"},
		}
	}

	return err
}

// A bundle collects its parts. It lists a part that fails with its error, and collects the others.
type bundle struct {
	c       *common
	host    host.Host
	h       host.View      // of host; nothing delays what asks it
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

// A partReader reads one part of a bundle.
type partReader func(context.Context) ([]byte, error)

// add reads a part within partPatience.
func (b *bundle) add(ctx context.Context, name, about string, read partReader) {
	ctx, end := context.WithTimeoutCause(ctx, partPatience, fmt.Errorf("no answer within %v", partPatience))
	defer end()

	data, err := read(ctx)
	switch {
	case err == nil && len(data) == 0:
		err = errors.New("it is empty")
	case err == nil && b.bytes+len(data) > bundleMost:
		err = fmt.Errorf("it has %d MiB, and the bundle would have more than %d", len(data)>>20, bundleMost>>20)
	}
	// A folder may be the disk of a machine that has booted often.
	if errors.As(err, new(host.Later)) && !b.h.Live() {
		err = errors.New("the machine does not run: only its files can be read")
	}
	if err != nil {
		why := mask.Message(strings.ReplaceAll(err.Error(), "\n", "; "))
		b.missing = append(b.missing, missingPart{name, printable(why)})
		return
	}

	b.bytes += len(data)
	b.packed = append(b.packed, bundlePart{name, about, data})
}

// text adds a program's output as a part, masked; of a long output it keeps the end.
func (b *bundle) text(ctx context.Context, name, about string, read partReader) {
	b.add(ctx, name, about, func(ctx context.Context) ([]byte, error) {
		data, err := read(ctx)
		if len(data) > partMost {
			data = data[len(data)-partMost:]
			wholeLines := data[bytes.IndexByte(data, '\n')+1:]
			data = append([]byte("(the beginning is left out)\n"), wholeLines...)
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
	index := bundlePart{name: "index.txt", data: []byte(b.index())}
	for _, p := range append([]bundlePart{index}, b.packed...) {
		head := tar.Header{
			Name:    bundleFolder + p.name,
			Mode:    0o600,
			Size:    int64(len(p.data)),
			ModTime: b.h.Now(),
			Format:  tar.FormatPAX,
		}
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
	b.answer(ctx, "doctor.json", "what gpuadm doctor finds", func(ctx context.Context) (any, error) {
		if !b.h.Live() {
			return nil, errors.New("the machine does not run")
		}
		return b.c.examine(ctx, b.host, b.seen, view.DeadlineIn(doctor.Wait))
	})
	b.answer(ctx, "plan.json", "what gpuadm apply would change", func(ctx context.Context) (any, error) {
		e, _, err := b.c.engine(ctx, nil, nil)
		if err != nil {
			return nil, err
		}
		return e.Plan(ctx, b.seen)
	})

	const about = "the runs with their changes, what gpuadm has made, and what was changed since"
	b.answer(ctx, "status.json", about, func(ctx context.Context) (any, error) {
		e, _, err := b.c.engineOfFiles(ctx, nil)
		if err != nil {
			// plan.json says what is wrong with the spec, and the runs count most then.
			e, _ = b.c.newEngine(b.host)
		}
		s, err := e.Status(ctx, b.seen)
		if b.c.broken != nil {
			s.Instead = b.c.broken.instead()
		}
		return s, err
	})
}

// answer adds a value as JSON, without secrets.
func (b *bundle) answer(ctx context.Context, name, about string, of func(context.Context) (any, error)) {
	b.add(ctx, name, about, func(ctx context.Context) ([]byte, error) {
		v, err := of(ctx)
		if errors.Is(err, errNoSpec) {
			return nil, errors.New("there is no plan without a spec: this machine has no node.toml, and -f names none")
		}
		if err != nil {
			return nil, err
		}

		var text bytes.Buffer
		err = printJSON(&text, v)
		return text.Bytes(), err
	})
}
