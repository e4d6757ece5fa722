// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // what RFC 9580 makes version 4 fingerprints of
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// A keyring is a sequence of packets (RFC 9580). A repository's key is a public-key packet, followed by its subkeys, names and signatures.
// This code verifies nothing, since apt and rpm do: it only finds out which primary keys they would trust. Hence no library: the smallest
// that reads keyrings brings forty packages of cryptography into a root process.

// fingerprints returns the upper-case hex fingerprints of all primary keys in a keyring, armored or binary, in their order.
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
		case 6: // public key
			f, err := fingerprint(body)
			if err != nil {
				return nil, err
			}
			found = append(found, f)
		case 5, 7:
			return nil, errors.New("it holds a secret key")
		case 2, 12, 13, 14, 17: // signature, trust, name, subkey, picture
		default:
			return nil, fmt.Errorf("it holds something that is no part of a public key (packet of type %d)", tag)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("it holds no key")
	}
	return found, nil
}

// fingerprint of a public-key packet: RFC 9580, section 5.5.4.
func fingerprint(body []byte) (string, error) {
	switch {
	case len(body) == 0 || len(body) > 0xffff:
	case body[0] == 4:
		sum := sha1.Sum(append([]byte{0x99, byte(len(body) >> 8), byte(len(body))}, body...)) //nolint:gosec // see above
		return strings.ToUpper(hex.EncodeToString(sum[:])), nil
	case body[0] == 6:
		n := len(body)
		sum := sha256.Sum256(append([]byte{0x9b, 0, 0, byte(n >> 8), byte(n)}, body...))
		return strings.ToUpper(hex.EncodeToString(sum[:])), nil
	}
	return "", errors.New("it holds a key of a version that no repository uses")
}

var errTorn = errors.New("it is cut off, or no OpenPGP key")

// packet cuts the first packet off: RFC 9580, section 4.2. Partial lengths are for streams of data, not for keys.
func packet(b []byte) (tag int, body, rest []byte, err error) {
	if len(b) < 2 || b[0]&0x80 == 0 {
		return 0, nil, nil, errTorn
	}
	head, size := 2, 0
	if b[0]&0x40 != 0 {
		tag = int(b[0] & 0x3f)
		switch l := b[1]; {
		case l < 192:
			size = int(l)
		case l < 224 && len(b) > 2:
			head, size = 3, (int(l)-192)<<8+int(b[2])+192
		case l == 255 && len(b) > 5:
			head, size = 6, length(b[2:6])
		default:
			return 0, nil, nil, errTorn
		}
	} else {
		tag = int(b[0]>>2) & 0xf
		n := 1 << (b[0] & 3) // bytes of length: 1, 2, 4; 8 means "to the end"
		if n == 8 || len(b) < 1+n {
			return 0, nil, nil, errTorn
		}
		head, size = 1+n, length(b[1:1+n])
	}
	if size > len(b)-head {
		return 0, nil, nil, errTorn
	}
	return tag, b[head : head+size], b[head+size:], nil
}

func length(b []byte) (n int) {
	for _, c := range b {
		n = n<<8 | int(c)
	}
	return n
}

const (
	armorBegin = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	armorEnd   = "-----END PGP PUBLIC KEY BLOCK-----"
)

// dearmor returns a keyring's packets: all of its armored blocks, or itself if it is binary.
func dearmor(data []byte) ([]byte, error) {
	if len(data) > 0 && data[0]&0x80 != 0 {
		return data, nil
	}
	var packets []byte
	text := string(data)
	for {
		_, after, begins := strings.Cut(text, armorBegin)
		if !begins {
			break
		}
		block, rest, ends := strings.Cut(after, armorEnd)
		if !ends {
			return nil, errTorn
		}
		some, err := unwrap(block)
		if err != nil {
			return nil, err
		}
		packets, text = append(packets, some...), rest
	}
	if packets == nil {
		return nil, errTorn
	}
	return packets, nil
}

// unwrap reads one block: header lines, an empty line, base64, and a checksum that begins with "=".
func unwrap(block string) ([]byte, error) {
	var encoded, sum strings.Builder
	head := true
	for i, line := range strings.Split(block, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			head = head && i == 0
		case head && strings.Contains(line, ": "):
		case strings.HasPrefix(line, "=") && len(line) == 5:
			sum.WriteString(line[1:])
		default:
			head = false
			encoded.WriteString(line)
		}
	}
	data, err := base64.StdEncoding.DecodeString(encoded.String())
	if err != nil || len(data) == 0 {
		return nil, errTorn
	}
	if want, err := base64.StdEncoding.DecodeString(sum.String()); err != nil || len(want) > 0 && !bytes.Equal(want, crc24(data)) {
		return nil, errors.New("its checksum is wrong")
	}
	return data, nil
}

// armor is the form in which rpm takes keys.
func armor(packets []byte) []byte {
	var b strings.Builder
	b.WriteString(armorBegin + "\n\n")
	encoded := base64.StdEncoding.EncodeToString(packets)
	for ; len(encoded) > 64; encoded = encoded[64:] {
		b.WriteString(encoded[:64] + "\n")
	}
	b.WriteString(encoded + "\n=" + base64.StdEncoding.EncodeToString(crc24(packets)) + "\n" + armorEnd + "\n")
	return []byte(b.String())
}

// crc24 is the checksum of armored data: RFC 9580, section 6.1.1.
func crc24(data []byte) []byte {
	crc := uint32(0xb704ce)
	for _, c := range data {
		crc ^= uint32(c) << 16
		for range 8 {
			if crc <<= 1; crc&0x1000000 != 0 {
				crc ^= 0x1864cfb
			}
		}
	}
	return []byte{byte(crc >> 16), byte(crc >> 8), byte(crc)}
}
