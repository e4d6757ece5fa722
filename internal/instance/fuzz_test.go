// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"
	"unicode"

	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/must"
)

// fit says whether all words of a cluster are fit to be shown and used.
func fit(t *testing.T, c *Cluster) {
	t.Helper()
	if c == nil {
		return
	}
	if c.Name != "" && !clusterName(c.Name) || c.Server != "" && !server(c.Server) || c.CA != nil && !certificate(c.CA) {
		t.Errorf("%+v", c)
	}
	for _, s := range append([]string{c.Name, c.Server, c.ServiceCIDR, c.Version, c.PrivateDNS}, c.DNS...) {
		if s != "" && !plain(s) {
			t.Errorf("%q is not fit to be shown", s)
		}
	}
}

// manyParts is user data of parts that unpack to the same bytes.
func manyParts(f *testing.F, parts int, each []byte) []byte {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	must.Get(z.Write(each))(f)
	must.OK(f, z.Close())
	part := "--B\nContent-Type: application/node.eks.aws\n\n" + base64.StdEncoding.EncodeToString(packed.Bytes()) + "\n"
	return []byte("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=B\n\n" + strings.Repeat(part, parts) + "--B--\n")
}

func FuzzUserData(f *testing.F) {
	f.Add([]byte("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {cluster: {name: gpus, apiServerEndpoint: \"https://x\", cidr: 10.0.0.0/16}}\n"))
	f.Add([]byte("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=B\n\n--B\nContent-Type: application/node.eks.aws\n\nkind: NodeConfig\n--B--\n"))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Add([]byte("YTogYgo="))
	f.Add([]byte("a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n"))
	f.Add(manyParts(f, 50, bytes.Repeat([]byte("- a\n"), 200_000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		alloc.Beside(t, 400*userDataMost, 1000, len(data), func() { fit(t, nodeConfig(data)) })
	})
}

func FuzzNote(f *testing.F) {
	c := Cluster{Name: "gpus", Server: "https://x", CA: []byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"), ServiceCIDR: "10.0.0.0/16"}
	data := must.Get(c.Keep(&Instance{ID: "i-0abcdef1234567890", Region: "us-east-1"}, ""))(f)
	if got, _ := readNote(data); got == nil || got.DNS[0] != "10.0.0.10" {
		f.Fatalf("%+v", got)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var c *Cluster
		alloc.Most(t, 1000, len(data), func() { c, _ = readNote(data) })
		fit(t, c)
	})
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[31m\r\nb\u202ec\xff", 5)
	f.Fuzz(func(t *testing.T, s string, most int) {
		if most < 0 || most > 1000 {
			return
		}
		got := clean(s, most)
		if len(got) > most || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", got)
		}
	})
}
