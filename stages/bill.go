// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// BillFile is the bill of materials of what was baked into an image.
const BillFile = "/usr/share/gpuadm/sbom.cdx.json"

// A bill is the part of CycloneDX's format that gpuadm writes. Sources: https://cyclonedx.org/docs/1.6/json/, and the
// schema in https://github.com/CycloneDX/cyclonedx-go, which images/build/sbom's test judges one by.
type bill struct {
	Schema   string `json:"$schema"`
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Version  int    `json:"version"`
	Metadata struct {
		Component component `json:"component"`
	} `json:"metadata"`
	Components []component `json:"components"`
}

type component struct {
	Ref     string `json:"bom-ref,omitempty"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
	Purl    string `json:"purl,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

// ownPurl is gpuadm's, without the version, as in the bill of materials of its own binary (images/build/sbom).
const ownPurl = "pkg:golang/github.com/gpuadm/gpuadm"

// runfileRef names the driver of NVIDIA's installer in a bill: no type of package URL fits it.
const runfileRef = "runfile nvidia"

// writeBill writes the bill: the packages that gpuadm has added to the image, the driver of NVIDIA's installer, and gpuadm itself. For an image
// that was sealed before it takes the names of earlier packages from the earlier bill, and all versions from the image. A bill has no time
// and no serial number, so two bakes of the same give the same bytes.
func writeBill(ctx context.Context, h host.Host, asked spec.Driver, s converge.Status, version string) error {
	old, err := readBill(h)
	if err != nil || old.Components != nil && len(s.Made) == 0 {
		return err
	}
	was := map[string]component{}
	for _, c := range old.Components {
		was[c.Ref] = c
	}
	names := slices.DeleteFunc(slices.Collect(maps.Keys(was)), func(name string) bool { return name == Binary || name == runfileRef })
	ran := was[runfileRef].Ref != ""
	for _, made := range s.Made {
		ran = ran || made.Kind == "runfile"
		if made.Kind == "package" && !slices.Contains(names, made.Name) {
			names = append(names, made.Name)
		}
	}
	all := []component{}
	if own, err := h.ReadFile(Binary); err == nil {
		all = append(all, component{
			Ref: Binary, Type: "application", Name: "gpuadm", Version: version,
			Hashes: digest(fmt.Sprintf("%x", sha256.Sum256(own))), Purl: ownPurl + "@" + escape(version),
		})
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if ran && asked.Source == drivers.SourceRunfile {
		all = append(all, component{Ref: runfileRef, Type: "library", Name: "NVIDIA-Linux", Version: asked.Version, Hashes: digest(asked.Runfile.SHA256)})
	}
	if len(names) > 0 {
		packager, found, err := packagers().Describe(ctx, h, names)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			d := found[name]
			c := component{Ref: name, Type: "library", Name: d.Name, Version: d.Version, Purl: purl(packager, s.Host.Facts.OS, d)}
			if c.Hashes = digest(d.SHA256); d.SHA256 == "" && was[name].Purl == c.Purl {
				c.Hashes = was[name].Hashes // the earlier seal has removed the lists that had the hash
			}
			all = append(all, c)
		}
	}
	b := bill{Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", Spec: "1.6", Version: 1, Components: all}
	b.Metadata.Component = component{Type: "operating-system", Name: s.Host.Facts.OS.ID, Version: s.Host.Facts.OS.Version}
	text, err := indented(b)
	if err != nil {
		return err
	}
	return describe(h, BillFile, text)
}

// readBill reads the bill of an earlier bake; an empty bill if there is none.
func readBill(v host.View) (b bill, err error) {
	text, err := v.ReadFile(BillFile)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	return b, err
}

func digest(hex string) []hash {
	if hex == "" {
		return nil
	}
	return []hash{{"SHA-256", hex}}
}

// purl is the package URL by which tools know a package. Sources: types/deb-definition.json and types/rpm-definition.json of
// https://github.com/package-url/purl-spec; for distro and the namespace https://github.com/anchore/syft/pull/754; for redhat
// sbom/examples/rpm of https://github.com/RedHatProductSecurity/security-data-guidelines.
func purl(packager string, os facts.OS, d packages.Description) string {
	kind, version, qualifiers := "deb", d.Version, "arch="+d.Arch+"&distro="+escape(os.ID+"-"+os.Version)
	vendor := os.ID
	if packager == "dnf" {
		kind = "rpm"
		if epoch, rest, ok := strings.Cut(version, ":"); ok {
			version, qualifiers = rest, qualifiers+"&epoch="+epoch
		}
	}
	if vendor == "rhel" {
		vendor = "redhat"
	}
	return "pkg:" + kind + "/" + escape(vendor) + "/" + escape(d.Name) + "@" + escape(version) + "?" + qualifiers
}

// escape percent-encodes all but letters, digits and .-_~: (docs/ecma/character-encoding.md of purl-spec).
func escape(s string) string {
	return strings.NewReplacer("+", "%20", "%3A", ":").Replace(url.QueryEscape(s))
}

// ManifestFile says what was baked into an image.
const ManifestFile = "/usr/share/gpuadm/manifest.json"

// manifestFormat is the version of the manifest's JSON.
const manifestFormat = 1

// A manifest says what was baked into an image, for its users: gpuadm does not read it. It has no time: two bakes of the same are alike.
type manifest struct {
	Format   int        `json:"format"`
	Gpuadm   string     `json:"gpuadm"`
	Spec     string     `json:"spec"` // its digest
	OS       string     `json:"os"`
	Arch     string     `json:"arch"`
	Kernels  []string   `json:"kernels"`
	SignedBy *facts.Key `json:"signedBy,omitempty"` // the certificate of the key that DKMS's builds are signed with
	GPUs     []string   `json:"gpus,omitempty"`     // models that the image is for
	Made     []baked    `json:"made"`               // by gpuadm
	Deferred []deferred `json:"deferred"`           // until first boot
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
	Takes string `json:"takes,omitempty"`
}

// writeManifest writes the manifest of what the journal names. If the journal names nothing, it leaves the earlier manifest.
func writeManifest(h host.Host, s converge.Status, version string) error {
	if _, err := h.Stat(ManifestFile); err == nil && len(s.Made) == 0 {
		return nil
	}
	f := s.Host.Facts
	m := manifest{
		Format: manifestFormat, Gpuadm: version, Spec: s.Host.Spec, OS: f.OS.Name, Arch: f.Arch, Kernels: f.Kernel.Installed,
		Made: []baked{}, Deferred: []deferred{},
	}
	if f.Image != nil {
		m.SignedBy = f.Image.Build
	}
	for _, g := range f.GPUs {
		m.GPUs = append(m.GPUs, g.Model)
	}
	for _, made := range s.Made {
		b := baked{Stage: made.Stage, Kind: made.Kind, Name: made.Name, State: string(made.State)}
		if made.Kind == "file" {
			data, err := h.ReadFile(made.Name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			b.State, b.SHA256 = "", fmt.Sprintf("%x", sha256.Sum256(data))
		}
		m.Made = append(m.Made, b)
	}
	for _, ch := range s.Changes {
		m.Deferred = append(m.Deferred, deferred{ch.Stage, ch.Kind, ch.Name, Needs(ch), Takes(ch)})
	}
	data, err := indented(m)
	if err != nil {
		return err
	}
	return describe(h, ManifestFile, data)
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

// describe writes a manifest or a bill.
func describe(h host.Host, name string, data []byte) error {
	dir := path.Dir(name)
	for _, d := range []string{path.Dir(dir), dir} {
		if err := h.Mkdir(d, host.Attr{Mode: 0o755}); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return h.WriteFile(name, data, host.Attr{Mode: 0o644})
}
