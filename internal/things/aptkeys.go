// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"encoding/hex"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Refused says why apt refuses each key of a file; with one good key it takes what that signs
// (tried with apt 2.6.2). gpgv refuses a key that has expired; sqv, which verifies for apt 3, takes
// what was signed before, but neither SHA-1 nor short RSA. Sources: EXPKEYSIG in apt's
// methods/gpgv.cc; default-sequoia.config of apt 3.0;
// https://github.com/NVIDIA/cuda-repo-management/issues/34.
func Refused(v host.View, data []byte) (why, fix string) {
	has := func(name string) bool {
		_, err := v.Stat(name)
		return err == nil
	}

	sqv := has("/usr/bin/sqv") && has("/usr/lib/apt/methods/sqv")
	strict := sqv && !has("/etc/crypto-policies/back-ends/apt-sequoia.config")

	const newer = "use its owner's repository for this release, which has a newer key"
	const old = newer + "; /etc/crypto-policies/back-ends/apt-sequoia.config has apt accept an old one, as /usr/share/apt/default-sequoia.config says"
	for _, k := range primaryKeys(data) {
		expires := time.Unix(int64(k.made+k.lasts), 0).UTC()
		expired := k.lasts > 0 && !expires.After(v.Now())
		switch {
		case k.revoked:
			why = "its owner revoked it"
			fix = newer
		case !sqv && expired:
			why = "it expired on " + expires.Format(time.DateOnly)
			fix = newer
		case strict && k.short:
			why = "it is an RSA key of less than 2048 bits"
			fix = old
		case strict && !k.sha2:
			why = "its owner signed it by SHA-1 alone"
			fix = old
		default:
			return "", ""
		}
	}

	return why, fix
}

// primaryKey is a primary key, and what its owner's signatures say about it. Times are in seconds.
type primaryKey struct {
	short   bool // RSA of less than 2048 bits
	sha2    bool // a signature is by SHA-2 or SHA-3
	revoked bool
	made    int // since 1970
	signed  int // the owner's last signature, since 1970
	lasts   int // after made; 0 for ever
}

// primaryKeys reads the primary keys of version 4 in a keyring, up to the first packet that it
// cannot read.
func primaryKeys(keyring []byte) []primaryKey {
	var id []byte // the last key's
	var keys []primaryKey
	packets, err := dearmor(keyring)
	for err == nil && len(packets) > 0 {
		var tag int
		var body []byte
		tag, body, packets, err = packet(packets)
		if len(body) < 8 || body[0] != 4 {
			continue
		}

		switch {
		case tag == publicKey: // version, 4 bytes of time, algorithm, bits
			var f string
			f, err = fingerprint(body)
			if err != nil {
				continue
			}
			id, _ = hex.DecodeString(f[24:])
			isRSA := body[5] == 1
			short := isRSA && length(body[6:8]) < 2048
			keys = append(keys, primaryKey{made: length(body[1:5]), short: short})
		case tag == signature && len(keys) > 0 && bytes.Contains(body, id):
			keys[len(keys)-1].read(body)
		}
	}

	return keys
}

// read reads a signature: version, kind, algorithm, hash, and what was hashed. RFC 9580, section
// 5.2.3; no subpacket of a key's own is longer.
func (k *primaryKey) read(body []byte) {
	const revocation = 0x20
	k.revoked = k.revoked || body[1] == revocation
	certifies := body[1]&^3 == 0x10
	if !certifies {
		return
	}
	k.sha2 = k.sha2 || body[3] >= 8

	values := [128]int{} // of the subpackets, by their type
	area := body[6:min(len(body), 6+length(body[4:6]))]
	for len(area) > 5 && area[0] > 0 && int(area[0]) < min(192, len(area)) {
		values[area[1]&0x7f] = length(area[2:6])
		area = area[1+area[0]:]
	}

	const made, lasts = 2, 9
	if values[made] >= k.signed { // the owner's last signature counts
		k.signed = values[made]
		k.lasts = values[lasts]
	}
}
