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

// TestTerraform: terraform accepts the format of docs/examples/terraform and finds it valid, and makes
// from example.tfvars the user data that TestLabCloudInit gives to cloud-init. The example has no
// provider, so terraform needs no network.
func TestTerraform(t *testing.T) {
	program, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("there is no terraform here")
	}
	folder := t.TempDir()
	for _, name := range []string{"main.tf", "example.tfvars"} {
		must.OK(t, os.WriteFile(filepath.Join(folder, name), example(t, terraform+name), 0o644))
	}

	run := func(args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_CLI_CONFIG_FILE=/dev/null")
		out, err := cmd.Output()
		must.That(t, err == nil, "terraform %v: %v\n%s", args, err, out)
		return out
	}
	run("fmt", "-check", "-diff")
	run("init", "-input=false")
	run("validate")
	run("apply", "-auto-approve", "-input=false", "-var-file=example.tfvars")
	data := run("output", "-raw", "user_data")

	if *update {
		must.OK(t, os.WriteFile(terraform+"user-data.yaml", data, 0o644))
	}
	check.Equal(t, string(data), string(example(t, terraform+"user-data.yaml")),
		"user-data.yaml; go test ./test/pages -run TestTerraform -update writes it:")
}

// TestTerraformUserData: the user data that Terraform makes writes two files, a node.toml that gpuadm
// accepts, and kubeadm's.
func TestTerraformUserData(t *testing.T) {
	var data struct {
		Files []struct{ Path, Content string } `yaml:"write_files"`
	}
	must.OK(t, yaml.Unmarshal(example(t, terraform+"user-data.yaml"), &data))
	must.That(t, len(data.Files) == 2, "it has %+v", data)

	s := specOf(t, "user-data.yaml", data.Files[0].Content)
	check.Equal(t, s.Node.Labels["example.com/pool"], "h100", "the label:")

	var join struct{ Kind string }
	must.OK(t, yaml.Unmarshal([]byte(data.Files[1].Content), &join))
	check.Equal(t, join.Kind, "JoinConfiguration", "the other file is a")
}
