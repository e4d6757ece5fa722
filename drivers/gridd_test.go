// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
)

// TestGriddKeys: gridd.conf gets the keys that the spec and the cloud ask for, and undo takes them
// out. The found file is the beginning of gridd.conf.template of NVIDIA's guest drivers, as
// kubernetes-sigs/image-builder roles/gpu and MicrosoftDocs/azure-compute-docs quote it.
func TestGriddKeys(t *testing.T) {
	const template = "# Description: Set License Server Address\n#ServerAddress=\n# 0 => for unlicensed state\nFeatureType=0\n#EnableUI=TRUE\n"
	for _, x := range []struct{ cloud, found, want string }{
		{"", template, strings.Replace(template, "FeatureType=0", "FeatureType=4", 1) + "ClientConfigTokenPath=/etc/gpuadm/token\n"},
		{"", "", "ClientConfigTokenPath=/etc/gpuadm/token\nFeatureType=4\n"},
		{"aws", template, template},
		{"azure", template, strings.Replace(template, "FeatureType=0\n", "", 1) + "EnableUI=FALSE\nIgnoreSP=FALSE\n"},
	} {
		s := spec.Grid{FeatureType: 4, TokenFile: "/etc/gpuadm/token/client.tok"}
		if x.cloud != "" {
			s = spec.Grid{}
		}
		got := setKeys([]byte(x.found), griddKeys(s, x.cloud))
		check.Equal(t, string(got), x.want, "%q:", x.cloud)
		back, left, err := TakeOutKeys([]byte(x.found), got, append(got, "Theirs=1\n"...))
		check.That(t, err == nil && left == nil && equal(configValues(back), configValues([]byte(x.found+"Theirs=1\n"))), "taken out: %v %v\n%s", left, err, back)
	}
}

// TestLicensed: a licence that is missing or has expired is waited for, and holds nothing else
// back.
func TestLicensed(t *testing.T) {
	for state, says := range map[string]string{"": "", "licensed": "", "unlicensed": "it has no vGPU licence", "expired": "it has a vGPU licence that has expired"} {
		n := drivertest.Node(t, "-- sim.toml --\n[driver]\nversion = \"580.105.08\"\n[[gpu]]\nmodel = \"T4\"\nLicence = \""+state+"\"\n")
		_, err := licensed().Thing.Look(t.Context(), n)
		later, waits := err.(trouble.Wait)
		check.That(t, (says != "") == waits && strings.Contains(later.For, says), "%q: %v", state, err)
	}
	for _, x := range []struct {
		d    spec.Grid
		want string
	}{
		{spec.Grid{FeatureType: 3}, "nvidia-gridd has no feature type 3"},
		{spec.Grid{TokenFile: "/etc/token"}, "reads tokens whose names end in .tok"},
	} {
		d := driver("580.105.08")
		d.Source, d.Runfile.URL, d.Grid = "runfile", "/x.run", x.d
		_, err := Choose(Load(), machine("ubuntu", "24.04", "amd64", "27b8"), d)
		check.That(t, strings.Contains(whole(err), x.want), "%v", whole(err))
	}
	d := driver("580")
	d.Grid.FeatureType = 4
	_, err := Choose(Load(), machine("ubuntu", "24.04", "amd64", "27b8"), d)
	check.That(t, strings.Contains(whole(err), "[driver.grid] is for the guest driver of NVIDIA vGPU"), "%v", whole(err))
}
