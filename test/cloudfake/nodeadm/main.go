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
//
// It is of nodeadm's internal version, which Kubernetes' libraries write without apiVersion and kind:
// setTargetKind in pkg/runtime/scheme.go of kubernetes/apimachinery.
type cached struct {
	Spec   table  `json:"spec"`
	Status status `json:"status"`
}

// status is what EC2 and the machine have answered.
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
	if len(args)%2 != 1 || args[0] != "init" {
		return errors.New("init [--skip config|run] [--config-source URL]... [--config-cache FILE]")
	}
	var skip, sources []string
	cache := ""
	for i := 1; i < len(args); i += 2 {
		value := args[i+1]
		switch args[i] {
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
	changed := !known && exists(cache)
	if changed || !slices.Contains(skip, "config") {
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

	return restart()
}

// restart starts both daemons again.
func restart() error {
	if err := write("/run/nodeadm/init", ""); err != nil {
		return err
	}
	for _, unit := range []string{"containerd.service", "kubelet.service"} {
		output, err := exec.Command("systemctl", "restart", unit).CombinedOutput()
		if err != nil {
			return fmt.Errorf("cannot restart %s: %w: %s", unit, err, output)
		}
	}

	return nil
}

// resolve merges the sources in their order; known reports whether the note in cache has the same.
func resolve(sources []string, cache string) (node cached, known bool, err error) {
	spec, err := mergeSources(sources)
	if err != nil {
		return node, false, err
	}
	text, err := os.ReadFile(cache)
	if err == nil && json.Unmarshal(text, &node) == nil && reflect.DeepEqual(node.Spec, spec) {
		return node, true, nil
	}

	node = cached{Spec: spec}
	instance := &node.Status.Instance
	for path, to := range map[string]*string{
		"instance-id":                 &instance.ID,
		"placement/region":            &instance.Region,
		"instance-type":               &instance.Type,
		"placement/availability-zone": &instance.Zone,
		"local-hostname":              &instance.Name, // the real one asks EC2: DescribeInstances
	} {
		if *to, err = metadata("/latest/meta-data/" + path); err != nil {
			return node, false, err
		}
	}

	out, err := exec.Command("kubelet", "--version").Output()
	node.Status.KubeletVersion = regexp.MustCompile(`v[0-9.]+`).FindString(string(out))

	return node, false, err
}

// mergeSources merges the sources in their order, with numbers as they are in the note.
func mergeSources(sources []string) (table, error) {
	spec := table{}
	for _, source := range sources {
		texts, err := read(source)
		if err != nil {
			return nil, err
		}
		for _, text := range texts {
			var doc struct {
				Kind string
				Spec table
			}
			if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
				return nil, fmt.Errorf("%s: %w", source, err)
			}
			if doc.Kind != "NodeConfig" {
				return nil, fmt.Errorf("%s: no NodeConfig", source)
			}
			spec = merge(spec, doc.Spec)
		}
	}

	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var asNoted table
	err = json.Unmarshal(text, &asNoted)

	return asNoted, err
}

// read are the NodeConfigs of a source: one in the user data, which here is not a MIME message, or
// those of a folder by name.
func read(source string) ([]string, error) {
	if source == "imds://user-data" {
		text, err := metadata("/latest/user-data")
		return []string{text}, err
	}
	folder, ok := strings.CutPrefix(source, "file://")
	if !ok {
		return nil, fmt.Errorf("no such source: %s", source)
	}

	var texts []string
	files, err := os.ReadDir(folder)
	for _, f := range files {
		isConfig := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(f.Name()))
		if f.IsDir() || !isConfig {
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

// merge puts one over the other: tables merge, kubelet's flags follow one another, and everything
// else is replaced, lists too.
func merge(below, above table) table {
	for key, value := range above {
		lower, lowerIsTable := below[key].(table)
		upper, upperIsTable := value.(table)
		flags, hasFlags := below[key].([]any)
		more, hasMore := value.([]any)
		switch {
		case lowerIsTable && upperIsTable:
			below[key] = merge(lower, upper)
		case key == "flags" && hasFlags && hasMore:
			below[key] = append(flags, more...)
		default:
			below[key] = value
		}
	}
	return below
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func write(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}
