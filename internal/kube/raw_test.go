// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Who only looks may ask what it may do, and may not ask for a certificate.
func TestPost(t *testing.T) {
	n, err := simhost.New([]byte("-- sim.toml --\n-- etc/hostname --\nx\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := kubesim.New(kubesim.User{})
	signer := s.Joinable("https://api.example:6443", n.Now())
	signer.Approve = "wait"
	s.Token("abcdef.0123456789abcdef", kubesim.Bootstrapper("abcdef"))
	n.Serve("api.example:6443", s)
	const server, path = "https://api.example:6443", "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	request := []byte(`{"kind":"CertificateSigningRequest","metadata":{"name":"one"},"spec":{}}`)
	looks, err := kube.WithToken(n, server, signer.CA(), "abcdef.0123456789abcdef", host.Via{})
	if err != nil {
		t.Fatal(err)
	}
	review := []byte(`{"spec":{"resourceAttributes":{"verb":"create","resource":"certificatesigningrequests"}}}`)
	if answer, err := looks.Post(context.Background(), "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review); err != nil || !strings.Contains(string(answer), `"allowed":true`) {
		t.Errorf("%s %v", answer, err)
	}
	if _, err := looks.Post(context.Background(), path, request); err == nil || len(signer.Asked()) > 0 || n.Touches() > 0 {
		t.Errorf("who only looks has asked for a certificate: %v", err)
	}
	for _, bad := range []string{"", "x", "https://else.example/x", "/a/../b"} {
		if _, err := looks.Post(context.Background(), bad, request); err == nil {
			t.Errorf("%q was taken for a path", bad)
		}
	}
}
