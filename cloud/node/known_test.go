// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestKnownKeys wants every key of a Node that the code names explained, and every label that it makes up.
func TestKnownKeys(t *testing.T) {
	keyForm := regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z][A-Za-z0-9_.-]*$`)
	// What looks like a key and is none of a Node's labels, taints, conditions and annotations.
	other := regexp.MustCompile(`/v[0-9][a-z0-9]*$|^kubernetes\.io/(kube-apiserver-client|config\.source|service-account)|^authentication\.kubernetes\.io/|^k8s\.io/kubernetes$|^github\.com/`)
	owned := func(key string) bool { return ownerOf(key) != "" && !strings.HasPrefix(key, "nvidia.com/") } // gpuadm refuses to write them
	seen := 0
	for _, dir := range []string{".", "../kubelet", "../gke", "../aks", "../eks", "../../internal/facts", "../../internal/kube", "../../stages", "../../cmd/gpuadm"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") || name == "known.go" {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				key, err := strconv.Unquote(literal.Value)
				if err != nil || !keyForm.MatchString(key) || other.MatchString(key) || owned(key) {
					return true
				}
				seen++
				if _, ok := Know(strings.TrimSuffix(key, ".") + map[bool]string{true: ".x"}[strings.HasSuffix(key, ".")]); !ok {
					t.Errorf("%s has the key %s, which KnownKeys does not explain", name, key)
				}
				return true
			})
		}
	}
	if seen < 20 {
		t.Errorf("%d keys only were found in the code", seen)
	}
	goldens, _ := filepath.Glob("testdata/gfd/*")
	for _, name := range goldens {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			key, _, ok := strings.Cut(strings.TrimSpace(line), "=")
			if !ok || !keyForm.MatchString(key) {
				continue
			}
			seen++
			if _, ok := Know(key); !ok {
				t.Errorf("%s: the label %s is not explained", name, key)
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d keys only were found", seen)
	}
	for _, k := range KnownKeys() {
		if k.What == "" || k.By == "" || k.Try == "" || k.Is == "" {
			t.Errorf("%s leaves something empty", k.Key)
		}
	}
}
