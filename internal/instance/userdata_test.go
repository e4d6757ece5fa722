// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestUserData reads the cluster out of user data in all its wrappings.
func TestUserData(t *testing.T) {
	zip := func(s string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		must.Get(z.Write([]byte(s)))(t)
		must.OK(t, z.Close())
		return b.String()
	}
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	_, alone, _ := strings.Cut(userData(), "application/node.eks.aws\n\n")
	alone, _, _ = strings.Cut(alone, "--//")
	part := func(head, body string) string {
		return "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"B\"\n\n--B\nContent-Type: application/node.eks.aws\n" + head + "\n" + body + "\n--B--\n"
	}
	whole := &instance.Cluster{Name: "gpus", Server: "https://ABC.gr7.us-east-1.eks.amazonaws.com", CA: []byte(ca), ServiceCIDR: "172.20.0.0/16", DNS: []string{"172.20.0.10"}, From: "user data"}
	for name, c := range map[string]struct {
		data string
		want *instance.Cluster
	}{
		"mime":          {userData(), whole},
		"alone":         {alone, whole},
		"gzip":          {zip(userData()), whole},
		"base64":        {b64(userData()), whole},
		"base64 gzip":   {b64(zip(alone)), whole},
		"part base64":   {part("Content-Transfer-Encoding: base64\n", b64(alone)), whole},
		"part gzip":     {part("Content-Transfer-Encoding: base64\n", b64(zip(alone))), whole},
		"script":        {"#!/bin/bash\n/etc/eks/bootstrap.sh gpus\n", nil},
		"cloud-config":  {"#cloud-config\nwrite_files: []\n", nil},
		"other kind":    {strings.Replace(alone, "NodeConfig", "Secret", 1), nil},
		"other version": {strings.Replace(alone, "node.eks.aws/", "evil.example/", 1), nil},
		"broken gzip":   {zip(userData())[:50], nil},
		"IPv6":          {strings.Replace(alone, "172.20.0.0/16", "fd30:1c53:5f8a::/108", 1), &instance.Cluster{Name: "gpus", Server: whole.Server, CA: whole.CA, ServiceCIDR: "fd30:1c53:5f8a::/108", DNS: []string{"fd30:1c53:5f8a::a"}, From: "user data"}},
		"name alone":    {"apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {cluster: {name: gpus}}\n", &instance.Cluster{Name: "gpus", From: "user data"}},
		"hostile": {
			"apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {cluster: {name: \"a\\e[2J\", apiServerEndpoint: \"https://u:p@x\", certificateAuthority: \"%%%\", cidr: ../..}}\n", nil,
		},
		"http": {"apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {cluster: {name: a, apiServerEndpoint: \"http://x\"}}\n", &instance.Cluster{Name: "a", From: "user data"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := ec2()
			m.UserData = c.data
			_, n := in(t, m)
			i := must.Get(instance.Ask(t.Context(), n.View(), instance.Cloud{Name: "aws"}))(t)
			check.None(t, cmp.Diff(c.want, i.UserCluster), "(-want +got)")
		})
	}
}
