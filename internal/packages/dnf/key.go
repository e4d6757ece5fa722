// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// rpmKey is a public key in rpm's database, which packages are checked with. dnf would import it by itself, from the
// file that a repository names, and leave it there: as a thing of its own it goes with undo.
type rpmKey struct {
	database *packages.Reading
	trusted  string // its fingerprint; or "sha256:" and its file's digest, or its file: then that says the fingerprint
	file     string
}

const imported = converge.State("imported")

// importedKey wants the key that lies in a file to be known to rpm.
func importedKey(database *packages.Reading, trusted, file, why string) converge.Want {
	return converge.Want{Thing: rpmKey{database, trusted, file}, Why: why, To: func(converge.State) (converge.State, error) { return imported, nil }}
}

// NewKey builds the thing again; it reads one file.
func NewKey(trusted string, files []string, database *packages.Reading) converge.Thing {
	return rpmKey{database, trusted, strings.Join(files, "")}
}

// Ref names it by the key's fingerprint, "sha256:DIGEST", or the file of a key that a package brings. An undo of an undo must know the key's
// file.
func (k rpmKey) Ref() converge.Ref {
	return converge.Ref{Kind: "package-key", Name: k.trusted, Reads: []string{k.file}}
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
	fingerprints, err := k.fingerprints(v)
	if err != nil || len(fingerprints) == 0 {
		return nil, err
	}
	all, err := k.database.Read(ctx, v)
	return among(all, fingerprints), err
}

// fingerprints are the key's; none where only the file can tell, and it is not there or another one: then gpuadm has not
// imported the key from there.
func (k rpmKey) fingerprints(v host.View) ([]string, error) {
	if !strings.HasPrefix(k.trusted, "sha256:") && k.trusted != k.file {
		return []string{k.trusted}, nil
	}
	_, data := k.key(v)
	found, err := things.Fingerprints(data, strings.TrimPrefix(k.trusted, k.file))
	if err != nil {
		return nil, nil
	}
	return found, nil
}

// key is the key and its file: undo imports one again before its file has it again.
func (k rpmKey) key(v host.View) (file string, data []byte) {
	if k.trusted == k.file { // a package brings it, whichever it is
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

func (k rpmKey) Make(ctx context.Context, h host.Host, to converge.State) error {
	defer k.database.Forget()
	if to == imported {
		file, _ := k.key(h)
		if _, err := h.Do(ctx, "rpm", "--import", cmp.Or(file, k.file)); err != nil {
			return fmt.Errorf("cannot have rpm trust the key in %s: %w", k.file, err)
		}
		return nil
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
