// SPDX-FileCopyrightText: The gpuadm authors
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

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	bundleFolder = "gpuadm-bundle/"
	bundleMost   = 20 << 20        // bytes of all parts together, before they are compressed
	partMost     = 1 << 20         // bytes of a log; of a longer one the end is kept
	partPatience = 1 * time.Minute // for one part: a daemon or an API server may not answer
)

func newBundle(c *common) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bundle [-o FILE]",
		Short: "put all that a helping engineer needs into one .tar.gz",
		Long: `Bundle writes one .tar.gz: index.txt, which a person reads first; a recording of
the machine as facts --record prints it; plan, status and doctor; the last runs;
unit states; the journal of this boot of gpuadm, the engine, kubelet and NVIDIA's
daemons; the kernel's lines about GPUs; packages and versions. What cannot be read
is left out, and index.txt says why.

Secrets are masked while it records: files of which gpuadm does not know that
they hold none are named without their content. Read it before you send it. The
file has the mode 0600, and no file is overwritten. docs/bundle.md says how a
bundle becomes a test.`,
		Example:               "  sudo gpuadm bundle\n  sudo gpuadm bundle -o /tmp/node-17.tar.gz\n  ssh node-17 sudo gpuadm bundle -o - > node-17.tar.gz",
		DisableFlagsInUseLine: true,
		Args:                  cobra.NoArgs,
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
	b := &bundle{c: c, h: h, seen: host.Record(h)}
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
	printf(c.stdout, "%s: %s, %d kB. Secrets are masked where gpuadm knows their form: read it before you send it.\n", file, count(len(b.packed), "part"), len(packed)>>10)
	for _, m := range b.missing {
		printf(c.stdout, "  not in it  %s: %s\n", m.name, m.why)
	}
	return nil
}

// A bundle collects its parts. Whatever fails is named, and the rest continues.
type bundle struct {
	c       *common
	h       host.Host
	seen    *host.Recorder // what plan, status, doctor and the facts read, for the recording
	packed  []bundlePart
	missing []missingPart
	bytes   int
}

type bundlePart struct {
	name, about string
	data        []byte
}

type missingPart struct{ name, why string }

// add makes a part. One that fails or takes too long does not cost the others.
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

// text adds a part of what a program printed, masked, of which the end counts.
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
	b.logs(ctx)
	b.add(ctx, "facts.txtar", "the machine as gpuadm read it, for a test; see docs/bundle.md", b.recording)
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
