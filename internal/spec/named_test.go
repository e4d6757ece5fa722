// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestEveryTextSaysWhatItNames: a key whose value is free text says what that names outside the
// spec, or that it names nothing. A path always names something.
func TestEveryTextSaysWhatItNames(t *testing.T) {
	free := 0
	for _, k := range spec.Keys() {
		isText := len(k.Allowed) == 0 && k.Type != spec.TypeBool && k.Type != spec.TypeInt
		if !isText {
			continue
		}
		free++
		check.That(t, k.Names != "", "%s says nothing in the column names of keys.tsv", k)
		check.That(t, !k.File || k.Names != spec.NamesNothing, "%s is a path, and names nothing", k)
	}

	check.That(t, free >= 30, "%d keys with free texts", free)
}

func TestNamed(t *testing.T) {
	const text = `format = 1
[driver]
version = "580"
parameters = { NVreg_B = 1, NVreg_A = 2 }
[driver.repo]
url = "https://mirror.example/cuda"
key = "/etc/gpuadm/key.asc"
fingerprint = "EB693B3035CD5710E231E123A4B469963BF863CC"
[node]
labels = { a = "b" }
[[mig.gpu]]
match = ["H100-80GB"]
layout = { "1g.10gb" = 7 }
`
	s, places, err := spec.Read(spec.File{Name: "n.toml", Data: []byte(text)})
	must.OK(t, err)

	var got []string
	for _, n := range s.Named() {
		got = append(got, n.String()+" "+strings.Join(n.Values, ","))
	}
	want := []string{
		"driver.version 580",
		"driver.parameters NVreg_A,NVreg_B",
		"driver.repo.url https://mirror.example/cuda",
		"driver.repo.key /etc/gpuadm/key.asc",
		"driver.repo.fingerprint EB693B3035CD5710E231E123A4B469963BF863CC",
	}
	check.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "named:")

	check.Equal(t, places.At("driver.repo.key").Line, 7, "the line of a key:")
	check.Equal(t, places.At("driver.parameters.NVreg_A", "driver.parameters").Line, 4, "the line of a parameter:")
	check.Equal(t, places.At("proxy.http", "driver.version").Line, 3, "the first key that is stated:")
	check.Equal(t, places.At("proxy.http").File, "", "a key that is not stated:")
}
