// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archive is a distribution's: one suite with components.
type archive struct {
	dir   string
	suite string
	key   gpgKey
}

// build lays out pool/COMPONENT and dists/SUITE.
func (a archive) build(ctx context.Context, pool string, list []Package) error {
	components, err := a.fill(pool, list)
	if err != nil {
		return err
	}

	dists := filepath.Join(a.dir, "dists", a.suite)
	for _, component := range components {
		index, err := command(ctx, a.dir, "apt-ftparchive", "packages", "pool/"+component)
		if err != nil {
			return err
		}
		if err := writeIndex(filepath.Join(dists, component, "binary-amd64"), index); err != nil {
			return err
		}
	}

	origin := "Debian"
	if slices.Contains(components, "restricted") {
		origin = "Ubuntu"
	}
	const field = "APT::FTPArchive::Release::"
	release, err := command(ctx, dists, "apt-ftparchive",
		"-o", field+"Origin="+origin,
		"-o", field+"Label="+origin,
		"-o", field+"Suite="+a.suite,
		"-o", field+"Codename="+a.suite,
		"-o", field+"Components="+strings.Join(components, " "),
		"release", ".")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dists, "Release"), release, 0o644); err != nil {
		return err
	}
	signed := filepath.Join(dists, "InRelease")
	_, err = a.key.gpg(ctx, "--clearsign", "--output", signed, filepath.Join(dists, "Release"))
	return err
}

// fill links the packages into pool/COMPONENT, and returns the components.
func (a archive) fill(pool string, list []Package) (components []string, err error) {
	components = []string{"main"}
	for _, p := range list {
		if p.Component == "" {
			return nil, fmt.Errorf("cannot tell the component of %s", p.Name)
		}
		components = append(components, p.Component)

		dir := filepath.Join(a.dir, "pool", p.Component)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.Link(filepath.Join(pool, p.file()), filepath.Join(dir, p.file())); err != nil {
			return nil, err
		}
	}

	slices.Sort(components)
	return slices.Compact(components), nil
}

// writeIndex writes an index of packages, plain and packed.
func writeIndex(dir string, text []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var packed bytes.Buffer
	pack := gzip.NewWriter(&packed)
	_, err := pack.Write(text)
	return errors.Join(err, pack.Close(),
		os.WriteFile(filepath.Join(dir, "Packages"), text, 0o644),
		os.WriteFile(filepath.Join(dir, "Packages.gz"), packed.Bytes(), 0o644))
}
