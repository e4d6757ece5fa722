// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuadm/gpuadm/test/must"
)

// flagVariables are the variables of all flags of all verbs.
func flagVariables(cmd *cobra.Command) []string {
	var all []string
	add := func(f *pflag.Flag) { all = append(all, variable(f.Name)) }
	cmd.PersistentFlags().VisitAll(add)
	cmd.Flags().VisitAll(add)
	for _, sub := range cmd.Commands() {
		all = append(all, flagVariables(sub)...)
	}
	return all
}

// TestEnvironment: the variables that the code names are those of gpuadm help environment and of docs/environment.md.
func TestEnvironment(t *testing.T) {
	word := regexp.MustCompile(`GPUADM_[A-Z_]*[A-Z]`)
	page, err := os.ReadFile("../../docs/environment.md")
	must.OK(t, err)
	documented := append(word.FindAllString(environment, -1), word.FindAllString(string(page), -1)...)
	of := flagVariables(newRoot(env{getenv: func(string) string { return "" }}))
	named := map[string]string{}
	err = filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".sh", ".service", ".yaml", ".txtar"}, filepath.Ext(name)) || strings.HasSuffix(name, "cmd/gpuadm/topics.go") {
			return err
		}
		data, err := os.ReadFile(name)
		for _, v := range word.FindAllString(string(data), -1) {
			named[v] = name
		}
		return err
	})
	must.OK(t, err)
	delete(named, "GPUADM_TEST")    // of a test of host.WithEnv
	delete(named, "GPUADM_VERSION") // of a test that it is not read
	for v, where := range named {
		if !slices.Contains(documented, v) && !slices.Contains(of, v) {
			t.Errorf("%s is in %s and on neither page", v, where)
		}
	}
	for _, v := range documented {
		if named[v] == "" && !slices.Contains(of, v) {
			t.Errorf("%s is documented, and nothing reads it", v)
		}
	}
}
