// SPDX-License-Identifier: Apache-2.0

// Command nodeadm replaces EKS's nodeadm in the lab, where that is not available: the Go module
// proxy serves one version of it, of February 2024, which reads neither /etc/eks/nodeadm.d nor a
// note of what it resolved. This one takes the same command line, and does to a machine what the
// real one does as far as gpuadm meets it: it merges the NodeConfigs of the user data and of that
// folder by the same rules, notes the result, writes the files of kubelet and containerd to the
// same places, and starts both through systemd.
// Source: https://github.com/awslabs/amazon-eks-ami at 81fec2e8, nodeadm. The lab's test runs with
// the real one, too, where GPUADM_TEST_NODEADM names its file.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// table is an object of YAML or JSON.
type table = map[string]any

// cached is what a run notes for the next one.
type cached struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       table  `json:"spec"`
	Status     status `json:"status"`
}

// status is what was asked of EC2 and of the machine.
type status struct {
	Instance struct {
		ID     string `json:"id"`
		Region string `json:"region"`
		Type   string `json:"type"`
		Zone   string `json:"availabilityZone"`
		Name   string `json:"privateDnsName"`
	} `json:"instance"`
	KubeletVersion string `json:"kubeletVersion"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nodeadm: "+err.Error())
		os.Exit(1)
	}
}

func run(args []string) error {
	var skip, sources []string
	cache := ""
	if len(args)%2 != 1 || args[0] != "init" {
		return errors.New("init [--skip config|run] [--config-source URL]... [--config-cache FILE]")
	}
	for i := 1; i < len(args); i += 2 {
		switch value := args[i+1]; args[i] {
		case "--skip":
			skip = append(skip, value)
		case "--config-source":
			sources = append(sources, value)
		case "--config-cache":
			cache = value
		default:
			return fmt.Errorf("no such flag: %s", args[i])
		}
	}
	node, known, err := resolve(sources, cache)
	if err != nil {
		return err
	}
	// What is known holds only for the spec it was found for: another one is configured again,
	// whatever is to be skipped.
	if !slices.Contains(skip, "config") || !known && there(cache) {
		if err := configure(node); err != nil {
			return err
		}
		text, err := json.Marshal(node)
		if err != nil {
			return err
		}
		if err := write(cache, string(text)); err != nil {
			return err
		}
	}
	if slices.Contains(skip, "run") {
		return nil
	}
	if err := write("/run/nodeadm/init", ""); err != nil {
		return err
	}
	for _, unit := range []string{"containerd.service", "kubelet.service"} {
		if output, err := exec.Command("systemctl", "restart", unit).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot restart %s: %w: %s", unit, err, output)
		}
	}
	return nil
}

// resolve merges the sources in their order; known says that they are what the note in cache has.
func resolve(sources []string, cache string) (node cached, known bool, err error) {
	spec := table{}
	for _, source := range sources {
		texts, err := read(source)
		if err != nil {
			return node, false, err
		}
		for _, text := range texts {
			var doc struct {
				Kind string
				Spec table
			}
			if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
				return node, false, fmt.Errorf("%s: %w", source, err)
			}
			if doc.Kind != "NodeConfig" {
				return node, false, fmt.Errorf("%s: no NodeConfig", source)
			}
			spec = merge(spec, doc.Spec)
		}
	}
	text, err := json.Marshal(spec) // numbers become what they are in the note
	if err == nil {
		spec = nil
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		return node, false, err
	}
	if text, err := os.ReadFile(cache); err == nil && json.Unmarshal(text, &node) == nil && reflect.DeepEqual(node.Spec, spec) {
		return node, true, nil
	}
	node = cached{APIVersion: "node.eks.aws/__internal", Kind: "NodeConfig", Spec: spec}
	for path, to := range map[string]*string{
		"instance-id": &node.Status.Instance.ID, "placement/region": &node.Status.Instance.Region, "instance-type": &node.Status.Instance.Type,
		"placement/availability-zone": &node.Status.Instance.Zone,
		"local-hostname":              &node.Status.Instance.Name, // the real one asks EC2: DescribeInstances
	} {
		if *to, err = metadata("/latest/meta-data/" + path); err != nil {
			return node, false, err
		}
	}
	out, err := exec.Command("kubelet", "--version").Output()
	node.Status.KubeletVersion = regexp.MustCompile(`v[0-9.]+`).FindString(string(out))
	return node, false, err
}

// read are the NodeConfigs of a source: one in the user data, which here is no MIME message, or
// those of a folder by name.
func read(source string) (texts []string, err error) {
	if source == "imds://user-data" {
		text, err := metadata("/latest/user-data")
		return []string{text}, err
	}
	folder, ok := strings.CutPrefix(source, "file://")
	if !ok {
		return nil, fmt.Errorf("no such source: %s", source)
	}
	files, err := os.ReadDir(folder)
	for _, f := range files {
		if ext := filepath.Ext(f.Name()); f.IsDir() || ext != ".yaml" && ext != ".yml" && ext != ".json" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	return texts, err
}

// merge puts one over the other: tables merge, kubelet's flags follow one another, all else
// replaces: lists too.
func merge(below, above table) table {
	for key, value := range above {
		a, aIs := below[key].(table)
		b, bIs := value.(table)
		was, wasList := below[key].([]any)
		more, moreList := value.([]any)
		switch {
		case aIs && bIs:
			below[key] = merge(a, b)
		case key == "flags" && wasList && moreList:
			below[key] = append(was, more...)
		default:
			below[key] = value
		}
	}
	return below
}

func there(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func write(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}
