// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
)

// TestLive asks through a real machine's door, over a real network. The address comes in by the SDK's own variable. A
// proxy that is set for the process is not gone through.
func TestLive(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	t.Setenv("http_proxy", "http://192.0.2.1:1")
	h, err := host.Open("/")
	if err != nil {
		t.Skip("no door to this machine: ", err)
	}
	f := &cloudfake.Fake{Machine: ec2()}
	s := httptest.NewServer(f.EC2())
	defer s.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	i, err := instance.Ask(t.Context(), h, instance.Cloud{Name: "aws"})
	check.That(t, err == nil && i.ID == f.Machine.ID, "%+v %v", i, err)
}

// TestLiveHopLimit sees on a real connection that the request for a token is taken and not answered.
func TestLiveHopLimit(t *testing.T) {
	if os.Getenv("LAB_ALL") == "" {
		t.Skip("it waits five seconds for answers that do not come: make nightly")
	}
	h, err := host.Open("/")
	if err != nil {
		t.Skip("no door to this machine: ", err)
	}
	f := &cloudfake.Fake{Machine: ec2()}
	f.Break(cloudfake.Fault{On: "PUT ", What: "drop"})
	s := httptest.NewServer(f.EC2())
	defer s.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	_, err = instance.Ask(t.Context(), h, instance.Cloud{Name: "aws"})
	check.That(t, err != nil && strings.Contains(said(t, err), "--http-put-response-hop-limit 2"), "%v", err)
}
