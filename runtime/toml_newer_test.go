// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"strings"
	"testing"
)

// TestNewerTOML: what containerd before 2.4 does not start with is refused for it, and nothing else is.
func TestNewerTOML(t *testing.T) {
	for text, what := range map[string]string{
		"a = {\n b = 1}\n":                        "a line break within { }",
		"a = { # c\n b = 1 }\n":                   "a line break within { }",
		"a = { b = 1, }\n":                        "a comma before }",
		"a = { b = [1,\n2], }\n":                  "a comma before }",
		"a = \"\\e[0m\"\n":                        "the escape \\e",
		"a = \"\"\"\n\\x41\"\"\"\n":               "the escape \\x",
		"a = 07:32\n":                             "a time without seconds",
		"a = 1979-05-27T07:32\n":                  "a time without seconds",
		"a = [07:32]\n":                           "a time without seconds",
		"a = { b = [1,\n2] }\n":                   "",
		"a = [ # c, }\n 1,\n]\n":                  "",
		"a = '\\e{'\n\n":                          "",
		"# a = {\n#}\nb = 1 # {\n":                "",
		"a = \"{\\\"\" # \"\nb = '''\n{\n,}'''\n": "",
		"a = \"\"\"{\n\\\\e\"\"\"\"\nb = 1\n":     "",
		"a = \"10:30\"\nb = 07:32:00\n":           "",
		"a = \"unix:///x:80\"\n[b]\n":             "",
	} {
		tree := Tree{Root: File{Path: etc + "/config.toml", Data: []byte("version = 2\n" + text)}}
		for _, version := range []string{"1.6.36", "1.7.24", "2.3.4", "2.4.2", ""} {
			_, err := Target(tree, Daemon{version}, handlers()[0])
			r := (*Refusal)(nil)
			switch refused := what != "" && version != "2.4.2" && version != ""; {
			case !refused && err != nil, refused && (!errors.As(err, &r) || r.Code != RefusedSyntax || !strings.Contains(r.Reason, what) || r.Line < 2):
				t.Errorf("%q, containerd %q: %v, want %q", text, version, err, what)
			}
		}
	}
}

// TestLatin1: bytes that are no UTF-8 are refused where they are, with words that are true for each containerd.
func TestLatin1(t *testing.T) {
	tree := Tree{Root: File{Path: etc + "/config.toml", Data: []byte("version = 2\n# \xf6\n")}}
	_, err := Target(tree, Daemon{"1.7.24"}, handlers()[0])
	r := (*Refusal)(nil)
	if !errors.As(err, &r) || r.Line != 2 || !strings.Contains(r.Reason, "byte 0xF6 is no UTF-8") || !strings.Contains(r.Fix, "iconv -f latin1") {
		t.Errorf("%v", err)
	}
}
