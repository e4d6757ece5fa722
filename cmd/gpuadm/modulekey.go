// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// signing reads the key and the certificate for modules; nil if the flags name none.
func (c *common) signing(b bakeFlags) (*local.ModuleKey, error) {
	switch {
	case b.moduleKey == "" && b.moduleCert == "":
		return nil, nil
	case b.moduleKey == "" || b.moduleCert == "":
		return nil, usage{errors.New("cannot sign modules: --module-key and --module-cert go together")}
	case b.saysSecureBoot && !b.secureBoot:
		return nil, usage{errors.New("cannot use --module-key with --secure-boot=false: it is for Secure Boot")}
	}

	key, err := c.read(b.moduleKey)
	if err != nil {
		return nil, usage{fmt.Errorf("cannot read --module-key %s: %w", b.moduleKey, cause(err))}
	}
	cert, err := c.read(b.moduleCert)
	if err != nil {
		return nil, usage{fmt.Errorf("cannot read --module-cert %s: %w", b.moduleCert, cause(err))}
	}
	if block, _ := pem.Decode(cert); block != nil {
		cert = block.Bytes
	}
	if err := matching(key, cert); err != nil {
		return nil, usage{fmt.Errorf(
			"cannot sign with --module-key %s and --module-cert %s: %w",
			b.moduleKey, b.moduleCert, err,
		)}
	}
	return &local.ModuleKey{Private: key, Certificate: cert}, nil
}

// matching refuses an encrypted private key, and a key that does not match the certificate.
// scripts/sign-file.c in the kernel's tree reads PEM.
func matching(key, cert []byte) error {
	block, _ := pem.Decode(key)
	switch {
	case block == nil:
		return errors.New("the key is not in PEM")
	case block.Type == "ENCRYPTED PRIVATE KEY", strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED"):
		return errors.New("the key is encrypted, and gpuadm asks for no passphrase: openssl pkey -in FILE -out /dev/shm/FILE")
	}

	if _, ok := modinfo.Certificate(cert); !ok {
		return errors.New("the certificate is not an X.509 certificate in PEM or DER")
	}
	_, err := tls.X509KeyPair(pem.EncodeToMemory(&pem.Block{
		Type:  "CERTIFICATE",
		Bytes: cert,
	}), key)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "tls: "))
	}
	return nil
}

// forSecureBoot returns the keys that machines of the image trust, if they boot with Secure Boot.
// With --module-key they do; else --secure-boot decides, and without it, if this machine becomes
// the image, its own Secure Boot.
func (c *common) forSecureBoot(b bakeFlags, key *local.ModuleKey) (*facts.Trust, error) {
	if key != nil {
		k, _ := modinfo.Certificate(key.Certificate)
		return &facts.Trust{
			SecureBoot: "on",
			Build:      &k,
			Enrolled:   []modinfo.Key{k},
		}, nil
	}

	on := b.secureBoot
	if !b.saysSecureBoot && c.rootDir == "/" {
		h, err := c.open("/", nil)
		if err != nil {
			return nil, err
		}
		is, err := facts.ReadTrust(h)
		if err != nil {
			return nil, err
		}
		on = is.SecureBoot == "on"
	}

	if !on {
		return nil, nil
	}
	return &facts.Trust{SecureBoot: "on"}, nil
}

// keyOutside refuses to seal an image that contains the private key.
func (c *common) keyOutside(h host.View, b bakeFlags, key *local.ModuleKey) error {
	if key == nil {
		return nil
	}
	inside, err := filepath.Rel(realPath(c.rootDir), realPath(b.moduleKey))
	if err != nil || strings.HasPrefix(inside, "..") {
		return nil
	}
	data, err := h.ReadFile("/" + inside)
	if err != nil || !bytes.Equal(data, key.Private) {
		return nil // /run and /dev are not part of the image
	}

	return &trouble.Error{
		What:    "cannot seal the image: the private key " + b.moduleKey + " lies in it",
		Because: []string{"each machine of the image would have it, and could sign what it likes"},
		Try:     []string{"move it to /run or /dev/shm, which are in memory, and bake with that file"},
	}
}

// realPath is the absolute path of a file, free of links; the name itself where that is not known.
func realPath(name string) string {
	target, err := filepath.EvalSymlinks(name)
	if err == nil {
		name = target
	}
	absolute, err := filepath.Abs(name)
	if err != nil {
		return name
	}
	return absolute
}
