// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpuadm/gpuadm/internal/host/local"

	"github.com/aws/aws-sdk-go-v2/service/eks"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestTokenOfEachPartition signs for the STS of the cluster's own partition of AWS: its API server
// asks no other.
func TestTokenOfEachPartition(t *testing.T) {
	for region, at := range map[string]string{
		"us-east-1": "amazonaws.com", "cn-north-1": "amazonaws.com.cn", "us-gov-west-1": "amazonaws.com", "us-iso-east-1": "c2s.ic.gov",
		"us-isob-east-1": "sc2s.sgov.gov", "eu-isoe-west-1": "cloud.adc-e.uk", "us-isof-south-1": "csp.hci.ic.gov", "eusc-de-east-1": "amazonaws.eu",
	} {
		_, n := in(t, ec2())
		token, _, err := instance.Token(t.Context(), n.View(), "gpus", region)
		must.OK(t, err)
		url, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, "k8s-aws-v1."))
		want := "https://sts." + region + "." + at + "/?"
		check.That(t, err == nil && strings.HasPrefix(string(url), want), "%s: not %s", region, want)
	}
}

// TestDomainIsTheSDKs compares gpuadm's domains with those of the SDK's client of EKS, which gpuadm
// does not link: its tables take time at each start.
func TestDomainIsTheSDKs(t *testing.T) {
	resolver := eks.NewDefaultEndpointResolverV2()
	for _, region := range []string{
		"us-east-1", "us-west-2", "eu-central-1", "ap-southeast-7", "ca-west-1", "me-central-1", "af-south-1", "il-central-1", "mx-central-1",
		"sa-east-1", "cn-north-1", "cn-northwest-1", "us-gov-west-1", "us-gov-east-1", "us-iso-east-1", "us-iso-west-1", "us-isob-east-1",
		"us-isob-west-1", "eu-isoe-west-1", "us-isof-east-1", "us-isof-south-1", "eusc-de-east-1", "zz-new-9", "us-new-1", "eu-new-1",
	} {
		at := must.Get(resolver.ResolveEndpoint(t.Context(), eks.EndpointParameters{Region: &region}))(t)
		got := "eks." + region + "." + instance.AWSDomain(region)
		check.That(t, got == at.URI.Host, "%s: %s, the SDK has %s", region, got, at.URI.Host)
	}
}

// TestLive asks through a real machine's transport, over a real network. The address comes in by
// the SDK's own variable. A proxy that is set for the process is not gone through.
func TestLive(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	t.Setenv("http_proxy", "http://192.0.2.1:1")
	h, err := local.Open("/")
	if err != nil {
		t.Skip("cannot open this machine: ", err)
	}
	f := &cloudfake.Fake{Machine: ec2()}
	s := httptest.NewServer(f.EC2())
	defer s.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	i, err := instance.Ask(t.Context(), h, instance.Cloud{Name: "aws"})
	check.That(t, err == nil && i.ID == f.Machine.ID, "%+v %v", i, err)
}

// TestHopLimitOnAConnection sees through Go's own HTTP transport that the request for a token is
// taken and not answered.
func TestHopLimitOnAConnection(t *testing.T) {
	f := &cloudfake.Fake{Machine: ec2()}
	f.Break(cloudfake.Fault{On: "PUT ", What: "drop"})
	synctest.Test(t, func(t *testing.T) {
		p := piped{
			Node:   must.Get(simhost.New(nil))(t),
			conns:  make(chan net.Conn),
			closed: make(chan bool),
		}
		s := &http.Server{Handler: f.EC2()}
		go func() { _ = s.Serve(p) }()
		_, err := instance.Ask(t.Context(), p, instance.Cloud{Name: "aws"})
		check.That(t, err != nil && strings.Contains(said(t, err), "--http-put-response-hop-limit 2"), "%v", err)
		_ = s.Close()
	})
}

// piped is a machine of which each connection is a pipe, so that time can be simulated, and the
// listener at their other ends.
type piped struct {
	*simhost.Node
	conns  chan net.Conn
	closed chan bool
}

func (p piped) AskWeb(w host.Web) (http.RoundTripper, error) {
	return host.OnlyLooks(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		p.conns <- there
		return here, nil
	}}, w), nil
}

func (p piped) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p piped) Close() error   { close(p.closed); return nil }
func (p piped) Addr() net.Addr { return &net.TCPAddr{} }
