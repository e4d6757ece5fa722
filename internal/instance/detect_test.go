// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// made is a simulated machine of files, live unless one is called image.
func made(t testing.TB, files ...string) *simhost.Node {
	t.Helper()
	var archive strings.Builder
	for _, f := range files {
		name, data, _ := strings.Cut(f, ": ")
		if name == "image" {
			archive.WriteString("-- sim.toml --\nlive = false\n")
			continue
		}
		archive.WriteString("-- " + name + " --\n")
		if !strings.HasSuffix(name, "/") {
			archive.WriteString(data + "\n")
		}
	}

	n := must.Get(simhost.New([]byte(archive.String())))(t)
	return n
}

// TestDetect shows each sign alone.
func TestDetect(t *testing.T) {
	const dmi = "sys/class/dmi/id/"
	for name, c := range map[string]struct {
		files []string
		want  instance.Cloud // without the reasons
	}{
		"nothing":          {nil, instance.Cloud{}},
		"nitro":            {[]string{dmi + "sys_vendor: Amazon EC2", dmi + "board_asset_tag: i-0abcdef1234567890"}, instance.Cloud{Name: "aws", InstanceID: "i-0abcdef1234567890"}},
		"old id":           {[]string{dmi + "sys_vendor: Amazon EC2", dmi + "board_asset_tag: i-0abcdef1"}, instance.Cloud{Name: "aws", InstanceID: "i-0abcdef1"}},
		"id of no form":    {[]string{dmi + "sys_vendor: Amazon EC2", dmi + "board_asset_tag: i-0abc; rm"}, instance.Cloud{Name: "aws"}},
		"bios":             {[]string{dmi + "bios_vendor: Amazon EC2"}, instance.Cloud{Name: "aws"}},
		"xen version":      {[]string{dmi + "sys_vendor: Xen", dmi + "bios_version: 4.11.amazon"}, instance.Cloud{Name: "aws"}},
		"xen uuid":         {[]string{"sys/hypervisor/uuid: ec2e1916-9099-7caf-fd21-012345abcdef"}, instance.Cloud{Name: "aws"}},
		"xen product":      {[]string{dmi + "sys_vendor: Xen", dmi + "product_uuid: EC2E1916-9099-7CAF-FD21-012345ABCDEF"}, instance.Cloud{Name: "aws"}},
		"xen swapped":      {[]string{dmi + "sys_vendor: Xen", dmi + "product_uuid: 45E12AEC-DCD1-B213-94ED-012345ABCDEF"}, instance.Cloud{Name: "aws"}},
		"chance":           {[]string{dmi + "sys_vendor: Dell Inc.", dmi + "product_uuid: EC2E1916-9099-7CAF-FD21-012345ABCDEF"}, instance.Cloud{}},
		"other xen":        {[]string{dmi + "sys_vendor: Xen", dmi + "bios_version: 4.17", "sys/hypervisor/uuid: 00000000-0000-0000-0000-000000000000"}, instance.Cloud{}},
		"gce":              {[]string{dmi + "product_name: Google Compute Engine"}, instance.Cloud{Name: "gce"}},
		"gce of old":       {[]string{dmi + "product_name: Google"}, instance.Cloud{Name: "gce"}},
		"chromebook":       {[]string{dmi + "sys_vendor: Google", dmi + "product_name: Eve"}, instance.Cloud{}},
		"azure":            {[]string{dmi + "chassis_asset_tag: 7783-7084-3265-9085-8269-3286-77"}, instance.Cloud{Name: "azure"}},
		"hyper-v":          {[]string{dmi + "sys_vendor: Microsoft Corporation", dmi + "chassis_asset_tag: 5261-2476-0073-4314-9745-6956-37"}, instance.Cloud{}},
		"nodeadm":          {[]string{"usr/bin/nodeadm: x", "etc/systemd/system/nodeadm-run.service: x"}, instance.Cloud{Name: "aws", Managed: "eks"}},
		"nodeadm alone":    {[]string{"usr/bin/nodeadm: x"}, instance.Cloud{}},
		"hybrid":           {[]string{"opt/nodeadm/tracker: x"}, instance.Cloud{Managed: "eks-hybrid"}},
		"hybrid in path":   {[]string{"usr/bin/nodeadm: x", "opt/nodeadm/tracker: x"}, instance.Cloud{Managed: "eks-hybrid"}},
		"al2":              {[]string{"etc/eks/bootstrap.sh: x"}, instance.Cloud{Name: "aws", Managed: "eks-al2"}},
		"aks":              {[]string{"opt/azure/containers/provision.sh: x"}, instance.Cloud{Name: "azure", Managed: "aks"}},
		"aks azure.json":   {[]string{"opt/azure/containers/x: x", "etc/kubernetes/azure.json: {}"}, instance.Cloud{Name: "azure", Managed: "aks"}},
		"aks node control": {[]string{"opt/azure/containers/x: x", "usr/lib/systemd/system/aks-node-controller.service: x"}, instance.Cloud{Name: "azure", Managed: "aks"}},
		"cluster api":      {[]string{dmi + "chassis_asset_tag: 7783-7084-3265-9085-8269-3286-77", "etc/kubernetes/azure.json: {}"}, instance.Cloud{Name: "azure"}},
		"aks-flex":         {[]string{"etc/aks-flex-node/config.json: {}"}, instance.Cloud{Managed: "aks-flex"}},
		"gke env":          {[]string{"home/kubernetes/kube-env: x"}, instance.Cloud{Name: "gce", Managed: "gke"}},
		"gke unit":         {[]string{"home/kubernetes/bin/x: x", "etc/systemd/system/kube-node-installation.service: x"}, instance.Cloud{Name: "gce", Managed: "gke"}},
		"a user's home":    {[]string{"home/kubernetes/.bashrc: x"}, instance.Cloud{}},
		"image":            {[]string{"image", dmi + "sys_vendor: Amazon EC2", "home/kubernetes/kube-env: x"}, instance.Cloud{Name: "gce", Managed: "gke"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := instance.Detect(made(t, c.files...).View())
			check.That(t, (got.Name != "") == (got.Why != "") && (got.Managed != "") == (got.ManagedWhy != ""), "a reason is missing, or there for nothing: %+v", got)
			got.Why, got.ManagedWhy = "", ""
			check.None(t, cmp.Diff(c.want, got), "(-want +got)")
		})
	}
}

// TestDetectHosts looks at every recorded machine.
func TestDetectHosts(t *testing.T) {
	known := map[string]string{
		"aks-ubuntu2204": "azure aks", "al2023-eks-nvidia": "aws eks", "al2023-eks-trees": "aws eks", "gke-ubuntu": "gce gke",
		"gke-cos": "gce gke", "eks-bottlerocket": "aws",
	}
	hosts, err := filepath.Glob("../../test/hosts/*.txtar")
	if err != nil || len(hosts) < 10 {
		t.Fatal("too few recorded machines", hosts, err)
	}
	for _, file := range hosts {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		n := recorded(t, name)
		c := instance.Detect(n.View())
		got := strings.TrimSpace(c.Name + " " + c.Managed)
		check.That(t, got == known[name], "%s is %q, want %q: %+v", name, got, known[name], c)
		check.That(t, n.Touches() == 0, "%s was touched", name)
	}
}

func recorded(t testing.TB, name string) *simhost.Node {
	t.Helper()
	archive := must.Get(os.ReadFile("../../test/hosts/" + name + ".txtar"))(t)
	n := must.Get(simhost.New(archive))(t)
	return n
}

func BenchmarkDetect(b *testing.B) {
	v := recorded(b, "al2023-eks-nvidia").View()
	b.ReportAllocs()
	for b.Loop() {
		instance.Detect(v)
	}
}

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
	whole := &instance.Cluster{
		Name:        "gpus",
		Server:      "https://ABC.gr7.us-east-1.eks.amazonaws.com",
		CA:          []byte(ca),
		ServiceCIDR: "172.20.0.0/16",
		DNS:         []string{"172.20.0.10"},
		From:        "user data",
	}
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
