// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/pelletier/go-toml/v2"
)

// overlay is the machine's own catalog. Its rows come before those of this release, and the first row that fits counts: a
// package that a repository renames needs no new release.
const overlay = "/etc/gpuadm/catalog.toml"

// maxOverlay is the largest size of an overlay in bytes, about that of the catalog: the strict reader's time grows with the
// square of the number of unknown keys.
const maxOverlay = 64 << 10

// overlaid returns the catalog with the rows of an overlay before its own. An error names file, line and column; it quotes
// nothing of a private file, which not every user may read.
func (c Catalog) overlaid(text []byte, private bool) (Catalog, error) {
	if len(text) == 0 {
		return c, nil
	}
	if len(text) > maxOverlay {
		return Catalog{}, refuse(fmt.Sprintf("cannot read %s: it has %d bytes, and at most %d are read", overlay, len(text), maxOverlay), "keep only the rows that this machine needs")
	}
	var over Catalog
	if err := over.decode(text); err != nil {
		return Catalog{}, refuse(fmt.Sprintf("cannot read %s: %s", overlay, where(err, private)),
			"fix the line; its tables and keys are those of drivers/catalog in gpuadm's source", "or remove the file: this release's catalog is used then")
	}
	// Keys and branches have one row each: a row of the overlay replaces the catalog's.
	c.Keys = slices.DeleteFunc(slices.Clone(c.Keys), func(k keyRow) bool {
		return slices.ContainsFunc(over.Keys, func(o keyRow) bool { return o.Name == k.Name })
	})
	c.Branches = slices.DeleteFunc(slices.Clone(c.Branches), func(b branchRow) bool {
		return slices.ContainsFunc(over.Branches, func(o branchRow) bool { return o.Branch == b.Branch })
	})
	overlay, base := reflect.ValueOf(&over).Elem(), reflect.ValueOf(c)
	for i := range overlay.NumField() {
		overlay.Field(i).Set(reflect.AppendSlice(overlay.Field(i), base.Field(i)))
	}
	return over, nil
}

// where says what is wrong in a TOML file, with line and column.
func where(err error, private bool) string {
	wrong, unknown := (*toml.DecodeError)(nil), (*toml.StrictMissingError)(nil)
	switch {
	case errors.As(err, &unknown) && len(unknown.Errors) > 0:
		line, column := unknown.Errors[0].Position()
		if private {
			return fmt.Sprintf("line %d, column %d: unknown key", line, column)
		}
		return fmt.Sprintf("line %d, column %d: unknown key %q", line, column, unknown.Errors[0].Key())
	case errors.As(err, &wrong):
		line, column := wrong.Position()
		return fmt.Sprintf("line %d, column %d: %s", line, column, wrong.Error())
	}
	return err.Error()
}
