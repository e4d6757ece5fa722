// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// MirrorOrigin is the Origin in the signed list of a mirror, which apt's pins name.
const MirrorOrigin = "gpuadm-mirror"

// A Gathering says which packages a packager puts into the folder of a mirror.
type Gathering struct {
	Repos   []Repository
	Via     host.Via
	Request Request
	Work    string                      // a folder for the packager's own files, which is removed afterwards
	Into    string                      // where the packages' files go
	Before  string                      // where an earlier run may have left some of them
	Say     func(files int, size int64) // called before the files are fetched
	Note    func(text string)           // called for each note to the operator
}

// A Gatherer is a packager that can fill a mirror.
type Gatherer interface {
	Packager
	// Gather fetches the packages of a request and all their dependencies, and returns the names of
	// the files.
	Gather(ctx context.Context, h host.Host, g Gathering) (files []string, err error)
	// Open unpacks a package's file, and returns its version and its relations in lines as
	// deb-control(5) has them: Version, Depends, Provides.
	Open(ctx context.Context, h host.Host, file, into string) (relations []byte, err error)
	// Pack writes a package of modules, and returns its file below g.Work. The same content gives
	// the same bytes.
	Pack(ctx context.Context, h host.Host, g Gathering, p ModulePackage) (file string, err error)
	// Index writes the list of the packages in the folder, and returns the names of its files.
	Index(ctx context.Context, h host.Host, g Gathering, files []string) ([]string, error)
	// Sign makes the folder a signed repository. It returns the names of the signatures.
	Sign(h host.Host, dir string, by things.Signer) (files []string, err error)
}

// RoomFor refuses files that do not fit into the file system of a folder.
func RoomFor(v host.View, dir string, size int64) error {
	room, err := v.Room(dir)
	if err != nil {
		return err
	}
	if room.Bytes >= uint64(size) {
		return nil
	}

	const full = "cannot write the mirror: the disk is full: its files need %d MB in %s, which has %d MB free"
	return &trouble.Error{
		What: fmt.Sprintf(full, size/1e6+1, dir, room.Bytes/1e6),
		Try:  []string{"make room there, or name another folder with -o, then run the same command again: it continues"},
	}
}
