// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const examples = "../../docs/examples/"

func example(t *testing.T, name string) []byte {
	t.Helper()
	text := must.Get(os.ReadFile(name))(t)
	return text
}

func specOf(t *testing.T, from, text string) spec.Spec {
	t.Helper()
	s, err := spec.Parse(spec.File{Name: from, Data: []byte(text)})
	check.That(t, err == nil, "%s: %v", from, err)
	return s
}

// TestExampleValues: gpuadm takes the node.toml of each example, and the policy lets it change each
// key that this names.
func TestExampleValues(t *testing.T) {
	type values struct {
		NodeToml string `yaml:"nodeToml"`
		Keys     []string
	}
	var shipped values
	must.OK(t, yaml.Unmarshal(example(t, "../../images/chart/values.yaml"), &shipped))
	names, err := filepath.Glob(examples + "*/values.yaml")
	must.That(t, err == nil && len(names) == 4, "%d examples, %v", len(names), err)
	for _, name := range names {
		v := values{Keys: shipped.Keys}
		must.OK(t, yaml.Unmarshal(example(t, name), &v))
		s := specOf(t, name, v.NodeToml)
		keys := slices.Collect(maps.Keys(s.Node.Labels))
		for _, taint := range s.Node.Taints {
			keys = append(keys, taint.Key)
		}
		if taint := s.Node.StartupTaint; strings.Contains(taint, ":") {
			keys = append(keys, taint[:strings.IndexAny(taint, "=:")])
		}
		for _, key := range keys {
			if !slices.ContainsFunc(v.Keys, func(k string) bool {
				domain, all := strings.CutSuffix(k, "*")
				return k == key || all && strings.HasPrefix(key, domain)
			}) {
				t.Errorf("%s: the policy does not let gpuadm change the key %s", name, key)
			}
		}
	}
}

// TestExampleKarpenter: a NodePool names the startup taint that gpuadm takes off on nodes of
// Karpenter.
func TestExampleKarpenter(t *testing.T) {
	names, err := filepath.Glob(examples + "*/karpenter.yaml")
	must.That(t, err == nil && len(names) == 2, "%d examples, %v", len(names), err)
	for _, name := range names {
		kinds := map[string]bool{}
		for d := yaml.NewDecoder(bytes.NewReader(example(t, name))); ; {
			var o struct {
				APIVersion string `yaml:"apiVersion"`
				Kind       string
				Spec       struct {
					Template struct {
						Spec struct {
							NodeClassRef  struct{ Group, Kind, Name string }    `yaml:"nodeClassRef"`
							StartupTaints []struct{ Key, Value, Effect string } `yaml:"startupTaints"`
						}
					}
				}
			}
			err := d.Decode(&o)
			if errors.Is(err, io.EOF) {
				break
			}
			must.OK(t, err)
			group, _, _ := strings.Cut(o.APIVersion, "/")
			kinds[group+" "+o.Kind] = true
			if pool := o.Spec.Template.Spec; o.Kind == "NodePool" {
				taints := pool.StartupTaints
				check.That(t, len(taints) == 1 && taints[0].Key == "readiness.k8s.io/gpu" && taints[0].Value == "pending" && taints[0].Effect == "NoSchedule",
					"%s: startup taints %v", name, taints)
				ref := pool.NodeClassRef
				check.That(t, kinds[ref.Group+" "+ref.Kind], "%s: there is no %s of %s", name, ref.Kind, ref.Group)
			}
		}

		check.That(t, kinds["karpenter.sh NodePool"], "%s has %v", name, kinds)
	}
}

// TestExampleUserData: cloud-init finds a node.toml in the user data that gpuadm takes, and nodeadm
// a NodeConfig.
func TestExampleUserData(t *testing.T) {
	message := must.Get(mail.ReadMessage(bytes.NewReader(example(t, examples+"eks/user-data.txt"))))(t)
	_, parameters, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	must.OK(t, err)
	found := map[string]bool{}
	for r := multipart.NewReader(message.Body, parameters["boundary"]); ; {
		part, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		must.OK(t, err)
		kind, _, err := mime.ParseMediaType(part.Header.Get("Content-Type"))
		must.OK(t, err)
		var o struct {
			APIVersion string                                        `yaml:"apiVersion"`
			WriteFiles []struct{ Path, Content, Permissions string } `yaml:"write_files"`
		}
		must.OK(t, yaml.NewDecoder(part).Decode(&o))
		switch {
		case kind == "text/cloud-config" && len(o.WriteFiles) == 1 && o.WriteFiles[0].Path == "/etc/gpuadm/node.toml":
			found[kind] = specOf(t, "user-data.txt", o.WriteFiles[0].Content).Join.Method == "eks"
		case kind == "application/node.eks.aws":
			found[kind] = o.APIVersion == "node.eks.aws/v1alpha1"
		}
	}

	check.That(t, found["text/cloud-config"] && found["application/node.eks.aws"], "the user data has %v", found)
}

// TestExampleKubeadm: in the user data for machines of one's own is a node.toml without [join], and
// gpuadm prepares the machine before kubeadm joins it.
func TestExampleKubeadm(t *testing.T) {
	var o struct {
		WriteFiles []struct{ Path, Content, Permissions string } `yaml:"write_files"`
		RunCmd     []string                                      `yaml:"runcmd"`
	}
	must.OK(t, yaml.Unmarshal(example(t, examples+"onprem/user-data.yaml"), &o))
	must.That(t, len(o.WriteFiles) == 2 && len(o.RunCmd) == 1, "it has %+v", o)
	s := specOf(t, "user-data.yaml", o.WriteFiles[0].Content)
	check.That(t, !s.Has("join") && s.Has("node"), "its sections are %v", s.Sections)
	var join struct{ APIVersion, Kind string }
	must.OK(t, yaml.Unmarshal([]byte(o.WriteFiles[1].Content), &join))
	if join.Kind != "JoinConfiguration" || o.WriteFiles[1].Permissions != "0600" {
		t.Errorf("the other file is a %s of mode %s", join.Kind, o.WriteFiles[1].Permissions)
	}
	if apply, join := strings.Index(o.RunCmd[0], "gpuadm apply --install"), strings.Index(o.RunCmd[0], "kubeadm join"); apply < 0 || join < apply {
		t.Errorf("the order is %s", o.RunCmd[0])
	}
}
