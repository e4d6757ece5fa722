// SPDX-License-Identifier: Apache-2.0

package modinfo

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	bin "encoding/binary"
	"encoding/hex"
)

// Key names a key that signs modules, or a certificate that is trusted to. A signature names its
// certificate by issuer and serial number, or by the key's id; the signer chooses which.
type Key struct {
	Name   string `json:"name"`             // common name: of a certificate's owner, of a signature's issuer
	Issuer string `json:"issuer,omitempty"` // digest of the issuer's name
	Serial string `json:"serial,omitempty"` // hex
	ID     string `json:"id,omitempty"`     // subject key id, hex
}

// Same says whether two Keys name the same key.
func (k Key) Same(o Key) bool {
	sameCertificate := k.Issuer != "" && k.Issuer == o.Issuer && k.Serial == o.Serial
	sameID := k.ID != "" && k.ID == o.ID
	return sameCertificate || sameID
}

// Certificate names the key that an X.509 certificate is about.
func Certificate(der []byte) (Key, bool) {
	c, err := x509.ParseCertificate(der)
	if err != nil || c.SerialNumber == nil {
		return Key{}, false
	}
	return Key{
		Name:   commonName(c.Subject),
		Issuer: digest(c.RawIssuer),
		Serial: c.SerialNumber.Text(16),
		ID:     hex.EncodeToString(c.SubjectKeyId),
	}, true
}

func commonName(n pkix.Name) string {
	if n.CommonName == "" {
		return n.String()
	}
	return n.CommonName
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// EFIKeys reads the X.509 certificates out of EFI signature lists. Source: UEFI specification 2.10,
// 32.4.1.
func EFIKeys(data []byte) (keys []Key) {
	const (
		head   = 28 // type, size of the list, of its header, of each signature
		owner  = 16
		ofX509 = "\xa1\x59\xc0\xa5\xe4\x94\xa7\x4a\x87\xb5\xab\x15\x5c\x2b\xf0\x72" // EFI_CERT_X509_GUID
	)
	for len(data) >= head {
		size := uint64(bin.LittleEndian.Uint32(data[16:]))
		header := uint64(bin.LittleEndian.Uint32(data[20:]))
		each := uint64(bin.LittleEndian.Uint32(data[24:]))
		if size < head+header || size > uint64(len(data)) || each <= owner {
			return keys
		}

		signatures := data[head+header : size]
		if string(data[:16]) != ofX509 {
			signatures = nil
		}
		for uint64(len(signatures)) >= each {
			if key, ok := Certificate(signatures[owner:each]); ok {
				keys = append(keys, key)
			}
			signatures = signatures[each:]
		}

		data = data[size:]
	}

	return keys
}
