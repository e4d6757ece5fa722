// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io/fs"
)

// NotExist says that a file, a folder or a unit does not exist.
func NotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
