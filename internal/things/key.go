// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/content"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// key is the file with the public key that signs a package repository. Its state is the
// fingerprints of the keys in it: these identify a key, wherever it came from. If only the file's
// digest is known, gpuadm keeps the file byte for byte, and its state is that digest.
type key struct {
	file    string
	from    string // a URL, or a path on the machine
	pinned  bool   // its state is a digest
	trusted string // the key that the spec trusts: gpuadm fetches it, and takes an earlier key from keysKept
	via     host.Via
	last    *lastLook
}

// maxKey is the size limit of a key, in bytes: NVIDIA's have less than 4 KiB.
const maxKey = 256 << 10

// pin is the prefix of a digest in place of a fingerprint: "sha256:" and the 64 hex digits of the
// file's SHA-256.
const pin = "sha256:"

// Key wants file to hold exactly the key that is trusted, got from a URL or from a path on the
// machine. trusted is its fingerprint, or "sha256:" and the digest of its file in lower-case hex. A
// file whose name ends in .asc is armored, as rpm needs it; any other is binary, which every apt
// reads. A key that is trusted by its file's digest stays as published, which is armored: its file
// must end in .asc.
func Key(file, from, trusted string, via host.Via, why string) converge.Want {
	k := key{
		file:    file,
		from:    from,
		pinned:  strings.HasPrefix(trusted, pin),
		trusted: trusted,
		via:     via,
		last:    &lastLook{},
	}
	to := func(found converge.State) (converge.State, error) {
		if found != "" && found != converge.State(trusted) {
			return "", &trouble.Error{
				What: fmt.Sprintf("cannot trust %s: it holds %s, and the repository's key is %s", file, found, trusted),
				Try:  []string{"see who wrote " + file + "; once it is removed gpuadm writes it again"},
			}
		}
		return converge.State(trusted), nil
	}

	return converge.Want{Thing: k, Why: why, To: to}
}

// byDigest begins the form of a key whose state is its file's digest.
const byDigest = "sha256 "

// NewKey builds the thing again. The thing is the file, whatever key is in it: a repository's owner
// may change the key, and a mirror may have its own.
func NewKey(ref converge.Ref) converge.Thing {
	from, pinned := strings.CutPrefix(ref.Form, byDigest)
	return key{
		file:   ref.Name,
		from:   from,
		pinned: pinned,
		last:   &lastLook{},
	}
}

// Ref's form says where the key comes from.
func (k key) Ref() converge.Ref {
	form := k.from
	if k.pinned {
		form = byDigest + form
	}
	return converge.Ref{Kind: "key", Name: k.file, Form: form}
}

// Look keeps the file's digest for Make: an edit may leave the fingerprints as they were.
func (k key) Look(_ context.Context, v host.View) (converge.State, error) {
	data, err := v.ReadFile(k.file)
	if host.NotExist(err) {
		return k.last.keep("", nil)
	}
	if err != nil {
		return "", err
	}

	state, _ := k.last.keep(converge.State(digest(data)), nil)
	if k.pinned {
		return state, nil
	}
	found, err := fingerprints(data)
	if err != nil {
		return converge.State("no key: " + err.Error()), nil
	}

	return converge.State(strings.Join(found, " ")), nil
}

// Make removes the file, restores a key from keysKept, or fetches the key and verifies it.
func (k key) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return k.replace(ctx, h, nil)
	}
	_, kept := keptKey(h, string(to))
	if kept != nil && string(to) != k.trusted {
		return k.replace(ctx, h, kept)
	}

	data, err := k.fetch(ctx, h)
	if err != nil {
		return err
	}
	published, err := k.judge(data, to)
	if err != nil {
		return err
	}
	if k.pinned {
		return k.replace(ctx, h, published)
	}
	packets, _ := dearmor(published) // judge has read it
	if path.Ext(k.file) == ".asc" {
		packets = armor(packets)
	}

	return k.replace(ctx, h, packets)
}

// CheckKey says why the data of a file are not the key that is trusted, which Key describes; nil if
// they are. from names the file.
func CheckKey(from string, data []byte, trusted string) error {
	k := key{from: from, pinned: strings.HasPrefix(trusted, pin)}
	_, err := k.judge(data, converge.State(trusted))
	return err
}

// judge refuses the data of a file that are not the key that is trusted. It returns the key as its
// owner has published it.
func (k key) judge(data []byte, trusted converge.State) ([]byte, error) {
	kept := data
	if k.pinned {
		kept = published(data, trusted)
	}
	if kept == nil {
		if _, err := fingerprints(data); err != nil {
			return nil, k.noKey(data, err)
		}
		return nil, k.differs("the digest of its file is "+digest(data), string(trusted))
	}

	found, err := fingerprints(kept)
	if err != nil {
		return nil, k.noKey(data, err)
	}
	if !k.pinned && converge.State(strings.Join(found, " ")) != trusted {
		return nil, k.differs("its fingerprint is "+strings.Join(found, " and "), string(trusted))
	}
	return kept, nil
}

// noKey says what a file is that holds no key.
func (k key) noKey(data []byte, err error) error {
	why := err.Error()
	what := content.Of(data)
	if what != "" && what != "an OpenPGP key" {
		why = "it is " + what + ", not an OpenPGP key"
	}

	try := "see what the address answers: curl -LO " + host.ShellWord(k.from)
	if path.IsAbs(k.from) {
		try = "put the repository's key there, as its owner publishes it"
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot use the key from %s: %s", k.from, why),
		Try:  []string{try},
		Err:  err,
	}
}

func (k key) fetch(ctx context.Context, h host.Host) ([]byte, error) {
	address := k.from
	try := "check that this machine can reach the address; http and https in [proxy] of node.toml name a proxy, url in the section repo a mirror"
	if path.IsAbs(k.from) {
		file := url.URL{Scheme: "file", Path: k.from} // in a URL % and # have a meaning of their own
		address = file.String()
		try = "put the key there, or name another with key in the section repo of node.toml"
	}

	data, err := h.Fetch(ctx, host.Request{
		URL: address,
		Max: maxKey,
		Via: k.via,
	})
	if err != nil {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot get the key from %s: %v", k.from, fetchCause(err)),
			Try:  []string{try},
			Err:  err,
		}
	}

	return data, nil
}

// fetchCause is why a download failed, without the address, which the message has already.
func fetchCause(err error) error {
	var fetch *host.FetchError
	if errors.As(err, &fetch) {
		err = fetch.Cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}

	return err
}

func (k key) differs(what, expected string) error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot trust the key from %s: %s, and %s is expected", k.from, what, expected),
		Try: []string{
			"look up the key where the repository's owner publishes it; if it is a new one, save it in a file, and write key = that file and fingerprint = its fingerprint, with the repository's url, in the section repo of node.toml",
			"if the owner does not publish it, do not use it: another person may have put it there",
		},
	}
}

// replace writes a key to the file, or removes the file for nil, if the file is as the last look
// found it. If the file is a link, replace writes its target, and removes the link.
func (k key) replace(ctx context.Context, h host.Host, data []byte) error {
	was, err := k.last.found(ctx, h, k)
	if err == nil {
		err = keepKey(h, k.file)
	}
	if err != nil {
		return err
	}

	name := k.file
	var with *host.Entry
	if data != nil {
		with = &host.Entry{Data: data, Attr: host.Attr{Mode: 0o644}}
		name, err = h.Resolve(k.file)
		if err != nil {
			return err
		}
	}

	asFound := func(found *host.Entry) bool {
		switch {
		case found == nil:
			return was == ""
		case found.Link != "":
			return data == nil
		}
		return digest(found.Data) == string(was)
	}

	return k.last.replace(h, name, with, asFound)
}

// TakeOut compares keys by fingerprint or by their file's digest, whichever the journal has: the
// spec may have named the last key by one, and the key before it by the other.
func (k key) TakeOut(v host.View, found, before, after converge.State) (converge.State, []string, error) {
	_, data := KeyFile(v, k.file, string(found))
	if !holds(data, string(after)) {
		return "", nil, fmt.Errorf("cannot undo %s: it was changed outside gpuadm since: left as %q, found as %q", k.Ref(), after, found)
	}
	return before, nil, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return pin + hex.EncodeToString(sum[:])
}

// published returns the bytes of a key file that have the digest: the file as it is, or without its
// lines that begin with "Version", which name the program that wrote it; nil if neither has it.
// NVIDIA's own containers compare the latter.
// Source: the Dockerfiles of rhel9 and rhel10 in https://github.com/NVIDIA/gpu-driver-container;
// the CUDA images' do the same.
func published(data []byte, trusted converge.State) []byte {
	if digest(data) == string(trusted) {
		return data
	}

	var kept []byte
	for line := range bytes.Lines(data) {
		if !bytes.HasPrefix(line, []byte("Version")) {
			kept = append(kept, line...)
		}
	}

	if digest(kept) == string(trusted) {
		return kept
	}

	return nil
}

// Fingerprints returns the fingerprints of the keys in a file, in upper-case hex. trusted is the
// file's digest, as for Key; "" for any.
func Fingerprints(data []byte, trusted string) ([]string, error) {
	found := digest(data)
	if trusted != "" && found != trusted {
		return nil, fmt.Errorf("its digest is %s, and %s is expected", found, trusted)
	}
	return fingerprints(data)
}
