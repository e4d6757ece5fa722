// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// rpmKey is a public key in rpm's database, which packages are checked with. dnf would import it by itself, from the
// file that a repository names, and leave it there: as a thing of its own it goes with undo.
type rpmKey struct {
	database          *Reading
	fingerprint, file string
}

const imported = converge.State("imported")

// importedKey wants the key that lies in a file to be known to rpm.
func importedKey(database *Reading, fingerprint, file, why string) converge.Want {
	return converge.Want{Thing: rpmKey{database, fingerprint, file}, Why: why, To: func(converge.State) (converge.State, error) { return imported, nil }}
}

// NewKey builds the thing again from its name.
func NewKey(name string) converge.Thing {
	fingerprint, file, _ := strings.Cut(name, " reads ")
	return rpmKey{new(Reading), fingerprint, file}
}

func (rpmKey) Kind() string { return "package-key" }

// Name is "FINGERPRINT reads FILE": undo of an undo must know the file too.
func (k rpmKey) Name() string { return k.fingerprint + " reads " + k.file }

func (k rpmKey) Look(ctx context.Context, v host.View) (converge.State, error) {
	names, err := k.packages(ctx, v)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return imported, nil
}

// packages returns what rpm calls the key.
func (k rpmKey) packages(ctx context.Context, v host.View) ([]string, error) {
	all, err := k.database.read(ctx, v)
	return k.among(all), err
}

// among returns which of all packages are the key: gpg-pubkey-ID-CREATED, where ID is the end of the fingerprint.
func (k rpmKey) among(all map[string]State) (names []string) {
	for name := range all {
		rest, is := strings.CutPrefix(name, rpmKeyName+"-")
		id, _, ok := strings.Cut(rest, "-")
		if is && ok && len(id) >= 8 && strings.HasSuffix(strings.ToLower(k.fingerprint), strings.ToLower(id)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (k rpmKey) Make(ctx context.Context, h host.Host, to converge.State) error {
	defer k.database.forget()
	if to == imported {
		if _, err := h.Do(ctx, "rpm", "--import", k.file); err != nil {
			return fmt.Errorf("cannot have rpm trust the key in %s: %w", k.file, err)
		}
		return nil
	}
	names, err := k.packages(ctx, h)
	if err != nil || len(names) == 0 {
		return err
	}
	if _, err := h.Do(ctx, append([]string{"rpm", "-e"}, names...)...); err != nil {
		return fmt.Errorf("cannot take key %s out of rpm's database: %w", k.fingerprint, err)
	}
	return nil
}
