// SPDX-License-Identifier: Apache-2.0

package cloudfake_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestContracts asks the metadata services as gpuadm's clients do not, over a real network.
func TestContracts(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := &cloudfake.Fake{
		Machine: cloudfake.Machine{ID: "1", Zone: "a-b"},
		Now:     func() time.Time { return now },
	}
	servers := map[string]*httptest.Server{
		"aws": httptest.NewServer(f.EC2()), "api": httptest.NewServer(f.API()),
	}
	for _, s := range servers {
		defer s.Close()
	}
	ask := func(cloud, method, path string, header ...string) (int, string, http.Header) {
		t.Helper()
		r := must.Get(http.NewRequestWithContext(t.Context(), method, servers[cloud].URL+path, nil))(t)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer := must.Get(http.DefaultClient.Do(r))(t)
		defer answer.Body.Close()
		body := must.Get(io.ReadAll(answer.Body))(t)
		return answer.StatusCode, string(body), answer.Header
	}

	const ttl, token = "X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"
	_, fresh, head := ask("aws", "PUT", "/latest/api/token", ttl, "60")
	check.That(t, head.Get(ttl) == "60" && fresh != "", "token %q %v", fresh, head)
	for _, c := range []struct {
		cloud, method, path string
		header              []string
		want                int
	}{
		{"aws", "PUT", "/latest/api/token", nil, 400},
		{"aws", "PUT", "/latest/api/token", []string{ttl, "0"}, 400},
		{"aws", "PUT", "/latest/api/token", []string{ttl, "21601"}, 400},
		{"aws", "PUT", "/latest/api/token", []string{ttl, "60", "X-Forwarded-For", "10.0.0.1"}, 403},
		{"aws", "GET", "/latest/meta-data/instance-id", nil, 401},
		{"aws", "GET", "/latest/meta-data/instance-id", []string{token, "x"}, 401},
		{"aws", "GET", "/latest/meta-data/instance-id", []string{token, fresh}, 200},
		{"aws", "GET", "/latest/user-data", []string{token, fresh}, 404},
		{"aws", "GET", "/latest/meta-data/tags/instance/", []string{token, fresh}, 404},
	} {
		got, body, _ := ask(c.cloud, c.method, c.path, c.header...)
		check.That(t, got == c.want, "%s %s %v: %d, want %d: %s", c.method, c.path, c.header, got, c.want, body)
	}

	now = now.Add(time.Minute)
	got, _, _ := ask("aws", "GET", "/latest/meta-data/instance-id", token, fresh)
	check.That(t, got == 401, "a token that has ended: %d", got)
	err := f.CheckToken("k8s-aws-v1.aHR0cHM6Ly9ldmlsLmV4YW1wbGUv")
	check.That(t, err != nil && strings.Contains(err.Error(), "not STS's"), "a token of another host: %v", err)
}
