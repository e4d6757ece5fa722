// SPDX-License-Identifier: Apache-2.0

package facts

import (
	_ "embed"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestAssignments(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "A=debian\n", "debian"},
		{"double quotes", `A="Debian GNU/Linux 12 (bookworm)"`, "Debian GNU/Linux 12 (bookworm)"},
		{"single quotes", `A='a "b" \n $c'`, `a "b" \n $c`},
		{"escapes in double quotes", `A="\$5 \"x\" \\ \` + "`" + ` \n"`, `$5 "x" \ ` + "`" + ` \n`},
		{"escapes outside", `A=a\ b\"c`, `a b"c`},
		{"quotes in the middle are kept", `A=a"b"c`, `a"b"c`},
		{"quoted parts join", `A="a"'b'c`, "abc"},
		{"trailing blanks go", "A=a b \t\nB=x", "a b"},
		{"escaped blank stays", "A=a\\ \nB=x", "a "},
		{"carriage return goes", "A=a\r\nB=x\r\n", "a"},
		{"comments", "# A=1\n;A=2\nA=3 # no comment\n", "3 # no comment"},
		{"goes on", "A=a\\\nb\n", "ab"},
		{"goes on in quotes", "A=\"a\\\nb\"\n", "ab"},
		{"newline in quotes", "A=\"a\nb\"\nB=x", "a\nb"},
		{"open quote", `A="abc`, "abc"},
		{"open single quote", `A='abc`, "abc"},
		{"empty", "A=\nB=x", ""},
		{"empty quotes", "A=\"\"\nB=x", ""},
		{"blanks around the name", "  A =x", "x"},
		{"no assignment before", "nonsense\nA=x", "x"},
		{"last backslash", `A=x\`, `x\`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := "not there"
			for _, kv := range Assignments(c.in) {
				if kv[0] == "A" {
					got = kv[1]
				}
			}

			check.That(t, got == c.want, "got %q, want %q", got, c.want)
		})
	}
}

func TestCommandLine(t *testing.T) {
	env := map[string]string{
		"OPTS": `--config=/etc/a.yaml --label "x y"`, "EMPTY": "", "HOME_DIR": "/root", "_X1": "1",
	}
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"plain", "/usr/bin/containerd", []string{"/usr/bin/containerd"}},
		{"prefixes", "-+/usr/bin/x -a", []string{"/usr/bin/x", "-a"}},
		{"named process", "@/usr/bin/x name -a", []string{"/usr/bin/x", "-a"}},
		{"no expansion", ":/usr/bin/x $OPTS", []string{"/usr/bin/x", "$OPTS"}},
		{"variable splits", "/usr/bin/x $OPTS", []string{"/usr/bin/x", "--config=/etc/a.yaml", "--label", "x y"}},
		{"empty variables vanish", "/usr/bin/x $EMPTY $MISSING -a", []string{"/usr/bin/x", "-a"}},
		{"braces do not split", "/usr/bin/x ${OPTS}", []string{"/usr/bin/x", `--config=/etc/a.yaml --label "x y"`}},
		{"braces inside", "/usr/bin/x --dir=${HOME_DIR}/y${_X1}", []string{"/usr/bin/x", "--dir=/root/y1"}},
		{"braces of nothing", "/usr/bin/x a${MISSING}b", []string{"/usr/bin/x", "ab"}},
		{"no braces inside a word", "/usr/bin/x a$HOME_DIR", []string{"/usr/bin/x", "a$HOME_DIR"}},
		{"dollars", "/usr/bin/x $$HOME 5$$", []string{"/usr/bin/x", "$HOME", "5$"}},
		{"not a name", "/usr/bin/x ${a b} $1 ${", []string{"/usr/bin/x", "${a", "b}", "$1", "${"}},
		{"quotes", `/usr/bin/x "a b" 'c "d"' e'f g'h`, []string{"/usr/bin/x", "a b", `c "d"`, "ef gh"}},
		{"escapes", `/usr/bin/x a\x20b \t\s \101 \u00e9 \\ "\""`, []string{"/usr/bin/x", "a b", "\t ", "A", "é", `\`, `"`}},
		{"percent", "/usr/bin/x 100%% %n", []string{"/usr/bin/x", "100%", "%n"}},
		{"second command", "/usr/bin/x a ; /usr/bin/y", []string{"/usr/bin/x", "a"}},
		{"empty argument", `/usr/bin/x ""`, []string{"/usr/bin/x", ""}},
		{"open quote", `/usr/bin/x "a b`, []string{"/usr/bin/x", "a b"}},
		{"nothing", "", nil},
		{"only prefixes", "@-", []string{""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := commandLine(c.in, func() map[string]string { return env })
			check.That(t, slices.Equal(got, c.want), "got %q, want %q", got, c.want)
		})
	}
}

func TestServiceFiles(t *testing.T) {
	s := &service{}
	s.add(`# vendor's
[Unit]
ExecStart=/not/here
[Service]
Environment=A=1 "B=x y"
ExecStart=/usr/bin/containerd \
; a comment in between
    --log-level=debug \
    # and another
    --config=/etc/a.toml
EnvironmentFile=-/etc/default/a
`)
	s.add("[Service]\nExecStart=\nExecStart = /opt/bin/containerd -c /etc/b.toml\nEnvironment=A=2\n")
	want := &service{
		start:    []string{"/opt/bin/containerd -c /etc/b.toml"},
		env:      []string{`A=1 "B=x y"`, "A=2"},
		envFiles: []string{"-/etc/default/a"},
	}
	check.None(t, cmp.Diff(want, s, cmp.AllowUnexported(service{})), "got")
	s = &service{}
	s.add("[Unit]\nRequires=containerd.service\n")
	s.add("[Unit]\nRequires=\nPartOf=gpu.target\n")
	check.List(t, s.requires, []string{"containerd.service", "gpu.target"}, "dependencies:")
	s = &service{}
	s.add("[Service]\nExecStart=/a \\\n  -b \\\n")
	check.List(t, Words(s.start[0]), []string{"/a", "-b"}, "a line that ends the file with a backslash:")
}

func TestOption(t *testing.T) {
	argv := []string{"x", "--config=/a", "-c", "/b", "--config-dir", "/d", "-config", "/c", "word", "--last"}
	for name, want := range map[string]string{"config": "/c", "c": "/b", "config-dir": "/d", "last": "", "missing": "", "word": ""} {
		check.Equal(t, option(argv, name), want, "%s: got", name)
	}
	check.Equal(t, option(argv, "config", "c"), "/c", "the last one wins: got")
}

func TestUpstream(t *testing.T) {
	for in, want := range map[string]string{
		"1.7.24~ds1-6+b4":               "1.7.24",
		"1.6.20~ds1-1+deb12u1":          "1.6.20",
		"1.7.28-0ubuntu1~24.04.1":       "1.7.28",
		"1.7.25-1":                      "1.7.25",
		"5:27.3.1-1~ubuntu.24.04~noble": "27.3.1",
		"26.1.3+dfsg1-2":                "26.1.3",
		"1.7.20-ubuntu22.04u1":          "1.7.20",
		"1.6.8+azure-ubuntu18.04u1":     "1.6.8",
		"2.0.0~rc.1-1":                  "2.0.0-rc.1",
		"2.0.0-rc.5":                    "2.0.0-rc.5",
		"1.7.0~beta4-1":                 "1.7.0-beta.4",
		"v1.31.4-eks-3d1f8a2":           "1.31.4",
		"v1.7.23-k3s2":                  "1.7.23",
		"v1.31.4+k3s1":                  "1.31.4",
		"2.1.5+unknown":                 "2.1.5",
		"1.31.4-1.1":                    "1.31.4",
		"27.3.1,":                       "27.3.1",
		"":                              "",
		"(devel)":                       "",
		"build":                         "",
		"7":                             "",
	} {
		check.Equal(t, upstream(in), want, "%s: got", in)
	}
}

func TestSpoken(t *testing.T) {
	for in, want := range map[string]string{
		"containerd github.com/containerd/containerd/v2 v2.1.5 fcd43222d6b07379a4be9786bda52438f0dd16a1\n": "2.1.5",
		"containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+b4\n":                         "1.7.24",
		"containerd github.com/k3s-io/containerd v1.7.23-k3s2 \n":                                          "1.7.23",
		"crio version 1.31.3\n   GitCommit:      abc\n   GoVersion: go1.23.4\n":                            "1.31.3",
		"Docker version 27.3.1, build 41ca978\n":                                                           "27.3.1",
		"Kubernetes v1.31.4\n":                                                                             "1.31.4",
		"nothing\n1.2.3\n":                                                                                 "",
		"":                                                                                                 "",
	} {
		check.Equal(t, versionIn(in), want, "%q: got", in)
	}
}

//go:embed testdata/dpkg-status
var statusFile string

func TestDpkgEntry(t *testing.T) {
	g := &gathering{v: files{"/var/lib/dpkg/status": statusFile}}
	e := g.dpkgEntry("containerd")
	check.That(t, e["Version"] == "1.7.24~ds1-6+b4" && e["Architecture"] == "amd64", "containerd: %v", e)
	check.That(t, g.dpkgEntry("missing") == nil, "a missing package has an entry")
}

func TestNewer(t *testing.T) {
	newestFirst := []string{
		"6.12.0", "6.12.0-rc3", "6.12.0-rc2", "6.8.0-1021-aws", "6.8.0-1009-aws", "6.8.0-45-generic",
		"6.1.119-129.201.amzn2023.x86_64", "6.1.0-28-amd64", "6.1.0-9-amd64",
		"5.14.0-503.11.1.el9_5.x86_64", "5.14.0-503.el9.x86_64", "5.14.0-70.13.1.el9_0.x86_64", "4.18.0-553.el8_10.x86_64",
	}
	sorted := slices.Clone(newestFirst)
	slices.Sort(sorted)
	slices.SortFunc(sorted, func(a, b string) int { return newer(b, a) })
	check.None(t, cmp.Diff(newestFirst, sorted), "got")
	check.That(t, newer("6.08", "6.8") == 0, "leading zeros do not count")
}

func TestDocument(t *testing.T) {
	yaml := "apiVersion: v1\nx:\n  cgroupDriver: cgroupfs\ncgroupDriver: \"systemd\" # why\nendpoint: unix:///run/x.sock # c\nempty:\nnote: # only\ncgroupDriverX: 1\n"
	for key, want := range map[string]string{
		"cgroupDriver": "systemd", "endpoint": "unix:///run/x.sock", "empty": "", "note": "", "missing": "", "x": "",
	} {
		check.Equal(t, parseSettings([]byte(yaml)).text(key), want, "%s: got", key)
	}
}

// TestOSIsPrintable: a value of os-release with characters that no vendor writes counts as not
// given.
func TestOSIsPrintable(t *testing.T) {
	for text, want := range map[string]OS{
		"ID=\"ubu\x1bntu\"\nVERSION_ID='24.04\n  because  forged'\n": {ID: "linux"},
		"ID=debian\nPRETTY_NAME=\"\u202eDebian\"\nVERSION_ID=12":     {ID: "debian", Version: "12"},
		"ID=debian\nID_LIKE=\"a\u2028b\"\nPRETTY_NAME=\"a\xffb\"":    {ID: "debian"},
		"ID=x\nPRETTY_NAME=\"Système 1 (Ünï)\"\nID_LIKE=\"a b\"":     {ID: "x", Name: "Système 1 (Ünï)", Like: []string{"a", "b"}},
	} {
		f := must.Get(Gather(t.Context(), files{"/etc/os-release": text}, Needs{}))(t)
		check.None(t, cmp.Diff(want, f.OS), "%q:", text)
	}
}
