// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	bin "encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/big"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
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
	return k.Issuer != "" && k.Issuer == o.Issuer && k.Serial == o.Serial || k.ID != "" && k.ID == o.ID
}

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
	if size < int64(len(tail)) {
		return nil, nil
	}
	if _, err := r.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if string(tail[trailer:]) != signed {
		return nil, nil
	}
	const pkcs7 = 2
	n := int64(bin.BigEndian.Uint32(tail[8:12]))
	if tail[2] != pkcs7 || n > maxSignature || n > size-int64(len(tail)) {
		return nil, errors.New("its signature is of no known kind")
	}
	der := make([]byte, n)
	if _, err := r.ReadAt(der, size-int64(len(tail))-n); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	k, err := parseSignature(der)
	if err != nil {
		return nil, err
	}
	return &k, nil
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
	return Key{Name: commonName(name), Issuer: digest(names.Issuer.FullBytes), Serial: names.Serial.Text(16)}, nil
}

// Certificate names the key that an X.509 certificate is about.
func Certificate(der []byte) (Key, bool) {
	c, err := x509.ParseCertificate(der)
	if err != nil || c.SerialNumber == nil {
		return Key{}, false
	}
	return Key{Name: commonName(c.Subject), Issuer: digest(c.RawIssuer), Serial: c.SerialNumber.Text(16), ID: hex.EncodeToString(c.SubjectKeyId)}, true
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

// efiKeys reads the X.509 certificates out of EFI signature lists. Source: UEFI specification 2.10,
// 32.4.1.
func efiKeys(data []byte) (keys []Key) {
	const (
		head  = 28 // type, size of the list, of its header, of each signature
		owner = 16
		x509  = "\xa1\x59\xc0\xa5\xe4\x94\xa7\x4a\x87\xb5\xab\x15\x5c\x2b\xf0\x72" // EFI_CERT_X509_GUID
	)
	for len(data) >= head {
		list, header, each := bin.LittleEndian.Uint32(data[16:]), bin.LittleEndian.Uint32(data[20:]), bin.LittleEndian.Uint32(data[24:])
		if list < head || uint64(list) > uint64(len(data)) || uint64(header)+head > uint64(list) || each <= owner {
			return keys
		}
		if string(data[:16]) == x509 {
			for sigs := data[head+header : list]; uint64(len(sigs)) >= uint64(each); sigs = sigs[each:] {
				if k, ok := Certificate(sigs[owner:each]); ok {
					keys = append(keys, k)
				}
			}
		}
		data = data[list:]
	}
	return keys
}

// Build is one module version in DKMS's tree, for one kernel once it was built for it.
type Build struct {
	Name    string `json:"name"` // nvidia; nvidia-open, nvidia-current, nvidia-srv by other packagers
	Version string `json:"version"`
	Kernel  string `json:"kernel,omitempty"` // "" where it is only added
	Arch    string `json:"arch,omitempty"`   // x86_64, and amd64 where Debian's postinst ran in a chroot
	State   string `json:"state"`            // added, built, installed
}

// dkmsTree is where dkms(8) keeps what it knows.
const dkmsTree = "/var/lib/dkms"

// Builds reads the state of NVIDIA's modules from DKMS's tree, as dkms status does.
// Source: module_status and _is_module_installed in dkms of https://github.com/dell/dkms.
func Builds(v host.View) ([]Build, error) {
	l := &look{v: v}
	var found []Build
	for _, name := range l.names(dkmsTree) {
		if !strings.HasPrefix(name, "nvidia") {
			continue
		}
		for _, version := range l.names(path.Join(dkmsTree, name)) {
			dir := path.Join(dkmsTree, name, version)
			if info, err := l.v.Lstat(dir); err != nil || !info.Mode.IsDir() {
				continue // kernel-KERNEL-ARCH, which says what is installed
			}
			built := l.builtFor(name, version)
			if len(built) == 0 && l.linked(dir+"/source") {
				built = []Build{{Name: name, Version: version, State: "added"}}
			}
			found = append(found, built...)
		}
	}
	return found, l.err
}

// builtFor lists the kernels that a version is built for.
func (l *look) builtFor(name, version string) (found []Build) {
	dir := path.Join(dkmsTree, name, version)
	for _, kernel := range l.names(dir) {
		if kernel == "source" || kernel == "build" {
			continue
		}
		for _, arch := range l.names(path.Join(dir, kernel)) {
			if !l.has(path.Join(dir, kernel, arch, "module")) {
				continue
			}
			b := Build{Name: name, Version: version, Kernel: kernel, Arch: arch, State: "built"}
			to, err := l.v.Readlink(path.Join(dkmsTree, name, "kernel-"+kernel+"-"+arch))
			if err == nil && (to == path.Join(version, kernel, arch) || to == path.Join(dir, kernel, arch)) {
				b.State = "installed"
			}
			found = append(found, b)
		}
	}
	return found
}

// linked says whether there is a link of that name, whether it leads anywhere or not.
func (l *look) linked(name string) bool {
	_, err := l.v.Lstat(name)
	return err == nil
}
