// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // what RFC 9580 makes version 4 fingerprints of
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// A keyring is a sequence of packets (RFC 9580). A repository's key is a public-key packet,
// followed by its subkeys, names and signatures. This code verifies nothing, since apt and rpm do:
// it only finds out which primary keys they would trust. Hence no library: the smallest that reads
// keyrings brings forty packages of cryptography into a root process.

// Types of packets: RFC 9580, section 5.
const (
	signature    = 2
	secretKey    = 5
	publicKey    = 6
	secretSubkey = 7
	trust        = 12
	userID       = 13
	publicSubkey = 14
	userPicture  = 17
)

// fingerprints returns the upper-case hex fingerprints of all primary keys in a keyring, armored or
// binary, in their order.
func fingerprints(keyring []byte) ([]string, error) {
	packets, err := dearmor(keyring)
	if err != nil {
		return nil, err
	}

	var found []string
	for len(packets) > 0 {
		tag, body, rest, err := packet(packets)
		if err != nil {
			return nil, err
		}
		packets = rest

		switch tag {
		case publicKey:
			f, err := fingerprint(body)
			if err != nil {
				return nil, err
			}
			found = append(found, f)
		case secretKey, secretSubkey:
			return nil, errors.New("it holds a secret key")
		case signature, trust, userID, publicSubkey, userPicture:
		default:
			return nil, fmt.Errorf("it holds something that is not part of a public key (packet of type %d)", tag)
		}
	}

	if len(found) == 0 {
		return nil, errors.New("it holds no key")
	}

	return found, nil
}

// fingerprint of a public-key packet: RFC 9580, section 5.5.4.
func fingerprint(body []byte) (string, error) {
	size := len(body)
	switch {
	case size == 0 || size > 0xffff:
	case body[0] == 4:
		head := []byte{0x99, byte(size >> 8), byte(size)}
		sum := sha1.Sum(append(head, body...)) //nolint:gosec // see above
		return strings.ToUpper(hex.EncodeToString(sum[:])), nil
	case body[0] == 6:
		head := []byte{0x9b, 0, 0, byte(size >> 8), byte(size)}
		sum := sha256.Sum256(append(head, body...))
		return strings.ToUpper(hex.EncodeToString(sum[:])), nil
	}

	return "", errors.New("it holds a key of a version that no repository uses")
}

var errTorn = errors.New("it is cut off, or no OpenPGP key")

// packet cuts the first packet off: RFC 9580, section 4.2.
func packet(b []byte) (tag int, body, rest []byte, err error) {
	if len(b) < 2 || b[0]&0x80 == 0 {
		return 0, nil, nil, errTorn
	}

	var head, size int // bytes of the header and of the body
	if b[0]&0x40 != 0 {
		tag = int(b[0] & 0x3f)
		head, size = packetSize(b)
	} else {
		tag = int(b[0]>>2) & 0xf
		head, size = oldPacketSize(b)
	}

	if head == 0 || size > len(b)-head {
		return 0, nil, nil, errTorn
	}
	end := head + size

	return tag, b[head:end], b[end:], nil
}

// packetSize reads the header of the present format; 0 if it is torn. Partial lengths are for
// streams of data, not for keys.
func packetSize(b []byte) (head, size int) {
	first := int(b[1])
	switch {
	case first < 192:
		return 2, first
	case first < 224 && len(b) > 2:
		return 3, (first-192)<<8 + int(b[2]) + 192
	case first == 255 && len(b) > 5:
		return 6, length(b[2:6])
	}

	return 0, 0
}

// oldPacketSize reads the header of the format that gpg still writes; 0 if it is torn.
func oldPacketSize(b []byte) (head, size int) {
	n := 1 << (b[0] & 3) // bytes of length: 1, 2, 4; 8 means "to the end"
	if n == 8 || len(b) < 1+n {
		return 0, 0
	}
	return 1 + n, length(b[1 : 1+n])
}

// length reads a number, big-endian.
func length(b []byte) int {
	n := 0
	for _, c := range b {
		n = n<<8 | int(c)
	}
	return n
}

const armored = "PGP PUBLIC KEY BLOCK"

// dearmor returns a keyring's packets: all of its armored blocks, or itself if it is binary. Armor
// is PEM with a checksum, which repeats what fingerprints say. A block that another program might
// read and this one does not makes the keyring torn.
func dearmor(data []byte) ([]byte, error) {
	if len(data) > 0 && data[0]&0x80 != 0 {
		return data, nil
	}

	var asPEM []byte
	for line := range bytes.Lines(data) {
		if line[0] != '=' { // the checksum's: RFC 9580, section 6.1
			asPEM = append(asPEM, line...)
		}
	}

	var packets []byte
	read := 0 // blocks
	for block, rest := pem.Decode(asPEM); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == armored {
			packets = append(packets, block.Bytes...)
			read++
		}
	}

	if len(packets) == 0 || read != bytes.Count(data, []byte("-----BEGIN")) {
		return nil, errTorn
	}

	return packets, nil
}

// armor is the form in which rpm takes keys.
func armor(packets []byte) []byte {
	text := string(pem.EncodeToMemory(&pem.Block{Type: armored, Bytes: packets}))
	text = strings.Replace(text, "-----\n", "-----\n\n", 1)
	checksum := "=" + base64.StdEncoding.EncodeToString(crc24(packets)) + "\n"

	return []byte(strings.Replace(text, "-----END", checksum+"-----END", 1))
}

// crc24 is the checksum of armored data: RFC 9580, section 6.1.1.
func crc24(data []byte) []byte {
	crc := uint32(0xb704ce)
	for _, c := range data {
		crc ^= uint32(c) << 16
		for range 8 {
			crc <<= 1
			if crc&0x1000000 != 0 {
				crc ^= 0x1864cfb
			}
		}
	}

	return []byte{byte(crc >> 16), byte(crc >> 8), byte(crc)}
}
