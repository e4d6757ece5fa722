// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"crypto/sha256"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
)

// blobsFolder has a file for each content that undo may need, named by its SHA-256.
const blobsFolder = Home + "/blobs"

// Blob returns the bytes kept under a SHA-256 in hex.
func Blob(v host.View, sha string) ([]byte, error) {
	data, err := v.ReadFile(path.Join(blobsFolder, sha))
	if err == nil && digest(data) != sha {
		err = fmt.Errorf("cannot use blob %s: its bytes have changed", sha)
	}
	return data, err
}

func digest(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// keep stores the bytes that the change's states name, before the journal names them.
func keep(h host.Host, t Thing, c Change) error {
	stored, ok := t.(Stored)
	if !ok {
		return nil
	}

	missing := map[string][]byte{}
	for _, state := range []State{c.Before, c.After} {
		data, err := stored.Bytes(h, state)
		if err != nil {
			return err
		}
		if data == nil {
			continue
		}
		sha := digest(data)
		if _, err := Blob(h, sha); err != nil {
			missing[sha] = data
		}
	}

	if len(missing) == 0 {
		return nil
	}
	return h.WriteFiles(blobsFolder, missing, host.Attr{Mode: 0o600})
}

// load has a Stored thing read the bytes that a state names; it fails if they are lost.
func load(v host.View, t Thing, state State) error {
	stored, ok := t.(Stored)
	if !ok {
		return nil
	}

	_, err := stored.Bytes(v, state)
	return err
}
