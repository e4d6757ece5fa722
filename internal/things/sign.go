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
	signerMade = 1767225600 // 2026-01-01: the key's time, in its fingerprint; before any signature
)

// Versions and algorithms of keys and signatures: RFC 9580, sections 5.2.3, 9.1 and 9.5.
const (
	version4 = 4
	byRSA    = 1
	ofSHA512 = 10
)

// Kinds of signatures: RFC 9580, section 5.2.1.
const (
	ofFile = 0x00
	ofText = 0x01
	ofKey  = 0x13
)

// Types of a signature's subpackets: RFC 9580, section 5.2.3.7.
const (
	subMade        = 2
	subIssuer      = 16
	subFlags       = 27
	subFingerprint = 33
)

// NewSigner makes a key, and returns its secret as PEM.
func NewSigner() (Signer, []byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, signerBits)
	if err != nil {
		return Signer{}, nil, err
	}

	der, err := x509.MarshalPKCS8PrivateKey(key)
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})

	return Signer{key}, secret, err
}

// ReadSigner reads a secret that NewSigner returned.
func ReadSigner(secret []byte) (Signer, error) {
	block, _ := pem.Decode(secret)
	if block == nil {
		return Signer{}, errors.New("it has no PEM block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return Signer{}, err
	}
	key, isRSA := parsed.(*rsa.PrivateKey)
	if !isRSA {
		return Signer{}, errors.New("it is not an RSA key")
	}

	return Signer{key}, nil
}

// Fingerprint is 40 upper-case hex digits.
func (s Signer) Fingerprint() string {
	f, _ := fingerprint(s.packet()) // it knows this version
	return f
}

// Public is the public key, armored.
func (s Signer) Public() ([]byte, error) {
	key := s.packet()
	name := []byte(signerName)
	signed := slices.Concat(
		[]byte{0x99}, number(2, len(key)), key,
		[]byte{0xb4}, number(4, len(name)), name)
	sig, err := s.sign(ofKey, signed, signerMade)
	if err != nil {
		return nil, err
	}

	packets := slices.Concat(
		framed(publicKey, key),
		framed(userID, name),
		framed(signature, sig))
	return armor(packets), nil
}

// Clearsign signs a text. Each line must end in a newline; none may begin with "-" or end in a
// space.
func (s Signer) Clearsign(text []byte, at time.Time) ([]byte, error) {
	text = bytes.TrimSuffix(text, []byte("\n"))
	withCR := bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
	sig, err := s.sign(ofText, withCR, at.Unix())
	if err != nil {
		return nil, err
	}

	const format = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n%s\n%s"
	return fmt.Appendf(nil, format, text, signatureBlock(framed(signature, sig))), nil
}

// Detached signs a file.
func (s Signer) Detached(data []byte, at time.Time) ([]byte, error) {
	sig, err := s.sign(ofFile, data, at.Unix())
	if err != nil {
		return nil, err
	}
	return signatureBlock(framed(signature, sig)), nil
}

// packet is the body of the public key: RFC 9580, section 5.5.5.1 for RSA.
func (s Signer) packet() []byte {
	return slices.Concat(
		[]byte{version4}, number(4, signerMade), []byte{byRSA},
		mpi(s.key.N.Bytes()), mpi(number(4, s.key.E)))
}

// sign returns the body of a signature by RSA with SHA-512: RFC 9580, section 5.2.4 says what is
// hashed.
func (s Signer) sign(kind byte, data []byte, at int64) ([]byte, error) {
	print, _ := hex.DecodeString(s.Fingerprint()) // it is hex
	hashed := slices.Concat(
		subpacket(subMade, number(4, int(at))),
		subpacket(subFingerprint, append([]byte{version4}, print...)))
	if kind == ofKey {
		hashed = append(hashed, subpacket(subFlags, []byte{0x03})...) // it certifies and signs
	}

	head := slices.Concat([]byte{version4, kind, byRSA, ofSHA512}, number(2, len(hashed)), hashed)
	trailer := slices.Concat([]byte{version4, 0xff}, number(4, len(head)))
	sum := sha512.Sum512(slices.Concat(data, head, trailer))
	signed, err := rsa.SignPKCS1v15(nil, s.key, crypto.SHA512, sum[:])
	if err != nil {
		return nil, err
	}

	issuer := subpacket(subIssuer, print[len(print)-8:])
	return slices.Concat(head, number(2, len(issuer)), issuer, sum[:2], mpi(signed)), nil
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

// signatureBlock is an armored signature.
func signatureBlock(packets []byte) []byte {
	return []byte(strings.ReplaceAll(string(armor(packets)), armored, "PGP SIGNATURE"))
}
