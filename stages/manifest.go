// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
)

// ManifestFile says what was baked into an image.
const ManifestFile = "/usr/share/gpuadm/manifest.json"

// manifestFormat is the version of the manifest's JSON.
const manifestFormat = 1

// A manifest says what was baked into an image, for its users: gpuadm does not read it. It has no
// time: two bakes of the same are alike.
type manifest struct {
	Format   int          `json:"format"`
	Gpuadm   string       `json:"gpuadm"`
	Spec     string       `json:"spec"` // its digest
	OS       string       `json:"os"`
	Arch     string       `json:"arch"`
	Kernels  []string     `json:"kernels"`
	SignedBy *modinfo.Key `json:"signedBy,omitempty"` // the key of DKMS's builds, by its certificate
	GPUs     []string     `json:"gpus,omitempty"`     // models that the image is for
	Made     []baked      `json:"made"`               // by gpuadm
	Deferred []deferred   `json:"deferred"`           // until first boot
}

type baked struct {
	Stage  string `json:"stage"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	State  string `json:"state,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of a file
}

type deferred struct {
	Stage string `json:"stage"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Needs string `json:"needs"`
}

// writeManifest writes the manifest of what the journal names. If the journal names nothing, it
// leaves the earlier manifest.
func writeManifest(h host.Host, s converge.Status, version string) error {
	if _, err := h.Stat(ManifestFile); err == nil && len(s.Made) == 0 {
		return nil
	}

	f := s.Host.Facts
	m := manifest{
		Format:   manifestFormat,
		Gpuadm:   version,
		Spec:     s.Host.Spec,
		OS:       f.OS.Name,
		Arch:     f.Arch,
		Kernels:  f.Kernel.Installed,
		Made:     []baked{},
		Deferred: []deferred{},
	}
	if f.Image != nil {
		m.SignedBy = f.Image.Build
	}
	for _, g := range f.GPUs {
		m.GPUs = append(m.GPUs, g.Model)
	}

	for _, mark := range s.Made {
		b, err := bakedOf(h, mark)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		m.Made = append(m.Made, b)
	}

	for _, ch := range s.Changes {
		m.Deferred = append(m.Deferred, deferred{ch.Stage, ch.Kind, ch.Name, Needs(ch.Change)})
	}

	data, err := indented(m)
	if err != nil {
		return err
	}
	dir := path.Dir(ManifestFile)
	for _, d := range []string{path.Dir(dir), dir} {
		err := h.Mkdir(d, host.Attr{Mode: 0o755})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}

	return h.WriteFile(ManifestFile, data, host.Attr{Mode: 0o644})
}

// bakedOf is one thing that gpuadm made: a file by its bytes, any other thing by its state.
func bakedOf(v host.View, mark converge.Mark) (baked, error) {
	b := baked{Stage: mark.Stage, Kind: mark.Kind, Name: mark.Name}
	if mark.Kind != "file" {
		b.State = string(mark.State)
		return b, nil
	}

	data, err := v.ReadFile(mark.Name)
	b.SHA256 = fmt.Sprintf("%x", sha256.Sum256(data))
	return b, err
}

// indented is JSON that people can read: it does not escape &.
func indented(v any) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	return text.Bytes(), nil
}
