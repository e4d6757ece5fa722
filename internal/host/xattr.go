// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"maps"
	"slices"
	"strings"
)

// xattrs reads a file's extended attributes, without those that the kernel computes from the content
// (IMA, EVM: Documentation/ABI/testing/ima_policy): copied to other content they would be lies.
func xattrs(file File) (map[string]string, error) {
	all, err := file.Xattrs()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(all, func(name, _ string) bool { return name == "security.ima" || name == "security.evm" })
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// setXattrs makes a file's extended attributes be the wanted ones: ACLs, capabilities and SELinux labels among them.
// Attributes that already have the wanted value are not set again: SELinux labels from a mount option can be read but not set.
func setXattrs(file File, want map[string]string) error {
	have, err := xattrs(file)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if v, ok := have[name]; ok && v == want[name] {
			continue
		}
		if err := file.SetXattr(name, want[name]); err != nil {
			return attrError{"attribute " + name, err}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[name]; ok || label(name) {
			continue
		}
		if err := file.RemoveXattr(name); err != nil {
			return attrError{"attribute " + name, err}
		}
	}
	return nil
}

// label says whether an attribute is a label that every file bears and that cannot be removed: SELinux answers EACCES
// (security/selinux/hooks.c, "No one is allowed to remove a SELinux security label").
func label(name string) bool {
	return strings.HasPrefix(name, "security.") && name != "security.capability"
}

// attrError says which attribute could not be set.
type attrError struct {
	what  string
	cause error
}

func (e attrError) Error() string { return e.what + ": " + e.cause.Error() }
func (e attrError) Unwrap() error { return e.cause }
