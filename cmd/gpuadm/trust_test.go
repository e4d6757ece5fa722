// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"syscall"
	"testing"
	"time"
)

// owned is a file of -f.
type owned struct {
	mode     fs.FileMode
	uid, gid uint32
}

func (o owned) Name() string       { return "node.toml" }
func (o owned) Size() int64        { return 0 }
func (o owned) Mode() fs.FileMode  { return o.mode }
func (o owned) ModTime() time.Time { return time.Time{} }
func (o owned) IsDir() bool        { return false }
func (o owned) Sys() any           { return &syscall.Stat_t{Uid: o.uid, Gid: o.gid} }

// TestWriters: an operator's own file is used without a word, also with sudo and a umask of 002.
func TestWriters(t *testing.T) {
	const operator, other = 1000, 1001
	for _, c := range []struct {
		file          owned
		caller, login int
		want          string
	}{
		{owned{0o644, 0, 0}, 0, -1, ""},
		{owned{0o664, operator, operator}, 0, operator, ""},
		{owned{0o664, operator, operator}, operator, operator, ""},
		{owned{0o600, 0, 0}, operator, operator, ""},
		{owned{0o644, other, other}, 0, operator, "user 1001 owns"},
		{owned{0o644, operator, operator}, 0, -1, "user 1000 owns"},
		{owned{0o664, operator, 50}, 0, operator, "group 50 can write to"},
		{owned{0o666, operator, operator}, operator, operator, "every user can write to"},
		{owned{0o646, 0, 0}, 0, operator, "every user can write to"},
	} {
		if got := writers(c.file, c.caller, func() int { return c.login }); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}
