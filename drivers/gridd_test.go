// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestGriddKeys: gridd.conf gets the keys that the spec and the cloud ask for, and undo takes them
// out. The found file is the beginning of gridd.conf.template of NVIDIA's guest drivers, as
// kubernetes-sigs/image-builder roles/gpu and MicrosoftDocs/azure-compute-docs quote it.
func TestGriddKeys(t *testing.T) {
	const template = "# Description: Set License Server Address\n#ServerAddress=\n# 0 => for unlicensed state\nFeatureType=0\n#EnableUI=TRUE\n"
	withLicence := strings.Replace(template, "FeatureType=0", "FeatureType=4", 1) + "ClientConfigTokenPath=/etc/gpuadm/token\n"
	onAzure := strings.Replace(template, "FeatureType=0\n", "", 1) + "EnableUI=FALSE\nIgnoreSP=FALSE\n"
	licence := spec.Grid{FeatureType: 4, TokenFile: "/etc/gpuadm/token/client.tok"}
	for _, tt := range []struct {
		cloud       string
		grid        spec.Grid
		found, want string
	}{
		{"", licence, template, withLicence},
		{"", licence, "", "ClientConfigTokenPath=/etc/gpuadm/token\nFeatureType=4\n"},
		{"aws", spec.Grid{}, template, template},
		{"azure", spec.Grid{}, template, onAzure},
	} {
		made := setKeys([]byte(tt.found), griddKeys(tt.grid, Load().guest(tt.cloud).Gridd))
		check.Equal(t, string(made), tt.want, "%q:", tt.cloud)

		const theirs = "Theirs=1\n" // what another program has added since
		rest, left, err := TakeOutKeys([]byte(tt.found), made, append(made, theirs...))

		want := configValues([]byte(tt.found + theirs))
		check.That(t, err == nil && left == nil, "taken out: %v %v", left, err)
		check.That(t, equal(configValues(rest), want), "taken out:\n%s", rest)
	}
}

// TestLicensed: gpuadm waits for a licence that is missing or has expired, and holds nothing else back.
func TestLicensed(t *testing.T) {
	for state, says := range map[string]string{
		"":           "",
		"licensed":   "",
		"unlicensed": "it has no vGPU licence",
		"expired":    "it has a vGPU licence that has expired",
	} {
		n := drivertest.Node(t, "-- sim.toml --\n[driver]\nversion = \"580.105.08\"\n[[gpu]]\nmodel = \"T4\"\nLicence = \""+state+"\"\n")

		_, err := licensed().Thing.Look(t.Context(), n)

		wait, waits := err.(trouble.Wait)
		check.That(t, waits == (says != ""), "%q: %v", state, err)
		check.Has(t, wait.For, says, "%q: it waits for", state)
	}
}

// TestLicenceUnknown: a driver that does not answer does not say that its GPUs are licensed. The want
// waits for the driver, and is unknown where no change of the run makes it answer.
func TestLicenceUnknown(t *testing.T) {
	const silent = "-- sim.toml --\n[driver]\nversion = \"580.105.08\"\nwhy = \"NVML: UNKNOWN\"\ncode = \"UNKNOWN\"\n[[gpu]]\nmodel = \"T4\"\n"

	state, err := licensed().Thing.Look(t.Context(), drivertest.Node(t, silent))
	var later host.Later
	must.That(t, errors.As(err, &later), "%q, %v", state, err)
	check.Equal(t, later.Silent, "the driver does not answer: NVML: UNKNOWN", "why it is unknown:")

	replaced := unanswered{drivertest.Node(t, silent), &host.NoDriver{Why: "it was replaced", Again: true}}
	_, err = licensed().Thing.Look(t.Context(), replaced)
	check.That(t, errors.Is(err, host.NewProcess), "a replaced driver: %v", err)

	other := unanswered{drivertest.Node(t, silent), syscall.EIO}
	_, err = licensed().Thing.Look(t.Context(), other)
	check.That(t, errors.Is(err, syscall.EIO), "another error: %v", err)
}

// unanswered is a machine that the driver does not answer on.
type unanswered struct {
	*simhost.Node
	err error
}

func (u unanswered) Driver(context.Context) (host.Driver, error) { return host.Driver{}, u.err }

// TestGriddUnknown: systemd that does not answer does not say that the installer has brought the daemon.
func TestGriddUnknown(t *testing.T) {
	n := drivertest.Node(t, "-- var/lib/nvidia/log --\n1.0-58010508 (580.105.08)\n")

	state, err := griddInstalled().Thing.Look(t.Context(), unanswered{n, syscall.EIO})

	check.That(t, errors.Is(err, syscall.EIO), "%q, %v", state, err)
}

func (u unanswered) Unit(context.Context, string) (host.Unit, error) { return host.Unit{}, u.err }

// TestGridRefused: [driver.grid] is for guest drivers, with a feature type and a token that exist.
func TestGridRefused(t *testing.T) {
	guest := driver("580.105.08")
	guest.Source = "runfile"
	guest.Runfile.URL = "/x.run"
	for _, tt := range []struct {
		driver spec.Driver
		grid   spec.Grid
		says   string
	}{
		{guest, spec.Grid{FeatureType: 3}, "nvidia-gridd has no feature type 3"},
		{guest, spec.Grid{TokenFile: "/etc/token"}, "reads tokens whose names end in .tok"},
		{driver("580"), spec.Grid{FeatureType: 4}, "[driver.grid] is for the guest driver of NVIDIA vGPU"},
	} {
		tt.driver.Grid = tt.grid
		_, err := Choose(Load(), machine("ubuntu", "24.04", "amd64", "27b8"), tt.driver)
		check.Has(t, whole(err), tt.says, "it says")
	}
}
