// SPDX-License-Identifier: Apache-2.0

// Command image makes the OCI image of gpuadm, for each architecture that it gets a program for, as
// an archive of an image layout. It needs no daemon, and the same programs give the same bytes. It
// is a module of its own, so that gpuadm's own list stays free of what it needs.
//
//	image [flags] ARCHITECTURE=PROGRAM…
//
// PROGRAM is gpuadm; its bill of materials and its licences, which images/build/sbom writes, lie
// beside it. Flags: -help.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options are the flags.
type options struct {
	out     string
	version string
}

func main() {
	o := options{}
	flag.StringVar(&o.out, "out", "gpuadm-image.tar", "write the image to `FILE`")
	flag.StringVar(&o.version, "version", "devel", "gpuadm's `VERSION`")
	flag.Parse()

	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(o options, programs []string) error {
	if len(programs) == 0 {
		return errors.New("usage: image [flags] ARCHITECTURE=PROGRAM…")
	}

	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, program := range programs {
		arch, name, ok := strings.Cut(program, "=")
		if !ok {
			return fmt.Errorf("cannot read %q: want ARCHITECTURE=PROGRAM", arch)
		}
		image, err := o.image(arch, name)
		if err != nil {
			return err
		}
		platform := v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: platform,
		})
		digest, err := image.Digest()
		if err != nil {
			return fmt.Errorf("cannot tell the image's digest: %w", err)
		}
		fmt.Printf("%s  linux/%s\n", digest, arch)
	}

	digest, err := index.Digest()
	if err != nil {
		return fmt.Errorf("cannot tell the image's digest: %w", err)
	}
	if err := o.write(index); err != nil {
		return fmt.Errorf("cannot write the image: %w", err)
	}
	fmt.Printf("%s  %s: all of them, for the DaemonSet's image: gpuadm@%[1]s\n", digest, o.out)

	return nil
}

// image is that of one architecture: a layer of the C library, which stays while gpuadm changes,
// and a layer of gpuadm.
func (o options) image(arch, program string) (v1.Image, error) {
	library, err := download(arch)
	if err != nil {
		return nil, err
	}
	text, err := bills(program+".cdx.json", library)
	if err != nil {
		return nil, err
	}

	own := []file{
		{name: "usr/bin/gpuadm", mode: 0o755, from: program},
		{name: "usr/share/doc/gpuadm/copyright", mode: 0o644, from: program + ".copyright"},
	}
	for i := range own {
		own[i].data, err = os.ReadFile(own[i].from)
		if err != nil {
			return nil, fmt.Errorf("cannot read what goes into the image: %w", err)
		}
	}

	own = append(own, file{
		name: "usr/share/doc/gpuadm/gpuadm.cdx.json",
		mode: 0o644,
		data: text,
	})
	manifest := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image := mutate.ConfigMediaType(manifest, types.OCIConfigJSON)
	for _, files := range [][]file{library.files, own} {
		layer, err := layerOf(files)
		if err != nil {
			return nil, fmt.Errorf("cannot make a layer: %w", err)
		}
		image, err = mutate.AppendLayers(image, layer)
		if err != nil {
			return nil, fmt.Errorf("cannot make the image: %w", err)
		}
	}

	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("cannot make the image: %w", err)
	}
	config = config.DeepCopy()
	config.OS = "linux"
	config.Architecture = arch
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config = v1.Config{
		Env:        []string{"PATH=/usr/bin"},
		Entrypoint: []string{"/usr/bin/gpuadm"},
		User:       "0",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "gpuadm",
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.licenses": "Apache-2.0 AND LGPL-2.1-or-later",
		},
	}
	return mutate.ConfigFile(image, config)
}

// file is one of a layer; a link has no data.
type file struct {
	name string
	link string // what it leads to
	mode int64
	from string // the file here, if data is read from one
	data []byte
}

// layerOf is a layer with these files and the folders above them, all of them root's and of 1970.
func layerOf(files []file) (v1.Layer, error) {
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	made := map[string]bool{".": true}
	for _, f := range files {
		var folders []string
		for dir := filepath.Dir(f.name); !made[dir]; dir = filepath.Dir(dir) {
			made[dir] = true
			folders = append(folders, dir)
		}

		for _, dir := range slices.Backward(folders) {
			head := tar.Header{
				Name:     dir + "/",
				Mode:     0o755,
				Typeflag: tar.TypeDir,
			}
			if err := put(w, head, nil); err != nil {
				return nil, err
			}
		}

		head := tar.Header{Name: f.name, Mode: f.mode, Typeflag: tar.TypeReg}
		if f.link != "" {
			head.Typeflag = tar.TypeSymlink
			head.Linkname = f.link
			head.Mode = 0o777
		}

		if err := put(w, head, f.data); err != nil {
			return nil, err
		}
	}

	if err := w.Close(); err != nil {
		return nil, err
	}

	open := func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	}
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

func put(w *tar.Writer, head tar.Header, data []byte) error {
	head.Size = int64(len(data))
	head.ModTime = time.Unix(0, 0)
	head.Format = tar.FormatUSTAR
	if err := w.WriteHeader(&head); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

// write writes an archive of the image layout, as ctr, skopeo and crane read it.
func (o options) write(index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "gpuadm-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	named := map[string]string{"org.opencontainers.image.ref.name": o.version}
	if err := path.AppendIndex(index, layout.WithAnnotations(named)); err != nil {
		return err
	}

	pack := exec.Command("tar", "--create", "--file="+o.out,
		"--format=ustar", "--sort=name", "--mtime=@0",
		"--owner=0", "--group=0", "--numeric-owner", "--mode=a=r,u+w,a+X",
		"--directory="+dir, "blobs", "index.json", "oci-layout")
	output, err := pack.CombinedOutput()
	if err != nil {
		return fmt.Errorf("tar: %w: %s", err, output)
	}

	return nil
}
