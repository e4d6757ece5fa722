// SPDX-License-Identifier: Apache-2.0

package modinfo

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	bin "encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/big"
)

const (
	signed       = "~Module signature appended~\n"
	trailer      = 12       // bytes of struct module_signature
	maxSignature = 64 << 10 // bytes; that of a 4096-bit key has 700
)

// signer reads which key signed a module; nil if it is not signed. The kernel verifies the
// signature; signer does not.
// Source: include/linux/module_signature.h, scripts/sign-file.c in the kernel's tree.
func signer(r io.ReaderAt, size int64) (*Key, error) {
	tail := make([]byte, trailer+len(signed))
	before := size - int64(len(tail)) // bytes before the tail
	if before < 0 {
		return nil, nil
	}
	if _, err := r.ReadAt(tail, before); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if string(tail[trailer:]) != signed {
		return nil, nil
	}

	const pkcs7 = 2
	length := int64(bin.BigEndian.Uint32(tail[8:12]))
	if tail[2] != pkcs7 || length > maxSignature || length > before {
		return nil, errors.New("its signature is of no known kind")
	}
	der := make([]byte, length)
	if _, err := r.ReadAt(der, before-length); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}

	key, err := parseSignature(der)
	if err != nil {
		return nil, err
	}
	return &key, nil
}

var errSignature = errors.New("its signature cannot be read")

// signedMessage is a PKCS#7 message as far as it says who signed it: RFC 5652, 5.1 and 5.3. asn1
// passes over what follows in a sequence.
type signedMessage struct {
	Type asn1.ObjectIdentifier
	Data struct {
		Version      int
		Digests      asn1.RawValue
		Content      asn1.RawValue
		Certificates asn1.RawValue `asn1:"optional,tag:0"`
		Revoked      asn1.RawValue `asn1:"optional,tag:1"`
		Signers      []struct {
			Version int
			Who     asn1.RawValue // the key's id in [0], or issuer and serial number
		} `asn1:"set"`
	} `asn1:"explicit,tag:0"`
}

// parseSignature reads who signed a PKCS#7 message.
func parseSignature(der []byte) (Key, error) {
	var message signedMessage
	if _, err := asn1.Unmarshal(der, &message); err != nil || len(message.Data.Signers) == 0 {
		return Key{}, errSignature
	}
	who := message.Data.Signers[0].Who
	if who.Class == asn1.ClassContextSpecific && who.Tag == 0 {
		return Key{ID: hex.EncodeToString(who.Bytes)}, nil
	}

	var names struct {
		Issuer asn1.RawValue
		Serial *big.Int
	}
	if _, err := asn1.Unmarshal(who.FullBytes, &names); err != nil {
		return Key{}, errSignature
	}
	var rdn pkix.RDNSequence
	if _, err := asn1.Unmarshal(names.Issuer.FullBytes, &rdn); err != nil {
		return Key{}, errSignature
	}

	var name pkix.Name
	name.FillFromRDNSequence(&rdn)
	return Key{
		Name:   commonName(name),
		Issuer: digest(names.Issuer.FullBytes),
		Serial: names.Serial.Text(16),
	}, nil
}
