// SPDX-License-Identifier: Apache-2.0

package cloudfake

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"time"
)

// TLS makes a certificate for AWS's host names in a region, signed by a CA that is given as files
// of PEM.
func TLS(caCert, caKey, region string) (*tls.Config, error) {
	ca, err := tls.LoadX509KeyPair(caCert, caKey)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}

	var names []string
	for _, service := range []string{"eks", "ec2", "sts"} {
		names = append(names, service+"."+region+".amazonaws.com", service+"."+region+".api.aws")
	}

	certificate := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		DNSNames:     names,
		NotBefore:    time.Now().Add(-24 * time.Hour), // machines with a wrong clock use it, too
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return nil, err
	}
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}

	return &tls.Config{Certificates: []tls.Certificate{pair}}, nil
}
