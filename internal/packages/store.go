// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"io/fs"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Store is the folder that what gets replaced is fetched to.
const Store = converge.Home + "/packages"

// Folder makes our folder where it is missing. It is for root alone: what lies in it gets installed.
func Folder(h host.Host) error {
	for _, dir := range []string{converge.Home, Store} {
		_, err := h.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = h.Mkdir(dir, host.Attr{Mode: 0o700})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
