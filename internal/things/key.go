// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// key is the file with the public key a package repository is signed with. Its state is the fingerprints of the keys in
// it: a key is what it is by its fingerprint, wherever it was got from.
type key struct {
	file, from string
	via        host.Via
}

// maxKey is the size in bytes above which a key is none: NVIDIA's have less than 4 KiB.
const maxKey = 256 << 10

// Key wants file to hold exactly the key with this fingerprint, got from a URL or from a path on the machine. A file that
// ends in .asc is armored, as rpm wants it; any other is binary, as every apt takes it.
func Key(file, from, fingerprint string, via host.Via, why string) converge.Want {
	k := key{file, from, via}
	return converge.Want{Thing: k, Why: why, To: func(found converge.State) (converge.State, error) {
		if found != "" && found != converge.State(fingerprint) {
			return "", &converge.Trouble{
				What: fmt.Sprintf("cannot trust %s: it holds %s, and the repository's key is %s", file, found, fingerprint),
				Try:  []string{"see who wrote " + file + "; once it is removed gpuadm writes it anew"},
			}
		}
		return converge.State(fingerprint), nil
	}}
}

// NewKey builds the thing again from its name.
func NewKey(name string) converge.Thing {
	file, from, _ := strings.Cut(name, " from ")
	return key{file: file, from: from}
}

func (k key) Kind() string { return "key" }

// Name is "/etc/apt/keyrings/x.gpg from https://…": undo of a removal must know where to get it.
func (k key) Name() string { return k.file + " from " + k.from }

func (k key) Look(_ context.Context, v host.View) (converge.State, error) {
	data, err := v.ReadFile(k.file)
	if missing(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	found, err := fingerprints(data)
	if err != nil {
		return converge.State("no key: " + err.Error()), nil
	}
	return converge.State(strings.Join(found, " ")), nil
}

// cause is why a file could not be had, without its address, which whoever says so has named.
func cause(err error) error {
	if f := (*host.FetchError)(nil); errors.As(err, &f) {
		err = f.Cause
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	return err
}

func (k key) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return h.Remove(k.file)
	}
	address := k.from
	if path.IsAbs(address) {
		address = "file://" + address
	}
	data, err := h.Fetch(ctx, host.Request{URL: address, Max: maxKey, Via: k.via})
	if err != nil {
		try := "see that this machine can reach the address; http and https in [proxy] of node.toml name a proxy, url in the section repo a mirror"
		if path.IsAbs(k.from) {
			try = "put the key there, or name another with key in the section repo of node.toml"
		}
		return &converge.Trouble{What: fmt.Sprintf("cannot get the key from %s: %v", k.from, cause(err)), Try: []string{try}, Err: err}
	}
	packets, err := dearmor(data)
	if err == nil {
		var found []string
		if found, err = fingerprints(packets); err == nil && converge.State(strings.Join(found, " ")) != to {
			err = &converge.Trouble{
				What: fmt.Sprintf("cannot trust the key from %s: its fingerprint is %s, and %s is expected", k.from, strings.Join(found, " and "), to),
				Try: []string{
					"look up the fingerprint where the repository's owner publishes it; if that is the new one, put it into fingerprint in node.toml",
					"if it is not: somebody has put another key there, so do not use it",
				},
			}
			return err // which names the key
		}
	}
	if err != nil {
		return fmt.Errorf("cannot use the key from %s: %w", k.from, err)
	}
	if path.Ext(k.file) == ".asc" {
		packets = armor(packets)
	}
	return h.WriteFile(k.file, packets, host.Attr{Mode: 0o644})
}
