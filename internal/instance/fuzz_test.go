// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"

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
		alloc.Beside(t, 400*maxUserData, 1000, len(data), func() { fit(t, nodeConfig(data)) })
	})
}

func FuzzNote(f *testing.F) {
	c := Cluster{
		Name:        "gpus",
		Server:      "https://x",
		CA:          []byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"),
		ServiceCIDR: "10.0.0.0/16",
	}
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

// TestChartTypes: on EKS the DaemonSet comes to every instance type that nodeadm's table of GPU
// types has.
func TestChartTypes(t *testing.T) {
	text := must.Get(os.ReadFile("../../images/chart/values.yaml"))(t)
	var values struct {
		Clouds map[string]struct {
			GPUNodes []struct {
				Key    string
				Values []string
			} `yaml:"gpuNodes"`
		}
	}
	must.OK(t, yaml.Unmarshal(text, &values))
	var is []string
	for _, e := range values.Clouds["eks"].GPUNodes {
		if e.Key == "node.kubernetes.io/instance-type" {
			is = append(is, e.Values...)
		}
	}

	for _, row := range interfaceRows() {
		for name := range strings.FieldsSeq(row.names) {
			if !slices.Contains(is, name) {
				t.Errorf("the chart does not name the instance type %s", name)
			}
		}
	}
}

// TestInterfaces: the figures of some types are those of https://github.com/awslabs/amazon-eks-ami,
// eni_max_pods_test.go and the old eni-max-pods.txt: interfaces × (addresses − 1) + 2.
func TestInterfaces(t *testing.T) {
	for name, pods := range map[string]int{
		"p5.48xlarge": 100, "p5en.48xlarge": 198, "p4d.24xlarge": 737, "p3dn.24xlarge": 737, "p6-b200.48xlarge": 198,
		"g4dn.xlarge": 29, "g4dn.12xlarge": 234, "g5.xlarge": 58, "g5.48xlarge": 345, "g6.48xlarge": 737, "g6e.12xlarge": 292,
	} {
		if enis, addresses := interfacesOf(name); enis*(addresses-1)+2 != pods {
			t.Errorf("%s: %d × %d, want %d pods", name, enis, addresses, pods)
		}
	}

	if enis, _ := interfacesOf("p9.48xlarge"); enis != 0 {
		t.Error("an unknown type is known")
	}
}
