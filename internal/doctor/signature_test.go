// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestRefusedModule: a report calls no key unenrolled that the kernel trusts or whose list could not
// be read, and advises to import no key that is enrolled.
func TestRefusedModule(t *testing.T) {
	const (
		module   = `{"nvidia": {"path": "/m/nvidia.ko", "signer": {"name": "A", "id": "01"}}}`
		unsigned = `{"nvidia": {"path": "/m/nvidia.ko"}}`
		a        = `{"name": "A", "id": "01"}`
		b        = `{"name": "B", "id": "02"}`
		imports  = "sudo mokutil --import /mok.pub"
	)
	for name, x := range map[string]struct {
		module, trust string
		refused       bool
		what, command string
	}{
		"enrolled, and another module was refused": {
			module, `{"secureBoot": "on", "enrolled": [` + a + `], "build": ` + a + `}`, true,
			"the kernel refused a module; /m/nvidia.ko is signed by A; Secure Boot is on", "",
		},
		"enrolled": {module, `{"secureBoot": "on", "enrolled": [` + a + `], "build": ` + a + `}`, false, "", ""},
		"keys that could not be read": {
			module, `{"secureBoot": "on", "build": ` + a + `}`, true,
			"the kernel refused a module; /m/nvidia.ko is signed by A; Secure Boot is on", imports,
		},
		"not enrolled": {
			module, `{"secureBoot": "on", "enrolled": [` + b + `], "build": ` + a + `}`, false,
			"/m/nvidia.ko is signed by A, which is not enrolled; Secure Boot is on", imports,
		},
		"not signed, with an enrolled key to sign with": {
			unsigned, `{"secureBoot": "on", "enrolled": [` + b + `], "build": ` + b + `}`, false,
			"/m/nvidia.ko is not signed; Secure Boot is on", "",
		},
	} {
		var kernel facts.KernelModules
		must.OK(t, json.Unmarshal([]byte(x.module), &kernel))
		trust := facts.Trust{BuildCert: "/mok.pub"}
		must.OK(t, json.Unmarshal([]byte(x.trust), &trust))

		var found Finding
		for _, f := range refusedModule(kernel, trust, x.refused) {
			found = f
		}
		check.Equal(t, found.What, x.what, "%s: what", name)
		check.Equal(t, found.Command, x.command, "%s: command", name)
	}
}
