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
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A keyring is a sequence of packets (RFC 9580). A repository's key is a public-key packet,
// followed by its subkeys, names and signatures. This code verifies nothing, since apt and rpm do:
// it only finds out which primary keys they would trust. Hence no library: the smallest that reads
// keyrings brings forty packages of cryptography into a root process.

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

// A primary key, and what its owner's signatures say of it. Times are in seconds.
type primary struct {
	short, sha2, revoked bool
	born, signed, lasts  int // lasts is 0 for ever
}

// Refused says why apt refuses each key of a file; with one good key it takes what that signs
// (tried with apt 2.6.2). gpgv refuses a key that has expired; sqv, which verifies for apt 3, takes
// what was signed before, but neither SHA-1 nor short RSA. Sources: EXPKEYSIG in apt's
// methods/gpgv.cc; default-sequoia.config of apt 3.0;
// https://github.com/NVIDIA/cuda-repo-management/issues/34.
func Refused(v host.View, data []byte) (why, fix string) {
	has := func(name string) bool { _, err := v.Stat(name); return err == nil }
	sqv := has("/usr/bin/sqv") && has("/usr/lib/apt/methods/sqv")
	strict := sqv && !has("/etc/crypto-policies/back-ends/apt-sequoia.config")
	var id []byte
	var keys []primary
	packets, err := dearmor(data)
	for tag, body := 0, []byte(nil); err == nil && len(packets) > 0; {
		tag, body, packets, err = packet(packets)
		switch own := len(body) > 7 && body[0] == 4; {
		case own && tag == 6: // version, 4 bytes of time, algorithm, bits
			f, _ := fingerprint(body)
			id, _ = hex.DecodeString(f[24:])
			keys = append(keys, primary{born: length(body[1:5]), short: body[5] == 1 && length(body[6:8]) < 2048})
		case own && tag == 2 && len(keys) > 0 && bytes.Contains(body, id):
			keys[len(keys)-1].read(body)
		}
	}
	const newer = "use its owner's repository for this release, which has a newer key"
	const old = newer + "; /etc/crypto-policies/back-ends/apt-sequoia.config has apt accept an old one, as /usr/share/apt/default-sequoia.config says"
	for _, k := range keys {
		switch end := time.Unix(int64(k.born+k.lasts), 0).UTC(); {
		case k.revoked:
			why, fix = "its owner revoked it", newer
		case !sqv && k.lasts > 0 && !end.After(v.Now()):
			why, fix = "it expired on "+end.Format(time.DateOnly), newer
		case strict && k.short:
			why, fix = "it is an RSA key of less than 2048 bits", old
		case strict && !k.sha2:
			why, fix = "its owner signed it by SHA-1 alone", old
		default:
			return "", ""
		}
	}
	return why, fix
}

// read reads a signature: version, kind, algorithm, hash, and what was hashed. RFC 9580, section
// 5.2.3; no subpacket of a key's own is longer.
func (k *primary) read(body []byte) {
	k.revoked = k.revoked || body[1] == 0x20
	if body[1]&^3 != 0x10 {
		return
	}
	k.sha2 = k.sha2 || body[3] >= 8 // SHA-2 or SHA-3
	says := [128]int{}
	for area := body[6:min(len(body), 6+length(body[4:6]))]; len(area) > 5 && area[0] > 0 && int(area[0]) < min(192, len(area)); area = area[1+area[0]:] {
		says[area[1]&0x7f] = length(area[2:6])
	}
	if says[2] >= k.signed { // the owner's last word: when it was signed, and for how long
		k.signed, k.lasts = says[2], says[9]
	}
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

// packet cuts the first packet off: RFC 9580, section 4.2. Partial lengths are for streams of data,
// not for keys.
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

const armored = "PGP PUBLIC KEY BLOCK"

// dearmor returns a keyring's packets: all of its armored blocks, or itself if it is binary. Armor
// is PEM with a checksum, which repeats what fingerprints say. A block that another program might
// read and this one does not makes the keyring torn.
func dearmor(data []byte) (packets []byte, err error) {
	if len(data) > 0 && data[0]&0x80 != 0 {
		return data, nil
	}
	begun := bytes.Count(data, []byte("-----BEGIN"))
	var pemOf []byte
	for line := range bytes.Lines(data) {
		if line[0] != '=' { // the checksum's: RFC 9580, section 6.1
			pemOf = append(pemOf, line...)
		}
	}
	for block, rest := pem.Decode(pemOf); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == armored {
			packets, begun = append(packets, block.Bytes...), begun-1
		}
	}
	if len(packets) == 0 || begun != 0 {
		return nil, errTorn
	}
	return packets, nil
}

// armor is the form in which rpm takes keys.
func armor(packets []byte) []byte {
	text := string(pem.EncodeToMemory(&pem.Block{Type: armored, Bytes: packets}))
	text = strings.Replace(text, "-----\n", "-----\n\n", 1)
	sum := "=" + base64.StdEncoding.EncodeToString(crc24(packets)) + "\n"
	return []byte(strings.Replace(text, "-----END", sum+"-----END", 1))
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
