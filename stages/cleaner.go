// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A cleaner removes files from an image, and notes which. It stops at the first error.
type cleaner struct {
	h       host.Host
	removed []string
	err     error
}

// empty leaves a file without content, if it exists.
func (c *cleaner) empty(name string) {
	info, err := c.h.Lstat(name)
	isEmpty := err == nil && (info.Size == 0 || !info.Mode.IsRegular())
	if c.err != nil || isEmpty || errors.Is(err, fs.ErrNotExist) {
		return
	}

	if err == nil {
		err = c.h.WriteFile(name, nil, info.Attr())
	}
	c.note(name, err)
}

// file removes a file, and leaves a link: its target is not a secret.
func (c *cleaner) file(name string) {
	info, err := c.h.Lstat(name)
	isOther := err == nil && !info.Mode.IsRegular()
	if c.err != nil || isOther || errors.Is(err, fs.ErrNotExist) {
		return
	}

	if err == nil {
		err = c.h.Remove(name)
	}
	c.note(name, err)
}

// folder cleans a folder, or the target of a link to one.
func (c *cleaner) folder(name string, keep func(name string) bool) {
	dir, err := c.h.Resolve(name)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if info, err := c.h.Stat(name); err == nil && !info.Mode.IsDir() {
		return
	}

	if err != nil && c.err == nil {
		c.err = fmt.Errorf("cannot seal the image: %w", err)
	}
	c.within(dir, keep)
}

// within removes the files of a folder and of those in it, and its empty folders. The folder itself
// stays.
func (c *cleaner) within(dir string, keep func(name string) bool) {
	if c.err != nil {
		return
	}
	names, err := c.h.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.err = fmt.Errorf("cannot seal the image: %w", err)
	}

	for _, n := range names {
		name := path.Join(dir, n)
		info, err := c.h.Lstat(name)
		isFolder := err == nil && info.Mode.IsDir()
		switch {
		case isFolder:
			c.within(name, keep)
			c.removeEmpty(name, keep)
		case !keep(name):
			c.file(name) // which reports the error of Lstat
		}
	}
}

// removeEmpty removes a folder that has no files any more.
func (c *cleaner) removeEmpty(name string, keep func(name string) bool) {
	left, err := c.h.ReadDir(name)
	isEmpty := err == nil && len(left) == 0
	if isEmpty && c.err == nil && !keep(name) {
		c.err = c.h.Remove(name)
	}
}

func (c *cleaner) note(name string, err error) {
	if err != nil {
		c.err = fmt.Errorf("cannot seal the image: %w", err)
		return
	}
	c.removed = append(c.removed, name)
}
