// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestDeclaredByOthers: sections of the same URL are disabled, whatever variables and mirrors they
// name; others stay.
func TestDeclaredByOthers(t *testing.T) {
	repos := []packages.Repository{{
		ID:  "driver",
		URL: "https://x.example/rhel9/x86_64/",
	}, {URL: "file:///srv/r"}}
	sys := packages.System{Arch: "amd64", Version: "9.6", Files: map[string][]byte{
		"/etc/dnf/vars/place": []byte("x.example\n"), "/etc/yum/vars/place": []byte("y.example"),
		"/srv/mirrors": []byte("# ours\nhttps://x.example/rhel9/$basearch/\n"), "/srv/metalink": []byte("<url protocol=\"https\">https://x.example/rhel9/x86_64/repodata/repomd.xml</url>"), "/srv/theirs": []byte("https://y.example/\n"),
	}}
	const other = "[other]\nbaseurl=https://x.example/rhel8/x86_64\nenabled=1\n"
	for text, off := range map[string]bool{
		"[cuda-rhel9-x86_64]\nname=x\nbaseurl=https://x.example/rhel9/x86_64\nenabled=1\ngpgcheck=1\n":     true,
		"[a]\nenabled = 1\nbaseurl = https://x.example/rhel$releasever/$basearch/\n":                       true,
		"[a]\nbaseurl=https://mirror.example/\n        https://x.example/rhel9/${basearch}\nname=no key\n": true,
		"[a]\nmirrorlist=https://x.example/rhel9/x86_64\n":                                                 true,
		"[a]\nbaseurl=file:/srv/r\n":                                        true,
		"[a]\nbaseurl=https://$place/rhel${releasever_major}/$basearch\n":   true,
		"[a]\nbaseurl=https://$placed/rhel9/$basearch\n":                    false,
		"[a]\nbaseurl=https://x.example/rhel9/x86_64\nenabled=0\n":          false,
		"[a]\nbaseurl=https://x.example/rhel9/x86_64/more\nenabled=1\n":     false,
		"[a]\nmirrorlist=file:///srv/mirrors\n":                             true,
		"[a]\nmetalink=file:///srv/metalink\n":                              true,
		"[a]\nmirrorlist=file:///srv/theirs\n":                              false,
		"[gpuadm-driver]\nbaseurl=https://y.example/\n":                     true,
		"[a]\nmetalink=https://x.example/list\n# https://x.example/rhel9\n": false,
	} {
		text = "# mine\n" + text + other
		out := string(dnf{}.Disable("x.repo", []byte(text), repos, sys))
		on := enabled("x.repo", []byte(out))
		check.That(t, (out != text) == off && on[len(on)-1].id == "other" && (!off || len(on) == 1), "of %s it made %s", text, out)
		check.That(t, string(dnf{}.Disable("x.repo", []byte(out), repos, sys)) == out, "twice: %s", out)
		back := string(packages.EnabledAgain([]byte(out)))
		check.That(t, back == text, "back is %s of %s", back, text)
	}
}
