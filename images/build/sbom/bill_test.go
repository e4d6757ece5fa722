// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licenseclassifier/v2/assets"
	"github.com/xeipuuv/gojsonschema"
)

// TestBakedBill: the bill of materials that bake writes is valid by CycloneDX's schema, and its library loses nothing of it.
func TestBakedBill(t *testing.T) {
	text, err := os.ReadFile("../../../stages/testdata/sbom.cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	if problems := problemsOf(t, text); problems != "" {
		t.Error(problems)
	}
	var bom cdx.BOM
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&bom); err != nil || bom.SpecVersion != cdx.SpecVersion1_6 || len(*bom.Components) != 4 {
		t.Errorf("%v: %+v", err, bom)
	}
	if bom.SerialNumber != "" || bom.Metadata.Timestamp != "" {
		t.Error("two bakes of the same would differ")
	}
	// The schema can refuse one.
	if problemsOf(t, bytes.Replace(text, []byte("SHA-256"), []byte("sha256"), 1)) == "" {
		t.Error("a digest of an unknown kind is valid")
	}
}

// TestLicences: each module that is linked into gpuadm has the text of its licence, and one without is refused.
func TestLicences(t *testing.T) {
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, form, _ := strings.Cut(string(makefile), "\nLINKED    := ")
	form, _, _ = strings.Cut(form, "\n")
	list := exec.Command("go", "list", "-deps", "-f", form, "./cmd/gpuadm")
	list.Dir = "../../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		t.Fatal(err)
	}
	all := foldersOf(bytes.NewReader(out))
	for path, folders := range all {
		if found, text, err := licences(known, path, folders); err != nil || len(text) < 500 {
			t.Errorf("%s: %v, %d bytes of text: %v", path, found, len(text), err)
		}
	}
	if all["std"] == nil || all["github.com/gpuadm/gpuadm"] == nil || len(all) < 20 {
		t.Errorf("go list names %d modules", len(all))
	}
	if inner := strings.Join(all["github.com/klauspost/compress"], "\n"); !strings.Contains(inner, "/xxhash") {
		t.Errorf("a package's own licence is not looked for: %s", inner)
	}
	for _, folders := range [][]string{nil, {t.TempDir()}} {
		if _, _, err := licences(known, "example.com/bare", folders); err == nil || !strings.Contains(err.Error(), "example.com/bare") {
			t.Errorf("a module without a licence: %v", err)
		}
	}
}

// problemsOf is what the schema that the library ships refuses.
func problemsOf(t *testing.T, text []byte) (problems string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) gojsonschema.JSONLoader {
		return gojsonschema.NewReferenceLoader("file://" + strings.TrimSpace(string(dir)) + "/schema/" + name)
	}
	shipped := gojsonschema.NewSchemaLoader()
	for id, name := range map[string]string{"spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		if err := shipped.AddSchema("http://cyclonedx.org/schema/"+id, at(name)); err != nil { // no network is asked
			t.Fatal(err)
		}
	}
	schema, err := shipped.Compile(at("bom-1.6.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	result, err := schema.Validate(gojsonschema.NewBytesLoader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range result.Errors() {
		problems += e.String() + "\n"
	}
	return problems
}
