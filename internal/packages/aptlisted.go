// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Listed returns the names of packages that begin with prefix, as apt's lists have them: those lists alone that came after a
// time. newest is when the last of them came; after, if none did. Plain lists are read here, since asking apt takes a second
// and this is asked at each apply. It is asked where it keeps them compressed, as in container images (Acquire::GzipIndexes).
func Listed(ctx context.Context, v host.View, prefix string, after time.Time) (names []string, newest time.Time, err error) {
	newest = after
	ask := false
	for _, list := range listOf(v, aptLists) {
		plain := strings.HasSuffix(list, "_Packages")
		if !plain && !strings.Contains(list, "_Packages.") {
			continue
		}
		i, err := v.Lstat(aptLists + "/" + list) // of file: URIs it may be a link
		if err != nil || !i.Ctime.After(after) {
			continue
		}
		if i.Ctime.After(newest) {
			newest = i.Ctime
		}
		if !plain {
			ask = true
			continue
		}
		if names, err = listedIn(v, aptLists+"/"+list, prefix, names); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, time.Time{}, fmt.Errorf("cannot read apt's list %s: %w", list, err)
		}
	}
	if ask {
		out, err := v.Ask(ctx, slices.Concat([]string{"apt-cache"}, readOnly(), []string{"-o", "Dir::State::status=/dev/null", "pkgnames", prefix})...)
		if err != nil {
			return nil, time.Time{}, explain(v, string(out), err)
		}
		names = append(names, strings.Fields(string(out))...)
	}
	slices.Sort(names)
	return slices.Compact(names), newest, nil
}

// listedIn adds the names that one list has. Lists are too big to be read whole: 70 MB of Ubuntu's universe.
func listedIn(v host.View, list, prefix string, names []string) ([]string, error) {
	i, err := v.Stat(list)
	if err != nil {
		return names, err
	}
	begin := []byte("Package: " + prefix)
	in := bufio.NewReaderSize(io.NewSectionReader(readerOf{v, list}, 0, i.Size), 1<<20)
	for {
		line, err := in.ReadSlice('\n')
		if bytes.HasPrefix(line, begin) {
			names = append(names, string(bytes.TrimSpace(line[len("Package: "):])))
		}
		switch {
		case errors.Is(err, io.EOF):
			return names, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return names, err
		}
	}
}

// readerOf reads a file by parts.
type readerOf struct {
	v    host.View
	name string
}

func (r readerOf) ReadAt(p []byte, off int64) (int, error) { return r.v.ReadAt(r.name, p, off) }
