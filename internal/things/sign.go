// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
)

// A Signer signs repositories, with Go's own RSA. The code here wraps the signature in OpenPGP
// packets of version 4 (RFC 9580, sections 5.2.3 and 5.5.2.2), which every gpgv and rpm reads.
type Signer struct{ key *rsa.PrivateKey }

const (
	signerName = "gpuadm mirror"
	signerBits = 3072
	signerMade = 1767225600 // 2026-01-01: the key's time, a part of its fingerprint; earlier than any signature
)

// Kinds of signatures and of their subpackets.
const (
	ofFile, ofText, ofKey              = 0x00, 0x01, 0x13
	subMade, subIssuer, subFlags, subV = 2, 16, 27, 33
)

// NewSigner makes a key, and returns its secret as PEM.
func NewSigner() (s Signer, secret []byte, err error) {
	if s.key, err = rsa.GenerateKey(rand.Reader, signerBits); err != nil {
		return s, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(s.key)
	return s, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// ReadSigner reads such a secret.
func ReadSigner(secret []byte) (s Signer, err error) {
	block, _ := pem.Decode(secret)
	if block == nil {
		return s, errors.New("it has no PEM block")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return s, err
	}
	var is bool
	if s.key, is = key.(*rsa.PrivateKey); !is {
		return s, errors.New("it is no RSA key")
	}
	return s, nil
}

// Fingerprint is 40 upper-case hex digits.
func (s Signer) Fingerprint() string {
	f, _ := fingerprint(s.packet()) // of version 4
	return f
}

// Public is the public key, armored.
func (s Signer) Public() ([]byte, error) {
	key := s.packet()
	name := []byte(signerName)
	about := slices.Concat([]byte{0x99}, number(2, len(key)), key, []byte{0xb4}, number(4, len(name)), name)
	signature, err := s.sign(ofKey, about, signerMade)
	if err != nil {
		return nil, err
	}
	return armor(slices.Concat(framed(6, key), framed(13, name), framed(2, signature))), nil
}

// Clearsign signs a text. Each line must end in a newline; none may begin with "-" or end in a
// space.
func (s Signer) Clearsign(text []byte, at time.Time) ([]byte, error) {
	text = bytes.TrimSuffix(text, []byte("\n"))
	signature, err := s.sign(ofText, bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")), at.Unix())
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n%s\n%s", text, signatureBlock(framed(2, signature))), nil
}

// Detached signs a file.
func (s Signer) Detached(data []byte, at time.Time) ([]byte, error) {
	signature, err := s.sign(ofFile, data, at.Unix())
	if err != nil {
		return nil, err
	}
	return signatureBlock(framed(2, signature)), nil
}

// packet is the body of the public key: RFC 9580, section 5.5.5.1 for RSA.
func (s Signer) packet() []byte {
	return slices.Concat([]byte{4}, number(4, signerMade), []byte{1}, mpi(s.key.N.Bytes()), mpi(number(4, s.key.E)))
}

// sign returns the body of a signature by RSA with SHA-512: RFC 9580, section 5.2.4 says what is
// hashed.
func (s Signer) sign(kind byte, data []byte, at int64) ([]byte, error) {
	print, err := hex.DecodeString(s.Fingerprint())
	if err != nil {
		return nil, err
	}
	hashed := slices.Concat(subpacket(subMade, number(4, int(at))), subpacket(subV, append([]byte{4}, print...)))
	if kind == ofKey {
		hashed = append(hashed, subpacket(subFlags, []byte{0x03})...) // it certifies and signs
	}
	head := slices.Concat([]byte{4, kind, 1, 10}, number(2, len(hashed)), hashed)
	sum := sha512.Sum512(slices.Concat(data, head, []byte{4, 0xff}, number(4, len(head))))
	signature, err := rsa.SignPKCS1v15(nil, s.key, crypto.SHA512, sum[:])
	if err != nil {
		return nil, err
	}
	issuer := subpacket(subIssuer, print[len(print)-8:])
	return slices.Concat(head, number(2, len(issuer)), issuer, sum[:2], mpi(signature)), nil
}

// number is n in size bytes, big-endian.
func number(size, n int) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(n))[8-size:]
}

// mpi is a number with its length in bits: RFC 9580, section 3.2.
func mpi(b []byte) []byte {
	n := new(big.Int).SetBytes(b)
	return append(number(2, n.BitLen()), n.Bytes()...)
}

func subpacket(kind byte, body []byte) []byte {
	return slices.Concat([]byte{byte(len(body) + 1), kind}, body)
}

// framed is a packet: RFC 9580, section 4.2.1.
func framed(tag byte, body []byte) []byte {
	return slices.Concat([]byte{0xc0 | tag, 0xff}, number(4, len(body)), body)
}

func signatureBlock(packets []byte) []byte {
	return []byte(strings.ReplaceAll(string(armor(packets)), "PGP PUBLIC KEY BLOCK", "PGP SIGNATURE"))
}
