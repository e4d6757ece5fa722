// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// imageName is what the image of containers that no pod has is called in the host.
const imageName = "lab.invalid/busybox:1"

// ociImage makes an image of one static program, /bin/busybox, which is also /bin/sh and
// /bin/sleep, and more files, as the tar archive that ctr imports. Source: the image layout of
// https://github.com/opencontainers/image-spec
func ociImage(name string, busybox []byte, more []tarFile, command ...string) ([]byte, error) {
	layer, err := tarball(append([]tarFile{
		{name: "bin/", mode: 0o755},
		{name: "bin/busybox", mode: 0o755, data: busybox},
		{name: "bin/sh", link: "busybox"},
		{name: "bin/sleep", link: "busybox"},
		{name: "proc/", mode: 0o755},
		{name: "sys/", mode: 0o755},
		{name: "dev/", mode: 0o755},
		{name: "etc/", mode: 0o755},
	}, more...))
	if err != nil {
		return nil, err
	}

	files := []tarFile{{
		name: "oci-layout",
		mode: 0o644,
		data: []byte(`{"imageLayoutVersion":"1.0.0"}`),
	}}
	blob := func(kind string, data []byte) dict {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		files = append(files, tarFile{
			name: "blobs/sha256/" + sum,
			mode: 0o644,
			data: data,
		})
		return dict{"mediaType": kind, "digest": "sha256:" + sum, "size": len(data)}
	}

	layers := []dict{blob("application/vnd.oci.image.layer.v1.tar", layer)}
	config := blob("application/vnd.oci.image.config.v1+json", asJSON(dict{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       dict{"Env": []string{"PATH=/bin"}, "Cmd": command},
		"rootfs":       dict{"type": "layers", "diff_ids": []any{layers[0]["digest"]}},
	}))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", asJSON(dict{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        config,
		"layers":        layers,
	}))
	manifest["annotations"] = dict{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": "1",
	}
	index := asJSON(dict{"schemaVersion": 2, "manifests": []dict{manifest}})
	return tarball(append(files, tarFile{
		name: "index.json",
		mode: 0o644,
		data: index,
	}))
}

// dict is an object of JSON.
type dict = map[string]any

// asJSON writes an object of texts, numbers and lists, which cannot fail.
func asJSON(object dict) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return text
}

// AgentArchive is gpuadm's own image, an archive that ctr imports. It skips the test where make
// image has not made it.
func AgentArchive(t testing.TB) []byte {
	t.Helper()
	Asked(t)
	archive, err := os.ReadFile(filepath.Join(Source(), "bin", "gpuadm-image.tar"))
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip("the image is not built: make image")
	}
	must.OK(t, err)
	return archive
}

// tarFile is a file, a folder (its name ends in a slash) or a link.
type tarFile struct {
	name string
	link string // where a link leads
	mode int64
	data []byte
}

func tarball(files []tarFile) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, f := range files {
		head := &tar.Header{
			Name:     f.name,
			Mode:     f.mode,
			Size:     int64(len(f.data)),
			Typeflag: tar.TypeReg,
		}
		switch {
		case f.link != "":
			head.Typeflag = tar.TypeSymlink
			head.Linkname = f.link
			head.Mode = 0o777
		case strings.HasSuffix(f.name, "/"):
			head.Typeflag = tar.TypeDir
		}

		err := archive.WriteHeader(head)
		if err == nil {
			_, err = archive.Write(f.data)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot write %s into an archive: %w", f.name, err)
		}
	}

	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("cannot end an archive: %w", err)
	}
	return out.Bytes(), nil
}
