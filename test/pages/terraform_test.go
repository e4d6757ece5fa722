// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const terraform = examples + "terraform/"

// TestTerraform: docs/examples/terraform is in Terraform's own form, is valid, and makes of
// example.tfvars the user data that TestLabCloudInit gives to cloud-init. It needs no provider, and so
// no network.
func TestTerraform(t *testing.T) {
	program, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("there is no terraform here")
	}
	folder := t.TempDir()
	for _, name := range []string{"main.tf", "example.tfvars"} {
		must.OK(t, os.WriteFile(filepath.Join(folder, name), example(t, terraform+name), 0o644))
	}

	var out []byte
	for _, args := range [][]string{
		{"fmt", "-check", "-diff"},
		{"init", "-input=false"},
		{"validate"},
		{"apply", "-auto-approve", "-input=false", "-var-file=example.tfvars"},
		{"output", "-raw", "user_data"},
	} {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_CLI_CONFIG_FILE=/dev/null")
		out, err = cmd.Output()
		must.That(t, err == nil, "terraform %v: %v\n%s", args, err, out)
	}

	if *update {
		must.OK(t, os.WriteFile(terraform+"user-data.yaml", out, 0o644))
	}
	check.Equal(t, string(out), string(example(t, terraform+"user-data.yaml")),
		"user-data.yaml; go test ./test/pages -run TestTerraform -update writes it:")
}

// TestTerraformUserData: in the user data that Terraform makes is a node.toml that gpuadm takes.
func TestTerraformUserData(t *testing.T) {
	var o struct {
		WriteFiles []struct{ Path, Content string } `yaml:"write_files"`
	}
	must.OK(t, yaml.Unmarshal(example(t, terraform+"user-data.yaml"), &o))
	must.That(t, len(o.WriteFiles) == 2, "it has %+v", o)
	s := specOf(t, "user-data.yaml", o.WriteFiles[0].Content)
	check.Equal(t, s.Node.Labels["example.com/pool"], "h100", "the label:")
	var join struct{ Kind string }
	must.OK(t, yaml.Unmarshal([]byte(o.WriteFiles[1].Content), &join))
	check.Equal(t, join.Kind, "JoinConfiguration", "the other file is a")
}
