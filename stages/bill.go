// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
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

// A bill is a bill of materials in CycloneDX's form, as far as gpuadm writes it. Sources: https://cyclonedx.org/docs/1.6/json/, and the
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

// runfileRef names the driver of NVIDIA's installer in a bill. No form of package URL is for it.
const runfileRef = "runfile nvidia"

// writeBill writes which packages gpuadm has added to the image, the driver of NVIDIA's installer, and gpuadm itself. An image that was sealed before and is baked once
// more has the names of its earlier packages in the bill that is there; versions are read from the image. There is no time in it and no
// serial number, so two bakes of the same are alike.
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
				c.Hashes = was[name].Hashes // the lists that said it went with the earlier seal
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

// readBill reads the bill of an earlier bake; an empty one where there is none.
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

// purl names a package for all tools. Sources: types/deb-definition.json and types/rpm-definition.json of
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

// escape encodes all but letters, digits and .-_~: (docs/ecma/character-encoding.md of the same).
func escape(s string) string {
	return strings.NewReplacer("+", "%20", "%3A", ":").Replace(url.QueryEscape(s))
}
