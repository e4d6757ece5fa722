// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// unitFiles are units whose present files systemd must have read: it starts them by its own copy of
// the files, also after gpuadm has restored the files. Its states are "read" and "outdated".
type unitFiles string

// UnitFilesRead wants systemd to have read the files of these units.
func UnitFilesRead(why string, units ...string) converge.Want {
	return converge.Following(unitFiles(strings.Join(units, " ")), why)
}

// NewUnitFiles builds the thing again from its name.
func NewUnitFiles(name string) converge.Thing { return unitFiles(name) }

func (f unitFiles) Ref() converge.Ref {
	return converge.Ref{Kind: "unit-files", Name: string(f)}
}

func (f unitFiles) Look(ctx context.Context, v host.View) (converge.State, error) {
	for _, name := range strings.Fields(string(f)) {
		u, err := v.Unit(ctx, name)
		if err != nil {
			return "", err
		}
		if u.Outdated {
			return "outdated", nil
		}
	}

	return "read", nil
}

func (f unitFiles) Make(ctx context.Context, h host.Host, to converge.State) error {
	name, _, _ := strings.Cut(string(f), " ")
	return h.SetUnit(ctx, name, host.UnitChange{File: "read"})
}

// Affected says that a change to a unit's file makes systemd's copy outdated. It returns found if
// the copy was looked at: enabling a unit, which comes first, has systemd read all files anyway.
func (f unitFiles) Affected(found converge.State, by converge.Change) converge.State {
	if found != "" || by.Kind != "file" {
		return found
	}

	for _, name := range strings.Fields(string(f)) {
		if path.Base(by.Name) == name || path.Base(path.Dir(by.Name)) == name+".d" {
			return "outdated"
		}
	}

	return found
}

// Current says that systemd must read outdated files.
func (f unitFiles) Current(found converge.State) converge.State {
	if found == "outdated" {
		return "read"
	}
	return found
}
