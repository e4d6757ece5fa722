// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// newSuffix ends the name of a file that dpkg has unpacked and not yet renamed.
// Source: DPKGNEWEXT in lib/dpkg/dpkg.h of dpkg's sources; deb-conffiles(5).
const newSuffix = ".dpkg-new"

// sweepUnpacked removes the files that a killed dpkg has unpacked of a package which is gone now,
// and the folders that held nothing else. Only after the last rename dpkg writes which files a
// package has, so that its removal leaves them. Such a file of a package that is there waits for
// its configuration.
func sweepUnpacked(ctx context.Context, h host.Host) error {
	argv := []string{"find"}
	for _, folder := range []string{"/boot", "/etc", "/lib", "/opt", "/srv", "/usr", "/var"} {
		if info, err := h.Lstat(folder); err == nil && info.Mode.IsDir() {
			argv = append(argv, folder)
		}
	}

	out, err := h.Ask(ctx, append(argv, "-xdev", "-type", "f", "-name", "*"+newSuffix)...)
	if err != nil {
		return err
	}

	names := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, name := range names {
		if name == "" {
			continue
		}
		owned, err := isOwned(ctx, h, strings.TrimSuffix(name, newSuffix))
		if err != nil {
			return err
		}
		if owned {
			continue
		}
		if err := h.Remove(name); err != nil {
			return err
		}
		if err := removeEmpty(ctx, h, path.Dir(name)); err != nil {
			return err
		}
	}

	return nil
}

// removeEmpty removes a folder that is empty and no package's, and those around it that are then.
func removeEmpty(ctx context.Context, h host.Host, folder string) error {
	for !slices.Contains([]string{"/", "."}, folder) {
		names, err := h.ReadDir(folder)
		if err != nil || len(names) > 0 {
			return err
		}
		owned, err := isOwned(ctx, h, folder)
		if err != nil || owned {
			return err
		}
		if err := h.Remove(folder); err != nil {
			return err
		}
		folder = path.Dir(folder)
	}
	return nil
}

// isOwned asks dpkg whether a package has a file: dpkg-query(1) ends with 1 if none has.
func isOwned(ctx context.Context, h host.Host, name string) (bool, error) {
	_, err := h.Ask(ctx, "dpkg-query", "--search", "--", name)
	var failed *host.CommandError
	if errors.As(err, &failed) && failed.Code == 1 {
		return false, nil
	}
	return err == nil, err
}
