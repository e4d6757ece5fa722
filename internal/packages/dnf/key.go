// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// dnfKeys is the folder with the keys that repositories name.
const dnfKeys = "/etc/pki/rpm-gpg/"

// rpmKey is a public key in rpm's database, with which rpm verifies packages. dnf would import it
// unasked from the file that a repository names, and never remove it: as a thing of its own it is
// removed by undo.
type rpmKey struct {
	database *packages.Reading
	// trusted is the key's fingerprint; or "sha256:" and its file's digest; or its file, which then
	// has the fingerprint.
	trusted string
	file    string
}

const imported = converge.State("imported")

// importedKey wants rpm to know the key in a file.
func importedKey(database *packages.Reading, trusted, file, why string) converge.Want {
	return converge.Want{
		Thing: rpmKey{database, trusted, file},
		Why:   why,
		To:    func(converge.State) (converge.State, error) { return imported, nil },
	}
}

// NewKey builds the thing for undo; files has one file.
func NewKey(trusted string, files []string, database *packages.Reading) converge.Thing {
	return rpmKey{database, trusted, strings.Join(files, "")}
}

// Ref names the key by its fingerprint, by "sha256:DIGEST", or by its file if a package installs
// it. An undo of an undo needs the key's file.
func (k rpmKey) Ref() converge.Ref {
	return converge.Ref{
		Kind:  "package-key",
		Name:  k.trusted,
		Reads: []string{k.file},
	}
}

func (k rpmKey) Look(ctx context.Context, v host.View) (converge.State, error) {
	names, err := k.packages(ctx, v)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return imported, nil
}

// packages returns what rpm calls the key.
func (k rpmKey) packages(ctx context.Context, v host.View) ([]string, error) {
	fingerprints := k.fingerprints(v)
	if len(fingerprints) == 0 {
		return nil, nil
	}
	all, err := k.database.Read(ctx, v)
	return among(all, fingerprints), err
}

// fingerprints returns the key's fingerprints; none if only the file has them and the file is
// missing or has another key: then gpuadm has not imported the key from that file.
func (k rpmKey) fingerprints(v host.View) []string {
	if !strings.HasPrefix(k.trusted, "sha256:") && k.trusted != k.file {
		return []string{k.trusted}
	}
	_, data := k.key(v)
	digest := strings.TrimPrefix(k.trusted, k.file) // "" where any key of the file counts
	found, _ := things.Fingerprints(data, digest)   // none if the data is not a key
	return found
}

// key returns the key and the file that has it; "" if none has. Undo imports a key before it
// restores the key's file.
func (k rpmKey) key(v host.View) (file string, data []byte) {
	if k.trusted == k.file { // a package installs the file: any key counts
		data, _ = v.ReadFile(k.file)
		return k.file, data
	}
	return things.KeyFile(v, k.file, k.trusted)
}

// among returns which of all packages are the keys.
func among(all map[string]packages.State, fingerprints []string) (names []string) {
	for name, state := range all {
		if strings.HasPrefix(name, rpmKeyName+"-") && slices.Contains(fingerprints, state.Version) {
			names = append(names, name)
		}
	}

	slices.Sort(names)
	return names
}

// importFile has rpm trust the key, never another that the file may have by now.
func (k rpmKey) importFile(ctx context.Context, h host.Host) error {
	file, _ := k.key(h)
	if file == "" {
		return fmt.Errorf("cannot have rpm trust key %s: %s does not have it", k.trusted, k.file)
	}
	if _, err := h.Do(ctx, "rpm", "--import", file); err != nil {
		return fmt.Errorf("cannot have rpm trust the key in %s: %w", k.file, err)
	}
	return nil
}

func (k rpmKey) Make(ctx context.Context, h host.Host, to converge.State) error {
	defer k.database.Forget()
	if to == imported {
		return k.importFile(ctx, h)
	}

	names, err := k.packages(ctx, h)
	if err != nil || len(names) == 0 {
		return err
	}
	if _, err := h.Do(ctx, append([]string{"rpm", "-e"}, names...)...); err != nil {
		return fmt.Errorf("cannot take key %s out of rpm's database: %w", k.trusted, err)
	}
	return nil
}
