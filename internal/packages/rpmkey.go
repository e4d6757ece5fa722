// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// rpmKey is a public key in rpm's database, which packages are checked with. dnf would import it by itself, from the
// file that a repository names, and leave it there: as a thing of its own it goes with undo.
type rpmKey struct{ fingerprint, file string }

const imported = converge.State("imported")

// importedKey wants the key that lies in a file to be known to rpm.
func importedKey(fingerprint, file, why string) converge.Want {
	return converge.Want{Thing: rpmKey{fingerprint, file}, Why: why, To: func(converge.State) (converge.State, error) { return imported, nil }}
}

// NewKey builds the thing again from its name.
func NewKey(name string) converge.Thing {
	fingerprint, file, _ := strings.Cut(name, " reads ")
	return rpmKey{fingerprint, file}
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

// packages returns what rpm calls the key: gpg-pubkey-ID-CREATED, where ID is the end of the fingerprint.
func (k rpmKey) packages(ctx context.Context, v host.View) (names []string, err error) {
	out, err := v.Ask(ctx, "rpm", "-qa", "gpg-pubkey*", "--qf", `%{VERSION}\t%{RELEASE}\n`)
	if err != nil {
		return nil, fmt.Errorf("cannot ask rpm for its keys: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		id, created, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if ok && len(id) >= 8 && strings.HasSuffix(strings.ToLower(k.fingerprint), strings.ToLower(id)) {
			names = append(names, "gpg-pubkey-"+id+"-"+created)
		}
	}
	return names, nil
}

func (k rpmKey) Make(ctx context.Context, h host.Host, to converge.State) error {
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
